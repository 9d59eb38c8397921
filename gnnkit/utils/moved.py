"""Imports of modules under their former names, with a `DeprecationWarning`."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "gnnkit.evaluation": "gnnkit.task.evaluation",
    "gnnkit.launcher": "gnnkit.launch.launcher",
    "gnnkit.logger": "gnnkit.training.logger",
    "gnnkit.order": "gnnkit.partition.order",
    "gnnkit.plan": "gnnkit.leader.plan",
    "gnnkit.remote": "gnnkit.engine.remote",
    "gnnkit.settings": "gnnkit.config.settings",
    "gnnkit.store": "gnnkit.partition.store",
    **{
        f"gnnkit.{name}": f"gnnkit.utils.{name}"
        for name in (
            "approximate",
            "checks",
            "documents",
            "memory",
            "npy_writer",
            "ranges",
            "redaction",
            "spans",
            "storage",
            "work_group",
        )
    },
}


class _Moved(Loader):
    """Returns the module of the new name, so that its classes exist once."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has replaced it


class Finder(MetaPathFinder):
    """Finds modules of gnnkit under their former names.

    It comes first in `sys.meta_path`, because Python would find the modules of a moved
    package by its path and execute them a second time.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = fullname.removeprefix("gnnkit.").partition(".")
        new = MOVED.get(f"gnnkit.{first}") if fullname.startswith("gnnkit.") else None
        if new is None:
            return None
        new += f".{rest}" if rest else ""
        warnings.warn(f"{fullname} is now {new}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Moved(), loader_state=new)


def install() -> None:
    """Makes former names importable. Does nothing the second time."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
