"""Cuts shards of graphs that exceed memory, and writes them piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, Ids, feature_arrays
from gnnkit.graph.edge_columns import EdgeColumns
from gnnkit.graph.features import SCALES
from gnnkit.graph.types import offsets_of
from gnnkit.partition.base import Partition
from gnnkit.partition.degrees import looped, mean_in_edges, shared_weights, stretches
from gnnkit.partition.shard import Shard, grouped
from gnnkit.utils.storage import Array, forget_pages, save_array, whole_folder
from gnnkit_import.npy_writer import BinaryFile, NpyWriter, write_behind
from gnnkit_import.passes import ALONE, WorkGroup

NODE_BYTES = 48  # memory per node
_LEAST_PIECE = 1 << 14  # minimum number of edges per piece
_EDGE_BYTES, _TYPE_BYTES = 64, 64  # memory per edge in a piece, and additionally per edge type
_ROW_BYTES = 1 << 24  # bytes of feature rows copied at a time
_SOURCES = "source_degrees"  # temporary file


def edge_bytes(graph: Graph) -> int:
    """Returns the memory per edge in a piece, in bytes."""
    return _EDGE_BYTES + (0 if graph.edge_types is None else _TYPE_BYTES)


def least_memory(num_nodes: int, edge: int = _EDGE_BYTES) -> int:
    """Returns the minimum memory for cutting a graph, in bytes.

    Args:
        num_nodes: Number of nodes in the graph.
        edge: Bytes per edge in a piece.
    """
    return num_nodes * NODE_BYTES + _LEAST_PIECE * edge


def write_shards(
    graph: Graph,
    partition: Partition,
    root: Path,
    edges: int,
    *,
    rows: bool = True,
    group: WorkGroup = ALONE,
    threads: int = 1,
) -> Iterator[Shard]:
    """Cuts the shards of ranks 0, 1, ... as in `cut_all`, and writes each below `root`.

    Yields each shard, memory-mapped. Raises `UserError` for a grid other than P x 1 x
    1. The graph must be memory-mapped, with dense or packed features. Each process
    holds approximately `edges` edges in memory. `rows` is whether to write features.
    """
    grid = partition.grid
    if (grid.cols, grid.slices) != (1, 1) or partition.edge_cell is not None:
        raise UserError(f"partition.grid={grid}: a graph is cut piece by piece on grids of workers x 1 x 1 only")
    by_rank, start = grouped(partition.node_rank, grid.world_size)
    in_degree, out_degree = graph.csc.degrees()
    shared = {"looped": looped(graph.csc), "in_degree": in_degree, "out_degree": out_degree}
    _release_pages(graph)
    sources = _source_degrees(graph, root / _SOURCES, edges)
    cutter = _EdgeCutter(graph, partition.node_cell, sources, edges, threads)
    names = ("num_nodes", "num_edges", "num_classes", "num_relations", "type_sizes")
    scalars = {name: getattr(graph, name) for name in names}

    def work(first: int) -> None:
        for rank in range(first, grid.world_size, group.size):
            with whole_folder(root / str(rank), {"rank": rank, **scalars, "grid": asdict(grid)}) as folder:
                owned = by_rank[start[rank] : start[rank + 1]]
                _write_nodes(graph, owned, shared, folder)
                _write_features(graph, owned if rows else owned[:0], folder)
                cutter.write(owned, folder)

    group.run(work)
    (root / _SOURCES).unlink(missing_ok=True)
    for rank in range(grid.world_size):
        yield Shard.trusted(root / str(rank))


def _source_degrees(graph: Graph, path: Path, edges: int) -> Floats | None:  # [num_edges] float64, mapped
    """Returns for each edge the total weight of edges with its source and relation.

    Adds in edge order, as `relation_degrees` does. Relations are processed in groups
    whose sums fit a piece's memory, each in a pass over all edges. None without edge
    types.
    """
    csc, types = graph.csc, graph.edge_types
    if types is None:
        return None
    several = max(edges * _TYPE_BYTES // (8 * max(csc.num_nodes, 1)), 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = BinaryFile(path)
    for low in range(0, graph.num_relations, several):
        width = min(several, graph.num_relations - low)
        total = np.zeros(csc.num_nodes * width)
        for adds in (True, False):
            for first in range(0, csc.num_edges, edges):
                some = slice(first, first + edges)
                matches = np.flatnonzero((types[some] >= low) & (types[some] < low + width))
                pairs = csc.indices[some][matches].astype(np.int64) * width + (types[some][matches] - low)
                if adds:
                    np.add.at(total, pairs, 1.0 if csc.weight is None else csc.weight[some][matches].astype(np.float64))
                else:
                    count = len(types[some])
                    rows = file.read((count,), np.float64, 8 * first) if low else np.empty(count)
                    rows[matches] = total[pairs]
                    file.write(rows, 8 * first)
                _release_pages(graph)
    file.close()
    return np.memmap(path, np.float64, "r") if csc.num_edges else np.empty(0)


def _write_nodes(graph: Graph, owned: Ids, shared: dict[str, Array], folder: Path) -> None:
    for name in ("owned", "cell_nodes"):
        save_array(folder / f"{name}.npy", owned)
    times = {} if graph.node_time is None else {"node_time": graph.node_time}
    for name, values in {**shared, "labels": graph.labels, "split": graph.split, **times}.items():
        save_array(folder / f"{name}.npy", values[owned])


def _write_features(graph: Graph, nodes: Ids, folder: Path) -> None:
    for name, values in feature_arrays(graph.features).items():
        if name in SCALES:
            save_array(folder / f"{name}.npy", values)
            continue
        rows = NpyWriter(folder / f"{name}.npy", values.dtype, values.shape[1:])
        step = max(_ROW_BYTES // max(values[:1].nbytes, 1), 1)
        for first in range(0, len(nodes), step):
            rows.append(values[nodes[first : first + step]])
            forget_pages(values)
        rows.finish()


@dataclass(frozen=True, slots=True, eq=False)
class _EdgeCutter:
    """Writes the in-edges of some nodes, as a shard of a part."""

    graph: Graph
    cell: Ids  # [num_nodes] cell that owns each node
    sources: Floats | None  # [num_edges] from `_source_degrees`
    edges: int  # edges held in memory
    threads: int

    def write(self, owned: Ids, folder: Path) -> None:
        """Writes the in-edges of the ascending ids `owned`, and the ends' owners."""
        csc, cell, num_nodes = self.graph.csc, self.cell, self.graph.num_nodes
        seen = np.zeros(num_nodes, bool)
        for _, ids in _in_edge_pieces(csc.indptr, owned, self.edges):
            seen[csc.indices[ids]] = True
            forget_pages(csc.indices)
        seen[owned] = False
        halo = np.flatnonzero(seen)
        halo = halo[np.argsort(cell[halo], kind="stable")]
        del seen
        row = np.empty(num_nodes, np.int32)
        row[owned] = np.arange(len(owned), dtype=np.int32)
        row[halo] = np.arange(len(owned), len(owned) + len(halo), dtype=np.int32)
        none = halo[:0]
        ends = {"halo": halo, "halo_cell": cell[halo], "partial": none, "partial_cell": cell[none]}
        for name, values in ends.items():
            save_array(folder / f"{name}.npy", values)
        self._write_columns(owned, row, folder)

    def _write_columns(self, owned: Ids, row: npt.NDArray[np.int32], folder: Path) -> None:
        """Writes the edges' arrays. `row` renumbers sources."""
        csc, columns, sources = self.graph.csc, self.graph.edge_columns.cut_columns(), self.sources
        degree = csc.indptr[owned + 1] - csc.indptr[owned]
        save_array(folder / "indptr.npy", offsets_of(degree))
        arrays: dict[str, NpyWriter] = {}

        def pieces() -> Iterator[dict[str, Array]]:
            for nodes, ids in _in_edge_pieces(csc.indptr, owned, self.edges):
                taken, of_sources = columns.take(ids), None if sources is None else sources[ids]
                yield {
                    "indices": _gather(row, csc.indices[ids], self.threads),
                    "edge_ids": np.arange(ids.start, ids.stop) if isinstance(ids, slice) else ids,
                    **taken.arrays(),
                    **_derived_columns(taken, degree[nodes], of_sources),
                }
                _release_pages(self.graph, sources)

        def write(piece: dict[str, Array]) -> None:
            for name, rows in piece.items():
                if name not in arrays:
                    arrays[name] = NpyWriter(folder / f"{name}.npy", rows.dtype, rows.shape[1:])
                arrays[name].append(rows)

        write_behind(write, pieces())
        for array_writer in arrays.values():
            array_writer.finish()


