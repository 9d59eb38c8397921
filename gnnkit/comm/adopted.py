"""An existing process group of the calling program, set aside during a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_store: Any = None  # of the process group that is set aside
_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state")


@contextmanager
def set_aside() -> Iterator[None]:
    """Sets the program's process groups aside, and restores them at the end.

    A run creates its own groups with their own deadlines and backend. Its default group
    is the one that Lightning and DDP use. Ranks rendezvous in the program's store,
    which avoids a second port. Does nothing if the program has created no group.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        yield
        return
    global _store  # noqa: PLW0603 - one per process, as torch's
    c10d, world = dist.distributed_c10d, dist.distributed_c10d._world
    _store = c10d._get_default_store()
    timeout, count = _store.timeout, world.group_count
    tables = {name: dict(getattr(world, name)) for name in _TABLES}  # torch keeps one of each for all worlds
    c10d._world = c10d._World()
    _fill(c10d._world, {name: {} for name in _TABLES})
    try:
        yield
    finally:
        _store.set_timeout(timeout)
        _store, c10d._world = None, world
        world.group_count = count
        _fill(world, tables)


def store() -> Any:
    """Returns the store of the program's process group, or None."""
    return _store


def _fill(world: Any, tables: Mapping[str, dict[Any, Any]]) -> None:
    """Fills torch's group tables. Their names would clash between two worlds."""
    from torch._C import _distributed_c10d as groups

    groups._unregister_all_process_groups()
    for name, table in tables.items():
        getattr(world, name).clear()
        getattr(world, name).update(table)
    for group, name in tables["pg_names"].items():
        groups._register_process_group(name, group)
