"""The configuration's keys: those that exist, those that were removed, and a job's.

Defaults and descriptions are parsed from the YAML files. `removed.json` lists each key
of earlier versions with its former defaults, and with advice for users who set it. A
plugin's key counts as removed if the plugin's YAML file does not contain it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit.errors import UserError
from gnnkit.plugins import JOBS, KINDS, SEVERAL, conf_folders, load, options, parts
from gnnkit.utils.documents import Json, parse_yaml, read_json
from gnnkit.utils.ranges import printable

if TYPE_CHECKING:
    from gnnkit.config.settings.fields import Section

_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_]\w*):(?: +(?P<value>[^#\s].*?))??(?: +# *(?P<comment>.*))?")
_DEFAULT = re.compile(r" *- (?!_self_)(\w+) *")  # an entry of `defaults` that names another option of the section
_NOT_KEYS = ("name", "defaults")
_BASES = {"hydra_launcher": "launcher"}  # by section: the section whose plugin, `name`, has further keys
_SHARED = {"partition": "layout"}  # by section: the file in `conf` with the keys common to all options


@dataclass(frozen=True, slots=True)
class Key:
    """A section's key."""

    name: str  # relative to the section, such as `hidden` or `options.seed`
    default: str  # as YAML, or empty without a default
    comment: str

    @property
    def value(self) -> Any:
        """The default as a plain value."""
        return _parse_default(self.default)


@dataclass(frozen=True, slots=True)
class Option:
    """A YAML file, selected with `section=name`."""

    section: str  # empty: the main configuration
    name: str
    summary: str  # the first line's comment
    keys: tuple[Key, ...]


def read(section: str, name: str) -> Option:
    """Reads the first YAML file of `section=name`, and the options that it extends.

    An option without a file has no keys. A joined option `A+B` has the keys of both.
    """
    if len(part_names := parts(section, name)) > 1:
        part_options = [read(section, part) for part in part_names]
        return Option(
            section,
            name,
            " ".join(option.summary for option in part_options),
            tuple(k for option in part_options for k in option.keys),
        )
    path = file_of(section, name)
    lines = path.read_text(encoding="utf-8").splitlines() if path else []
    summary = next((line.lstrip("# ") for line in lines[:2] if re.match(r"# (?!@)", line)), "")
    own_keys = list(_keys(lines))
    bases = _extended(section, lines) if own_keys or section not in _BASES else []
    inherited_keys = [key for base in bases for key in read(*base).keys]
    option_keys = {key.name: key for key in (*inherited_keys, *own_keys)}
    return Option(section, name, summary, tuple(option_keys.values()))


