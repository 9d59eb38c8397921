"""The supported Hydra settings: folders, verbosity, sweeper and launcher.

gnnkit reads these settings itself, without passing them to Hydra. `conf/hydra.yaml`
contains the known keys and defaults. Each supported sweeper and launcher has a file
that names the equivalent in this package. All other Hydra settings are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.config.code import refuse_code
from gnnkit.config.compose import leaves
from gnnkit.config.keys import read
from gnnkit.errors import UserError
from gnnkit.plugins import CONF, conf_folders
from gnnkit.utils.documents import Json, read_yaml
from gnnkit.utils.ranges import shown, unknown

HYDRA_PARTS = ("sweeper", "launcher")  # selected with hydra/PART=NAME
_HYDRA_KEY = re.compile(r"[+~]*hydra[./]")


@dataclass(frozen=True, slots=True)
class HydraSettings:
    """Hydra's settings by key, such as `sweep.dir` and `launcher.name`."""

    values: Mapping[str, Any]
    typed: Mapping[str, str]  # overrides typed by the user, by key
    means: Mapping[str, str]  # gnnkit's name for the selected sweeper and launcher, by part

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def refuse(self, prefixes: tuple[str, ...], reason: str) -> None:
        """Raises `UserError` if the user has set a key with one of the prefixes."""
        for key, text in self.typed.items():
            if key.startswith(prefixes):
                raise UserError(f"{text} {reason}")

    def nested(self) -> Json:
        """Returns the values as nested mappings, as in a YAML file."""
        tree: Json = {}
        for key, value in self.values.items():
            *parents, last = key.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        return tree

    def under(self, part: str) -> Json:
        """Returns the arguments of the sweeper or launcher, without its name."""
        prefix = f"{part}."
        arguments = {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}
        del arguments["name"]
        return arguments


def split(overrides: Sequence[str]) -> tuple[list[str], HydraSettings]:
    """Separates the run's overrides from Hydra settings.

    Raises `UserError` for an unsupported setting.
    """
    of_hydra = [text for text in overrides if _HYDRA_KEY.match(text)]
    return [text for text in overrides if not _HYDRA_KEY.match(text)], _read(of_hydra)


def hydra_section(part: str) -> str:
    """Returns the folder that contains a file for each of the part's options."""
    return f"hydra_{part}"


def hydra_options(part: str) -> list[str]:
    """Lists the part's options."""
    return sorted(path.stem for path in (CONF / hydra_section(part)).glob("*.yaml"))


def fill(text: str, run_config: Mapping[str, object], **job: object) -> str:
    """Resolves `${seed}`, `${now:FORMAT}` and `${hydra.job.num}` in a path.

    Raises `UserError` for other interpolations.

    Args:
        text: The path.
        run_config: The composed configuration.
        **job: Values under `hydra.job`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.create({**run_config, "hydra": {"job": job}, "_": text})
        return str(OmegaConf.to_container(config, resolve=True)["_"])  # type: ignore[call-overload, index]
    except OmegaConfBaseException as error:
        raise UserError(f"{text}: {str(error).splitlines()[0]}") from error


def _read(overrides: Sequence[str]) -> HydraSettings:
    selections = dict.fromkeys(HYDRA_PARTS, "basic")
    for text in overrides:
        part, is_choice, name = text.removeprefix("hydra/").partition("=")
        if text.startswith("hydra/") and is_choice and part in HYDRA_PARTS:
            selections[part] = _check_option(text, name, hydra_options(part))
    conf = conf_folders()[0]
    values, means = _read_flat(conf / "hydra.yaml"), {}
    for part, name in selections.items():
        defaults = {key.name: key.value for key in read(hydra_section(part), name).keys}
        defaults |= _read_flat(conf / hydra_section(part) / f"{name}.yaml")
        means[part] = defaults["name"]
        values |= {f"{part}.{key}": value for key, value in defaults.items()} | {f"{part}.name": name}
    typed_overrides = {}
    for text in overrides:
        key = _dotted_key(text, values)
        values[key], typed_overrides[key] = _parse_value(text), text
    return HydraSettings(values, typed_overrides, means)


def _read_flat(path: Path) -> Json:
    return dict(leaves(read_yaml(path)))


def _dotted_key(text: str, defaults: Mapping[str, object]) -> str:
    """Returns the key that an override sets. `hydra/sweeper` sets `sweeper.name`."""
    typed_key = text.partition("=")[0].strip()
    key = typed_key.removeprefix("hydra/").replace("/", ".") + ".name"
    if typed_key.startswith("hydra."):
        key = typed_key.removeprefix("hydra.")
    if key not in defaults or typed_key.endswith(".name"):
        setting_names = ", ".join(sorted(_typed_key(name) for name in defaults))
        raise UserError(f"{typed_key} cannot be changed: the supported Hydra settings are {setting_names}")
    return key


def _typed_key(key: str) -> str:
    """Returns a setting's key as users type it, such as `hydra.sweep.dir`."""
    return f"hydra/{key.removesuffix('.name').replace('.', '/')}" if key.endswith(".name") else f"hydra.{key}"


def _parse_value(text: str) -> object:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    refuse_code(text, f"override {text!r}")
    try:
        override = OverridesParser.create().parse_override(text)
    except OverrideParseException as error:
        raise UserError(f"cannot read {shown(text)!r}: write KEY=VALUE") from error
    if override.is_sweep_override() or override.is_delete():
        raise UserError(f"{shown(text)}: a Hydra setting has one value per sweep")
    return override.value()


def _check_option(text: str, name: str, options: Sequence[str]) -> str:
    if name not in options:
        raise unknown(text, name, options)
    return name
