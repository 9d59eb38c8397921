"""The partition of a run that was rebalanced, for later runs of its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnkit.config.settings import Settings
from gnnkit.documents import read_object
from gnnkit.errors import UserError
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.result.folder import COORDINATION, PARTITION
from gnnkit.storage import load_arrays, save_arrays, write_atomically


def save_partition(folder: Path, partition: Partition, meta: Mapping[str, Any]) -> None:
    """Stores a partition in a run folder, for `partition=stored`.

    Args:
        folder: The run folder.
        partition: The partition.
        meta: Further plain data.
    """
    arrays = {"node_rank": partition.node_rank, "edge_cell": partition.edge_cell}
    shape = {"grid": asdict(partition.grid), "columns": list(partition.columns)}
    save_arrays(folder / PARTITION, arrays, {**meta, **shape})


def load_partition(folder: Path) -> tuple[Partition, dict[str, Any]]:
    """Reads the partition of a run folder, and what was stored with it."""
    arrays, meta = load_arrays(folder / PARTITION)
    grid, columns = Grid(**meta["grid"]), tuple(meta["columns"])
    return Partition(arrays["node_rank"], arrays.get("edge_cell"), grid, columns), meta


def keep(folder: Path, settings: Settings, partition: Partition, *, changed: bool) -> None:
    """Stores the partition that a run begins with, and the keys that it stands for.

    Args:
        folder: The run folder.
        settings: The configuration.
        partition: The partition.
        changed: Whether the partition is another one than the configuration names.
    """
    save_partition(folder, partition, {"keys": _keys(settings), "rebalanced": changed})


def note(folder: Path, done: Sequence[Mapping[str, Any]]) -> None:
    """Adds to `coordination.json` how work was dealt out anew."""
    path = folder / COORDINATION
    coordination = read_object(path) if path.exists() else {}
    write_atomically(path, json.dumps({**coordination, "rebalanced": list(done)}).encode())


def rebalanced(settings: Settings, num_nodes: int) -> tuple[Partition | None, list[str]]:
    """Finds the partition with which the run of a checkpoint ended, and says so.

    None for runs that do not go on from a checkpoint, where the partition of that run
    was never changed, and where the configuration names another partition.

    Args:
        settings: The configuration.
        num_nodes: Nodes of the graph.
    """
    folder = resumed_folder(settings)
    if folder is None or not (folder / PARTITION).is_dir():
        return None, []
    try:
        partition, meta = load_partition(folder)
    except (UserError, KeyError, TypeError) as error:
        return None, [f"partition: not read from {folder / PARTITION}: {error}"]
    fits = len(partition.node_rank) == num_nodes and meta.get("keys") == _keys(settings)
    if not fits or not meta.get("rebalanced"):
        return None, []
    return partition, [f"partition: as rebalanced in the run of {settings.trainer.resume}"]


def resumed_folder(settings: Settings) -> Path | None:
    """Returns the run folder that the run goes on from."""
    if settings.trainer.resume is None:
        return None
    path = Path(settings.trainer.resume)
    return path if path.is_dir() else path.parent.parent


def _keys(settings: Settings) -> dict[str, Any]:
    """Returns what the configuration says of the layout, as read back from JSON."""
    keys = {"workers": settings.workers, "partition": asdict(settings.partition)}
    plain: dict[str, Any] = json.loads(json.dumps(keys, default=str))
    return plain
