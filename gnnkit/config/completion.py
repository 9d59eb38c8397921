"""Tab completion: candidate words, and completion scripts for three shells.

The shell passes the command line so far. Answering reads only YAML files and entry
point names, so no heavy package is imported.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gnnkit import plugins
from gnnkit.config import EXPERIMENT, HYDRA_PARTS, SECTIONS, hydra_options, hydra_section, keys
from gnnkit.errors import UserError
from gnnkit.utils.ranges import unknown

_OPTIONS = ("--help", "--version", "--cfg", "--info", "--config-dir", "--config-name", "--multirun")
_NAMES = {"partition.nodes": "partition", "job": "job"}  # keys whose values are plugins
_UNINSTALL = {
    "bash": "complete -r gnnkit\nunset -f _gnnkit\n",
    "zsh": "compdef -d gnnkit\nunfunction _gnnkit\n",
    "fish": "complete -c gnnkit -e\nfunctions -e _gnnkit\n",
}


def answer(request: str) -> str:
    """Answers `install=SHELL`, `uninstall=SHELL` or `query=SHELL`.

    Raises `UserError` for any other request.
    """
    verb, _, shell = request.partition("=")
    if verb not in ("install", "uninstall", "query") or shell not in _UNINSTALL:
        shells = [f"{command}={name}" for command in ("install", "query", "uninstall") for name in _UNINSTALL]
        raise unknown(f"--shell-completion {request}", request, shells)
    if verb == "query":
        line = os.environ.get("COMP_LINE", "")
        return "".join(f"{word}\n" for word in words(line[: int(os.environ.get("COMP_POINT") or len(line))]))
    if verb == "uninstall":
        return _UNINSTALL[shell]
    return Path(__file__).with_suffix(f".{shell}").read_text(encoding="utf-8")


def words(line: str) -> list[str]:
    """Lists the completions of a command line's last word."""
    *before, last = re.split(r"\s+", line)
    try:
        return sorted({word for word in _candidates(before[1:], last) if word.startswith(last)})
    except (UserError, OSError):  # a missing folder
        return []


def _candidates(before: Sequence[str], last: str) -> Iterator[str]:
    key, is_value, _ = last.partition("=")
    if last.startswith("-"):
        yield from _OPTIONS
    elif is_value:
        yield from (f"{key}={value}" for value in _values(key.lstrip("+~"), before))
    elif "." in last:
        yield from (f"{name}=" for name in _keys(key.partition(".")[0], before))
    elif last.startswith("hydra/"):
        yield from (f"hydra/{part}=" for part in HYDRA_PARTS)
    else:
        yield from _first_words(before)


def _first_words(before: Sequence[str]) -> Iterator[str]:
    groups = (*plugins.KINDS, EXPERIMENT)
    yield from (f"{kind}=" for kind in groups)
    yield from (f"{section}." for section in (*SECTIONS, "hydra"))
    yield from (f"{key.name}=" for key in _run_keys(before) if key.name not in SECTIONS)
    yield "hydra/"


def _keys(section: str, before: Sequence[str]) -> Iterator[str]:
    """Yields the keys of a section's selected options, such as `model.hidden`."""
    if section == "hydra":
        yield from (f"hydra.{name}" for name in _names("", "hydra"))
        for part in HYDRA_PARTS:
            yield from (
                f"hydra.{part}.{name}"
                for name in _names(hydra_section(part), _find_option(f"hydra/{part}", before) or "basic")
            )
    elif section in SECTIONS:
        yield from (f"{section}.{key.name}" for key in keys.shared_keys(section))
        yield from (f"{section}.{key.name}" for key in _keys_of(section, before))
    else:
        yield from (key.name for key in _run_keys(before) if key.name.startswith(f"{section}."))


def _values(key: str, before: Sequence[str]) -> Iterable[str]:
    if key in (*plugins.KINDS, EXPERIMENT):
        return plugins.options(key, [*plugins.conf_folders(), *_folders(before)])
    if key.removeprefix("hydra/") in HYDRA_PARTS:
        return hydra_options(key.removeprefix("hydra/"))
    if key in _NAMES:
        return plugins.names(_NAMES[key])
    section, _, name = key.partition(".")
    option_keys = _keys_of(section, before) if section in SECTIONS else _run_keys(before)
    matching = [option_key for option_key in option_keys if option_key.name == (name if section in SECTIONS else key)]
    return [value for option_key in matching for value in of_comment(option_key)]


def of_comment(key: keys.Key) -> list[str]:
    """Lists the values named in a key's comment, such as `adam | sgd`."""
    if key.default in ("true", "false"):
        return ["true", "false"]
    parts = [part.strip() for part in re.sub(r"\([^)]*\)|\bnull: [^|]*", "", key.comment).split("|")]
    parts[0] = parts[0].rpartition(": ")[2]
    matches = [re.match(r"[\w-]+(?:\.[\w-]+)*", part) for part in parts]
    return [match[0] for match in matches if match] if len(parts) > 1 else []


def _names(section: str, name: str) -> list[str]:
    return [key.name for key in keys.read(section, name).keys]


def _keys_of(section: str, before: Sequence[str]) -> Iterator[keys.Key]:
    """Yields the keys of the options on the line, or of the default option."""
    for name in re.findall(r"[^\[\],]+", _find_option(section, before) or _default(section)):
        yield from keys.read(section, name).keys


def _run_keys(before: Sequence[str]) -> tuple[keys.Key, ...]:
    """Returns the keys outside plugins' sections, with the keys of the line's job."""
    return (*keys.read("", "config").keys, *keys.read(plugins.JOBS, _find_option("job", before) or "").keys)


def _find_option(key: str, before: Sequence[str]) -> str | None:
    values = [word.partition("=")[2] for word in before if word.lstrip("+").startswith(f"{key}=")]
    return values[-1] if values else None


def _default(section: str) -> str:
    main = (plugins.CONF / "config.yaml").read_text(encoding="utf-8")
    match = re.search(rf"^  - {section}: (.+?) *(#|$)", main, re.MULTILINE)
    return match[1] if match else "default"


def _folders(before: Sequence[str]) -> Iterator[Path]:
    """Yields the line's `--config-dir` folders."""
    for word, after in itertools.zip_longest(before, before[1:], fillvalue=""):
        name = after if word in ("--config-dir", "-cd") else word.removeprefix("--config-dir=")
        if name != word and name:
            yield Path(name)
