"""Composes configurations: overrides as on the command line in, plain data out.

Configuration is data. Nothing in a configuration is evaluated or called: no `_target_`,
no resolvers, no settings of Hydra itself. Hydra is imported at the first call.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.plugins import KINDS, SEVERAL, conf_folders, names, options
from gnnkit.ranges import shown, unknown, unknown_key

SECTIONS = (*KINDS, "trainer")  # keys that choose a YAML file
_OF_MODEL = ("model", "task")  # sections that belong to a trained model
_FIXED = (*_OF_MODEL, "inputs", "embedding")  # keys that do
_OF_TRAINED = ("predict", "test")  # jobs
_OF_RUN = (*_FIXED, "dataset", "partition", "strategy", "sampler", "workers", "seed")
_OF_TRAINER = ("precision", "evaluation_memory")
_NO_NAME = re.compile(
    r"|null|true|false|nan|[-+]?(inf|[\d._]+(e[-+]?\d+)?)|\w*[(\[{].*", re.IGNORECASE
)  # Hydra's values


def compose(overrides: Sequence[str] = (), *, config_dir: Path | None = None) -> dict[str, Any]:
    """Composes `conf/config.yaml` and command-line overrides to plain data.

    Raises `UserError` with the key and the nearest known key for all that Hydra
    refuses, for missing values, and for anything that would run code.

    Args:
        overrides: As on the command line, such as `model=gcn` and `model.hidden=8`.
        config_dir: A folder of the user's own YAML, searched after ours.
    """
    for text in overrides:
        _refuse_code(text, f"override {text!r}")
        _refuse_hydra(_key(text), f"override {text!r}")
        _check_choice(text)
    folders = conf_folders()
    if config_dir is not None:
        _check_folder(config_dir)
        folders.append(config_dir.resolve())
    _register_without_yaml(folders)
    return _compose([_spell(text) for text in overrides], folders)


def of_run(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run from the run folder.

    Raises `UserError` for any other folder.
    """
    import yaml

    try:
        found = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"checkpoint={folder}: config.yaml cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in _OF_MODEL):
        raise UserError(f"checkpoint={folder}: config.yaml is not the configuration of a run")
    return found


def with_run(overrides: Sequence[str], given: Collection[str] = ()) -> list[str]:
    """Puts the configuration of a run before overrides that name `checkpoint`.

    A section that an override chooses anew is left out. Model and task stay those of
    the run. Raises `UserError` for overrides of either, and for sections that the run
    got from Python, unless given again.

    Args:
        overrides: As on the command line.
        given: Sections that come from Python.
    """
    named = {_key(text): text.partition("=")[2] for text in overrides}
    if named.get("checkpoint", "null") in ("", "null"):
        if named.get("job") in _OF_TRAINED:
            raise UserError(f"job={named['job']} needs checkpoint=FOLDER of a run that has trained")
        return list(overrides)
    folder = Path(named["checkpoint"].strip("'\"").replace("\\'", "'"))
    run = of_run(folder)
    for key in named:
        if key.partition(".")[0] in _FIXED:
            raise UserError(f"{key} cannot be changed for checkpoint={folder}: leave the key out")
    kept = {key: value for key, value in run.items() if key in _OF_RUN and key not in named and value is not None}
    for kind in ("dataset", *_OF_MODEL):
        if kind in given:
            kept.pop(kind, None)
        elif kind in kept and (name := kept[kind].get("name")) not in options(kind):
            way = "choose dataset=NAME" if kind == "dataset" else f"use gnnkit.predict with {kind}="
            raise UserError(f"checkpoint={folder}: {kind}={name} was handed in from Python: {way}")
    if "partition" in kept:
        kept["partition"] = {"name": kept["partition"].pop("nodes"), **kept["partition"]}
    trainer = {key: value for key, value in run.get("trainer", {}).items() if key in _OF_TRAINER}
    return [*as_overrides(kept), *as_overrides({"trainer": trainer}), *overrides]


