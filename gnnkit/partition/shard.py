"""Partition -> Shard: one routine cuts any rank's share out of any layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Features, Floats, Graph, Ids, Labels, feature_arrays, labelled, read_features
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.loops import AddedLoops, looped, mean_in_edges
from gnnkit.storage import load_arrays, save_arrays


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """One rank's share: the rows owned by the rank, and the edges held by its cell.

    Edges of `csc` lead from positions in `sources` into positions in `targets`. A
    gather fills `sources` from the ranks of `source_cell`. A reduce sends `targets` to
    the ranks of `target_cell`. The ranks of one cell, its slices, hold the same edges,
    sources and targets.
    """

    rank: int
    grid: Grid
    num_nodes: int  # of the whole graph
    num_edges: int  # of the whole graph, without added self-loops
    num_classes: int  # as `Graph.num_classes`
    owned: Ids  # [num_owned] int64 global ids, ascending
    cell_nodes: Ids  # [num_cell_nodes] int64, `owned` of each rank of the cell, slice 0 first. = owned without slices
    sources: Ids  # [num_sources] int64 global ids of the held edges' sources, ordered by (source_cell, id)
    source_cell: Ids  # [num_sources] int32 cell whose ranks own each source
    targets: Ids  # [num_targets] int64 global ids of the held edges' destinations, ordered by (target_cell, id)
    target_cell: Ids  # [num_targets] int32
    csc: CSC  # num_targets destinations, num_sources sources. In-edges in ascending order of edge id
    edge_ids: Ids  # [num_held_edges] int64 global edge ids
    in_degree: Floats  # [num_cell_nodes] float64 degree in the whole graph: sum of weights, or number of edges
    out_degree: Floats  # [num_cell_nodes] float64
    looped: npt.NDArray[np.bool_]  # [num_cell_nodes] has a loop, whichever cell holds it
    features: Features  # [num_owned, width]
    labels: Labels  # [num_owned, ...] as `Graph.labels`
    split: npt.NDArray[np.int8]  # [num_owned] values of `Split`
    edge_features: Floats | None  # [num_held_edges, edge_width]
    mean_edge_features: Floats | None  # [num_cell_nodes, edge_width] of all in-edges, zeros if none: a loop's features

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:  # [num_owned]
        """Which owned nodes have a label."""
        return labelled(self.labels)

    @property
    def cell(self) -> int:
        """The cell of the plane."""
        return self.rank // self.grid.slices

    @property
    def slice(self) -> int:
        """The share of the feature columns."""
        return self.rank % self.grid.slices

    def with_self_loops(self) -> Shard:
        """Adds v -> v to every node v of `cell_nodes` without a loop.

        An added loop has weight 1 and edge id num_edges + v. Both degrees of v grow by
        1. Features are the mean of v's in-edges, as in PyG's
        `add_self_loops(fill_value="mean")`. Loops stand in the owner's cell, so that no
        layout receives a row for a loop.
        """
        missing = ~self.looped
        added = np.sort(self.cell_nodes[missing])
        sources = _Extended.by(self.sources, self.source_cell, added, self.cell)
        targets = _Extended.by(self.targets, self.target_cell, added, self.cell)
        degree = np.zeros(len(targets.ids), np.int64)
        degree[targets.old] = np.diff(self.csc.indptr)
        loops = AddedLoops.to(targets.new, degree)  # in order of ids, because the ids of loops exceed all others
        mean, weight = self.mean_edge_features, self.csc.weight
        if mean is not None:
            mean = mean[_positions(self.cell_nodes, added)]
        return replace(
            self,
            sources=sources.ids,
            source_cell=sources.cell,
            targets=targets.ids,
            target_cell=targets.cell,
            csc=CSC(
                loops.indptr,
                loops.insert(sources.old[self.csc.indices], sources.new),
                None if weight is None else loops.insert(weight, 1.0),
                len(sources.ids),
            ),
            edge_ids=loops.insert(self.edge_ids, self.num_edges + added),
            in_degree=self.in_degree + missing,
            out_degree=self.out_degree + missing,
            looped=np.ones_like(self.looped),
            edge_features=None
            if mean is None or self.edge_features is None
            else loops.insert(self.edge_features, mean),
        )

    def save(self, folder: Path) -> None:
        """Writes one `.npy` per array into `folder`, whole or not at all."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {name: getattr(self.csc, name) for name in _CSC_ARRAYS} | feature_arrays(self.features)
        scalars = {name: getattr(self, name) for name in _SCALARS}
        save_arrays(folder, arrays, {**scalars, "grid": asdict(self.grid)})

    @classmethod
    def load(cls, folder: Path) -> Shard:
        """Maps the shard saved in `folder`, read-only.

        Raises `UserError` naming a bad file.
        """
        arrays, meta = load_arrays(folder)
        sources = arrays["sources"]
        csc = CSC(arrays["indptr"], arrays["indices"], arrays.get("weight"), len(sources))
        rest: dict[str, Any] = {name: arrays.get(name) for name in _ARRAYS}
        rest |= {"features": read_features(arrays), "grid": Grid(**meta["grid"]), "csc": csc}
        return cls(**{name: meta[name] for name in _SCALARS}, **rest)


