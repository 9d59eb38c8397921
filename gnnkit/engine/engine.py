"""One rank's aggregation over its shard: slice, gather, aggregate, reduce, unslice.

Ranks form a grid of cells and slices. The ranks of a cell share its nodes and edges,
and each has one slice of the feature columns. Values per edge (scores, attention) and
their gradients are replicated on all ranks of a cell. A weighted sum combines both, and
the gradient of the weights is summed over the cell.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.comm import Communicator
from gnnkit.engine.adjacency import HeldAdjacency
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.pool import Pool
from gnnkit.engine.rank_graph import RankGraph, copy_on_write
from gnnkit.engine.topology import FixedRows, Kind, Topology
from gnnkit.engine.typed_engine import TypedEngine
from gnnkit.exchange.base import ForwardPass, Passes
from gnnkit.exchange.tally import Tally
from gnnkit.graph import Ids
from gnnkit.kernels.dropout import derive
from gnnkit.kernels.product_rows import Rows
from gnnkit.kernels.products import disable_torch_function
from gnnkit.kernels.sums import ONE, EdgeKernels
from gnnkit.partition.shard import Shard


class ExchangedSum(Function):
    """Sums over in-edges, during the exchange of the halo and of partial sums."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, topology: Topology, layer: int, kind: Kind, beside: bool
    ) -> Tensor:  # [num_cell_nodes, f] -> [num_cell_nodes, f or 2 f]
        with disable_torch_function():
            return ExchangedSum._forward(ctx, x, scale, topology, layer, kind, beside)

    @staticmethod
    def _forward(
        ctx: Any, x: Tensor, scale: Tensor | None, topology: Topology, layer: int, kind: Kind, beside: bool
    ) -> Tensor:
        quarters, x = topology.quarters, x.contiguous()
        near, far = quarters.near.edges, quarters.far.edges
        near_by, far_by, near_partial_by, far_partial_by = quarters.factors(kind, topology.degrees, x.dtype)
        ctx.topology, ctx.layer, ctx.kind, ctx.beside = topology, layer, kind, beside
        ctx.own = 0.0 if scale is None else float(scale)
        if scale is not None:
            ctx.save_for_backward(x)
        coming = topology.sources.start_spread(x, layer)
        z = near.kernels.sum_beside(x, near_by) if beside else near.kernels.sum(x, near_by, own=ctx.own)
        if topology.targets.idle:
            with coming.borrow() as halo:
                far.kernels.add_sum(halo, far_by, z)
            return z
        partial, halo = quarters.near_partial.edges.kernels.sum(x, near_partial_by), coming.wait()
        quarters.far_partial.edges.kernels.add_sum(halo, far_partial_by, partial)
        arriving = topology.targets.start_to_owners(partial, layer)
        far.kernels.add_sum(halo, far_by, z)
        with arriving.borrow() as sums:
            topology.targets.arrivals.add_sum(sums, ONE, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        topology, layer, grad = ctx.topology, ctx.layer, grad.contiguous()
        quarters = topology.quarters
        near, far = quarters.near.edges, quarters.far.edges
        factors = quarters.factors(ctx.kind, topology.degrees, grad.dtype)
        near_by, far_by, near_partial_by, far_partial_by = (factor.transpose for factor in factors)
        width = grad.shape[1] // 2 if ctx.beside else grad.shape[1]

        scale_grad = None
        if ctx.needs_input_grad[1]:
            (x,) = ctx.saved_tensors
            scale_grad = torch.dot(grad.view(-1), x.view(-1))
        if not ctx.needs_input_grad[0]:
            return None, scale_grad, None, None, None, None

        def back() -> Tensor:
            transpose: EdgeKernels = near.transposed
            return (
                transpose.sum_beside_backward(grad, near_by)
                if ctx.beside
                else transpose.sum(grad, near_by, own=ctx.own)
            )

        halo = grad.new_zeros(far.num_src, width)
        far.transposed.add_sum(grad, far_by, halo)
        if topology.targets.idle:
            arriving = topology.sources.start_to_owners(halo, layer)
            out = back()
        else:
            coming = topology.targets.start_spread(grad[:, :width], layer)
            out, partial = back(), coming.wait()
            quarters.far_partial.edges.transposed.add_sum(partial, far_partial_by, halo)
            arriving = topology.sources.start_to_owners(halo, layer)
            quarters.near_partial.edges.transposed.add_sum(partial, near_partial_by, out)
        with arriving.borrow() as gradients:
            topology.sources.arrivals.add_sum(gradients, ONE, out)
        return out, scale_grad, None, None, None, None


class ExchangedMax(Function):
    """Maxima over in-edges. Ties are resolved to the lowest global source id."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, topology: Topology, layer: int
    ) -> Tensor:  # [num_sources, f] -> [num_cell_nodes, f]
        edges, targets = topology.edges, topology.targets
        best, edge = edges.kernels.max(x)
        place = edge
        if not targets.idle:
            source = topology.source_ids[edges.source_of_edge][edge] if edges.num_edges else edge
            partial_maxima, source = targets.partials.collect(best, layer), targets.partials.collect(source, layer)
            best = targets.partials.kernels.max(partial_maxima)[0]
            # Among equal values, the lowest source id is selected. Among parallel edges
            # in two cells, the first received one is selected.
            candidates = torch.where(
                partial_maxima == best[targets.partials.rows], -source.to(torch.float64), -torch.inf
            )
            place = targets.partials.kernels.max(candidates)[1]
        ctx.topology, ctx.layer = topology, layer
        ctx.save_for_backward(edge, place)
        return torch.where((place >= 0) & best.isfinite(), best, 0)  # a holder may have dropped its edges

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        edge, place = ctx.saved_tensors
        topology, num_local = ctx.topology, len(grad)
        if not topology.targets.idle:
            to = topology.targets.partials.rows
            won = place[to] == torch.arange(len(to), device=grad.device)[:, None]
            grad = torch.where(won, grad[to], 0)
            grad = torch.cat([grad[:num_local], topology.targets.to_holders(grad[num_local:], ctx.layer)])
        return topology.edges.kernels.max_backward(grad.contiguous(), edge), None, None


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
        self.typed = TypedEngine(self.topology, self.fixed, inverse_edges=inverse_edges)

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
        topology = self.topology
        features = [] if topology.edge_features is None else [topology.edge_features]
        ids = [topology.source_ids, topology.nodes, topology.edge_ids]
        return [*ids, topology.in_degree, topology.out_degree, *features]

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


class ShardAdjacency(HeldAdjacency):
    """All in-edges of the nodes that this rank owns, in one layer of one step.

    This is what models read in full-graph training, on every layout. Rows of other
    ranks are exchanged within each operation, as the forward pass's schedule and codec
    determine.
    """

    def __init__(self, engine: Engine, layer: int, key: int, forward: ForwardPass) -> None:
        self.engine, self.layer, self.key, topology = engine, layer, key, engine.topology
        pool = Pool(topology.comm, engine.tally) if forward.exchanges else Pool(lasts=False)
        routes = (topology.slicing, engine.passes, forward, topology.sources, topology.targets)
        self.routes = LayerRoutes(*routes, layer, pool)
        self.num_dst, self.src_nodes, self.row_ids = len(topology.nodes), topology.nodes, topology.nodes
        self.in_degree, self.out_degree = topology.in_degree, topology.out_degree
        self.num_edges, self.edge_ids = len(topology.edge_ids), topology.edge_ids
        self.edges, self.edge_features, self.by_type = topology.edges, topology.edge_features, engine.typed

    @classmethod
    def layers(
        cls, engine: Engine, num_layers: int, key: int, forward: ForwardPass | None = None
    ) -> tuple[ShardAdjacency, ...]:
        """Creates one adjacency of the complete graph per model layer.

        Args:
            engine: The exchange and aggregation over this rank's shard.
            num_layers: Number of model layers.
            key: The step's key.
            forward: The pass over the graph. If None, an exact one.
        """
        forward = forward or ForwardPass()
        return tuple(cls(engine, layer, derive(key, layer), forward) for layer in range(num_layers))

    @cached_property
    def rank_graph(self) -> RankGraph:
        return self.engine.topology.rank_graph

    def _sum(self, x: Tensor, kind: Kind, scale: Tensor | None = None) -> Tensor:
        self.routes.enter("mean" if kind == "mean" else "sum")
        return self.engine.sum(x, self.layer, kind, scale=scale)

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        self.routes.enter("mean")
        return self.engine.sum(self.dropout(x, p, training=True), self.layer, "mean", beside=True)

    def _max(self, x: Tensor) -> Tensor:
        routes = self.routes.enter("max")
        rows = routes.read(x)
        z: Tensor = ExchangedMax.apply(rows.flatten(1), self.engine.topology, self.layer)
        return routes.slicing.join(z.view(len(z), *rows.shape[1:]), x.shape[-1], self.layer)
