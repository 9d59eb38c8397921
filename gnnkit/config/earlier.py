"""The configuration of an earlier run, or of a file, as overrides."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.config.code import key_of
from gnnkit.config.compose import MAIN, as_overrides
from gnnkit.config.jobs import JOBS, JobFacts
from gnnkit.documents import read_yaml
from gnnkit.errors import UserError
from gnnkit.plugins import arguments_of, load, names, options
from gnnkit.ranges import local_path, shown
from gnnkit.redaction import HIDDEN

RECORD = ".hydra"  # folder in a run folder: the configuration and overrides as Hydra keeps them
_OF_MODEL = ("model", "task")  # sections that belong to a trained model
_FIXED = (*_OF_MODEL, "inputs", "features", "embedding", "learned")  # keys that do
_PLACES = tuple(
    f"features.{key}" for key in ("place", "cache", "policy", "direct", "reads")
)  # of these, keys that do not
_OF_RUN = (*_FIXED, "dataset", "partition", "strategy", "sampler", "workers", "seed")
_OF_TRAINER = ("precision", "evaluation_memory")
_OF_CUT = ("workers", "partition")  # keys of data that are cut already
_OF_FOLDER = ("output", "on_exists")  # keys that a repeated run does not take over


def of_run(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run from the run folder.

    Raises `UserError` for any other folder.
    """
    if not folder.is_dir():
        raise UserError(f"checkpoint={folder} is not a folder: choose the folder of a run that has trained")
    composed = read_yaml(folder / "config.yaml", f"checkpoint={folder}: config.yaml")
    if not isinstance(composed, dict) or not all(isinstance(composed.get(key), dict) for key in _OF_MODEL):
        raise UserError(f"checkpoint={folder}: config.yaml is not the configuration of a run")
    return composed


def with_run(overrides: Sequence[str], given: Collection[str] = ()) -> list[str]:
    """Puts the configuration of a run before overrides that name `checkpoint`.

    A section that an override chooses anew is left out, but new data is read as the
    data of the run was. Model and task stay those of the run. Raises `UserError` for
    overrides of either, and for sections that the run got from Python, unless given
    again.

    Args:
        overrides: As on the command line.
        given: Sections that come from Python.
    """
    named = {key_of(text): text.partition("=")[2] for text in overrides}
    job = _job(named)
    if job.reads_data_only and (other := next((key for key in named if not _of_data(key)), None)):
        raise UserError(
            f"{other}: job={job} chooses for your data, leave the key out and edit the file that is written"
        )
    if not job.reads_strategy and "strategy" not in named:
        return ["strategy=auto", *overrides]  # the key must have a value
    if named.get("checkpoint", "null") in ("", "null"):
        if job.reads_checkpoint:
            raise UserError(f"job={job} needs checkpoint=FOLDER of a run that has trained")
        return list(overrides)
    folder = local_path("checkpoint", named["checkpoint"].strip("'\"").replace("\\'", "'"))
    run = of_run(folder)
    for key in named:
        if key.partition(".")[0] in _FIXED and key not in _PLACES:
            raise UserError(f"{key} cannot be changed for checkpoint={folder}: leave the key out")
    sections = {key: value for key, value in run.items() if key in _OF_RUN and key not in named and value is not None}
    for kind in ("dataset", *_OF_MODEL):
        if kind in given:
            sections.pop(kind, None)
        elif kind in sections and (name := sections[kind].get("name")) not in options(kind):
            way = "choose dataset=NAME" if kind == "dataset" else f"use gnnkit.predict with {kind}="
            raise UserError(f"checkpoint={folder}: {kind}={name} was handed in from Python: {way}")
    trainer = {key: value for key, value in run.get("trainer", {}).items() if key in _OF_TRAINER}
    taken = [*as_overrides({**_named(sections), "trainer": trainer}), *_for_new_data(run, named)]
    return [*taken, *overrides]


def _for_new_data(run: Mapping[str, Any], named: Mapping[str, str]) -> Iterator[str]:
    """Spells the keys by which other data than that of a run is read.

    Args:
        run: The configuration of the run.
        named: Values that the command names, by key.
    """
    trained, name = _dataset_of(run), named.get("dataset", "").strip("'\"")
    if trained is None:
        return
    if "dataset" not in named and not _job(named).needs_labels and any(key.startswith("dataset.") for key in named):
        for key in load("dataset", trained.name).of_training:
            if key in trained.arguments and f"dataset.{key}" not in named:
                yield f"++dataset.{key}=null"
    if name in names("dataset"):
        new = load("dataset", name)
        takes = inspect.signature(new).parameters
        for key, value in trained.arguments.items():
            named_here = {f"dataset.{key}", f"dataset.options.{key}"} & named.keys()
            if key in takes and key not in new.of_data and value is not None and not named_here:
                yield from as_overrides({f"++dataset.{key}": value})


