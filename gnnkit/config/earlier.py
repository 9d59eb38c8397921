"""Converts an earlier run's configuration, or a file, to overrides."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.config.code import check_folder, key_of
from gnnkit.config.compose import MAIN, as_overrides
from gnnkit.config.keys import JobFacts, read, without_removed
from gnnkit.errors import UserError
from gnnkit.plugins import JOBS, PACKAGES, TASK_KEYS, arguments_of, load, names, options
from gnnkit.utils.documents import Json, read_yaml
from gnnkit.utils.ranges import local_path, shown
from gnnkit.utils.redaction import HIDDEN

RECORD = ".hydra"  # the run folder's subfolder where Hydra records configuration and overrides
_MODEL_SECTIONS = ("model", "task")  # sections that belong to a trained model
# Keys that belong to a trained model
_MODEL_KEYS = (*_MODEL_SECTIONS, "inputs", "features", "embedding", "label_inputs", "learned")
_STORAGE_KEYS = tuple(f"features.{key}" for key in ("place", "cache"))
_FREE_KEYS = (*_STORAGE_KEYS, "task.threshold")  # exceptions to `_MODEL_KEYS`
_RUN_KEYS = (*_MODEL_KEYS, "dataset", "partition", "strategy", "sampler", "workers", "seed")
_LAYOUT_KEYS = ("partition", "strategy", "sampler", "workers")  # keys that determine who computes what
_ONE_WORKER = {"strategy": "individual_sample", "workers": 1, "comm": "gloo"}  # on the CPU, in float64
_TRAINER_KEYS = ("precision", "evaluation_memory")
_PARTITION_KEYS = ("workers", "partition")  # keys that partitioned data determine
# Values of keys of earlier versions' preset_workload that are strategies now
_VARIANTS = {"correction": ("llcg", "coverage"), "split": ("dynamic",), "halo": ("cluster",)}
_FOLDER_KEYS = ("output", "on_exists")  # keys that a repeated run does not inherit


def of_run(folder: Path) -> Json:
    """Reads a run's configuration from its folder.

    Raises `UserError` if the folder is not a run folder.
    """
    if not folder.is_dir():
        raise UserError(f"checkpoint={folder} is not a folder: choose the folder of a run that has trained")
    if not (folder / "config.yaml").exists():
        raise UserError(f"checkpoint={folder} has no config.yaml: choose the folder of a run that has trained")
    config = read_yaml(folder / "config.yaml", f"checkpoint={folder}: config.yaml")
    if not isinstance(config, dict) or not all(isinstance(config.get(key), dict) for key in _MODEL_SECTIONS):
        raise UserError(f"checkpoint={folder}: config.yaml is not the configuration of a run")
    return _with_times(without_removed(_as_variant(config), convert=True, keep=False))


def _with_times(run: Json) -> Json:
    """Adds the key with which earlier versions read times as features."""
    section = run.get("dataset")
    if not isinstance(section, dict) or "time" in section or section.get("name") not in names("dataset"):
        return run
    parameters = inspect.signature(load("dataset", section["name"])).parameters
    return run | {"dataset": {**section, "time": []}} if "time" in parameters else run


def _as_variant(run: Json) -> Json:
    """Selects a recorded strategy that was a value of a key in earlier versions."""
    keys = run.get("strategy")
    if not isinstance(keys, dict) or keys.get("name") != "preset_workload":
        return run
    name = next((keys[key] for key, values in _VARIANTS.items() if keys.get(key) in values), None)
    if name is None:
        return run
    parameters = inspect.signature(load("strategy", name)).parameters if name in names("strategy") else ()
    return run | {"strategy": {"name": name} | {k: v for k, v in keys.items() if k in parameters and v is not None}}


def with_run(overrides: Sequence[str], from_python: Collection[str] = ()) -> list[str]:
    """Inserts the run's configuration before overrides that set `checkpoint`.

    Sections that an override selects are omitted, but new data is read like the run's
    data. Raises `UserError` for overrides that change the trained model, and for
    sections that the run received from Python, unless they are passed again.

    Args:
        from_python: Sections that are passed from Python.
    """
    override_values = {key_of(text): text.partition("=")[2] for text in overrides}
    job = _selected_job(override_values)
    job.check_keys(override_values)
    if not job.reads_strategy and "strategy" not in override_values:
        return ["strategy=auto", *overrides]  # the key is mandatory
    if override_values.get("checkpoint", "null") in ("", "null"):
        if job.reads_checkpoint:
            raise UserError(f"job={job.name} needs checkpoint=FOLDER of a run that has trained")
        return list(overrides)
    folder = local_path("checkpoint", override_values["checkpoint"].strip("'\"").replace("\\'", "'"))
    run = of_run(folder)
    _check_unchanged(override_values, folder)
    sections: Mapping[str, Any] = _inherited_sections(run, override_values, from_python, folder)
    if job.one_worker:
        sections = _on_one_worker(sections, override_values)
    trainer = {key: value for key, value in run.get("trainer", {}).items() if key in _TRAINER_KEYS}
    inherited_overrides = as_overrides({**_with_partitioner_name(sections), "trainer": trainer})
    return [*inherited_overrides, *_dataset_overrides(run, override_values), *overrides]


def _check_unchanged(override_keys: Collection[str], folder: Path) -> None:
    """Raises `UserError` for keys that would change the trained model."""
    for key in override_keys:
        if key.partition(".")[0] in _MODEL_KEYS and key not in _FREE_KEYS:
            raise UserError(f"{key} cannot be changed for checkpoint={folder}: leave the key out")


def _on_one_worker(sections: Mapping[str, Any], override_keys: Collection[str]) -> Mapping[str, Any]:
    """Returns sections with which one worker reads a few nodes.

    It reads all in-edges, or those that the sampler draws before each node's time.
    """
    other_sections = {key: value for key, value in sections.items() if key not in _LAYOUT_KEYS}
    if (sections.get("sampler") or {}).get("time", "none") != "none":
        other_sections["sampler"] = sections["sampler"]
    return other_sections | {key: value for key, value in _ONE_WORKER.items() if key not in override_keys}


def _inherited_sections(
    run: Mapping[str, Any], override_values: Mapping[str, str], from_python: Collection[str], folder: Path
) -> Json:
    """Returns the sections of a run that neither overrides nor Python replace."""
    sections = {
        key: value
        for key, value in run.items()
        if key in _RUN_KEYS and key not in override_values and value is not None
    }
    for kind in ("dataset", *_MODEL_SECTIONS):
        if kind in from_python:
            sections.pop(kind, None)
        elif kind in sections and (name := sections[kind].get("name")) not in options(kind):
            advice = (
                "pass the graph, as in gnnkit.predict(RUN, graph), or choose dataset=NAME"
                if kind == "dataset"
                else f"pass model={name}(...), an instance of that class, as in gnnkit.predict(RUN, graph, model=model)"
            )
            raise UserError(f"checkpoint={folder}: {kind}={name} was passed from Python: {advice}")
    if "dataset" in from_python and "task" in sections:  # a graph has one task
        sections["task"] = {key: value for key, value in sections["task"].items() if key not in TASK_KEYS}
    return sections


def _dataset_overrides(run: Mapping[str, Any], override_values: Mapping[str, str]) -> Iterator[str]:
    """Yields the overrides that apply a run's data set keys to new data.

    Args:
        override_values: Values that the command sets, by key.
    """
    run_dataset, name = _dataset_of(run), override_values.get("dataset", "").strip("'\"")
    if run_dataset is None:
        return
    if (
        "dataset" not in override_values
        and not _selected_job(override_values).needs_labels
        and any(key.startswith("dataset.") for key in override_values)
    ):
        for key in load("dataset", run_dataset.name).of_training:
            if key in run_dataset.arguments and f"dataset.{key}" not in override_values:
                yield f"++dataset.{key}=null"
    if name in names("dataset"):
        new = load("dataset", name)
        takes = inspect.signature(new).parameters
        for key, value in run_dataset.arguments.items():
            overriding_keys = {f"dataset.{key}", f"dataset.options.{key}"} & override_values.keys()
            if key in takes and key not in new.of_data and value is not None and not overriding_keys:
                yield from as_overrides({f"++dataset.{key}": value})


def read_otherwise(folder: str | Path, name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Describes the data set keys that differ from the trained run's.

    Args:
        folder: The run folder.
        name: The data set's name.
        arguments: The data set's arguments, by key.
    """
    run_dataset = _dataset_of(of_run(Path(folder)))
    if run_dataset is None or name not in names("dataset"):  # a graph from Python
        return ()
    of_data = {*load("dataset", run_dataset.name).of_data, *load("dataset", name).of_data}
    lines = []
    for key in sorted({*run_dataset.arguments, *arguments} - of_data):
        value, trained_value = arguments.get(key), run_dataset.arguments.get(key)
        if (value or None) != (trained_value or None):  # false equals None
            lines.append(
                f"dataset.{key}={_format_argument(value)}: the model of {folder} was trained with {_format_argument(trained_value)}"
            )
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class _RunDataset:
    """A run's data set, with its arguments."""

    name: str
    arguments: Mapping[str, Any]


