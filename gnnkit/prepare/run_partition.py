"""A run's partition: assigned, described, and saved in the run folder.

Rebalancing replaces it, and resumed runs read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from gnnkit.config.settings import PartitionSettings, Settings
from gnnkit.dataset.base import ONE_WAY, both_ways
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Split
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.border import fewest_words, improve_border, in_columns
from gnnkit.partition.grid import Grid, make_grid, remark, unequal_columns
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import cut_all
from gnnkit.result.result import COORDINATION, PARTITION, PICTURE, PREPARED, SOURCE
from gnnkit.utils.documents import Json, read_object
from gnnkit.utils.storage import load_arrays, passing, save_arrays, write_atomically

MAX_RANKS = 256  # of matrices by pairs of ranks
COUNTED_EDGES = 5_000_000  # in larger graphs, edges are counted on a sample of nodes
DRAWN_NODES, DRAWN_EDGES = 300, 900  # maximum size of the sample


class Cutter:
    """Partitions a graph in several ways, and reuses node assignments across grids."""

    def __init__(self, graph: Graph, workers: int) -> None:
        """Stores the graph.

        Args:
            graph: The full graph.
        """
        self.graph, self.workers = graph, workers
        self._owners: dict[str, Ids] = {}  # by partitioner with arguments, if independent of the grid

    def cut(self, section: PartitionSettings) -> Partition:
        """Returns the partition that the configuration describes."""
        grid = make_grid(section.grid, self.workers, section.replication)
        partition = improve_border(self.graph, self._assigned(section, grid), section.border)
        numbers = unequal_columns(section.grid, self.workers, section.replication)
        if not numbers or partition.edge_cell is not None:
            return partition
        if section.replication is not None:
            return in_columns(self.graph, partition, section.replication)
        return fewest_words(self.graph, partition, numbers)

    def _assigned(self, section: PartitionSettings, grid: Grid) -> Partition:
        name = f"{section.nodes.name} {dict(section.nodes.arguments)}"
        if (owners := self._owners.get(name)) is not None:
            return Partition(owners, None, grid)
        partitioner: Partitioner = section.nodes.create()
        partition = partitioner.assign(self.graph, grid)
        if not partitioner.reads_grid:
            self._owners[name] = partition.node_rank
        return partition


def assign(graph: Graph, section: PartitionSettings, workers: int) -> Partition:
    """Returns the partition that the configuration describes.

    Args:
        graph: The full graph.
        section: The section `partition`.
    """
    return Cutter(graph, workers).cut(section)


@dataclass(frozen=True, slots=True)
class Decision:
    """A run's layout, and the figures of all layouts that were compared."""

    nodes: str  # name of the partitioner
    why: str
    layouts: Json  # figures by name, including "chosen"

    @classmethod
    def of(cls, settings: Settings, quality: Quality) -> Self:
        """Describes the layout: the leader's reason, or the words of the busiest rank.

        Args:
            quality: The measured quality of the layout.
        """
        section, leader_choice = settings.partition, settings.decided
        if leader_choice is not None:
            return cls(section.nodes.name, leader_choice["why"], leader_choice["layouts"])
        words = float(quality.words.max())
        figures: Mapping[str, Json] = {
            "chosen": {"grid": shape(quality.partition.grid), "words_per_column": words, "balance": quality.balance()}
        }
        reason = (
            "workers=1: the graph is not divided"
            if settings.workers == 1
            else f"partition.grid={section.grid}: the busiest rank receives {words:,.1f} words per feature column and "
            "aggregation; job=plan compares other layouts"
        )
        return cls(section.nodes.name, reason, dict(figures))


def overrides(partition: PartitionSettings) -> str:
    """Returns the overrides that select a layout."""
    keys = {"border": partition.border, "grid": format_grid(partition.grid)}
    further_keys = [f"partition.{key}={value}" for key, value in keys.items() if value not in ("none", "1d")]
    return " ".join([f"partition={partition.nodes.name}", *further_keys])


def format_grid(grid: str | list[int]) -> str:
    """Formats a grid as on the command line."""
    return str(grid).replace(" ", "")


def describe(graph: Graph, settings: Settings, partition: Partition) -> list[str]:
    """Describes the graph and its partition, in lines for users.

    Args:
        graph: The full graph.
    """
    section = settings.partition
    note = remark(section.grid, partition.grid, partition.columns)
    return [f"{sizes_of(graph)}; {section.nodes.name} nodes on a {partition.layout}", *([note] if note else [])]


def sizes_of(graph: Graph) -> str:
    """Describes a graph's size, features and labels."""
    share = both_ways(graph.csc)
    note = f" ({100 * share:.2g} % have a reverse edge)" if share < ONE_WAY else ""
    return f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges{note}, {graph.features.shape[1]:,} features, {graph.label_summary}"


def shape(grid: Grid) -> list[int]:
    """Returns the grid as a value of `partition.grid`."""
    return [grid.rows, grid.cols, grid.slices]


def save_partition(folder: Path, partition: Partition, meta: Mapping[str, object]) -> None:
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
        save_picture(graph, partition, folder)
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


