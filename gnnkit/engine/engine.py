"""One rank's part in the aggregation over a partitioned graph: slice, gather, aggregate, reduce, unslice.

Per-edge values (scores, attention) are held by every slice rank of the edge's cell, all columns of them, and so are their
gradients; rows are cut into columns. Where the two meet, in a weighted sum, the gradient of the weights is added up over the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.comm import Communicator
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.exchange import Route, Slicing
from gnnkit.engine.halo import Halo
from gnnkit.engine.local import LocalEdges
from gnnkit.engine.tally import Tally
from gnnkit.errors import UserError
from gnnkit.partition.shard import Shard

Message = Callable[
    [Tensor, slice], Tensor
]  # (rows of held edges' sources, the columns they are) -> messages, same shape


class Engine:
    """Building it is collective over `comm`, and so is every method, in forward and in backward. It is built once and serves
    every layer and step; `layer` is for counting."""

    def __init__(self, shard: Shard, comm: Communicator, dtype: torch.dtype) -> None:
        self.shard, self.dtype = shard, dtype
        grid, rank = shard.grid, shard.rank
        self.grid = grid
        cell, place = divmod(rank, grid.slices)
        plane_ranks = [other * grid.slices + place for other in range(grid.num_cells)]
        cell_ranks = [cell * grid.slices + other for other in range(grid.slices)]
        plane = comm.split(plane_ranks) if grid.slices > 1 else comm
        self.tally, self.halo = Tally(), Halo()
        self.slicing = (
            Slicing(len(shard.owned), comm.split(cell_ranks), cell_ranks, self.tally, self.halo)
            if grid.slices > 1
            else None
        )
        self.sources = Route(
            shard.sources, shard.source_cell, shard.cell_nodes, plane, plane_ranks, "gather", self.tally, self.halo
        )
        self.targets = Route(
            shard.targets, shard.target_cell, shard.cell_nodes, plane, plane_ranks, "reduce", self.tally, self.halo
        )
        self.edges = HeldEdges(shard.csc, comm.device)
        self.nodes = torch.tensor(np.asarray(shard.owned, np.int64), device=comm.device)
        self.edge_ids = torch.tensor(np.asarray(shard.edge_ids, np.int64), device=comm.device)
        self.source_ids = torch.tensor(np.asarray(shard.sources, np.int64), device=comm.device)
        self.edge_features = None
        if shard.edge_features is not None:
            self.edge_features = torch.tensor(np.asarray(shard.edge_features), dtype=dtype, device=comm.device)
        first = sum(self.slicing.row_counts[:place]) if self.slicing else 0
        mine = slice(first, first + len(shard.owned))
        self.in_degree = torch.tensor(shard.in_degree[mine], dtype=dtype, device=comm.device)
        self.out_degree = torch.tensor(shard.out_degree[mine], dtype=dtype, device=comm.device)

    def held(self) -> list[Tensor]:
        """What it holds for the whole run and hands to layers."""
        tensors = (self.nodes, self.edge_ids, self.source_ids, self.in_degree, self.out_degree, self.edge_features)
        return [tensor for tensor in tensors if tensor is not None]

    @cached_property
    def local(self) -> LocalEdges:
        """This rank's edges as a graph of its own. Raises `UserError` where other ranks hold in-edges of its rows."""
        self._check_local()
        weight = self.edges.weight(self.dtype)
        return LocalEdges.of(self.shard, None if weight is None else weight[:, 0], self.nodes.device)

    def _check_local(self) -> None:
        if self.slicing or not self.targets.local:
            raise UserError(
                f"partition.grid={self.grid} spreads the in-edges of a node over ranks, which a layer written for one "
                "process cannot serve: use partition.grid=1d, one column and one slice"
            )

    def with_halo(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_owned + num_halo, ...]
        """The rows of `local`: this rank's own, then the halo."""
        return torch.cat([x, self.sources.spread(x, layer).index_select(0, self.local.halo)])

    def sum(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_owned, ...]
        """Sums over the in-edges of the owned nodes, times the graph's weights."""
        z = self.edges.sum(self._gather(x, layer))
        return self._join(self.targets.collect(z, layer), x, layer)

    def weighted_sum(self, x: Tensor, weight: Tensor, layer: int) -> Tensor:  # [num_owned, H, d] -> [num_owned, H, d]
        """Sums times per-edge weights [held edges, H]."""
        if self.slicing:
            weight = self.slicing.share(weight, layer)
        z = self.edges.weighted_sum(self._gather(x, layer), weight)
        return self._join(self.targets.collect(z, layer), x, layer)

    def message_sum(self, x: Tensor, message: Message, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Sums of `message(rows, columns)` over in-edges, which works on each column for itself."""
        rows = self.edges.by_source.spread(self._gather(x, layer))
        columns = self.slicing.columns(x.shape[-1]) if self.slicing else slice(0, x.shape[-1])
        z = self.edges.by_destination.sum(message(rows, columns))
        return self._join(self.targets.collect(z, layer), x, layer)

    def max(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Largest over in-edges; 0 for nodes without. Ties go to the lowest global source id."""
        z: Tensor = _Max.apply(self._gather(x, layer), self, layer)
        return self._join(z, x, layer)

    def scores(
        self, src: Tensor, dst: Tensor, edge: Tensor | None, layer: int
    ) -> Tensor:  # [num_owned, H] -> [held edges, H]
        """src[u] + dst[v] (+ edge[e]) for each held edge e = u -> v."""
        if self.slicing:
            src, dst = self.slicing.replicate(src, layer), self.slicing.replicate(dst, layer)
        at_sources = self.edges.by_source.spread(self.sources.spread(src, layer))
        at_targets = self.edges.by_destination.spread(self.targets.spread(dst, layer))
        scores = at_sources + at_targets
        if edge is None:
            return scores
        return scores + (self.slicing.once(edge) if self.slicing else edge)

    def softmax(self, scores: Tensor, layer: int) -> Tensor:  # [held edges, H] -> [held edges, H]
        """Softmax over the in-edges of each destination, wherever they are held."""
        by_destination = self.edges.by_destination

        def maxima() -> Tensor:
            arrived = self.targets.to_owners(by_destination.kernels.max(scores)[0], layer)
            return by_destination.spread(self.targets.spread_rows(self.targets.arrivals.max(arrived)[0], layer))

        with torch.no_grad():  # kept: totals last received are sums of powers above the maxima of that time
            largest = self.halo.keep(maxima)
        powers = (scores - largest).exp()
        totals = self.targets.spread(self.targets.collect(by_destination.sum(powers), layer), layer)
        return powers / by_destination.spread(totals)

    def _gather(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_sources, ...], my columns
        return self.sources.spread(self.slicing.cut(x, layer) if self.slicing else x, layer)

    def _join(self, z: Tensor, x: Tensor, layer: int) -> Tensor:
        return self.slicing.join(z, x.shape[-1], layer) if self.slicing else z


class _Max(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, engine: Engine, layer: int) -> Tensor:
        """x [num_sources, f] -> [num_cell_nodes, f]"""
        edges, targets = engine.edges, engine.targets
        partial, edge = edges.kernels.max(x)
        source = engine.source_ids[edges.source_of_edge][edge] if edges.num_edges else edge
        arrived = targets.to_owners(partial, layer)
        source = targets.to_owners(source, layer)
        best, place = targets.arrivals.max(arrived)
        # Of equal values the lowest source id wins; the first arrival that has it, where parallel edges are in two cells.
        candidates = torch.where(arrived == best[targets.sent], -source.to(torch.float64), -torch.inf)
        place = targets.arrivals.max(candidates)[1]
        ctx.engine, ctx.layer = engine, layer
        ctx.save_for_backward(edge, place)
        return torch.where(place >= 0, best, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        edge, place = ctx.saved_tensors
        targets = ctx.engine.targets
        arrival = torch.arange(len(targets.sent), device=grad.device)[:, None]
        won = place[targets.sent] == arrival
        back = targets.to_holders(torch.where(won, grad[targets.sent], 0), ctx.layer)
        return ctx.engine.edges.kernels.max_backward(back, edge), None, None
