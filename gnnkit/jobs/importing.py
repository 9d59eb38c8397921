"""job=import: reads tables of any size into a store, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnkit.config.settings import AUTO, DEFAULT_TASK, Settings
from gnnkit.dataset.base import blame
from gnnkit.errors import UserError
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.order import Order
from gnnkit.jobs.partition import held
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare.importing import imported, told_disk
from gnnkit.prepare.kept import origin
from gnnkit.result.folder import WORK
from gnnkit.result.result import Result, versions
from gnnkit.store.manifest import FILE, Manifest, differing, shaping

_CUT = "job=partition {data} does so in memory"
# What job=import refuses, by message.
REFUSED: Mapping[str, Callable[[Settings], object]] = {
    "dataset={s.dataset.name} is read as a whole, and job=import reads data sets piece by piece: use job=partition": lambda s: (
        s.dataset.create().in_pieces() is None
    ),
    "partition.nodes={s.partition.nodes.name}: job=import reads no edge at random when it chooses owners: choose "
    f"contiguous, hash, random, stored, ldg, fennel or buffered, {_CUT}": lambda s: (
        s.partition.nodes.name == AUTO
        or (s.partition.nodes.load().reads_edges and not s.partition.nodes.load().streams)
    ),
    f"partition.grid={{s.partition.grid}}: job=import cuts for partition.grid=1d, {_CUT}": lambda s: (
        s.partition.grid != "1d"
    ),
    f"partition.border={{s.partition.border}}: job=import moves no nodes and edges after the cut, {_CUT}": lambda s: (
        s.partition.border != "none"
    ),
    f"input_rows=sparse: job=import writes rows of features with their zeros, {_CUT} without": lambda s: (
        s.input_rows == "sparse"
    ),
    f"task={{s.task.name}}: job=import writes stores of tasks about nodes, {_CUT}": lambda s: (
        s.task.name != DEFAULT_TASK and not hasattr(s.task.load(), "read")
    ),
}


def check(settings: Settings, *, given: bool) -> None:
    """Raises `UserError` for what job=import does not do, with the command that does.

    Args:
        settings: The configuration.
        given: Whether the graph comes from Python.
    """
    if given:
        raise UserError("job=import reads a folder of tables: job=partition cuts a graph from Python")
    store = settings.dataset.create().store_folder
    data = f"dataset={settings.dataset.name}" if store is None else "of the data set itself"
    for message, holds in REFUSED.items():
        if holds(settings):
            raise UserError(message.format(s=settings, data=data))
    if store is not None and (store / FILE).exists():  # another folder is named when it is read
        _check_same(settings, Manifest.load(store).keys, store)


def _check_same(settings: Settings, keys: Mapping[str, Any], store: Path) -> None:
    """Raises `UserError` for features and labels other than those of a store."""
    kept = {key: keys[key] for key in ("workers", "partition")}
    for key, own, its in differing({**settings.cut, **kept}, keys, whole_task=True):
        raise UserError(
            f"{key}={own}: the store {store} was written with {key}={its}, and is cut anew as it is: leave the key out, or "
            "name the data set itself"
        )


def import_tables(order: Order, *, together: bool) -> Result:
    """Writes the store of the data set into the run folder.

    Args:
        order: What was asked, with the run folder.
        together: Whether ranks that were started from outside share the work. The
            leader alone cuts the graph, and others return a result without figures.
    """
    folder = order.run_folder if order.is_leader else run_folders.named(order)
    patience, asked = Patience.of(order.settings.timeout), asked_of(order)
    stamps = _stamps(order.settings)
    found = run_in_child(imported, order.settings, folder, asked, together, patience=patience, beside=_import_cutting)
    if not order.is_leader:
        return Result(order.settings.job.name, {})
    _check_stamps(stamps, _stamps(order.settings))  # from here on the data are not read any more
    figures = run_in_child(_stored, order, found, asked, patience=patience)
    return Result(order.settings.job.name, figures, figures.pop("summary"))


def unchanged(order: Order) -> Result | None:
    """Returns the result of the store in a folder, if the same job has written it.

    The same job has the same keys, and files of the same sizes and times.
    """
    found = held(order, asked_of)
    if found is not None:  # a process may have ended with the store written
        shutil.rmtree(order.run_folder / WORK, ignore_errors=True)
    return found


def asked_of(order: Order) -> str:
    """Hashes the keys that shape the store, and what tells the data apart."""
    settings = order.settings
    stamps = _stamps(settings)
    keys = shaping(settings.cut) | {key: settings.composed[key] for key in ("strategy", "memory")}
    asked: list[Any] = [keys, asdict(settings.dataset), stamps, origin(settings.partition.nodes), versions()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _stamps(settings: Settings) -> list[list[Any]]:
    """Returns name, size and time of the last change of each file that is read."""
    pieces = settings.dataset.create().in_pieces()
    assert pieces is not None  # others are refused before
    with blame(f"dataset.root={pieces.root}"):
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in pieces.files]


def _check_stamps(before: list[list[Any]], after: list[list[Any]]) -> None:
    """Raises `UserError` for a file that has changed between two calls of `_stamps`."""
    changed = [path for path, *stamp in after if [path, *stamp] not in before]
    gone = {path for path, *_ in before} - {path for path, *_ in after}
    if changed or gone:
        raise UserError(
            f"{[*changed, *sorted(gone)][0]} was changed while it was read: the same command starts over, once nobody "
            "writes there"
        )


def _import_cutting() -> None:
    """Imports torch, which the first child does without, for the second one."""
    import gnnkit.prepare.imported  # noqa: F401


def _stored(order: Order, found: str, asked: str) -> dict[str, Any]:
    from gnnkit.prepare.imported import store  # imports torch, which `_import_cutting` has done

    with told_disk(order.run_folder):
        return store(order.settings, order.run_folder, Path(found), asked)
