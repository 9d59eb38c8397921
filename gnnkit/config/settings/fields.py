"""Configuration keys as annotated fields.

A field's annotation contains the key's type, the rule that checks and converts its
value, and the configurations that read the key. Its default and description are in the
YAML file.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from gnnkit import plugins
from gnnkit.config import JobFacts
from gnnkit.errors import UserError
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import MAX_COUNT, one_of, parse_scalar, real, shown, switch, unknown_key, whole

if TYPE_CHECKING:
    from gnnkit.config.settings.settings import Settings
import re

from gnnkit.utils.ranges import is_url, local_path

Rule = Callable[[str, Any], Any]  # maps key and value to the checked value, or raises `UserError`

Count = Annotated[int, functools.partial(whole, low=1, high=MAX_COUNT)]
Positive = Annotated[float, functools.partial(real, above=0)]
MAX_SCALE = 1e6  # largest scale of a step or of initial rows, which float32 computes with
Scale = Annotated[float, functools.partial(real, low=0, high=MAX_SCALE)]
Switch = Annotated[bool, switch]


def names(options: Collection[object]) -> Rule:
    """Returns the rule that accepts one of the names."""
    return functools.partial(one_of, choices=options)


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """The condition for reading a key. Otherwise only its default is allowed."""

    condition: str | Callable[[], str]  # as overrides, such as inputs=features
    holds: "Callable[[Settings], bool]"
    hint: str = ""  # alternative to removing the key

    def error(self, key: str, value: object) -> UserError:
        """Returns the error for a key that is not read."""
        condition = self.condition if isinstance(self.condition, str) else self.condition()
        hint = f", or {self.hint}" if self.hint else ""
        return UserError(f"{key}={shown(value)} is read by {condition} only: leave the key out{hint}")


def by_job(reads: Callable[[type[JobFacts]], bool], hint: str = "") -> OnlyWith:
    """Returns the condition that the job reads the key."""

    def condition() -> str:
        return f"job={'|'.join(name for name in plugins.names('job') if reads(plugins.load('job', name)))}"

    return OnlyWith(condition, lambda settings: reads(settings.job), hint)


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule and conditions of a section's key."""

    name: str
    rule: Rule | None
    section: "type[Section] | None"  # the field's type, if it is a section
    nullable: bool
    takes_text: bool
    conditions: tuple[OnlyWith, ...]

    def read(self, key: str, value: Any) -> Any:
        """Checks a value, or a section.

        A value that equals the checked one is returned as the user typed it, for
        messages.
        """
        if self.section is not None:
            return self.section.read(key, value)
        if self.rule is None or (value is None and self.nullable):
            return value
        checked_value = self.rule(key, value)
        return value if checked_value == value else checked_value

    def check_read(self, key: str, value: object, settings: "Settings") -> None:
        """Raises `UserError` if the configuration does not read the key."""
        for condition in self.conditions:
            if not condition.holds(settings):
                raise condition.error(key, value)


class Section:
    """A configuration section: a dataclass with a field for each key.

    Fields with a default are not keys, since the defaults of keys are in the YAML file.

    Derive from it, as a dataclass, to declare the keys of a job. An annotation holds
    a key's type and the rule that checks it, and error messages name the key.

    Examples:
        >>> from dataclasses import dataclass
        >>> from functools import partial
        >>> from typing import Annotated
        >>> from gnnkit.config.settings import Section
        >>> from gnnkit.utils.ranges import whole
        >>> @dataclass(frozen=True)
        ... class Hubs(Section):
        ...     count: Annotated[int, partial(whole, low=1)]
        >>> Hubs.read("hubs", {"count": 3})
        Hubs(count=3)
    """

    __slots__ = ()
    conditions: ClassVar[tuple[OnlyWith, ...]] = ()  # apply to all keys

    @classmethod
    def optional_keys(cls) -> Collection[str]:
        """Returns further keys that the section may contain.

        They are not fields, so the class reads them itself. Default: none.
        """
        return ()

    @classmethod
    def read(cls, section: str, values: Mapping[str, object]) -> Self:
        """Reads and checks the values.

        Messages name the keys under `section`. Empty: keys outside sections.
        """
        prefix = section and f"{section}."
        return cls(**{rule.name: rule.read(f"{prefix}{rule.name}", values[rule.name]) for rule in key_rules(cls)})


def key_rules(kind: type[Any]) -> tuple[KeyRule, ...]:
    """Returns the rules of a dataclass's fields."""
    return _key_rules(typing.cast("Hashable", kind))


@functools.cache
def _key_rules(kind: Any) -> tuple[KeyRule, ...]:
    annotations = inspect.get_annotations(kind, eval_str=True)
    return tuple(
        _key_rule(kind, field.name, annotations[field.name]) for field in fields(kind) if field.default is MISSING
    )


