"""The text of `--info`: packages, plugins, search path and selected options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gnnkit import plugins
from gnnkit.config import HYDRA_PARTS, hydra_options
from gnnkit.errors import UserError

_PACKAGES = ("gnnkit", "torch", "lightning", "hydra-core", "numpy", "optuna", "submitit")


def text(topic: str, config_dirs: Sequence[Path], choices: Callable[[], Mapping[str, str]]) -> str:
    """Returns the text for one topic.

    Args:
        topic: all, plugins, searchpath or defaults.
        config_dirs: The user's folders.
        choices: Returns each section's selected option.
    """
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "plugins": _plugins,
        "searchpath": lambda: _folders(config_dirs),
        "defaults": lambda: _defaults(choices),
    }
    lines = [f"{name} {_version(name)}" for name in _PACKAGES] if topic == "all" else []
    for name, make in parts.items():
        if topic in ("all", name):
            lines += [f"{name}:", *make()]
    return "\n".join(lines) + "\n"


def _defaults(choices: Callable[[], Mapping[str, str]]) -> Iterator[str]:
    try:
        yield from (f"  {kind}={name}" for kind, name in choices().items())
    except UserError as error:  # for example, a model that is not installed
        yield f"  {error}"


def _plugins() -> Iterator[str]:
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            point = plugins.find(kind, name)
            yield f"  {kind}={name}  {point.value}" + (f" of {point.dist.name}" if point.dist else "")
    for part in HYDRA_PARTS:
        for name in hydra_options(part):
            yield f"  hydra/{part}={name}"


def _folders(config_dirs: Sequence[Path]) -> Iterator[str]:
    yield from (f"  {folder.resolve()}" for folder in plugins.conf_folders())
    yield from (f"  {folder.absolute()}  --config-dir" for folder in config_dirs)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
