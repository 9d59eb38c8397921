"""Cuts a partition into shards, with one routine for all layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import CSC, EdgeColumns, Features, Floats, Graph, Ids, Labels, feature_arrays, labelled, read_features
from gnnkit.graph.types import offsets_of, take
from gnnkit.partition.base import Partition
from gnnkit.partition.degrees import AddedLoops, looped, mean_in_edges, relation_degrees
from gnnkit.partition.grid import Grid
from gnnkit.utils.checks import check_range
from gnnkit.utils.ranges import MAX_COUNT, whole
from gnnkit.utils.storage import load_arrays, save_arrays


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """One rank's share: the rows it owns, and the edges that its cell holds.

    Edges of `csc` lead from rows [`cell_nodes` | `halo`] to rows [`cell_nodes` |
    `partial`]. A gather receives halo rows from the ranks in `halo_cell`. A reduce
    sends partial sums to the ranks in `partial_cell`. The ranks of a cell, one per
    slice, hold the same edges, halo and partial sums.
    """

    rank: int
    grid: Grid
    num_nodes: int  # in the full graph
    num_edges: int  # in the full graph, without added self-loops
    num_classes: int  # as `Graph.num_classes`
    owned: Ids  # [num_owned] int64 global ids, ascending in a new shard
    cell_nodes: Ids  # [num_cell_nodes] int64, `owned` of the cell's ranks, slice 0 first. = owned without slices
    halo: Ids  # [num_halo] int64 global ids of edge sources owned by other cells, by (halo_cell, id)
    halo_cell: Ids  # [num_halo] int32 cell that owns each halo node
    partial: Ids  # [num_partial] int64 global ids of edge destinations owned by other cells, by (cell, id)
    partial_cell: Ids  # [num_partial] int32
    csc: CSC  # in-edges of [cell_nodes | partial], from [cell_nodes | halo]. Rows are sorted by edge id
    edge_ids: Ids  # [num_held_edges] int64 global edge ids
    in_degree: Floats  # [num_cell_nodes] float64 degree in the full graph: sum of weights, or number of edges
    out_degree: Floats  # [num_cell_nodes] float64
    looped: npt.NDArray[np.bool_]  # [num_cell_nodes] whether any cell holds a loop of the node
    features: Features  # [num_owned, width]
    labels: Labels  # [num_owned, ...] as `Graph.labels`
    split: npt.NDArray[np.int8]  # [num_owned] values of `Split`
    edge_features: Floats | None  # [num_held_edges, edge_width]
    mean_edge_features: Floats | None  # [num_cell_nodes, edge_width] mean over all in-edges, for added loops
    num_relations: int = 1  # as `Graph.num_relations`
    type_sizes: tuple[int, ...] | None = None  # [num_node_types] nodes per type, in the order of ids. None: one type
    edge_types: Ids | None = None  # [num_held_edges]. None: one relation, or added loops, which have none
    edge_time: Ids | None = None  # [num_held_edges] int64, as `Graph.edge_time`
    node_time: Ids | None = None  # [num_owned] int64, as `Graph.node_time`
    relation_degrees: Floats | None = None  # [num_held_edges, 2] degrees of target and source in the edge's relation

    @property
    def edge_columns(self) -> EdgeColumns:
        """The held edges' weights, features and relations."""
        return EdgeColumns.of(self)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:  # [num_owned]
        """Whether each owned node has a label."""
        return labelled(self.labels)

    @property
    def sources(self) -> Ids:  # [num_sources]
        """Global ids of all rows that can be an edge's source."""
        return np.concatenate([self.cell_nodes, self.halo])

    @property
    def targets(self) -> Ids:  # [num_targets]
        """Global ids of all rows that can be an edge's destination."""
        return np.concatenate([self.cell_nodes, self.partial])

    @property
    def num_in_edges(self) -> Ids:  # [num_cell_nodes]
        """Number of held edges that enter each of the cell's nodes."""
        return np.diff(self.csc.indptr[: len(self.cell_nodes) + 1])

    @property
    def cell(self) -> int:
        """The rank's cell in the plane."""
        return self.rank // self.grid.slices

    @property
    def slice(self) -> int:
        """The rank's slice of the feature columns."""
        return self.rank % self.grid.slices

    def with_self_loops(self) -> Shard:
        """Adds v -> v to every node v of `cell_nodes` without a loop.

        An added loop has weight 1 and edge id num_edges + v, and increases both degrees
        of v by
        1. Its features are the mean over v's in-edges, as in PyG's
        `add_self_loops(fill_value="mean")`. Loops are stored in the owner's cell, so no
        layout receives a row for a loop. They have no relation, so the result has no
        edge types.
        """
        # A loop comes last in its row, since its id is larger than all other ids.
        loops = AddedLoops.to(np.flatnonzero(~self.looped), np.diff(self.csc.indptr))
        columns = self.edge_columns.with_loops(loops.insert, take(self.mean_edge_features, loops.rows))
        return replace(
            self,
            csc=CSC(
                loops.indptr,
                loops.insert(self.csc.indices, loops.rows),
                columns.get("weight"),
                self.csc.num_sources,
            ),
            edge_ids=loops.insert(self.edge_ids, self.num_edges + self.cell_nodes[loops.rows]),
            in_degree=self.in_degree + ~self.looped,
            out_degree=self.out_degree + ~self.looped,
            looped=np.ones_like(self.looped),
            relation_degrees=None,
            **columns.fields_of(Shard),
        )

    def save(self, folder: Path) -> None:
        """Writes one `.npy` per array to `folder`, atomically."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {name: getattr(self.csc, name) for name in _CSC_ARRAYS} | feature_arrays(self.features)
        scalars = {name: getattr(self, name) for name in (*_SCALARS, "type_sizes")}
        save_arrays(folder, arrays, {**scalars, "grid": asdict(self.grid)})

    @classmethod
    def load(cls, folder: Path) -> Shard:
        """Memory-maps the shard saved in `folder`, read-only.

        Raises `UserError` that names an invalid file.
        """
        shard = cls._of_folder(folder, CSC)
        try:
            shard.check()
        except ValueError as error:
            raise UserError(f"{folder}: {error}") from error
        return shard

    @classmethod
    def trusted(cls, folder: Path) -> Shard:
        """Memory-maps a shard written by this program, without checking each edge."""
        return cls._of_folder(folder, CSC.trusted)

    @classmethod
    def _of_folder(cls, folder: Path, make: Callable[..., CSC]) -> Shard:
        arrays, meta = load_arrays(folder)
        try:
            num_sources = len(arrays["cell_nodes"]) + len(arrays["halo"])
            csc = make(arrays["indptr"], arrays["indices"], arrays.get("weight"), num_sources)
            values: dict[str, Any] = {name: arrays.get(name) if name in _OPTIONAL else arrays[name] for name in _ARRAYS}
            values |= {"features": read_features(arrays), "grid": Grid(**meta["grid"]), "csc": csc}
            values["type_sizes"] = _read_type_sizes(meta)
            return cls(**{name: meta[name] for name in _SCALARS}, **values)
        except KeyError as error:
            raise UserError(f"{folder} holds no {error.args[0]}") from error
        except (TypeError, ValueError) as error:
            raise UserError(f"{folder}: {error}") from error

    def check(self) -> None:
        """Raises `UserError` for inconsistent arrays.

        Untrusted arrays could otherwise cause unbounded memory allocations.
        """
        whole("num_nodes", self.num_nodes, 0, 2**48)
        whole("num_edges", self.num_edges, 0, 2**48)
        whole("num_classes", self.num_classes, 0, _MAX_CLASSES)
        whole("num_relations", self.num_relations, 1, MAX_COUNT)
        if self.type_sizes is not None and sum(self.type_sizes) != self.num_nodes:
            raise UserError(f"type_sizes={list(self.type_sizes)}: expected sizes that add up to {self.num_nodes} nodes")
        whole("rank", self.rank, 0, self.grid.world_size - 1)
        ends = {"owned": self.num_nodes, "cell_nodes": self.num_nodes, "halo": self.num_nodes}
        ends |= {"partial": self.num_nodes, "halo_cell": self.grid.num_cells, "partial_cell": self.grid.num_cells}
        for name, end in ends.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise UserError(f"{name} has dtype {array.dtype} and {array.ndim} axes, expected a list of integers")
            check_range(name, array, 0, end)
        cell_nodes, edges = len(self.cell_nodes), len(self.csc.indices)
        lengths = {"halo_cell": len(self.halo), "partial": len(self.csc.indptr) - 1 - cell_nodes}
        lengths |= {"partial_cell": len(self.partial), "edge_ids": edges}
        lengths |= dict.fromkeys(self.edge_columns.arrays(), edges)
        lengths.pop("weight", None)  # checked by CSC
        lengths |= dict.fromkeys(("in_degree", "out_degree", "looped", "mean_edge_features"), cell_nodes)
        lengths |= dict.fromkeys(("labels", "split", "node_time"), len(self.owned))
        for name, length in lengths.items():
            array = getattr(self, name)
            if array is not None and array.shape[:1] != (length,):
                raise UserError(f"{name} has shape {list(array.shape)}, expected {length} rows")
        if self.labels.ndim == 1 and self.labels.dtype.kind in "iu":
            check_range("labels", self.labels, -1, max(self.num_classes, 1))


_MAX_CLASSES = 1 << 24  # larger values are probably node ids
_SCALARS = ("rank", "num_nodes", "num_edges", "num_classes", "num_relations")
_OPTIONAL = (*EdgeColumns().fields_of(Shard), "mean_edge_features", "relation_degrees", "node_time")
_CSC_ARRAYS = ("indptr", "indices", "weight")
_NOT_ARRAYS = (*_SCALARS, "type_sizes", "grid", "csc", "features")
_ARRAYS = tuple(field.name for field in fields(Shard) if field.name not in _NOT_ARRAYS)


def _read_type_sizes(meta: Mapping[str, object]) -> tuple[int, ...] | None:
    """Reads the sizes of node types, which older files do not have."""
    sizes = meta.get("type_sizes")
    if sizes is None:
        return None
    if not isinstance(sizes, list):
        raise TypeError(f"type_sizes={sizes}: expected a list of whole numbers")
    return tuple(whole("type_sizes", size, 0, 2**48) for size in sizes)


def cut(graph: Graph, partition: Partition, rank: int) -> Shard:
    """Cuts one rank's shard, in time linear in the graph size.

    Raises `UserError` if graph and partition do not match.

    A shard contains everything that a rank needs for full-graph training. The
    function is the same for all layouts, because they differ in owners and cells only.
    """
    shared_values = _SharedValues.of(graph, partition)
    cell = rank // partition.grid.slices
    return shared_values.shard(rank, shared_values.hold(cell, np.flatnonzero(partition.cells_of_edges(graph) == cell)))


def uncut(graph: Graph) -> Shard:
    """Returns the shard of a single rank that owns all nodes."""
    return next(cut_all(graph, Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1))))


def cut_all(graph: Graph, partition: Partition) -> Iterator[Shard]:
    """Cuts the shards of ranks 0, 1, ... in one pass over the edges.

    Raises `UserError` if graph and partition do not match.

    Yields one shard at a time, so that the caller can write it before the next one
    takes memory.
    """
    grid = partition.grid
    cells = partition.cells_of_edges(graph)
    by_cell, start = grouped(cells, grid.num_cells)
    del cells
    shared_values = _SharedValues.of(graph, partition)
    for cell in range(grid.num_cells):
        held_edges = shared_values.hold(cell, by_cell[start[cell] : start[cell + 1]])
        for rank in range(cell * grid.slices, (cell + 1) * grid.slices):
            yield shared_values.shard(rank, held_edges)


@dataclass(frozen=True, slots=True, eq=False)
class _HeldEdges:
    """The edges held by all ranks of a cell."""

    cell_nodes: Ids  # [num_cell_nodes]
    edge_ids: Ids  # [num_held_edges] in CSC order
    halo: Ids  # [num_halo]
    partial: Ids  # [num_partial]
    csc: CSC
    columns: EdgeColumns
    relation_degrees: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class _SharedValues:
    """Values of the full graph that all shards share."""

    graph: Graph
    grid: Grid
    node_cell: Ids  # [num_nodes]
    destinations: Ids  # [num_edges]
    by_rank: Ids  # [num_nodes] node ids, sorted by (owner, id)
    rank_start: Ids  # [world_size + 1] each rank's range in by_rank
    looped: npt.NDArray[np.bool_]  # [num_nodes]
    in_degree: Floats  # [num_nodes]
    out_degree: Floats  # [num_nodes]
    mean_edge_features: Floats | None  # [num_nodes, edge_width]
    relation_degrees: Floats | None  # [num_edges, 2]

    @classmethod
    def of(cls, graph: Graph, partition: Partition) -> _SharedValues:
        csc = graph.csc
        destinations = np.repeat(np.arange(csc.num_nodes, dtype=csc.indices.dtype), np.diff(csc.indptr))
        in_degree, out_degree = csc.degrees()
        return cls(
            graph,
            partition.grid,
            partition.node_cell,
            destinations,
            *grouped(partition.node_rank, partition.grid.world_size),
            looped=looped(csc),
            in_degree=in_degree,
            out_degree=out_degree,
            mean_edge_features=mean_in_edges(csc.indptr, graph.edge_features),
            relation_degrees=None
            if graph.edge_types is None
            else relation_degrees(csc, destinations, graph.edge_types),
        )

    def hold(self, cell: int, edges: Ids) -> _HeldEdges:
        """Renumbers the ends of `edges` (ascending ids), the cell's nodes first."""
        first, last = self.rank_start[[cell * self.grid.slices, (cell + 1) * self.grid.slices]]
        cell_nodes = self.by_rank[first:last]
        partial, rows = self._renumber(self.destinations[edges], cell_nodes)
        if np.any(rows[1:] < rows[:-1]):
            order = np.argsort(rows, kind="stable")
            edges, rows = edges[order], rows[order]
        indptr = offsets_of(np.bincount(rows, minlength=len(cell_nodes) + len(partial)))
        halo, indices = self._renumber(self.graph.csc.indices[edges], cell_nodes)
        columns = self.graph.edge_columns.cut_columns().take(edges)
        return _HeldEdges(
            cell_nodes,
            edges,
            halo,
            partial,
            CSC(indptr, indices, columns.get("weight"), len(cell_nodes) + len(halo)),
            columns,
            take(self.relation_degrees, edges),
        )

    def _renumber(self, nodes: Ids, cell_nodes: Ids) -> tuple[Ids, Ids]:
        """Returns other cells' distinct nodes by (cell, id), and the nodes' rows.

        Rows of `cell_nodes` come first, followed by other cells' nodes.
        """
        is_halo = np.zeros(self.graph.num_nodes, bool)
        is_halo[nodes] = True
        is_halo[cell_nodes] = False
        halo = np.flatnonzero(is_halo)
        halo = halo[np.argsort(self.node_cell[halo], kind="stable")]
        row = np.empty(self.graph.num_nodes, np.int32)
        row[cell_nodes] = np.arange(len(cell_nodes), dtype=np.int32)
        row[halo] = np.arange(len(cell_nodes), len(cell_nodes) + len(halo), dtype=np.int32)
        return halo, row[nodes]

    def shard(self, rank: int, held_edges: _HeldEdges) -> Shard:
        graph, cell_nodes = self.graph, held_edges.cell_nodes
        owned_nodes = self.by_rank[self.rank_start[rank] : self.rank_start[rank + 1]]
        return Shard(
            rank=rank,
            grid=self.grid,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_classes=graph.num_classes,
            owned=owned_nodes,
            cell_nodes=cell_nodes,
            halo=held_edges.halo,
            halo_cell=self.node_cell[held_edges.halo],
            partial=held_edges.partial,
            partial_cell=self.node_cell[held_edges.partial],
            csc=held_edges.csc,
            edge_ids=held_edges.edge_ids,
            in_degree=self.in_degree[cell_nodes],
            out_degree=self.out_degree[cell_nodes],
            looped=self.looped[cell_nodes],
            features=graph.features[owned_nodes],
            labels=graph.labels[owned_nodes],
            split=graph.split[owned_nodes],
            mean_edge_features=None if self.mean_edge_features is None else self.mean_edge_features[cell_nodes],
            num_relations=graph.num_relations,
            type_sizes=graph.type_sizes,
            node_time=take(graph.node_time, owned_nodes),
            relation_degrees=held_edges.relation_degrees,
            **held_edges.columns.fields_of(Shard),
        )


def grouped(keys: Ids, num_keys: int) -> tuple[Ids, Ids]:
    """Returns positions sorted by key (stable), and each key's start [num_keys + 1]."""
    narrow = np.min_scalar_type(max(num_keys - 1, 0))  # NumPy's stable sort is a radix sort for 8 and 16 bits
    order = np.argsort(keys.astype(narrow), kind="stable")
    return order, offsets_of(np.bincount(keys, minlength=num_keys))
