"""Each section's keys with defaults and descriptions, parsed from the YAML files."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.plugins import JOBS, KINDS, SEVERAL, conf_folders, options, parts
from gnnkit.utils.documents import parse_yaml
from gnnkit.utils.ranges import printable

_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_]\w*):(?: +(?P<value>[^#\s].*?))??(?: +# *(?P<comment>.*))?")
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
    """Reads the first YAML file of `section=name`.

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
    option_keys = {key.name: key for key in _keys(lines)}
    if option_keys and section in _BASES:
        plugin = next(line.split()[1] for line in lines if line.startswith("name:"))
        option_keys = {key.name: key for key in read(_BASES[section], plugin).keys} | option_keys
    return Option(section, name, summary, tuple(option_keys.values()))


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
def _parse_default(text: str) -> Any:
    return parse_yaml(text, "a default")


def annotate(config: Mapping[str, Any]) -> str:
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


def plain(value: Any) -> str:
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
