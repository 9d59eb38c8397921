"""Composes command-line overrides and YAML files to plain data.

A configuration never executes code (see `code`). Hydra is imported on first use.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.config.code import (
    check_environment,
    check_folder,
    check_includes,
    check_references,
    key_of,
    refuse_code,
    refuse_code_in,
    refuse_hydra,
)
from gnnkit.config.keys import removed_error
from gnnkit.errors import UserError
from gnnkit.plugins import (
    JOBS,
    JOINED,
    KINDS,
    OPTIONAL,
    PACKAGES,
    SEVERAL,
    TASK_KEYS,
    conf_folders,
    find,
    names,
    options,
    parts,
    unknown_plugin,
)
from gnnkit.utils.documents import Json, read_yaml
from gnnkit.utils.ranges import known_words, shown, unknown, unknown_key

SECTIONS = (*KINDS, "trainer")  # keys that select a YAML file
MAIN = "config"  # name of the main configuration
MAX_JOBS = 10_000  # jobs per sweep
EXPERIMENT = "experiment"  # selects a YAML file that sets several sections
_LIST_OR_MAPPING = ("sampler.fanouts", "dataset.split")  # keys that take a list or a mapping, which Hydra cannot merge
# Config groups of Hydra's unused section. Removing them makes composing 15 % faster.
_UNUSED = [f"~hydra/{group}" for group in (
    "output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env"
)]  # fmt: skip
_NOT_A_NAME = re.compile(
    r"|null|true|false|nan|[-+]?(inf|[\d._]+(e[-+]?\d+)?)|\w*[(\[{].*", re.IGNORECASE
)  # values that are not an option's name in Hydra's grammar


def compose(overrides: Sequence[str] = (), *, config_dirs: Sequence[Path] = (), config_name: str = MAIN) -> Json:
    """Composes the main configuration and command-line overrides to plain data.

    Raises `UserError` for missing values, for anything that would execute code, and for
    whatever Hydra rejects. The message names the key and the most similar known key.

    Args:
        overrides: Command-line overrides, such as `model=gcn` and `model.hidden=8`.
        config_dirs: The user's YAML folders, searched after the packaged ones.
        config_name: Name of the main configuration. Default: the packaged one.
    """
    return _Composer(overrides, config_dirs, config_name).plain()


def as_overrides(keys: Mapping[str, object], prefix: str = "") -> list[str]:
    """Converts Python values to overrides.

    `{"model": {"name": "gcn", "hidden": 8}}` becomes `model=gcn model.hidden=8`.
    """
    overrides = []
    for key, value in keys.items():
        if key in SEVERAL and not prefix:
            overrides += _plugin_overrides(key, value)
        elif isinstance(value, Mapping) and f"{prefix}{key}" not in _LIST_OR_MAPPING:
            selection = [f"{prefix}{key}={_format_literal(value['name'])}"] if "name" in value else []
            arguments = {name: item for name, item in value.items() if name != "name"}
            overrides += selection + as_overrides(arguments, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={_format_literal(value)}")
    return overrides


def _plugin_overrides(kind: str, plugins: Any) -> list[str]:
    """Converts a section with any number of plugins to overrides.

    `plugins` is a name, a mapping with name and keys, a list of these, None, or the
    section in a composed configuration.
    """
    if isinstance(plugins, Mapping) and "name" not in plugins:
        plugins = [{"name": name, **keys} for name, keys in plugins.items()]
    parts = plugins if isinstance(plugins, list | tuple) else [] if plugins is None else [plugins]
    sections = [part if isinstance(part, Mapping) else {"name": part} for part in parts]
    keys = {part["name"]: {key: value for key, value in part.items() if key != "name"} for part in sections}
    return [f"{kind}={_format_literal(list(keys))}", *as_overrides(keys, f"{kind}.")]


def dotted_keys(node: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yields all keys of nested mappings in dotted form, such as `model.hidden`."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def leaves(node: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields dotted keys, such as `model.hidden`, with their non-mapping values."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _format_literal(value: Any) -> str:
    """Formats a plain value in Hydra's grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_format_literal, value))}]"
    if isinstance(value, Mapping):
        entries = (f"{_escape_key(_key_text(key))}:{_format_literal(item)}" for key, item in value.items())
        return "{" + ",".join(entries) + "}"
    return QuotedString(str(value), Quote.single).with_quotes()


