"""One rank's aggregation: slice, gather, aggregate, reduce, unslice.

Ranks form a grid of cells and slices. The ranks of a cell share its nodes and edges,
and each has one slice of the feature columns. Values per edge (scores, attention) and
their gradients are replicated on all ranks of a cell. A weighted sum combines both, and
the gradient of the weights is summed over the cell.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.exchanged_sums import ExchangedMax, ExchangedSum
from gnnkit.engine.fixed_rows import FixedRows
from gnnkit.engine.quarters import Kind
from gnnkit.engine.rank_graph import RankGraph, copy_on_write
from gnnkit.engine.topology import Topology
from gnnkit.engine.typed_engine import TypedEngine
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.tally import Tally
from gnnkit.graph import Ids
from gnnkit.kernels.product_rows import Rows
from gnnkit.partition.shard import Shard

# Maps (rows [held edges, f], their columns) to messages [held edges, f].
Message = Callable[[Tensor, slice], Tensor]


class Engine:
    """The exchange and aggregation over one rank's shard, for all layers and steps.

    Every method is collective over the ranks, in forward and backward. The argument
    `layer` is recorded by the tally.
    """

    def __init__(
        self,
        shard: Shard,
        comm: Communicator,
        dtype: torch.dtype,
        tally: Tally | None = None,
        *,
        inverse_edges: bool = False,
    ) -> None:
        """Sets up the routes of row exchanges. Collective.

        Args:
            shard: This rank's shard.
            comm: The ranks of the run.
            dtype: Type of rows, degrees and weights.
            tally: Counter of exchanged rows. If None, a new one.
            inverse_edges: Whether the held edges include the reverse of each edge, with
                separate relations. Default: no.
        """
        self.tally, self.passes = tally or Tally(), Passes()
        self.fixed = FixedRows(self.passes)
        self.topology = Topology.of(shard, comm, dtype, self.tally, self.passes)
        self.typed = TypedEngine(self.topology, self.passes, self.fixed, inverse_edges=inverse_edges)

    @property
    def shard(self) -> Shard:
        """This rank's shard."""
        return self.topology.shard

    def select_edges(self, positions: Ids, relations: Sequence[int] | None = None) -> Engine:
        """Returns an engine restricted to some of the held edges.

        Degrees are recomputed. All ranks must select edges by the same rule.
        Collective.

        Args:
            positions: [num_kept] ascending positions of held edges.
            relations: The only relations of edges that are not selected. If None,
                unknown, so the result has no edge types.
        """
        engine, fixed_rows = copy.copy(self), FixedRows(self.passes)
        engine.topology = self.topology.select_edges(positions, has_types=relations is not None)
        engine.fixed = fixed_rows
        engine.typed = self.typed.select_edges(engine.topology, fixed_rows, tuple(relations or ()))
        return engine

    def fix(self, x: Rows) -> None:
        """Declares `x` [num_owned, f] constant.

        Exact training passes then compute sums over its rows only once.
        """
        self.fixed.fix(x)

    def lasting_tensors(self) -> list[Tensor]:
        """Lists the tensors that layers read throughout the run."""
        return [self.topology.source_ids, *self.topology.tensors().values()]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that layers have accessed so far, by attribute."""
        graph: RankGraph | None = vars(self.topology).get("rank_graph")
        types = {name: value for name, value in vars(self.typed).items() if name == "edge_types"}
        return self.topology.tensors() | types | ({} if graph is None else graph.tensors())

    def close(self) -> None:
        """Stops the background exchange thread, if there is one."""
        self.topology.wire.close()

    def sum(
        self, x: Tensor, layer: int, kind: Kind = "sum", *, scale: Tensor | None = None, beside: bool = False
    ) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Sums over the owned nodes' in-edges, times the graph's weights.

        Sums over edges with a local source are computed during the halo exchange.
        Layers may modify the result. A cached sum is copied on the first write.

        Args:
            x: [num_owned, ...] rows.
            layer: Layer of the model.
            kind: "sum", "mean" (divided by the in-degree), or "normal": D_in^-1/2 A
                D_out^-1/2 x.
            scale: Scalar tensor. `scale * x` is added to the sum.
            beside: Whether to append `x` to the sums' columns, [num_owned, 2 f].
        """
        z = self.fixed.result(x, (kind, beside), lambda: self._sum(x, layer, kind, None, beside))
        if z is None:
            return self._sum(x, layer, kind, scale, beside)
        return copy_on_write(z) if scale is None else z + scale * x

    def _sum(self, x: Tensor, layer: int, kind: Kind, scale: Tensor | None, beside: bool) -> Tensor:
        topology = self.topology
        cut = topology.slicing.cut(x, layer)
        if beside and topology.slicing.num_slices == 1:
            result: Tensor = ExchangedSum.apply(x, None, topology, layer, kind, True)
            return result
        z: Tensor = ExchangedSum.apply(cut.flatten(1), scale, topology, layer, kind, False)
        z = topology.slicing.join(z.view(cut.shape), x.shape[-1], layer)
        return torch.cat([z, x], 1) if beside else z

    def weighted_sum(self, x: Tensor, weight: Tensor, layer: int) -> Tensor:  # [num_owned, H, d] -> [num_owned, H, d]
        """Sums over in-edges, times per-edge weights.

        Args:
            x: [num_owned, H, d] rows.
            weight: [held edges, H].
            layer: Layer of the model.
        """
        topology = self.topology
        z = topology.edges.weighted_sum(self._source_rows(x, layer), topology.slicing.share(weight, layer))
        return topology.slicing.join(topology.at_owners(z, layer), x.shape[-1], layer)

    def message_sum(self, x: Tensor, message: Message, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Sums `message(rows, columns)` over in-edges.

        Args:
            x: [num_owned, f] rows.
            message: Function that processes each column independently.
            layer: Layer of the model.
        """
        topology = self.topology
        rows = topology.edges.of_sources.sum(self._source_rows(x, layer))
        z = topology.edges.by_destination.sum(message(rows, topology.slicing.columns(x.shape[-1])))
        return topology.slicing.join(topology.at_owners(z, layer), x.shape[-1], layer)

    def max(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_owned, ...]
        """Computes the maximum over in-edges, and 0 without in-edges.

        Ties are resolved to the lowest global source id.
        """
        rows = self._source_rows(x, layer)
        z: Tensor = ExchangedMax.apply(rows.flatten(1), self.topology, layer)
        return self.topology.slicing.join(z.view(len(z), *rows.shape[1:]), x.shape[-1], layer)

    def _source_rows(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_sources, ...]
        """Returns this rank's columns of the sources."""
        return self.topology.with_halo(self.topology.slicing.cut(x, layer), layer)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None, layer: int) -> Tensor:  # [held edges, H]
        """Computes src[u] + dst[v] (+ edge[e]) for each held edge e = u -> v.

        Args:
            src: [num_owned, H].
            dst: [num_owned, H].
            edge: [held edges, H], or None.
            layer: Layer of the model.
        """
        topology, slicing = self.topology, self.topology.slicing
        src, dst = slicing.replicate(src, layer), slicing.replicate(dst, layer)
        at_sources = topology.edges.of_sources.sum(topology.with_halo(src, layer))
        at_targets = topology.edges.by_destination.spread(topology.with_partial(dst, layer))
        scores = at_sources + at_targets
        return scores if edge is None else scores + slicing.once(edge)

    def softmax(self, scores: Tensor, layer: int) -> Tensor:  # [held edges, H] -> [held edges, H]
        """Computes the softmax over all in-edges of each destination."""
        topology = self.topology
        by_destination = topology.edges.by_destination

        def maxima() -> Tensor:
            largest = by_destination.kernels.max(scores)[0]
            if not topology.targets.idle:
                partial_maxima = topology.partials.collect(largest, layer)
                largest = topology.with_partial(topology.partials.kernels.max(partial_maxima)[0], layer)
            return by_destination.spread(largest)

        with torch.no_grad():  # cached, because stale denominators were computed with the earlier maxima
            largest = self.passes.keep(maxima)
        powers = (scores - largest).exp()
        with self.passes.plain():  # all holders must divide by identical numbers
            totals = topology.with_partial(topology.at_owners(by_destination.sum(powers), layer), layer)
        return powers / by_destination.spread(totals)