def as_overrides(keys: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Spells Python values as overrides.

    `{"model": {"name": "gcn", "hidden": 8}}` becomes `model=gcn model.hidden=8`.
    """
    overrides = []
    for key, value in keys.items():
        if key in SEVERAL and not prefix:
            overrides += _several(key, value)
        elif isinstance(value, Mapping):
            chosen = [f"{prefix}{key}={_literal(value['name'])}"] if "name" in value else []
            rest = {name: item for name, item in value.items() if name != "name"}
            overrides += chosen + as_overrides(rest, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={_literal(value)}")
    return overrides


def _several(kind: str, given: Any) -> list[str]:
    """Spells the choice of any number of plugins as overrides.

    Args:
        kind: One of `plugins.SEVERAL`.
        given: A name, a mapping with name and keys, a list of these, or None for none.
            Also the section of a composed configuration.
    """
    if isinstance(given, Mapping) and "name" not in given:
        given = [{"name": name, **keys} for name, keys in given.items()]
    parts = given if isinstance(given, list | tuple) else [] if given is None else [given]
    chosen = [part if isinstance(part, Mapping) else {"name": part} for part in parts]
    own = {part["name"]: {key: value for key, value in part.items() if key != "name"} for part in chosen}
    return [f"{kind}={_literal(list(own))}", *as_overrides(own, f"{kind}.")]


def dotted(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields all keys of nested mappings, as in `model.hidden`."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")


def _literal(value: Any) -> str:
    """Spells a plain value in Hydra's grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_literal, value))}]"
    return QuotedString(str(value), Quote.single).with_quotes()


def _compose(overrides: list[str], folders: list[Path]) -> dict[str, Any]:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = _hydra(overrides, folders)
        _refuse_code_in(OmegaConf.to_container(config), "the configuration")
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise _missing(missing[0])
        return typing.cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))
    except UserError:
        raise
    except OverrideParseException as error:
        raise UserError(
            f"cannot read {shown(error.override)!r}: write KEY=VALUE ({shown(_first_line(error))})"
        ) from error
    except MissingConfigException as error:
        kind, _, name = (error.missing_cfg_file or "").rpartition("/")
        raise unknown(f"{kind}={name}", name, options(kind)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise (_unknown_key(overrides, folders) or UserError(_first_line(error))) from error
    except RecursionError as error:
        raise UserError("the configuration is nested too deeply to be read") from error
    except (OSError, ValueError) as error:  # too long a name, a choice of options that is no name
        raise UserError(f"the configuration cannot be read: {shown(error)}") from error


def _hydra(overrides: list[str], folders: list[Path]) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.types import Quote, QuotedString

    paths = ",".join(QuotedString(f"file://{folder}", Quote.single).with_quotes() for folder in folders[1:])
    with initialize_config_dir(str(folders[0]), job_name="gnnkit", version_base=None):
        return compose("config", [*overrides, f"hydra.searchpath=[{paths}]"])


def _unknown_key(overrides: list[str], folders: list[Path]) -> UserError | None:
    """Finds why Hydra may have refused.

    The reason is the first override of a key that the chosen options lack.
    """
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    groups = [text for text in overrides if _key(text) in KINDS]
    try:
        composed = typing.cast("dict[str, Any]", OmegaConf.to_container(_hydra(groups, folders)))
    except HydraException:
        return None
    known = set(dotted(composed))
    key = next((key for text in overrides if text[0] not in "+~" and (key := _key(text)) not in known), None)
    if key is None:
        return None
    section, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if section in SEVERAL and name in names(section) and name not in composed.get(section, {}):
        return UserError(f"{key} needs {section}={name}, which is not chosen: choose it, or leave the key out")
    if section in KINDS and section not in composed:  # only a sampler may be left out
        return UserError(
            f"{key} needs a {section}, and none is chosen: leave the key out, or choose {section}=NAME "
            "for a strategy that draws"
        )
    return unknown_key(key, known)


def _register_without_yaml(folders: Sequence[Path]) -> None:
    """Makes `kind=name` work for plugins that ship no YAML."""
    from hydra.core.config_store import ConfigStore

    for kind in KINDS:
        key = "nodes" if kind == "partition" else "name"
        grid = {"grid": "1d", "replication": None, "border": "none"} if kind == "partition" else {}
        for name in names(kind):
            if not any((folder / kind / f"{name}.yaml").exists() for folder in folders):
                node: dict[str, Any] = {key: name, **grid, "options": {}}
                node = {name: node} if kind in SEVERAL else node
                ConfigStore.instance().store(name, node, group=kind, provider="gnnkit")


def _spell(text: str) -> str:
    """Adds the `+` that Hydra wants for a group without default and for new keys."""
    if _key(text) == "strategy" and text[0] not in "+~":
        return f"+{text}"
    return f"++{text}" if re.match(rf"({'|'.join(KINDS)})(\.\w+)?\.options[.=]", text) else text


def _check_choice(text: str) -> None:
    """Refuses choices of options that Hydra would not report by their key."""
    key, _, value = text.partition("=")
    if not _key(text):
        raise UserError(f"cannot read {text!r}: write KEY=VALUE")
    if "@" in key:
        raise UserError(f"override {text!r}: write KIND=NAME, sections cannot be moved with @")
    section = key.lstrip("+")
    if section in SEVERAL and value.startswith("["):
        return
    if section in SECTIONS and _NO_NAME.fullmatch(value):
        raise unknown(f"{key}={value}", value, options(key.lstrip("+")))


def _refuse_code(text: str, where: str) -> None:
    if "_target_" in text:
        raise UserError(f"{where}: _target_ is refused, a configuration names plugins, it does not call code")
    if re.search(r"\$\{[^}]*:", text):
        raise UserError(f"{where}: resolvers such as ${{oc.env:NAME}} are refused, write the value itself")


def _refuse_hydra(key: str, where: str) -> None:
    if re.match(r"(override\s+)?/?hydra\b", key):
        raise UserError(f"{where}: Hydra's own settings cannot be changed")


def _refuse_code_in(node: Any, where: str) -> None:
    if isinstance(node, str):
        _refuse_code(node, where)
    elif isinstance(node, dict):
        for key, value in node.items():
            _refuse_code(str(key), where)
            _refuse_hydra(str(key), where)
            _refuse_code_in(value, where)
    elif isinstance(node, list):
        for value in node:
            _refuse_code_in(value, where)


def _check_folder(folder: Path) -> None:
    """Refuses a user's folder whose YAML cannot be read or asks for code.

    Called before Hydra opens the folder.
    """
    import yaml

    if not folder.is_dir():
        raise UserError(f"--config-dir {folder} is not a folder")
    for path in sorted(folder.rglob("*.yaml")):
        try:
            text = path.read_text(encoding="utf-8")
            for document in yaml.safe_load_all(text):
                _refuse_code_in(document, str(path))
        except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        for package in re.findall(r"^\s*#\s*@package\s+(\S+)", text, re.MULTILINE):
            _refuse_hydra(package, str(path))


def _missing(key: str) -> UserError:
    if key in KINDS:
        return UserError(f"{key} is missing: choose one with {key}=NAME, there are: {', '.join(options(key))}")
    return UserError(f"{key} is missing: set it with {key}=VALUE")


def _key(text: str) -> str:
    return text.split("=", 1)[0].strip().lstrip("+~")


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
