"""job=import, which writes tables to a store."""

from __future__ import annotations

import functools
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from gnnkit.config.settings import AUTO, DEFAULT_TASK, Section, Settings
from gnnkit.config.settings.fields import size
from gnnkit.dataset.base import blame
from gnnkit.errors import UserError
from gnnkit.jobs import Order, Result, Run
from gnnkit.jobs.store_jobs import find_stored
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.partition.store.manifest import FILE, Manifest, differing, shaping
from gnnkit.prepare.kept import origin
from gnnkit.result.result import WORK, versions
from gnnkit.utils.documents import json_digest
from gnnkit_import.datasets import in_pieces
from gnnkit_import.npy_writer import disk_errors
from gnnkit_import.run import LEAST_MEMORY, run_import

_CUT = "job=partition {data} does so in memory"
# Unsupported configurations, by message.
REFUSED: Mapping[str, Callable[[Settings], object]] = {
    "dataset={s.dataset.name} cannot be read in pieces, as job=import requires: use job=partition": lambda s: (
        in_pieces(s.dataset.create()) is None
    ),
    "partition.nodes={s.partition.nodes.name}: job=import cannot read edges at random when it assigns nodes: choose "
    f"contiguous, hash, random, stored, ldg, fennel or buffered, {_CUT}": lambda s: (
        s.partition.nodes.name == AUTO
        or (s.partition.nodes.load().reads_edges and not s.partition.nodes.load().streams)
    ),
    f"partition.grid={{s.partition.grid}}: job=import supports only partition.grid=1d, {_CUT}": lambda s: (
        s.partition.grid != "1d"
    ),
    f"partition.border={{s.partition.border}}: job=import does not move nodes or edges after partitioning, {_CUT}": lambda s: (
        s.partition.border != "none"
    ),
    f"input_rows=sparse: job=import writes dense feature rows, {_CUT} with sparse rows": lambda s: (
        s.input_rows == "sparse"
    ),
    f"features.degree=true: job=import does not append this column: add it to the tables, {_CUT}": lambda s: (
        s.features.degree
    ),
    f"task={{s.task.name}}: job=import supports only node tasks, {_CUT}": lambda s: (
        s.task.name != DEFAULT_TASK and not s.task.load().labels_nodes
    ),
}


@dataclass(frozen=True, slots=True)
class ImportKeys(Section):
    """The keys of job=import."""

    memory: Annotated[int | None, functools.partial(size, least=LEAST_MEMORY)]  # bytes. None: share of free memory


class Import(Run):
    """job=import, which resumes an interrupted import in the run folder.

    job=partition of a store does the same.
    """

    name = "import"
    keys = ImportKeys
    reads_strategy = False
    goes_on = True
    keeps_inputs = True
    cuts = True

    def check(self, order: Order) -> Order:
        check_import(order.settings, from_python=order.graph is not None)
        return super().check(order)

    def check_parts(self, order: Order) -> Order:
        return order

    def done(self, order: Order) -> Result | None:
        if order.settings.on_exists == "replace" or order.named_folder is None:
            return None
        order = replace(order, folder=Path(order.named_folder).absolute())
        result = find_stored(order, import_key)
        if result is not None:  # a process may have ended with the store written
            shutil.rmtree(order.run_folder / WORK, ignore_errors=True)
        return result

    def work(self, order: Order) -> Result:
        """Writes the store of the data set into the run folder."""
        folder, settings = order.run_folder, order.settings
        patience, key, stamps = Patience.of(settings.timeout), import_key(order), _stamps(settings)
        imported = run_in_child(run_import, settings, folder, key, patience=patience, beside=_import_cutting)
        _check_stamps(stamps, _stamps(settings))  # the data are not read after this
        figures = run_in_child(_write_import, order, imported, key, patience=patience)
        return Result(settings.job.name, figures, figures.pop("summary"))


def check_import(settings: Settings, *, from_python: bool) -> None:
    """Raises `UserError` for an unsupported configuration, with an alternative.

    Args:
        settings: The configuration.
        from_python: Whether the graph comes from Python.
    """
    if from_python:
        raise UserError("job=import reads a folder of tables: job=partition cuts a graph from Python")
    store = settings.dataset.create().store_folder
    data = f"dataset={settings.dataset.name}" if store is None else "of the data set itself"
    for message, holds in REFUSED.items():
        if holds(settings):
            raise UserError(message.format(s=settings, data=data))
    if store is not None and (store / FILE).exists():  # reading reports another folder
        _check_same(settings, Manifest.load(store).keys, store)


def _check_same(settings: Settings, keys: Mapping[str, Any], store: Path) -> None:
    """Raises `UserError` for features and labels other than those of a store."""
    shape = {key: keys[key] for key in ("workers", "partition")}
    for key, value, stored in differing({**settings.cut, **shape}, keys, whole_task=True):
        raise UserError(
            f"{key}={value}: the store {store} was written with {key}={stored}, and keeps it when partitioned again: remove the key, or "
            "name the data set itself"
        )


def import_key(order: Order) -> str:
    """Hashes the keys that shape the store, and what identifies the data."""
    settings = order.settings
    stamps = _stamps(settings)
    keys = shaping(settings.cut) | {key: settings.composed.get(key, AUTO) for key in ("strategy", "memory")}
    parts: list[Any] = [keys, asdict(settings.dataset), stamps, origin(settings.partition.nodes), versions()]
    return json_digest(parts)


def _stamps(settings: Settings) -> list[list[Any]]:
    """Returns path, size and modification time of each file that is read."""
    pieces = in_pieces(settings.dataset.create())
    assert pieces is not None  # others are refused before
    with blame(f"dataset.root={pieces.root}"), warnings.catch_warnings(action="ignore"):  # the import prints them
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in pieces.files]


def _check_stamps(before: list[list[Any]], after: list[list[Any]]) -> None:
    """Raises `UserError` for a file that changed between two calls of `_stamps`."""
    changed = [path for path, *stamp in after if [path, *stamp] not in before]
    gone = {path for path, *_ in before} - {path for path, *_ in after}
    if changed or gone:
        raise UserError(
            f"{[*changed, *sorted(gone)][0]} changed while it was read: run the command again when no "
            "program writes to it"
        )


def _import_cutting() -> None:
    """Imports torch for the second child. The first one does not need it."""
    import gnnkit_import.cut  # noqa: F401


def _write_import(order: Order, imported: str, key: str) -> dict[str, Any]:
    from gnnkit_import.cut import write_store  # imports torch, as `_import_cutting` has done

    with disk_errors(order.run_folder):
        return write_store(order.settings, order.run_folder, Path(imported), key)
