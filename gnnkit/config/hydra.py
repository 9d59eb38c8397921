"""The settings of Hydra that gnnkit takes: folders, verbosity, sweeper and launcher.

Hydra never sees these. Known keys and defaults stand in `conf/hydra.yaml`, and in a
file for each of Hydra's sweepers and launchers, which names the launcher of ours that
does the same. Every other setting of Hydra is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.config.code import refuse_code
from gnnkit.config.compose import leaves
from gnnkit.documents import read_yaml
from gnnkit.errors import UserError
from gnnkit.plugins import CONF, conf_folders
from gnnkit.ranges import shown, unknown

HYDRA_PARTS = ("sweeper", "launcher")  # chosen with hydra/PART=NAME
_OF_HYDRA = re.compile(r"[+~]*hydra[./]")


@dataclass(frozen=True, slots=True)
class HydraSettings:
    """The values by key, as in `sweep.dir` and `launcher.name`."""

    values: Mapping[str, Any]
    given: Mapping[str, str]  # keys that the user has set, with the text of the override
    means: Mapping[str, str]  # by part: our name for the sweeper or the launcher

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def refuse(self, prefixes: tuple[str, ...], why: str) -> None:
        """Raises `UserError` for a setting under one of the prefixes."""
        for key, text in self.given.items():
            if key.startswith(prefixes):
                raise UserError(f"{text} {why}")

    def nested(self) -> dict[str, Any]:
        """Returns the values as nested mappings, as in a YAML file."""
        nested: dict[str, Any] = {}
        for key, value in self.values.items():
            *parents, last = key.split(".")
            node = nested
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        return nested

    def under(self, part: str) -> dict[str, Any]:
        """Returns the arguments of the sweeper or the launcher, without the name."""
        prefix = f"{part}."
        arguments = {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}
        del arguments["name"]
        return arguments


def split(overrides: Sequence[str]) -> tuple[list[str], HydraSettings]:
    """Separates overrides of the run from settings of Hydra.

    Raises `UserError` for a setting that is not allowed.
    """
    of_hydra = [text for text in overrides if _OF_HYDRA.match(text)]
    return [text for text in overrides if not _OF_HYDRA.match(text)], _read(of_hydra)


def hydra_section(part: str) -> str:
    """Returns the folder with a file for each option of a part."""
    return f"hydra_{part}"


def hydra_options(part: str) -> list[str]:
    """Lists the sweepers or the launchers."""
    return sorted(path.stem for path in (CONF / hydra_section(part)).glob("*.yaml"))


def fill(text: str, composed: Mapping[str, Any], **job: Any) -> str:
    """Resolves `${seed}`, `${now:FORMAT}` and `${hydra.job.num}` in a path.

    Raises `UserError` for other interpolations.

    Args:
        text: The path.
        composed: The composed configuration.
        **job: What is known about the job, under `hydra.job`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.create({**composed, "hydra": {"job": job}, "_": text})
        return str(OmegaConf.to_container(config, resolve=True)["_"])  # type: ignore[call-overload, index]
    except OmegaConfBaseException as error:
        raise UserError(f"{text}: {str(error).splitlines()[0]}") from error


def _read(overrides: Sequence[str]) -> HydraSettings:
    chosen = dict.fromkeys(HYDRA_PARTS, "basic")
    for text in overrides:
        part, is_choice, name = text.removeprefix("hydra/").partition("=")
        if text.startswith("hydra/") and is_choice and part in HYDRA_PARTS:
            chosen[part] = _known(text, name, hydra_options(part))
    conf = conf_folders()[0]
    values, means = _flat(conf / "hydra.yaml"), {}
    for part, name in chosen.items():
        defaults = _flat(conf / hydra_section(part) / f"{name}.yaml")
        means[part] = defaults["name"]
        values |= {f"{part}.{key}": value for key, value in defaults.items()} | {f"{part}.name": name}
    given = {}
    for text in overrides:
        key = _dotted_key(text, values)
        values[key], given[key] = _value(text), text
    return HydraSettings(values, given, means)


def _flat(path: Path) -> dict[str, Any]:
    return dict(leaves(read_yaml(path)))


def _dotted_key(text: str, known: Mapping[str, Any]) -> str:
    """Returns the key that an override sets. `hydra/sweeper` is `sweeper.name`."""
    typed_key = text.partition("=")[0].strip()
    key = typed_key.removeprefix("hydra/").replace("/", ".") + ".name"
    if typed_key.startswith("hydra."):
        key = typed_key.removeprefix("hydra.")
    if key not in known or typed_key.endswith(".name"):
        allowed = ", ".join(sorted(_spelt(name) for name in known))
        raise UserError(f"{typed_key} cannot be changed: of Hydra's settings there are {allowed}")
    return key


def _spelt(key: str) -> str:
    """Spells a key as users type it."""
    return f"hydra/{key.removesuffix('.name').replace('.', '/')}" if key.endswith(".name") else f"hydra.{key}"


def _value(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    refuse_code(text, f"override {text!r}")
    try:
        override = OverridesParser.create().parse_override(text)
    except OverrideParseException as error:
        raise UserError(f"cannot read {shown(text)!r}: write KEY=VALUE") from error
    if override.is_sweep_override() or override.is_delete():
        raise UserError(f"{shown(text)}: a setting of Hydra has one value for the whole sweep")
    return override.value()


def _known(text: str, name: str, known: Sequence[str]) -> str:
    if name not in known:
        raise unknown(text, name, known)
    return name
