"""What a layer sees of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.dropout import derive, dropout
from gnnkit.engine.exchange import Route, Slicing
from gnnkit.engine.traffic import Traffic
from gnnkit.partition.shard import Shard

Reduce = Literal["sum", "mean"]


class Adjacency(ABC):
    """The in-edges of `num_dst` rows, wherever they are held. One layer of a model reads `x` [num_src, f] through it.

    The first `num_dst` of the source rows are the destinations. Degrees are those of the whole graph (sums of weights where
    edges have weights). Where several ranks share the graph, `aggregate` is collective, in forward and backward.
    """

    num_dst: int
    src_nodes: Tensor  # [num_src] int64 global ids
    in_degree: Tensor  # [num_dst]
    out_degree: Tensor  # [num_src]
    key: int  # of this layer and step: all noise derives from it

    @abstractmethod
    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum") -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Sum or mean over in-edges of the sources' rows, times the edges' weights. Rows without in-edges get 0."""

    def dropout(self, x: Tensor, p: float, *, training: bool) -> Tensor:  # [num_src, f]
        """Dropout of the layer's input, keyed by global node id: the same on any number of ranks."""
        return dropout(x, self.src_nodes, p, self.key) if training and p > 0 else x


class Engine:
    """One rank's part in the aggregation over a partitioned graph: slice, gather, aggregate, reduce, unslice.

    Building it is collective over `comm`; it is built once and serves every layer and step.
    """

    def __init__(self, shard: Shard, comm: Communicator, dtype: torch.dtype) -> None:
        grid, rank = shard.grid, shard.rank
        cell, place = divmod(rank, grid.slices)
        plane_ranks = [other * grid.slices + place for other in range(grid.num_cells)]
        cell_ranks = [cell * grid.slices + other for other in range(grid.slices)]
        plane = comm.split(plane_ranks) if grid.slices > 1 else comm
        self.traffic = Traffic()
        self.slicing = (
            Slicing(len(shard.owned), comm.split(cell_ranks), cell_ranks, self.traffic) if grid.slices > 1 else None
        )
        self.sources = Route(shard.sources, shard.source_cell, shard.cell_nodes, plane, plane_ranks, "gather", self.traffic)
        self.targets = Route(shard.targets, shard.target_cell, shard.cell_nodes, plane, plane_ranks, "reduce", self.traffic)
        self.edges = HeldEdges(shard.csc)
        self.nodes = torch.tensor(np.asarray(shard.owned, np.int64), device=comm.device)
        first = sum(self.slicing.row_counts[:place]) if self.slicing else 0
        mine = slice(first, first + len(shard.owned))
        self.in_degree = torch.tensor(shard.in_degree[mine], dtype=dtype, device=comm.device)
        self.out_degree = torch.tensor(shard.out_degree[mine], dtype=dtype, device=comm.device)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Sums over the in-edges of the owned nodes; collective, in forward and backward."""
        h = self.slicing.slice(x, layer) if self.slicing else x
        h = self.edges.sum(self.sources.spread(h, layer))
        z = self.targets.collect(h, layer)
        return self.slicing.unslice(z, x.shape[1], layer) if self.slicing else z

    def adjacencies(self, num_layers: int, key: int) -> tuple[Adjacency, ...]:
        """The whole graph, as each of a model's layers sees it in the step of that key."""
        return tuple(ShardAdjacency(self, layer, derive(key, layer)) for layer in range(num_layers))


@dataclass(frozen=True, slots=True, eq=False)
class ShardAdjacency(Adjacency):
    """All edges into the nodes that this rank owns, held by whichever rank."""

    engine: Engine
    layer: int
    key: int

    @property
    def num_dst(self) -> int:  # type: ignore[override]
        return len(self.engine.nodes)

    @property
    def src_nodes(self) -> Tensor:  # type: ignore[override]
        return self.engine.nodes

    @property
    def in_degree(self) -> Tensor:  # type: ignore[override]
        return self.engine.in_degree

    @property
    def out_degree(self) -> Tensor:  # type: ignore[override]
        return self.engine.out_degree

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum") -> Tensor:
        z = self.engine.aggregate(x, self.layer)
        if reduce == "sum":
            return z
        degree = self.in_degree
        return z / torch.where(degree == 0, 1, degree)[:, None]