def _dataset_of(run: Mapping[str, Any]) -> _RunDataset | None:
    """Returns a run's data set, or None if it is not installed."""
    section = run.get("dataset")
    if not isinstance(section, dict) or section.get("name") not in names("dataset"):
        return None
    return _RunDataset(section["name"], arguments_of("dataset", section))


def _format_argument(value: Any) -> str:
    return "null" if value is None else shown(str(value).lower() if isinstance(value, bool) else value)


def _selected_job(override_values: Mapping[str, str]) -> type[JobFacts]:
    """Returns the job that overrides select, or the defaults if it is unknown.

    Raises `UserError` if the job's package is not installed.
    """
    name = override_values.get("job", "").strip("'\"")
    return load("job", name) if name in {*names("job"), *PACKAGES["job"]} else JobFacts


def _with_partitioner_name(config: Mapping[str, Any]) -> Json:
    """Returns a composed configuration with the partitioner under `name`."""
    section = config.get("partition")
    if not isinstance(section, dict) or "nodes" not in section:
        return dict(config)
    arguments = {key: value for key, value in section.items() if key != "nodes"}
    return {**config, "partition": {"name": section["nodes"], **arguments}}


def with_data(overrides: Sequence[str], user_overrides: Sequence[str]) -> list[str]:
    """Inserts the keys that the data determine, unless the user has set them.

    Partitioned data determine the number of workers. If the user has set another
    number, it is inserted as `parts` instead. User values `auto` are replaced, and so
    are a checkpoint's keys that do not belong to its model.

    Args:
        user_overrides: The overrides that the user has typed.
    """
    override_values, user_values = (
        {key_of(text): text.partition("=")[2].strip("'\"") for text in texts} for texts in (overrides, user_overrides)
    )
    model_keys = {key.partition(".")[0] for key in override_values if key not in _STORAGE_KEYS}.intersection(
        _MODEL_KEYS
    )
    name, root = override_values.get("dataset", ""), override_values.get("dataset.root", "").replace("\\'", "'")
    if name not in names("dataset") or not root:
        return list(overrides)
    keys = _keys_of_data(
        load("dataset", name).brought_keys(root), override_values.get("job", "train"), user_values.get("workers")
    )
    data_values = {key: value for key, value in keys.items() if key not in model_keys and not _is_set(key, user_values)}
    other_overrides = [
        text for text in overrides if key_of(text).partition(".")[0] not in data_values or key_of(text) in _STORAGE_KEYS
    ]
    return [*as_overrides(_with_partitioner_name(data_values)), *other_overrides]


