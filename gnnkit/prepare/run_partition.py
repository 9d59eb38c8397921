"""A run folder's partition, which rebalancing replaces and resumed runs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.quality import measure
from gnnkit.partition.shard import cut_all
from gnnkit.prepare import picture
from gnnkit.result.folder import COORDINATION, PARTITION, PICTURE, PREPARED, SOURCE
from gnnkit.utils.documents import Json, read_object
from gnnkit.utils.storage import load_arrays, passing, save_arrays, write_atomically


def save_partition(folder: Path, partition: Partition, meta: Mapping[str, Any]) -> None:
    """Saves a partition in a run folder, for `partition=stored`.

    Args:
        folder: The run folder.
        meta: Additional plain data.
    """
    arrays = {"node_rank": partition.node_rank, "edge_cell": partition.edge_cell}
    shape = {"grid": asdict(partition.grid), "columns": list(partition.columns)}
    save_arrays(folder / PARTITION, arrays, {**meta, **shape})


def load_partition(folder: Path) -> tuple[Partition, Json]:
    """Loads a run folder's partition and the data saved with it."""
    arrays, meta = load_arrays(folder / PARTITION)
    grid, columns = Grid(**meta["grid"]), tuple(meta["columns"])
    return Partition(arrays["node_rank"], arrays.get("edge_cell"), grid, columns), meta


def keep(folder: Path, settings: Settings, partition: Partition, *, is_recut: bool) -> None:
    """Saves a run's initial partition with its configuration keys.

    Args:
        folder: The run folder.
        is_recut: Whether the partition differs from the configured one.
    """
    save_partition(folder, partition, {"keys": _keys(settings), "rebalanced": is_recut})


def open_run(folder: Path) -> tuple[Graph, Partition]:
    """Loads the graph and partition of a run with a hook that sets `keeps_graph`."""
    return Graph.load(folder / PREPARED / SOURCE), load_partition(folder)[0]


def replace_shards(folder: Path, name: str, graph: Graph, partition: Partition) -> dict[str, float]:
    """Writes a run's shards for a new partition, for `LeaderRun.take_shard`.

    Updates the partition and the files that describe it. Returns the balance: maximum
    over mean of the workers' shares, by name.

    Args:
        folder: The run folder.
        name: Folder name of the new shards.
        partition: The new partition.
    """
    with passing():
        save_shards(graph, partition, folder / PREPARED / name)
    quality = measure(graph, partition)
    report, path = quality.to_dict(), folder / COORDINATION
    if path.exists():
        coordination = read_object(path) | {key: report[key] for key in ("regions", "peers")}
        write_atomically(path, json.dumps(coordination).encode())
    save_partition(folder, partition, {**load_partition(folder)[1], "rebalanced": True})
    if (folder / PICTURE).exists():
        picture.save(graph, partition, folder)
    return {key: quality.balance()[key] for key in ("nodes", "edges", "train_nodes")}


def save_shards(graph: Graph, partition: Partition, folder: Path, *, has_rows: bool = True) -> None:
    """Saves each rank's shard, with or without feature rows, in numbered folders."""
    for shard in cut_all(graph, partition):
        part = shard if has_rows else replace(shard, features=shard.features[:0])
        part.save(folder / str(shard.rank))


def load_rebalanced(settings: Settings, num_nodes: int) -> tuple[Partition | None, list[str]]:
    """Returns the rebalanced partition of the run to resume, and lines of description.

    Returns None if no run is resumed, if its partition was not changed, or if the
    configuration names another partition.

    Args:
        num_nodes: The graph's number of nodes.
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
    """Returns the folder of the run to resume, if any."""
    if settings.trainer.resume is None:
        return None
    path = Path(settings.trainer.resume)
    return path if path.is_dir() else path.parent.parent


def _keys(settings: Settings) -> Json:
    """Returns the keys that determine the layout, as read back from JSON."""
    keys = {"workers": settings.workers, "partition": asdict(settings.partition)}
    plain: Json = json.loads(json.dumps(keys, default=str))
    return plain