def _derived_columns(columns: EdgeColumns, degree: Ids, sources: Floats | None) -> dict[str, Array]:
    """Computes mean edge features and relation degrees for a range of nodes.

    Args:
        degree: [num_nodes] in-degrees.
        sources: [num_edges] from `_source_degrees`, or None.
    """
    derived: dict[str, Array] = {}
    if "features" in columns:
        begins = offsets_of(degree)
        mean = mean_in_edges(begins, columns["features"])
        assert mean is not None
        derived["mean_edge_features"] = mean
    if "relation" in columns and sources is not None:
        ends = np.repeat(np.arange(len(degree), dtype=np.int32), degree)
        into = shared_weights(ends, columns["relation"], len(degree), columns.get("weight"))
        derived["relation_degrees"] = np.stack([into, sources], 1)
    return derived


def _gather(row: npt.NDArray[np.int32], ids: Ids, threads: int) -> npt.NDArray[np.int32]:
    """Returns `row[ids]`."""
    gathered = np.empty((len(ids), 1), np.int32)
    _core.gather_rows(row[:, None].view(np.uint8), np.ascontiguousarray(ids), gathered.view(np.uint8), threads)
    return gathered[:, 0]


def _in_edge_pieces(indptr: Ids, owned: Ids, edges: int) -> Iterator[tuple[slice, Ids | slice]]:
    """Yields ranges of owned nodes, with the ids of their in-edges.

    Args:
        indptr: [num_nodes + 1] offsets of each node's in-edges.
        owned: [num_owned] ascending.
    """
    begins = indptr[owned]
    degree = indptr[owned + 1] - begins
    before = offsets_of(degree)
    if not len(owned):
        yield slice(0, 0), slice(0, 0)
    for first, last in stretches(before, edges):
        if owned[last - 1] - owned[first] == last - 1 - first:  # consecutive nodes have consecutive edges
            yield slice(first, last), slice(int(begins[first]), int(begins[last - 1] + degree[last - 1]))
            continue
        offsets = np.repeat(begins[first:last] - before[first:last], degree[first:last])
        yield slice(first, last), np.arange(before[first], before[last]) + offsets


def _release_pages(graph: Graph, *others: Array | None) -> None:
    """Releases the pages of edges that were read."""
    for array in (graph.csc.indices, *graph.edge_columns.values(), *others):
        if array is not None:
            forget_pages(array)