def _key_rule(kind: type, name: str, annotation: Any) -> KeyRule:
    parts = list(_parts(annotation))
    conditions = [part for part in parts if isinstance(part, OnlyWith)]
    leaves = [part for part in parts if isinstance(part, type | types.GenericAlias)]
    rules = [part for part in parts if _is_rule(part)]
    return KeyRule(
        name,
        rules[0] if rules else None,
        annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None,
        types.NoneType in leaves,
        takes_text=any(leaf in (str, Path) or typing.get_origin(leaf) is tuple for leaf in leaves),
        conditions=(*getattr(kind, "conditions", ()), *conditions),
    )


def _is_rule(part: object) -> bool:
    return isinstance(part, functools.partial | types.FunctionType)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yields an annotation's types and metadata.

    `Annotated[T, rule] | None` accepts null without calling the rule. In `Annotated[T |
    None, rule]`, the rule decides.
    """
    if typing.get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
        decides = any(_is_rule(part) for part in annotation.__metadata__)
        yield from (part for part in _parts(annotation.__origin__) if not (decides and part is types.NoneType))
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _parts(option)
    else:
        yield annotation


def expect_keys(
    section: str, values: Mapping[str, object], required_keys: Collection[str], optional: Collection[str] = ()
) -> None:
    """Raises `UserError` if a key of the section is missing or unknown."""
    known_keys = [f"{section}.{key}" for key in (*required_keys, *optional)]
    for key in values:
        if f"{section}.{key}" not in known_keys:
            raise unknown_key(f"{section}.{key}", known_keys)
    for key in required_keys:
        if key not in values:
            raise missing(f"{section}.{key}")


def missing(key: str) -> UserError:
    """Returns the error for a key that was removed from the configuration."""
    return UserError(f"{key} is missing: do not remove it from the configuration")


def read_texts(section: Json, rules: Collection[KeyRule]) -> None:
    """Parses text that contains a number or a boolean, in place.

    `${oc.env:NAME}` returns text. Keys that accept text are not changed.
    """
    for rule in rules:
        if not rule.takes_text and (number := parse_scalar(section.get(rule.name))) is not None:
            section[rule.name] = number


AUTO = "auto"
WRITTEN = ("predictions", "logits", "probabilities", "embeddings", "vectors")
MAX_RUNS = 64  # compared in one report
MOST_MEMORY = 2**60  # bytes
UPLOADED = ", and upload=URL for a copy of it"  # appended to the message if output is a URL
_UNITS = {None: 1, "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def path(key: str, value: object, hint: str = "") -> str:
    """Checks a local path. `hint` is as in `local_path`."""
    if not isinstance(value, str) or not value:
        raise UserError(f"{key}={shown(value)} must be a path or null")
    local_path(key, value, hint)
    return value


LocalPath = Annotated[str, path]


def cache_folder(key: str, value: object) -> Path | None:
    """Returns the folder for cached partitions and shards, or None."""
    from gnnkit.utils import storage

    if value == AUTO:
        base = storage.cache_folder()
        return None if base is None else base / "shards"
    if value is False or value is None:
        return None
    if value == "none":
        raise UserError(f"{key}=none: use {key}=false, or {key}=./none for a folder of this name")
    if isinstance(value, str) and value:
        return local_path(key, value).expanduser().absolute()
    raise UserError(f"{key}={shown(value)} must be auto, false or a folder")


def size(key: str, value: object, least: int = 0) -> int | None:
    """Parses a size such as 1GB to bytes. Returns None for `auto`.

    Args:
        key: Configuration key, for the message.
        least: Smallest size in bytes, a multiple of 1 MiB. Default: 0.
    """
    if value == AUTO:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(GB|GiB|MB|MiB)?", str(value))
    if match is None or isinstance(value, bool):
        raise UserError(f"{key}={shown(value)} must be auto, a number of bytes, or a text such as 1GB or 512MiB")
    num_bytes = float(match[1]) * _UNITS[match[2]]
    if not least <= num_bytes <= MOST_MEMORY:
        raise UserError(f"{key}={shown(value)} must be at least {least // 2**20}MiB, and less than 2^60 bytes")
    return int(num_bytes)


def output_names(key: str, value: object) -> tuple[str, ...]:
    """Reads one name, or a list of names, of output files."""
    return tuple(one_of(key, name, WRITTEN) for name in (value if isinstance(value, list) else [value]))


def url(key: str, value: object) -> str:
    """Checks a remote folder's URL."""
    if not isinstance(value, str) or not is_url(value) or value.startswith("file:"):
        raise UserError(
            f"{key}={shown(value)} must be a URL such as s3://bucket/folder, or null: output names a local folder"
        )
    return value


Url = Annotated[str, url]


def run_folders(key: str, value: object) -> tuple[str, ...]:
    """Reads a path or a list of paths."""
    folders = [] if value is None else value if isinstance(value, list) else [value]
    if len(folders) > MAX_RUNS:
        raise UserError(f"{key} has {len(folders)} folders, at most {MAX_RUNS} are compared")
    return tuple(path(key, folder) for folder in folders if folder is not None)