def save_picture(graph: Graph, partition: Partition, folder: Path) -> None:
    """Writes `partition.json`: a partition's statistics and a sample of the graph."""
    write_atomically(folder / PICTURE, json.dumps(draw_picture(graph, partition)).encode())


def draw_picture(graph: Graph, partition: Partition) -> Json:
    """Counts nodes by owner and edges between owners, and draws a sample."""
    owner, num_ranks = partition.node_rank, partition.grid.world_size
    share = min(COUNTED_EDGES / max(graph.num_edges, 1), 1.0)
    num_counted, cut, pairs = _count_edges(graph, owner, _sample_nodes(graph.num_nodes, share), num_ranks)
    numbers: Json = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "nodes": np.bincount(owner, minlength=num_ranks).tolist(),
        "train_nodes": np.bincount(owner[graph.split == Split.TRAIN], minlength=num_ranks).tolist(),
        "counted_edges": num_counted,
        "cut": cut,
    }
    if num_ranks <= MAX_RANKS:  # [num_ranks, num_ranks] edges by owners of source and destination
        numbers["edges"] = pairs.reshape(num_ranks, num_ranks).tolist()
    if graph.schema.several:
        counts = [graph.num_edges] if graph.edge_types is None else np.bincount(graph.edge_types).tolist()
        numbers["schema"] = {**replace(graph.schema, feature_tables=None).as_plain(), "edges": counts}
    return numbers | {"sample": _draw_sample(graph, owner)}


def _count_edges(graph: Graph, owner: Ids, nodes: Ids, num_ranks: int) -> tuple[int, int, Ids]:
    """Counts the in-edges of some nodes, and the cut edges among them.

    Also returns the counts by owners of source and destination, [num_ranks *
    num_ranks], for up to `MAX_RANKS` ranks.
    """
    size = num_ranks**2 if num_ranks <= MAX_RANKS else 0
    num_counted, cut, pairs = 0, 0, np.zeros(size, np.int64)
    for part in np.array_split(nodes, max(_total_degree(graph, nodes) // (1 << 19), 1)):
        src, dst = (owner[ends] for ends in _in_edges(graph, part))
        num_counted, cut = num_counted + len(src), cut + int(np.count_nonzero(src != dst))
        if size:
            pairs += np.bincount(src.astype(np.int64) * num_ranks + dst, minlength=size)
    return num_counted, cut, pairs


def _sample_nodes(num_nodes: int, share: float) -> Ids:
    """Returns all nodes, or a random sample of about the given share."""
    if share >= 1:
        return np.arange(num_nodes)
    count = max(int(share * num_nodes), 1)
    return np.unique(np.random.default_rng(0).integers(0, num_nodes, count))


def _in_edges(graph: Graph, nodes: Ids) -> tuple[Ids, Ids]:
    """Returns sources and destinations of the nodes' in-edges."""
    positions, degrees = graph.csc.in_edges(nodes)
    return graph.csc.indices[positions], np.repeat(nodes, degrees)


def _draw_sample(graph: Graph, owner: Ids) -> Json:
    """Samples nodes and edges: all of a small graph, otherwise neighbourhoods.

    Neighbourhoods are searched breadth-first from random nodes, so the sample has
    edges. At most 6 sources of each node are followed.
    """
    rng = np.random.default_rng(0)
    nodes = np.arange(graph.num_nodes) if graph.num_nodes <= DRAWN_NODES else _sample_neighbourhoods(graph, rng)
    place = {int(node): index for index, node in enumerate(nodes)}
    src, dst = _in_edges(graph, nodes) if _total_degree(graph, nodes) <= COUNTED_EDGES else (nodes[:0], nodes[:0])
    inside = np.isin(src, nodes) & (src != dst)
    edges = [[place[int(s)], place[int(d)]] for s, d in zip(src[inside], dst[inside], strict=True)]
    if len(edges) > DRAWN_EDGES:
        edges = [edges[index] for index in rng.choice(len(edges), DRAWN_EDGES, replace=False)]
    classes = {"class": graph.labels[nodes].tolist()} if graph.labels.dtype.kind == "i" else {}
    of_nodes = {"nodes": nodes.tolist(), "rank": owner[nodes].tolist(), **classes}
    return {**of_nodes, "edges": edges, "whole": graph.num_nodes <= DRAWN_NODES}


def _total_degree(graph: Graph, nodes: Ids) -> int:
    return int((graph.csc.indptr[nodes + 1] - graph.csc.indptr[nodes]).sum())


def _sample_neighbourhoods(graph: Graph, rng: np.random.Generator) -> Ids:  # [DRAWN_NODES] at most
    """Samples nodes breadth-first, following a few sources of each."""
    nodes: dict[int, None] = {}
    waiting = rng.choice(graph.num_nodes, min(6, graph.num_nodes), replace=False).tolist()
    while len(nodes) < DRAWN_NODES:
        node = waiting.pop(0) if waiting else int(rng.integers(graph.num_nodes))
        if node in nodes:
            continue
        nodes[node] = None
        low, high = int(graph.csc.indptr[node]), int(graph.csc.indptr[node + 1])
        if high > low:
            waiting += graph.csc.indices[rng.integers(low, high, min(high - low, 6))].tolist()
    return np.array(list(nodes))