def _is_set(key: str, user_values: Mapping[str, str]) -> bool:
    """Checks whether the user has set a key, or one of its section's keys."""
    return user_values.get(key, "auto") not in ("auto", "null") or any(
        user_key.startswith(f"{key}.") and user_key not in _STORAGE_KEYS for user_key in user_values
    )


def _keys_of_data(brought: Mapping[str, Any], job_name: str, workers: str | None) -> Json:
    """Returns the data's keys that the job reads, with `parts` if `workers` differs."""
    job = _selected_job({"job": job_name})
    keys = {key: value for key, value in brought.items() if not job.cuts or key not in _PARTITION_KEYS}
    is_other = workers not in (None, "auto", "null", str(keys.get("workers")))
    if is_other and not job.reads_plan:  # fewer workers, with several parts each
        keys = {"parts" if key == "workers" else key: value for key, value in keys.items()}
    return keys


def of_file(name: str, config_dirs: Sequence[Path], overrides: Sequence[str]) -> tuple[list[str], str]:
    """Converts a file, possibly a run's `config.yaml`, to overrides.

    A file with a `defaults` list is left to Hydra. Sections that an override selects
    are omitted.

    Args:
        name: The file's name in one of the folders, without `.yaml`.
        config_dirs: The user's folders.

    Returns:
        The values, which precede the overrides, and the main configuration's name.
    """
    name = name.removesuffix(".yaml")
    path = _find_file(name, config_dirs)
    if path is None:
        return [], MAIN
    values = _read_values(path)
    if "defaults" in values:
        if name == MAIN:
            raise UserError(f"--config-name {name}: {path} has defaults: rename the file, as this name is reserved")
        return [], name
    override_values = {key_of(text): text.partition("=")[2].strip("'\"") for text in overrides}
    is_run = (path.parent / RECORD).is_dir()
    values = without_removed(_as_variant(values) if is_run else values, convert=is_run, keep=True)
    sections = {key: value for key, value in values.items() if key not in override_values and value is not None}
    if is_run:
        ignored_keys = {*_FOLDER_KEYS, *_keys_of_other_jobs(override_values.get("job", str(values.get("job", ""))))}
        sections = {key: value for key, value in sections.items() if key not in ignored_keys}
    overrides_of_file = as_overrides(_with_partitioner_name(sections))
    for text in overrides_of_file:
        if HIDDEN in text and key_of(text) not in override_values:
            raise UserError(f"{path}: {key_of(text)} was a secret and was not saved: set {key_of(text)}=VALUE")
    return overrides_of_file, MAIN


def _keys_of_other_jobs(name: str) -> set[str]:
    """Returns the keys, or sections, that only other jobs read.

    Earlier versions saved them in the configuration of every run.
    """
    return {key.name.partition(".")[0] for job in options(JOBS) if job != name for key in read(JOBS, job).keys}


def _find_file(name: str, config_dirs: Sequence[Path]) -> Path | None:
    """Returns the first file with this name. The main configuration needs no file."""
    path = next((path for folder in config_dirs if (path := folder / f"{name}.yaml").is_file()), None)
    if path is None and name != MAIN:
        file_names = sorted({path.stem for folder in config_dirs for path in folder.glob("*.yaml")})
        raise UserError(
            f"--config-name {name}: no such file in any --config-dir, there are: {', '.join(file_names) or 'none'}"
        )
    return path


def _read_values(path: Path) -> Json:
    check_folder(path.parent)
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of keys to values")
    return values
