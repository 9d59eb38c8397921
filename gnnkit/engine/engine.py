"""One rank's part in the aggregation: slice, gather, aggregate, reduce, unslice.

Per-edge values (scores, attention) and their gradients are held, in all columns, by
every slice rank of the edge's cell. Rows are cut into columns. Both meet in a weighted
sum, where the gradient of the weights is added up over the cell.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.comm import Communicator
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.exchange import Demand, Peers, Route, Slicing
from gnnkit.engine.rank_graph import RankGraph
from gnnkit.engine.schedule import Passes
from gnnkit.engine.tally import Tally
from gnnkit.engine.wire import Wire
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.partition.shard import Shard

# Maps (rows [held edges, f], their columns) to messages [held edges, f].
Message = Callable[[Tensor, slice], Tensor]


class Engine:
    """The exchange and aggregation over one rank's shard, for all layers and steps.

    Every method is collective over `comm`, in forward and in backward. `layer` is for
    counting.
    """

    def __init__(self, shard: Shard, comm: Communicator, dtype: torch.dtype, tally: Tally | None = None) -> None:
        """Finds out who needs which rows. Collective.

        Args:
            shard: This rank's shard.
            comm: The ranks of the run.
            dtype: Type of rows, degrees and weights.
            tally: Counts the rows moved. None: a new one.
        """
        self.shard, self.dtype, self.device, self.grid = shard, dtype, comm.device, shard.grid
        self.tally, self.passes = tally or Tally(), Passes()
        plane, cell = self._peers(comm)
        self._wire = plane.wire
        self.slicing = Slicing(len(shard.owned), cell) if cell else None
        asked = Demand.of(shard.sources, shard.source_cell, plane.comm)
        self.sources = Route("gather", asked, shard.cell_nodes, plane)
        held = Demand.of(shard.targets, shard.target_cell, plane.comm)
        self.targets = Route("reduce", held, shard.cell_nodes, plane)
        self.edges = HeldEdges(shard.csc, self.device)
        self.nodes, self.edge_ids, self.source_ids = (
            torch.tensor(np.asarray(ids, np.int64), device=self.device)
            for ids in (shard.owned, shard.edge_ids, shard.sources)
        )
        self.edge_features = None if shard.edge_features is None else self._tensor(shard.edge_features)
        mine = self._mine
        self.in_degree, self.out_degree = self._tensor(shard.in_degree[mine]), self._tensor(shard.out_degree[mine])

    @property
    def _mine(self) -> slice:
        """This rank's rows among the cell's."""
        first = sum(self.slicing.row_counts[: self.shard.slice]) if self.slicing else 0
        return slice(first, first + len(self.shard.owned))

    def keeping(self, kept: Ids) -> Engine:
        """Returns the engine of the graph that has some of the held edges only.

        Degrees are of this graph. All ranks leave out edges of one rule. Collective.

        Args:
            kept: [num_kept] ascending positions of held edges.
        """
        other, shard = copy.copy(self), self.shard
        weight, features = shard.csc.weight, shard.edge_features
        csc = CSC(
            np.searchsorted(kept, shard.csc.indptr),
            shard.csc.indices[kept],
            None if weight is None else weight[kept],
            shard.csc.num_sources,
        )
        edge_features = None if features is None else features[kept]
        other.shard = replace(shard, csc=csc, edge_ids=shard.edge_ids[kept], edge_features=edge_features)
        other.__dict__.pop("rank_graph", None)  # of all edges
        other.edges = HeldEdges(csc, self.device)
        other.edge_ids = torch.tensor(np.asarray(other.shard.edge_ids, np.int64), device=self.device)
        other.edge_features = None if edge_features is None else self._tensor(edge_features)
        ones = torch.ones(len(kept), 1, dtype=self.dtype, device=self.device)
        held = other.edges.weight(self.dtype)
        weights = ones if held is None else held
        into = self.targets.collect_rows(other.edges.by_destination.sum(weights), 0)
        out_of = self.sources.collect_rows(other.edges.of_sources.spread(weights), 0)
        other.in_degree, other.out_degree = into[self._mine, 0], out_of[self._mine, 0]
        return other

    def _peers(self, comm: Communicator) -> tuple[Peers, Peers | None]:
        """Finds the ranks of the same slice and of the same cell."""
        cell, place, slices = self.shard.cell, self.shard.slice, self.grid.slices
        plane_ranks = [other * slices + place for other in range(self.grid.num_cells)]
        if slices == 1:
            return Peers(Wire(comm, plane_ranks, self.tally), self.passes), None
        cell_ranks = [cell * slices + other for other in range(slices)]
        plane, within = comm.split(plane_ranks), comm.split(cell_ranks)
        return (
            Peers(Wire(plane, plane_ranks, self.tally), self.passes),
            Peers(Wire(within, cell_ranks, self.tally), self.passes),
        )

    def _tensor(self, values: Floats) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def held(self) -> list[Tensor]:
        """Lists the tensors that last for the whole run and that layers read."""
        tensors = (self.nodes, self.edge_ids, self.source_ids, self.in_degree, self.out_degree, self.edge_features)
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def holds_in_edges(self) -> bool:
        """Whether every rank holds all in-edges of its rows, in all columns."""
        return self.slicing is None and self.targets.idle

    def close(self) -> None:
        """Ends the thread for exchanges in the background, if there is one."""
        self._wire.close()

    @cached_property
    def rank_graph(self) -> RankGraph:
        """This rank's edges as a graph of its own.

        Raises `UserError` where other ranks hold in-edges of this rank's rows.
        """
        if not self.holds_in_edges:
            raise UserError(
                f"partition.grid={self.grid} spreads the in-edges of a node over ranks, which a layer written for one "
                "process cannot serve: use partition.grid=1d, one column and one slice"
            )
        weight = self.edges.weight(self.dtype)
        return RankGraph.of(self.shard, None if weight is None else weight[:, 0], self.device)

    def with_halo(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_owned + num_halo, ...]
        """Returns the rows of `rank_graph`: this rank's own, then the halo."""
        return torch.cat([x, self.sources.spread(x, layer).index_select(0, self.rank_graph.halo)])

    def sum(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_owned, ...]
        """Sums over the in-edges of the owned nodes, times the graph's weights."""
        z = self.edges.sum(self._gather(x, layer))
        return self._join(self.targets.collect(z, layer), x, layer)

    def weighted_sum(self, x: Tensor, weight: Tensor, layer: int) -> Tensor:  # [num_owned, H, d] -> [num_owned, H, d]
        """Sums over in-edges, times per-edge weights.

        Args:
            x: [num_owned, H, d] rows.
            weight: [held edges, H].
            layer: Layer of the model.
        """
        if self.slicing:
            weight = self.slicing.share(weight, layer)
        z = self.edges.weighted_sum(self._gather(x, layer), weight)
        return self._join(self.targets.collect(z, layer), x, layer)

    def message_sum(self, x: Tensor, message: Message, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Sums `message(rows, columns)` over in-edges.

        Args:
            x: [num_owned, f] rows.
            message: Works on each column for itself.
            layer: Layer of the model.
        """
        rows = self.edges.of_sources.sum(self._gather(x, layer))
        columns = self.slicing.columns(x.shape[-1]) if self.slicing else slice(0, x.shape[-1])
        z = self.edges.by_destination.sum(message(rows, columns))
        return self._join(self.targets.collect(z, layer), x, layer)

    def max(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Takes the largest over in-edges, 0 without.

        Ties go to the lowest global source id.
        """
        z: Tensor = _Max.apply(self._gather(x, layer), self, layer)
        return self._join(z, x, layer)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None, layer: int) -> Tensor:  # [held edges, H]
        """Computes src[u] + dst[v] (+ edge[e]) for each held edge e = u -> v.

        Args:
            src: [num_owned, H].
            dst: [num_owned, H].
            edge: [held edges, H]. None: there is none.
            layer: Layer of the model.
        """
        if self.slicing:
            src, dst = self.slicing.replicate(src, layer), self.slicing.replicate(dst, layer)
        at_sources = self.edges.of_sources.sum(self.sources.spread(src, layer))
        at_targets = self.edges.by_destination.spread(self.targets.spread(dst, layer))
        scores = at_sources + at_targets
        if edge is None:
            return scores
        return scores + (self.slicing.once(edge) if self.slicing else edge)

    def softmax(self, scores: Tensor, layer: int) -> Tensor:  # [held edges, H] -> [held edges, H]
        """Computes the softmax over all in-edges of each destination."""
        by_destination = self.edges.by_destination

        def maxima() -> Tensor:
            arrived = self.targets.to_owners(by_destination.kernels.max(scores)[0], layer)
            return by_destination.spread(self.targets.spread_rows(self.targets.arrivals.max(arrived)[0], layer))

        with torch.no_grad():  # kept: totals last received are sums of powers above the maxima of that time
            largest = self.passes.keep(maxima)
        powers = (scores - largest).exp()
        with self.passes.plain():  # all holders divide by the same bits
            totals = self.targets.spread(self.targets.collect(by_destination.sum(powers), layer), layer)
        return powers / by_destination.spread(totals)

    def _gather(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_sources, ...], my columns
        return self.sources.spread(self.slicing.cut(x, layer) if self.slicing else x, layer)

    def _join(self, z: Tensor, x: Tensor, layer: int) -> Tensor:
        return self.slicing.join(z, x.shape[-1], layer) if self.slicing else z


class _Max(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, engine: Engine, layer: int) -> Tensor:  # [num_sources, f] -> [num_cell_nodes, f]
        edges, targets = engine.edges, engine.targets
        partial, edge = edges.kernels.max(x)
        source = engine.source_ids[edges.source_of_edge][edge] if edges.num_edges else edge
        arrived = targets.to_owners(partial, layer)
        source = targets.to_owners(source, layer)
        best, place = targets.arrivals.max(arrived)
        # Of equal values the lowest source id wins. Of parallel edges in two cells the
        # first arrival wins.
        candidates = torch.where(arrived == best[targets.sent], -source.to(torch.float64), -torch.inf)
        place = targets.arrivals.max(candidates)[1]
        ctx.engine, ctx.layer = engine, layer
        ctx.save_for_backward(edge, place)
        return torch.where((place >= 0) & best.isfinite(), best, 0)  # a holder may have left out its edges

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        edge, place = ctx.saved_tensors
        targets = ctx.engine.targets
        arrival = torch.arange(len(targets.sent), device=grad.device)[:, None]
        won = place[targets.sent] == arrival
        back = targets.to_holders(torch.where(won, grad[targets.sent], 0), ctx.layer)
        return ctx.engine.edges.kernels.max_backward(back, edge), None, None