def _key_text(key: object) -> str:
    """Returns a mapping's key as text. PyG's edge types are tuples of three names."""
    return "-".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _escape_key(key: str) -> str:
    """Escapes a mapping's key in Hydra's grammar, in which keys have no quotes."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", key)


class _Composer:
    """Composes validated overrides and folders to plain data."""

    def __init__(self, overrides: Sequence[str], config_dirs: Sequence[Path], name: str) -> None:
        for text in overrides:
            refuse_code(text, f"override {text!r}")
            refuse_hydra(key_of(text), f"override {text!r}")
            _refuse_sweep(text)
            _check_choice(text)
        if [key_of(text) for text in overrides].count("strategy") > 1:
            raise UserError("strategy appears more than once: choose one")
        check_includes({name: entries for folder in config_dirs for name, entries in check_folder(folder).items()})
        self.folders = [*conf_folders(), *(folder.resolve() for folder in config_dirs)]
        self.overrides, self.name = [_normalize(text) for text in overrides], name
        if name != MAIN:  # Hydra searches the main configuration in the first folder only
            self.folders.sort(key=lambda folder: not (folder / f"{name}.yaml").is_file())
        self.job_file = self._find_job_file()
        _register_without_yaml(self.folders)
        _register_joined(self.overrides, self.folders)

    def plain(self) -> Json:
        """Returns plain data with all interpolations resolved."""
        from omegaconf import OmegaConf

        with self.as_user_errors():
            config = self.compose()
            raw = typing.cast("Json", OmegaConf.to_container(config))
            refuse_code_in(raw, "the configuration")
            check_environment(raw)
            check_references(raw)
            if missing := sorted(OmegaConf.missing_keys(config)):
                raise _missing_error(missing[0])
            return typing.cast("Json", OmegaConf.to_container(config, resolve=True))

    def compose(self, overrides: Sequence[str] | None = None) -> Any:
        """Returns the configuration as Hydra composes it.

        Args:
            overrides: Replace this object's overrides. Default: None.
        """
        from hydra import compose, initialize_config_dir
        from hydra.core.override_parser.types import Quote, QuotedString

        arguments = _replace_lists(self.overrides if overrides is None else overrides) + _UNUSED
        arguments += self.job_file
        paths = ",".join(QuotedString(f"file://{folder}", Quote.single).with_quotes() for folder in self.folders[1:])
        with initialize_config_dir(str(self.folders[0]), job_name="gnnkit", version_base=None):
            return compose(self.name, [*arguments, f"hydra.searchpath=[{paths}]"])

    def _find_job_file(self) -> list[str]:
        """Returns the override that adds the selected job's keys, if it has any."""
        job_names = [text.partition("=")[2].strip("'\"") for text in self.overrides if key_of(text) == "job"]
        if job_names and job_names[-1] in PACKAGES["job"]:
            find("job", job_names[-1])  # without its package, its keys would be unknown
        has_keys = job_names and job_names[-1] in options(JOBS, self.folders)
        return [f"+{JOBS}={job_names[-1]}"] if has_keys else []

    @contextlib.contextmanager
    def as_user_errors(self) -> Iterator[None]:
        """Converts Hydra's errors to one-line `UserError`s that name the key."""
        from hydra.errors import HydraException, MissingConfigException, OverrideParseException
        from omegaconf.errors import OmegaConfBaseException

        try:
            yield
        except UserError:
            raise
        except OverrideParseException as error:
            quotes = (
                ", and quotes around text with blanks: KEY=[A,'B C']" if re.search(r"=\[.* ", error.override) else ""
            )
            raise UserError(
                f"cannot read {shown(error.override)!r}: write KEY=VALUE{quotes} ({shown(_first_line(error))})"
            ) from error
        except MissingConfigException as error:
            raise self._unknown_option_error(error) from error
        except (HydraException, OmegaConfBaseException) as error:
            if match := re.search(r"already at '([^']+)'", str(error)):
                raise UserError(f"+{match[1]} adds a key that already exists: remove the +") from error
            raise (self._explain_error() or UserError(_first_line(error))) from error
        except RecursionError as error:
            raise UserError("the configuration is nested too deeply to be read") from error
        except (OSError, ValueError) as error:  # an overlong name, or an invalid option name
            raise UserError(f"the configuration cannot be read: {shown(error)}") from error

    def _explain_error(self) -> UserError | None:
        """Returns the likely reason for Hydra's error.

        This is the first override with a key that the selected options do not have.
        """
        from hydra.errors import HydraException, MissingConfigException
        from omegaconf import OmegaConf

        selections = [text for text in self.overrides if key_of(text) in (*KINDS, EXPERIMENT)]
        try:
            config = typing.cast("Json", OmegaConf.to_container(self.compose(selections)))
        except MissingConfigException as error:
            return self._unknown_option_error(error)
        except HydraException:
            return None
        known_keys = set(dotted_keys(config))
        names = (key_of(text) for text in self.overrides if text[0] not in "+~" and text not in selections)
        key = next((key for key in names if key not in known_keys), None)
        return None if key is None else self._unread_key_error(key, config, known_keys)

    def _unread_key_error(self, key: str, config: Mapping[str, Any], known_keys: set[str]) -> UserError:
        """Returns the error for a key that the selected options do not have."""
        if error := removed_error(key):
            return error
        section, _, subkey = key.partition(".")
        name = subkey.partition(".")[0]
        for job in options(JOBS, self.folders):
            if key in dotted_keys(_values(JOBS, job, self.folders)):
                return UserError(f"{key} is read by job={job} only: leave the key out")
        if section in SEVERAL and name in names(section) and name not in config.get(section, {}):
            return UserError(f"{key} needs {section}={name}, which is not chosen: choose it, or leave the key out")
        if section in OPTIONAL and section not in config:
            return UserError(
                f"{key} needs {'an' if section[0] in 'aeiou' else 'a'} {section}, and none is chosen: leave the key out, or "
                f"use {section}=NAME with a strategy that reads one"
            )
        return self._unselected_key_error(key, known_keys) or unknown_key(key, known_keys)

    def _unknown_option_error(self, error: Any) -> UserError:
        """Returns the error for a file that Hydra did not find."""
        kind, _, name = (error.missing_cfg_file or "").rpartition("/")
        return unknown_plugin(kind, name, options(kind, self.folders), f"{kind}={name}")

    def _unselected_key_error(self, key: str, known_keys: Collection[str]) -> UserError | None:
        """Returns an error if only an unselected option has the key, else None."""
        section, _, last = key.rpartition(".")
        words = known_words(last)
        if any(name.rpartition(".")[2] in words for name in known_keys):
            return None
        candidates = [
            (kind, option, option_key)
            for kind in KINDS
            if section in ("", kind)
            for option in options(kind, self.folders)
            for option_key in dotted_keys(_values(kind, option, self.folders))
            if option_key.rpartition(".")[2] in words
        ]
        if not candidates:
            return None
        kind, _, option_key = candidates[0]
        choices = " or ".join(f"{section}={option}" for section, option, _ in candidates if section == kind)
        return UserError(f"{key} is not known: {kind}.{option_key} needs {choices}: choose it, or remove the key")