def read_otherwise(folder: str | Path, name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Says which keys of a data set read other data than a run has trained on.

    Args:
        folder: The run folder.
        name: The data set.
        arguments: Of the data set, by key.
    """
    trained = _dataset_of(of_run(Path(folder)))
    if trained is None or name not in names("dataset"):  # a graph from Python
        return ()
    of_data = {*load("dataset", trained.name).of_data, *load("dataset", name).of_data}
    lines = []
    for key in sorted({*trained.arguments, *arguments} - of_data):
        here, there = arguments.get(key), trained.arguments.get(key)
        if (here or None) != (there or None):  # false and none are the same
            lines.append(f"dataset.{key}={_spelt(here)}, and the model of {folder} was trained with {_spelt(there)}")
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class _DataOfRun:
    """The data set of a run, with the values of its keys."""

    name: str
    arguments: Mapping[str, Any]


def _dataset_of(run: Mapping[str, Any]) -> _DataOfRun | None:
    """Returns the data set of a run. None where none of that name is installed."""
    section = run.get("dataset")
    if not isinstance(section, dict) or section.get("name") not in names("dataset"):
        return None
    return _DataOfRun(section["name"], arguments_of("dataset", section))


def _spelt(value: Any) -> str:
    return "null" if value is None else shown(str(value).lower() if isinstance(value, bool) else value)


def _job(named: Mapping[str, str]) -> JobFacts:
    """Returns the job that overrides name. For another name, that of no special job."""
    return JOBS.get(named.get("job", ""), JobFacts(""))


def _of_data(key: str) -> bool:
    """Says whether a job reads a key that reads nothing but data."""
    return key.partition(".")[0] in ("dataset", "job", "output", "init", "cache", "seed")


def _named(composed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a composed configuration with the partitioner under `name`."""
    section = composed.get("partition")
    if not isinstance(section, dict) or "nodes" not in section:
        return dict(composed)
    rest = {key: value for key, value in section.items() if key != "nodes"}
    return {**composed, "partition": {"name": section["nodes"], **rest}}


def with_data(overrides: Sequence[str], own: Sequence[str]) -> list[str]:
    """Puts the keys that data bring before overrides, unless the user has named these.

    Data that were cut for a number of workers bring this number, as `parts` where the
    user has named another number of workers. A value `auto` of the user gives way, and
    so do keys of a checkpoint that do not belong to its model.

    Args:
        overrides: As on the command line.
        own: Those of the overrides that the user has named.
    """
    named, users = ({key_of(text): text.partition("=")[2].strip("'\"") for text in texts} for texts in (overrides, own))
    fixed = {key.partition(".")[0] for key in named if key not in _PLACES}.intersection(_FIXED)
    name, root = named.get("dataset", ""), named.get("dataset.root", "").replace("\\'", "'")
    if name not in names("dataset") or not root:
        return list(overrides)
    keys = dict(load("dataset", name).brought_keys(root))
    job = JOBS.get(named.get("job", "train"))
    if job is not None and job.cuts:
        keys = {key: value for key, value in keys.items() if key not in _OF_CUT}
    is_other = users.get("workers", "auto") not in ("auto", "null", str(keys.get("workers")))
    if is_other and job is not None and not job.reads_plan:  # fewer workers, of several parts each
        keys = {"parts" if key == "workers" else key: value for key, value in keys.items()}
    brought = {
        key: value
        for key, value in keys.items()
        if users.get(key, "auto") in ("auto", "null")
        and not any(other.startswith(f"{key}.") and other not in _PLACES for other in users)
        and key not in fixed
    }
    rest = [text for text in overrides if key_of(text).partition(".")[0] not in brought or key_of(text) in _PLACES]
    return [*as_overrides(_named(brought)), *rest]


def of_file(name: str, config_dirs: Sequence[Path], overrides: Sequence[str]) -> tuple[list[str], str]:
    """Spells the values of a file as overrides. The file may be that of a run.

    A file with a list of `defaults` is composed by Hydra instead. A section that an
    override chooses anew is left out.

    Args:
        name: Name of the file in one of the folders, without `.yaml`.
        config_dirs: Folders of the user.
        overrides: As on the command line.

    Returns:
        The values, to stand before the overrides, and the main configuration's name.
    """
    name = name.removesuffix(".yaml")
    path = next((path for folder in config_dirs if (path := folder / f"{name}.yaml").is_file()), None)
    if path is None:
        if name == MAIN:
            return [], MAIN
        listed = sorted({path.stem for folder in config_dirs for path in folder.glob("*.yaml")})
        raise UserError(
            f"--config-name {name}: no such file in any --config-dir, there are: {', '.join(listed) or 'none'}"
        )
    values = _mapping(path)
    if "defaults" in values:
        if name == MAIN:
            raise UserError(f"--config-name {name}: {path} has defaults, give the file another name than ours")
        return [], name
    named = {key_of(text) for text in overrides}
    sections = {key: value for key, value in values.items() if key not in named and value is not None}
    if (path.parent / RECORD).is_dir():
        sections = {key: value for key, value in sections.items() if key not in _OF_FOLDER}
    overrides_of_file = as_overrides(_named(sections))
    for text in overrides_of_file:
        if HIDDEN in text and key_of(text) not in named:
            raise UserError(f"{path}: {key_of(text)} was a secret and was not kept: give {key_of(text)}=VALUE")
    return overrides_of_file, MAIN


def _mapping(path: Path) -> dict[str, Any]:
    from gnnkit.config.code import check_folder

    check_folder(path.parent)
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} is no mapping of keys to values")
    return values