_SCALARS = ("rank", "num_nodes", "num_edges", "num_classes")
_CSC_ARRAYS = ("indptr", "indices", "weight")
_ARRAYS = tuple(field.name for field in fields(Shard) if field.name not in (*_SCALARS, "grid", "csc", "features"))


def cut(graph: Graph, partition: Partition, rank: int) -> Shard:
    """Cuts the share of one rank, in time linear in the graph.

    Raises `UserError` where graph and partition do not match.

    Args:
        graph: The whole graph.
        partition: The partition of the graph.
        rank: The rank.
    """
    whole = _Whole.of(graph, partition)
    cell = rank // partition.grid.slices
    return whole.shard(rank, whole.hold(cell, np.flatnonzero(partition.cells_of_edges(graph) == cell)))


def cut_all(graph: Graph, partition: Partition) -> Iterator[Shard]:
    """Cuts the shards of ranks 0, 1, ... in one pass over the edges.

    Raises `UserError` where graph and partition do not match.
    """
    grid = partition.grid
    cells = partition.cells_of_edges(graph)
    by_cell, start = _grouped(cells, grid.num_cells)
    del cells
    whole = _Whole.of(graph, partition)
    for cell in range(grid.num_cells):
        held = whole.hold(cell, by_cell[start[cell] : start[cell + 1]])
        for rank in range(cell * grid.slices, (cell + 1) * grid.slices):
            yield whole.shard(rank, held)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The edges that all ranks of one cell hold."""

    edge_ids: Ids  # [num_held_edges] in the order of csc
    sources: Ids  # [num_sources]
    targets: Ids  # [num_targets]
    csc: CSC
    edge_features: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """Values of the whole graph that every shard needs, computed once."""

    graph: Graph
    grid: Grid
    node_cell: Ids  # [num_nodes]
    destinations: Ids  # [num_edges]
    by_rank: Ids  # [num_nodes] ordered by (owner, id)
    rank_start: Ids  # [world_size + 1] each rank's range of by_rank
    looped: npt.NDArray[np.bool_]  # [num_nodes]
    in_degree: Floats  # [num_nodes]
    out_degree: Floats  # [num_nodes]
    mean_edge_features: Floats | None  # [num_nodes, edge_width]

    @classmethod
    def of(cls, graph: Graph, partition: Partition) -> _Whole:
        csc = graph.csc
        destinations = np.repeat(np.arange(csc.num_nodes, dtype=csc.indices.dtype), np.diff(csc.indptr))
        return cls(
            graph,
            partition.grid,
            partition.node_cell,
            destinations,
            *_grouped(partition.node_rank, partition.grid.world_size),
            looped=looped(csc),
            in_degree=csc.in_degree(),
            out_degree=csc.out_degree(),
            mean_edge_features=mean_in_edges(csc.indptr, graph.edge_features),
        )

    def hold(self, cell: int, edges: Ids) -> _Held:
        """Renumbers `edges`, ascending ids, from zero."""
        destination = self.destinations[edges]  # ascending, since edge ids run by destination
        first = np.flatnonzero(np.diff(destination, prepend=-1))
        targets = destination[first].astype(np.int64)
        degree = np.diff(first, append=len(edges))
        order = np.argsort(self.node_cell[targets], kind="stable")
        indptr = _offsets(degree[order])
        if len(targets) and self.node_cell[targets].min() != self.node_cell[targets].max():
            edges = edges[np.repeat(first[order] - indptr[:-1], degree[order]) + np.arange(len(edges))]
        sources, indices = self._renumber(self.graph.csc.indices[edges])
        weight, features = self.graph.csc.weight, self.graph.edge_features
        return _Held(
            edges,
            sources,
            targets[order],
            CSC(indptr, indices, None if weight is None else weight[edges], len(sources)),
            None if features is None else features[edges],
        )

    def _renumber(self, nodes: Ids) -> tuple[Ids, Ids]:
        """Returns the distinct nodes by (cell, id), and each node's position there."""
        seen = np.zeros(self.graph.num_nodes, bool)
        seen[nodes] = True
        distinct = np.flatnonzero(seen)
        distinct = distinct[np.argsort(self.node_cell[distinct], kind="stable")]
        position = np.empty(self.graph.num_nodes, np.int32)
        position[distinct] = np.arange(len(distinct), dtype=np.int32)
        return distinct, position[nodes]

    def shard(self, rank: int, held: _Held) -> Shard:
        graph, cell = self.graph, rank // self.grid.slices
        owned = self.by_rank[self.rank_start[rank] : self.rank_start[rank + 1]]
        first, last = self.rank_start[[cell * self.grid.slices, (cell + 1) * self.grid.slices]]
        cell_nodes = self.by_rank[first:last]
        return Shard(
            rank=rank,
            grid=self.grid,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_classes=graph.num_classes,
            owned=owned,
            cell_nodes=cell_nodes,
            sources=held.sources,
            source_cell=self.node_cell[held.sources],
            targets=held.targets,
            target_cell=self.node_cell[held.targets],
            csc=held.csc,
            edge_ids=held.edge_ids,
            in_degree=self.in_degree[cell_nodes],
            out_degree=self.out_degree[cell_nodes],
            looped=self.looped[cell_nodes],
            features=graph.features[owned],
            labels=graph.labels[owned],
            split=graph.split[owned],
            edge_features=held.edge_features,
            mean_edge_features=None if self.mean_edge_features is None else self.mean_edge_features[cell_nodes],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Extended:
    """Ids in order of (cell, id) after ids of one cell were added."""

    ids: Ids  # [num_ids]
    cell: Ids  # [num_ids]
    old: Ids  # [num_old] position of each former id
    new: Ids  # [num_added] position of each id to add, there before or not

    @classmethod
    def by(cls, ids: Ids, cells: Ids, added: Ids, cell: int) -> _Extended:
        start, stop = np.searchsorted(cells, [cell, cell + 1])
        merged = np.union1d(ids[start:stop], added)
        grown = len(merged) - (stop - start)
        old = np.arange(len(ids))
        old[start:stop] = start + np.searchsorted(merged, ids[start:stop])
        old[stop:] += grown
        return cls(
            np.concatenate([ids[:start], merged, ids[stop:]]),
            np.insert(cells, start, np.full(grown, cell, cells.dtype)),
            old,
            start + np.searchsorted(merged, added),
        )


def _grouped(keys: Ids, num_keys: int) -> tuple[Ids, Ids]:
    """Orders positions by (key, position).

    Also returns the start of each key's range [num_keys + 1].
    """
    narrow = np.min_scalar_type(max(num_keys - 1, 0))  # of 8 and 16 bits NumPy's stable sort is a radix sort
    order = np.argsort(keys.astype(narrow), kind="stable")
    return order, _offsets(np.bincount(keys, minlength=num_keys))


def _offsets(counts: Ids) -> Ids:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _positions(ids: Ids, wanted: Ids) -> Ids:
    """Returns the position of each of `wanted` in `ids`, which have any order."""
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)]