def _extended(section: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Returns section and name of the options that a YAML file extends."""
    if section in _BASES:
        return [(_BASES[section], line.split()[1]) for line in lines if line.startswith("name:")]
    return [(section, match[1]) for line in lines if (match := _DEFAULT.fullmatch(line))]


def shared_keys(section: str) -> tuple[Key, ...]:
    """Reads the keys common to all options of a section."""
    return read("", _SHARED[section]).keys if section in _SHARED else ()


@functools.cache
def run_keys() -> dict[str, Key]:
    """Returns the keys of the main configuration, `trainer` and jobs, by full name."""
    trainer = {f"trainer.{key.name}": key for key in read("trainer", "default").keys}
    of_jobs = (key for job in options(JOBS) for key in read(JOBS, job).keys)
    return {key.name: key for key in (*read("", "config").keys, *of_jobs)} | trainer


@functools.cache
def _parse_default(text: str) -> object:
    return parse_yaml(text, "a default")


def annotate(config: Mapping[str, object]) -> str:
    """Formats a configuration as YAML, with a comment for each key."""
    return "\n".join(_annotated_lines(config, dict(_comments(config)), "", "")) + "\n"


def _annotated_lines(node: Mapping[str, Any], comments: Mapping[str, str], prefix: str, indent: str) -> Iterator[str]:
    for key, value in node.items():
        comment = comments.get(f"{prefix}{key}", "")
        suffix = f"  # {comment}" if comment else ""
        name = f"{indent}{plain(key)}:"
        if isinstance(value, Mapping) and value:
            yield f"{name}{suffix}"
            yield from _annotated_lines(value, comments, f"{prefix}{key}.", f"{indent}  ")
        else:
            yield f"{name} {plain(value)}{suffix}"


def plain(value: object) -> str:
    """Formats a value as one line of YAML. Unprintable text is quoted, as in JSON."""
    import yaml

    class Quoting(yaml.SafeDumper):  # type: ignore[misc]
        """Quotes text with escapes if it has unprintable characters."""

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Quoting.add_representer(str, represent)
    text: str = yaml.dump(value, Dumper=Quoting, default_flow_style=True, width=2**31, allow_unicode=True)
    return printable(text.removesuffix("...\n").strip())


def _comments(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each key, such as `model.hidden`, with its comment."""
    for key in (*read("", "config").keys, *read(JOBS, str(config.get("job"))).keys):
        yield key.name, key.comment
    for section, values in config.items():
        if section == "hydra":
            yield from _hydra_comments(values)
        if section in SEVERAL and isinstance(values, Mapping):
            for name in values:
                option = read(section, name)
                yield f"{section}.{name}", option.summary
                yield from ((f"{section}.{key.name}", key.comment) for key in option.keys)
            continue
        if section in KINDS and isinstance(values, Mapping):
            option = read(section, str(values.get("nodes", values.get("name"))))
        elif section == "trainer":
            option = read(section, "default")
        else:
            continue
        yield section, option.summary
        for key in (*shared_keys(section), *option.keys):
            if key.comment:
                yield f"{section}.{key.name}", key.comment


def _hydra_comments(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each Hydra setting, such as `hydra.run.dir`, with its comment."""
    for key in read("", "hydra").keys:
        yield f"hydra.{key.name}", key.comment
    for part in (part for part, section in sections.items() if isinstance(section, Mapping) and "name" in section):
        option = read(f"hydra_{part}", str(sections[part]["name"]))
        yield f"hydra.{part}", option.summary
        for key in option.keys:
            yield f"hydra.{part}.{key.name}", key.comment


def file_of(section: str, name: str) -> Path | None:
    """Returns the YAML file. The package's files take precedence over plugins'."""
    paths = (folder / section / f"{name}.yaml" for folder in conf_folders())
    return next((path for path in paths if path.is_file()), None)


def _keys(lines: Iterable[str]) -> Iterator[Key]:
    """Yields the keys of a YAML file with at most two levels."""
    parent = ""
    for line in lines:
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        is_nested, value = bool(match["indent"]), match["value"] or ""
        if not is_nested:
            parent = "" if value else f"{match['key']}."
        if (is_nested or value) and match["key"] not in _NOT_KEYS and not parent.startswith("defaults"):
            yield Key(f"{parent if is_nested else ''}{match['key']}", value, match["comment"] or "")


TABLE = Path(__file__).with_name("removed.json")


@functools.cache
def removed_keys() -> Mapping[str, tuple[list[object], str]]:
    """Returns former defaults and advice by key."""
    table: Mapping[str, tuple[list[object], str]] = read_json(TABLE)
    return table


def removed_error(key: str) -> UserError | None:
    """Returns the error for a removed key, or None for other keys."""
    return UserError(f"{key} was removed: {removed_keys()[key][1]}") if key in removed_keys() else None


def check_removed(config: Mapping[str, object]) -> None:
    """Raises `UserError` for a removed key, unless a plugin accepts it in `options`."""
    for key, _ in _present(config):
        plugin = _plugin(key, config)
        # A choice of `auto` accepts no options. Another check reports them.
        if ".options." not in key or (plugin != "auto" and key.rpartition(".")[2] not in _arguments(key, plugin)):
            raise removed_error(key) or AssertionError


def without_removed(config: Json, *, convert: bool, keep: bool) -> Json:
    """Omits the removed keys of a recorded configuration.

    Args:
        convert: Whether keys that a plugin's class still accepts become its `options`.
        keep: Whether removed keys with other values are kept, so that composing rejects
            them.
    """
    for name, section in list(_present(config)):
        plugin, key = _plugin(name, config), name.rpartition(".")[2]
        value = section.pop(key)
        if is_former_default(name, value, plugin):
            continue
        if convert and key in _arguments(name, plugin):
            (section if ".options." in name else section.setdefault("options", {}))[key] = value
        elif keep:
            section[key] = value
    return config


def is_former_default(key: str, value: object, plugin: str | None) -> bool:
    """Returns whether a value is a removed key's former default.

    For keys that remain arguments of a plugin's class, the argument's default counts.

    Args:
        key: Any key.
        value: Its recorded value.
        plugin: The plugin that had the key, or None for a key of no plugin.
    """
    name = key.rpartition(".")[2]
    return value in _arguments(key, plugin).get(name, removed_keys().get(key, ((), ""))[0])


def is_default(key: str, value: object, plugin: str | None) -> bool:
    """Returns whether a value is the default in the YAML file that has the key."""
    kind, _, name = key.partition(".")
    options = run_keys() if plugin is None else {option.name: option for option in read(kind, plugin).keys}
    option = options.get(key if plugin is None else name)
    return option is not None and option.value == value


def _present(config: Json | Mapping[str, object]) -> Iterator[tuple[str, Json]]:
    """Yields a configuration's removed keys, each with its section.

    Skips keys of unnamed plugins, because it is unknown whether these are removed.
    """
    for key in removed_keys():
        *parents, name = key.split(".")
        section: Any = config
        for parent in parents:
            section = section.get(parent) if isinstance(section, Mapping) else None
        if isinstance(section, dict) and name in section and not _is_read(key, config):
            yield key, section


def _is_read(key: str, config: Mapping[str, object]) -> bool:
    """Returns whether a plugin reads a key, or may read it because it has no YAML."""
    kind, _, name = key.partition(".")
    if kind not in KINDS:
        return False
    plugin_names = parts(kind, _plugin(key, config) or "")
    return any(
        file_of(kind, part) is None or name in {option.name for option in read(kind, part).keys}
        for part in plugin_names
    )


def _plugin(key: str, config: Mapping[str, Any]) -> str | None:
    """Returns the name of the plugin that a key belongs to, or None."""
    kind, _, subkey = key.partition(".")
    if kind in SEVERAL:
        return subkey.partition(".")[0]
    name = config[kind].get("nodes", config[kind].get("name")) if kind in KINDS else None
    return name if isinstance(name, str) else None


def _arguments(key: str, plugin: str | None) -> Mapping[str, tuple[object, ...]]:
    """Returns the defaults of a plugin's arguments, or none if `plugin` is None."""
    kind = key.partition(".")[0]
    if kind not in KINDS or plugin is None:
        return {}
    signatures = (inspect.signature(load(kind, part)).parameters for part in parts(kind, plugin))
    return {argument: (value.default,) for parameters in signatures for argument, value in parameters.items()}


class JobFacts:
    """A job's properties, as class attributes. The defaults hold for an unknown job."""

    name: ClassVar[str] = ""
    keys: ClassVar[type[Section] | None] = None  # reads the keys of `conf/jobs/NAME.yaml`, which other jobs lack
    trains: ClassVar[bool] = False  # writes trained models and a report, and supports loggers and callbacks
    several: ClassVar[bool] = False  # consists of several runs, each in a subfolder
    reads_checkpoint: ClassVar[bool] = False  # requires a trained run
    one_worker: ClassVar[bool] = False  # reads the complete graph on one worker
    reads_strategy: ClassVar[bool] = True
    reads_plan: ClassVar[bool] = False  # always reads the section `plan`
    needs_labels: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("train",)  # one of these must contain a node, if labels are needed
    reads_rows: ClassVar[bool] = False  # reads feature rows for a model
    goes_on: ClassVar[bool] = False  # resumes an interrupted job of the same kind in the run folder
    one_run: ClassVar[bool] = True  # is a single run with its own folder
    cuts: ClassVar[bool] = False  # repartitions graphs, including stored ones
    headline: ClassVar[tuple[str, ...]] = ()  # beginnings of the figures printed without `verbose`. (): all
    keeps_inputs: ClassVar[bool] = False  # saves how the data's columns are read, for later runs

    @classmethod
    def check_keys(cls, names: Collection[str]) -> None:
        """Raises `UserError` for keys that the job does not read.

        Args:
            names: Keys that the user has set, such as `model.hidden`.
        """