def _register_without_yaml(folders: Sequence[Path]) -> None:
    """Registers `kind=name` for plugins without a YAML file."""
    from hydra.core.config_store import ConfigStore

    for kind in KINDS:
        key = "nodes" if kind == "partition" else "name"
        grid = {"grid": "1d", "replication": None, "border": "none"} if kind == "partition" else {}
        for name in names(kind):
            if not any((folder / kind / f"{name}.yaml").exists() for folder in folders):
                node: Json = {key: name, **grid, "options": {}}
                node = {name: node} if kind in SEVERAL else node
                ConfigStore.instance().store(name, node, group=kind, provider="gnnkit")


def _register_joined(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Registers `kind=A+B` with the keys of both options."""
    from hydra.core.config_store import ConfigStore

    for text in overrides:
        kind, _, name = text.lstrip("+").partition("=")
        name = name.strip("'\"")
        if kind not in JOINED or len(part_names := parts(kind, name)) == 1:
            continue
        for part in part_names:
            if part not in options(kind, folders):
                raise unknown_plugin(kind, part, options(kind, folders), f"{kind}={name}")
        node = {key: value for part in part_names for key, value in _values(kind, part, folders).items()} | {
            "name": name
        }
        ConfigStore.instance().store(name, node, group=kind, provider="gnnkit")


def of_option(kind: str, name: str) -> Json:
    """Returns the defaults of `kind=name`, empty if it has no YAML file."""
    return _values(kind, name, conf_folders())


def _values(kind: str, name: str, folders: Sequence[Path]) -> Json:
    """Reads the YAML file of `kind=name`. Returns no keys if there is none."""
    path = next((path for folder in folders if (path := folder / kind / f"{name}.yaml").is_file()), None)
    values = {} if path is None else read_yaml(path)
    return values if isinstance(values, dict) else {}


def _normalize(text: str) -> str:
    """Adds the `+` that Hydra requires for new keys and groups without a default.

    Removes it from `+strategy`, which the defaults list already contains.
    """
    if key_of(text) == "strategy":
        return text.lstrip("+")
    if key_of(text) == EXPERIMENT and text[0] not in "+~":
        return f"+{text}"
    is_new = re.match(
        rf"({'|'.join(KINDS)})(\.\w+)?\.options[.=]|(comm|compare)\.link\.|task\.({'|'.join(TASK_KEYS)})=", text
    )
    return f"++{text}" if is_new else text


def _replace_lists(overrides: Sequence[str]) -> list[str]:
    """Sets keys that take lists or mappings to null before their values.

    Hydra cannot merge a mapping into a list, or a list into a mapping.
    """
    is_set = [key_of(text) in _LIST_OR_MAPPING and not text.startswith("~") for text in overrides]
    cleared = [[f"{key_of(text)}=null"] * clears + [text] for text, clears in zip(overrides, is_set, strict=True)]
    return list(itertools.chain.from_iterable(cleared))


def _refuse_sweep(text: str) -> None:
    """Raises `UserError` if one key has several values."""
    if ("," in text or "(" in text) and (override := parse_sweep(text)) is not None:
        number = "an interval"
        if not override.is_interval_sweep():
            number = f"{len(list(itertools.islice(swept_values(override), MAX_JOBS)))} values"
        raise UserError(
            f"{shown(text)} is a sweep over {number}: add -m (--multirun) to run a job for each, "
            "or write text in quotes and lists in [ ]"
        )


def parse_sweep(text: str) -> Any:
    """Parses an override's values, or returns None for one value or invalid text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError):  # `compose` reports the error
        return None
    return override if override.is_sweep_override() else None


def swept_values(override: Any) -> Iterable[str]:
    """Returns the values of a choice, range or glob, as typed."""
    if override.value_type.name == "GLOB_CHOICE_SWEEP":
        return override.value().filter(options(override.key_or_group))  # type: ignore[no-any-return]
    return override.sweep_string_iterator()  # type: ignore[no-any-return]


def _check_choice(text: str) -> None:
    """Rejects invalid options for which Hydra's error would not name the key."""
    key, equals, value = text.partition("=")
    if not equals and text[:1] not in "+~" and (suggestion := _suggest_override(text)):
        raise UserError(f"cannot read {text!r}: write KEY=VALUE, as in {suggestion}")
    if not key_of(text):
        raise UserError(f"cannot read {text!r}: write KEY=VALUE")
    if "@" in key:
        raise UserError(f"override {text!r}: write KIND=NAME, sections cannot be moved with @")
    section = key.lstrip("+")
    if section in SEVERAL and value.startswith("["):
        return
    if section in (*SECTIONS, EXPERIMENT) and _NOT_A_NAME.fullmatch(value):
        raise unknown(f"{key}={value}", value, options(section))


def _suggest_override(word: str) -> str | None:
    """Returns the override for a job or option that was typed without its key."""
    if word in (*names("job"), *PACKAGES["job"]):
        return f"job={word}"
    matches = ((kind, name) for kind in KINDS for name in known_words(word.lower()) if name in options(kind))
    return next((f"{kind}={name}" for kind, name in matches), None)


def key_for(word: str) -> str | None:
    """Returns the key that a word such as `epochs` abbreviates, or None."""
    with contextlib.suppress(UserError):
        keys = sorted(dotted_keys(compose(["strategy=auto"])), key=lambda key: key.count("."))
        return next((key for name in known_words(word) for key in keys if key.rpartition(".")[2] == name), None)
    return None


def _missing_error(key: str) -> UserError:
    if key in KINDS:
        return UserError(f"{key} is missing: choose one with {key}=NAME, there are: {', '.join(options(key))}")
    return UserError(f"{key} is missing: set it with {key}=VALUE")


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
