"""One rank's aggregation: slice, gather, aggregate, reduce, unslice.

Ranks form a grid of cells and slices. The ranks of a cell share its nodes and edges,
and each has one slice of the feature columns. Values per edge (scores, attention) and
their gradients are replicated on all ranks of a cell. A weighted sum combines both, and
the gradient of the weights is summed over the cell.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from gnnkit.comm import Communicator
from gnnkit.engine.copies import copy_on_write
from gnnkit.engine.quarters import Degrees, Kind, Quarters
from gnnkit.engine.rank_graph import RankGraph
from gnnkit.engine.relations import Combine, Pairs, RelationEdges
from gnnkit.engine.row_types import RowTypes
from gnnkit.engine.typed_attention import RelationAttention, SharedAttention
from gnnkit.engine.typed_edges import AddedRelations, EdgeList, TypedEdges
from gnnkit.engine.typed_graph import RelationGraph, TypedGraph
from gnnkit.errors import UserError
from gnnkit.exchange.route import Demand, Peers, Route, Slicing
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.tally import Tally
from gnnkit.exchange.wire import Wire
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.schema import Schema
from gnnkit.graph.types import take
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import Weighing
from gnnkit.kernels.product_rows import Rows
from gnnkit.kernels.products import unwatched
from gnnkit.kernels.sums import ONE, EdgeKernels
from gnnkit.partition.shard import Shard

# Maps (rows [held edges, f], their columns) to messages [held edges, f].
Message = Callable[[Tensor, slice], Tensor]


class Engine:
    """The exchange and aggregation over one rank's shard, for all layers and steps.

    Every method is collective over `comm`, in forward and backward. The argument
    `layer` is recorded by the tally.
    """

    def __init__(self, shard: Shard, comm: Communicator, dtype: torch.dtype, tally: Tally | None = None) -> None:
        """Sets up the routes of row exchanges. Collective.

        Args:
            shard: This rank's shard.
            comm: The ranks of the run.
            dtype: Type of rows, degrees and weights.
            tally: Counter of exchanged rows. None: a new one.
        """
        self.shard, self.dtype, self.device, self.grid, self.comm = shard, dtype, comm.device, shard.grid, comm
        self.tally, self.passes = tally or Tally(), Passes()
        plane, cell = self._peers(comm)
        self._wire = plane.wire
        self.slicing = Slicing(len(shard.owned), cell) if cell else None
        halo = Demand.of(shard.halo, shard.halo_cell, plane.comm)
        self.sources = Route("gather", halo, shard.cell_nodes, plane)
        partial = Demand.of(shard.partial, shard.partial_cell, plane.comm)
        self.targets = Route("reduce", partial, shard.cell_nodes, plane)
        self.edges = HeldEdges(shard.csc, self.device)
        self._clear_caches()
        self._row_types: RowTypes | None = None
        self._outdated: tuple[int, ...] = ()  # relations whose degrees in the shard include removed edges
        self.inverse_edges = False  # True: the held edges include the reverse of each edge, with separate relations
        self.nodes, self.edge_ids, self.source_ids = (
            torch.tensor(np.asarray(ids, np.int64), device=self.device)
            for ids in (shard.owned, shard.edge_ids, shard.sources)
        )
        self.edge_features = None if shard.edge_features is None else self._tensor(shard.edge_features)
        mine = self._own_rows
        self.in_degree, self.out_degree = self._tensor(shard.in_degree[mine]), self._tensor(shard.out_degree[mine])

    def _clear_caches(self) -> None:
        """Clears all that is derived from the held edges."""
        self._degrees: Degrees | None = None
        self.fixed: Rows | None = None  # [num_owned, f] constant input rows
        self._kept: dict[tuple[Kind, bool], Tensor] = {}  # cached sums over these rows
        self._kept_means: dict[bool, Tensor] = {}  # cached means of pairs over these rows
        self._pairs: dict[bool, Pairs] = {}
        self._typed_edges: dict[AddedRelations, TypedEdges] = {}
        self._typed: tuple[Schema, TypedGraph] | None = None
        for name in ("rank_graph", "quarters", "edge_types"):
            self.__dict__.pop(name, None)

    @cached_property
    def by_id(self) -> Tensor | None:  # [num_owned] int64
        """Order of the owned rows by global id. None: already sorted."""
        return torch.argsort(self.nodes) if bool((self.nodes[1:] < self.nodes[:-1]).any()) else None

    @property
    def _own_rows(self) -> slice:
        """This rank's rows among the cell's."""
        first = sum(self.slicing.row_counts[: self.shard.slice]) if self.slicing else 0
        return slice(first, first + len(self.shard.owned))

    def keeping(self, positions: Ids, relations: Sequence[int] | None = None) -> Engine:
        """Returns an engine restricted to some of the held edges.

        Degrees are recomputed. All ranks must select edges by the same rule.
        Collective.

        Args:
            positions: [num_kept] ascending positions of held edges.
            relations: The only relations of edges that are not selected. None: unknown,
                so the result has no edge types.
        """
        other, shard = copy.copy(self), self.shard
        csc = CSC(
            np.searchsorted(positions, shard.csc.indptr),
            shard.csc.indices[positions],
            take(shard.csc.weight, positions),
            shard.csc.num_sources,
        )
        edge_features = take(shard.edge_features, positions)
        other.shard = replace(
            shard,
            csc=csc,
            edge_ids=shard.edge_ids[positions],
            edge_features=edge_features,
            edge_types=None if relations is None else take(shard.edge_types, positions),
            relation_degrees=None if relations is None else take(shard.relation_degrees, positions),
        )
        other._outdated = tuple(relations or ())
        other._clear_caches()
        other.edges = HeldEdges(csc, self.device)
        other.edge_ids = torch.tensor(np.asarray(other.shard.edge_ids, np.int64), device=self.device)
        other.edge_features = None if edge_features is None else self._tensor(edge_features)
        ones = torch.ones(len(positions), 1, dtype=self.dtype, device=self.device)
        held = other.edges.weight(self.dtype)
        weights = ones if held is None else held
        into = self._owners_sum(other.edges.by_destination.sum(weights), self.targets)[:, 0]
        out_of = self._owners_sum(other.edges.of_sources.spread(weights), self.sources)[:, 0]
        other.shard = replace(other.shard, in_degree=into.cpu().numpy(), out_degree=out_of.cpu().numpy())
        other.in_degree, other.out_degree = into[self._own_rows], out_of[self._own_rows]
        return other

    def _with_relation_degrees(self) -> Shard:
        """Returns the shard with current degrees within relations.

        Collective on first use after `keeping`.
        """
        shard, relations = self.shard, self._outdated
        if shard.edge_types is None or shard.relation_degrees is None or not relations:
            return shard
        weights = torch.from_numpy(shard.edge_types[:, None] == np.array(relations)).to(self.device, self.dtype)
        held = self.edges.weight(self.dtype)
        weights = weights if held is None else weights * held
        into = self._owners_sum(self.edges.by_destination.sum(weights), self.targets)
        out_of = self._owners_sum(self.edges.of_sources.spread(weights), self.sources)
        of_targets = torch.cat([into, self.targets.values(into)]).cpu().numpy()
        of_sources = torch.cat([out_of, self.sources.values(out_of)]).cpu().numpy()
        destinations = np.repeat(np.arange(shard.csc.num_nodes), np.diff(shard.csc.indptr))
        degrees = np.array(shard.relation_degrees)
        for column, relation in enumerate(relations):
            edges = np.flatnonzero(shard.edge_types == relation)
            degrees[edges, 0] = of_targets[destinations[edges], column]
            degrees[edges, 1] = of_sources[shard.csc.indices[edges], column]
        self.shard, self._outdated = replace(shard, relation_degrees=degrees), ()
        return self.shard

    def _owners_sum(self, z: Tensor, route: Route) -> Tensor:  # [num_cell_nodes + num_rows, f] -> [num_cell_nodes, f]
        """Adds the holders' rows to the owners' rows."""
        num_local = len(self.shard.cell_nodes)
        return z[:num_local] + route.collect_rows(z[num_local:], 0)

    def fix(self, x: Rows) -> None:
        """Declares `x` [num_owned, f] constant.

        Exact training passes then compute sums over its rows only once.
        """
        self.fixed, self._kept, self._kept_means = x, {}, {}

    @cached_property
    def quarters(self) -> Quarters:
        """The held edges, split by whether their ends belong to this cell."""
        return Quarters.of(self.shard, self.edges)

    # Not a cached property, whose lock would block the threads of other ranks.
    @property
    def degrees(self) -> Degrees:
        """Out-degrees of the sources and in-degrees of the targets.

        Collective on first use.
        """
        if self._degrees is None:
            both = (self.shard.out_degree, self.shard.in_degree)
            out, into = (torch.tensor(np.asarray(degree, np.float64), device=self.device) for degree in both)
            far, partial = self.sources.values(out), self.targets.values(into)
            self._degrees = (torch.cat([out, far]), torch.cat([into, partial]))
        return self._degrees

    def _peers(self, comm: Communicator) -> tuple[Peers, Peers | None]:
        """Returns the peers of the same slice, and those of the same cell."""
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
        """Lists the tensors that layers read throughout the run."""
        return [self.source_ids, *self._lent().values()]

    def lent(self) -> dict[str, Tensor]:
        """Returns the tensors that layers have accessed so far, by attribute."""
        graph: RankGraph | None = self.__dict__.get("rank_graph")
        types = {name: self.__dict__[name] for name in ("edge_types",) if name in self.__dict__}
        return self._lent() | types | ({} if graph is None else graph.lent())

    def _lent(self) -> dict[str, Tensor]:
        tensors = {
            "src_nodes": self.nodes,
            "edge_ids": self.edge_ids,
            "in_degree": self.in_degree,
            "out_degree": self.out_degree,
        }
        return tensors if self.edge_features is None else {**tensors, "edge_features": self.edge_features}

    @property
    def holds_in_edges(self) -> bool:
        """Whether every rank holds all in-edges of its rows, in all columns."""
        return self.slicing is None and self.targets.idle

    def close(self) -> None:
        """Stops the background exchange thread, if there is one."""
        self._wire.close()

    @cached_property
    def rank_graph(self) -> RankGraph:
        """This rank's edges as a separate graph.

        Raises `UserError` if other ranks hold in-edges of this rank's rows.
        """
        if not self.holds_in_edges:
            raise UserError(
                f"partition.grid={self.grid} distributes a node's in-edges over ranks, which layers written for one process "
                "do not support; use partition.grid=1d and a partition of nodes, not a vertex cut"
            )
        weight = self.edges.weight(self.dtype)
        return RankGraph.of(self.shard, None if weight is None else weight[:, 0], self.edges)

    def with_halo(self, x: Tensor, layer: int) -> Tensor:  # [num_cell_nodes, ...] -> [num_sources, ...]
        """Returns the source rows: the cell's, then the halo."""
        return x if self.sources.idle else torch.cat([x, self.sources.spread(x, layer)])

    def _with_partial(self, z: Tensor, layer: int) -> Tensor:  # [num_cell_nodes, ...] -> [num_targets, ...]
        return z if self.targets.idle else torch.cat([z, self.targets.spread(z, layer)])

    def _at_owners(self, z: Tensor, layer: int) -> Tensor:  # [num_targets, ...] -> [num_cell_nodes, ...]
        num_local = len(self.shard.cell_nodes)
        return z if self.targets.idle else z[:num_local] + self.targets.collect(z[num_local:], layer)

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
        known = (kind, beside) in self._kept
        if not self._is_fixed(x) or not (known or torch.is_grad_enabled()):
            return self._sum(x, layer, kind, scale, beside)
        if not known:
            self._kept[kind, beside] = self._sum(x, layer, kind, None, beside)
        z = self._kept[kind, beside]
        return copy_on_write(z) if scale is None else z + scale * x

    def _is_fixed(self, x: Tensor) -> bool:
        """Whether sums over `x` are the same in every exact pass.

        All ranks agree, including those without rows.
        """
        return x is self.fixed and self.passes.exact and not x.requires_grad

    def _sum(self, x: Tensor, layer: int, kind: Kind, scale: Tensor | None, beside: bool) -> Tensor:
        cut = self.slicing.cut(x, layer) if self.slicing else x
        if beside and not self.slicing:
            both: Tensor = _ExchangedSum.apply(x, None, self, layer, kind, True)
            return both
        z: Tensor = _ExchangedSum.apply(cut.flatten(1), scale, self, layer, kind, False)
        z = self._join(z.view(cut.shape), x, layer)
        return torch.cat([z, x], 1) if beside else z

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
        return self._join(self._at_owners(z, layer), x, layer)

    def message_sum(self, x: Tensor, message: Message, layer: int) -> Tensor:  # [num_owned, f] -> [num_owned, f]
        """Sums `message(rows, columns)` over in-edges.

        Args:
            x: [num_owned, f] rows.
            message: Function that processes each column independently.
            layer: Layer of the model.
        """
        rows = self.edges.of_sources.sum(self._gather(x, layer))
        columns = self.slicing.columns(x.shape[-1]) if self.slicing else slice(0, x.shape[-1])
        z = self.edges.by_destination.sum(message(rows, columns))
        return self._join(self._at_owners(z, layer), x, layer)

    def pairs(self, inverse: bool) -> Pairs:
        """Returns the (row, relation) pairs of the held edges. Collective on first use.

        Raises `UserError` if the held edges have no types.

        Args:
            inverse: Whether to add reversed edges, with separate relations.
        """
        if inverse not in self._pairs:
            self._check_types()
            shard = self._with_relation_degrees()
            edges = RelationEdges.of_shard(shard, lambda: self.degrees, inverse=inverse)
            self._pairs[inverse] = Pairs.of_edges(edges, self.device)
        return self._pairs[inverse]

    @cached_property
    def edge_types(self) -> Tensor:  # [held edges] int64
        """Relation of each held edge.

        Raises `UserError` if the held edges have no types.
        """
        self._check_types()
        if self.shard.edge_types is None:
            return torch.zeros_like(self.edge_ids)
        return torch.tensor(np.asarray(self.shard.edge_types, np.int64), device=self.device)

    def row_types(self, num_types: int) -> RowTypes:
        """Returns the node types of the owned rows.

        Raises `UserError` if the graph has another number of node types.
        """
        if self._row_types is None or len(self._row_types.sizes) != num_types:
            owned = np.asarray(self.shard.owned)
            self._row_types = RowTypes.of(owned, self.shard.type_sizes, num_types, self.device)
        return self._row_types

    def typed_graph(self, schema: Schema) -> TypedGraph:
        """Returns the held edges by relation. Collective on first use.

        Raises `UserError` if other ranks hold in-edges of this rank's rows, or if the
        held edges have no types.

        Args:
            schema: The graph's types, with the node types of each relation.
        """
        if self._typed is None or self._typed[0] != schema:
            weight = self.rank_graph.weight
            graph = TypedGraph.of_shard(self.shard, self.edge_types, weight, schema, self.sources.plane)
            self._typed = (schema, graph)
        return self._typed[1]

    def relation_halo(self, x: Tensor, graph: RelationGraph, layer: int) -> Tensor:  # [num_halo, ...]
        """Returns the other ranks' rows that a relation's edges read.

        Args:
            x: [num_src, ...] own rows of the source type.
            graph: The relation's edges.
            layer: Layer of the model.
        """
        route = graph.route
        return x[:0] if route is None or route.idle else route.spread(x, layer)

    def _check_types(self) -> None:
        if self.shard.num_relations > 1 and self.shard.edge_types is None:
            raise UserError(
                "these edges have no types: a relational model does not support added self-loops (self_loops), or "
                "a task that predicts edges of several relations"
            )

    def typed_edges(self, added: AddedRelations) -> TypedEdges:
        """Returns the held edges with their relations, and the added ones.

        Raises `UserError` if the held edges have no types.
        """
        added = self.held_relations(added)
        if added not in self._typed_edges:
            self._check_types()
            shard = self.shard
            num_rows = len(shard.cell_nodes) + len(shard.halo) + len(shard.partial)
            edges, count = EdgeList.of_shard(shard, added), added.count(shard.num_relations)
            self._typed_edges[added] = TypedEdges.of(edges, num_rows, num_rows, count, self.device)
        return self._typed_edges[added]

    def held_relations(self, added: AddedRelations) -> AddedRelations:
        """Returns the relations to add, without inverse ones if these are held."""
        if not self.inverse_edges:
            return added
        assert added.inverse, "the graph was prepared for a model that reads inverse edges"
        return added._replace(inverse=False)

    def relation_attention(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, layer: int, weighing: Weighing
    ) -> Tensor:  # [num_owned, H, d]
        """Computes attention over typed edges, as documented by `SharedAttention`."""
        edges, added = self.typed_edges(attention.added), self.held_relations(attention.added)
        return SharedAttention(self, edges, added, layer)(x, y, attention, weighing)

    def relation_sum(
        self, x: Tensor, combine: Combine, layer: int, *, inverse: bool = False, blocks: bool = False
    ) -> Tensor:  # [num_owned, f] -> [num_owned, k]
        """Combines the means of each relation, and sums the results over holders.

        Each row is sent once, for any number of relations, and so are the sums after
        `combine`. Inverse relations read target rows and add to source rows.

        Args:
            x: [num_owned, f] rows.
            combine: From means of pairs, with columns of `x`, to sums of rows.
            layer: Layer of the model.
            inverse: Whether to add reversed edges, with separate relations.
            blocks: Whether means cover the relation's block of columns only.
        """
        if self.inverse_edges:
            assert inverse, "the graph was prepared for a model that reads inverse edges"
            inverse = False  # they are among the held edges
        pairs = self.pairs(inverse)
        columns = self.slicing.columns(x.shape[-1]) if self.slicing else slice(0, x.shape[-1])
        if blocks:
            means = self._block_means(self._all_rows(x, layer, inverse), pairs, columns, x.shape[1])
        else:
            means = self._means(x, pairs, layer, inverse)
        sums = combine(means, pairs, columns)
        num_local, halo = len(self.shard.cell_nodes), len(self.shard.halo)
        z = sums[:num_local]
        if not self.targets.idle:
            z = z + self.targets.collect(sums[num_local + halo :], layer)
        if inverse and not self.sources.idle:
            z = z + self.sources.collect(sums[num_local : num_local + halo], layer)
        return self.slicing.add_rows(z, layer) if self.slicing else z

    def _means(self, x: Tensor, pairs: Pairs, layer: int, inverse: bool) -> Tensor:  # [num_pairs, f / S]
        """Returns the means of pairs. Means of constant rows are cached."""
        known = inverse in self._kept_means
        if not self._is_fixed(x) or not (known or torch.is_grad_enabled()):
            return pairs.means(self._all_rows(x, layer, inverse))
        if not known:
            self._kept_means[inverse] = pairs.means(self._all_rows(x, layer, inverse))
        return copy_on_write(self._kept_means[inverse])

    def _block_means(self, rows: Tensor, pairs: Pairs, columns: slice, width: int) -> Tensor:  # [num_pairs, k]
        """Returns the means of each relation's block, with zeros for other slices."""
        if self.slicing:
            rows = F.pad(rows, (columns.start, width - columns.stop))
        return pairs.block_means(rows)

    def _all_rows(self, x: Tensor, layer: int, inverse: bool) -> Tensor:
        """Returns rows [cell_nodes | halo | partial], with zeros for unread ones."""
        cut = self.slicing.cut(x, layer) if self.slicing else x
        rows, num_partial = self.with_halo(cut, layer), len(self.shard.partial)
        if self.targets.idle:
            return rows
        if inverse:
            return torch.cat([rows, self.targets.spread(cut, layer)])
        return torch.cat([rows, rows.new_zeros(num_partial, rows.shape[1])])

    def max(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_owned, ...]
        """Computes the maximum over in-edges, and 0 without in-edges.

        Ties are resolved to the lowest global source id.
        """
        rows = self._gather(x, layer)
        z: Tensor = _ExchangedMax.apply(rows.flatten(1), self, layer)
        return self._join(z.view(len(z), *rows.shape[1:]), x, layer)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None, layer: int) -> Tensor:  # [held edges, H]
        """Computes src[u] + dst[v] (+ edge[e]) for each held edge e = u -> v.

        Args:
            src: [num_owned, H].
            dst: [num_owned, H].
            edge: [held edges, H], or None.
            layer: Layer of the model.
        """
        if self.slicing:
            src, dst = self.slicing.replicate(src, layer), self.slicing.replicate(dst, layer)
        at_sources = self.edges.of_sources.sum(self.with_halo(src, layer))
        at_targets = self.edges.by_destination.spread(self._with_partial(dst, layer))
        scores = at_sources + at_targets
        if edge is None:
            return scores
        return scores + (self.slicing.once(edge) if self.slicing else edge)

    def softmax(self, scores: Tensor, layer: int) -> Tensor:  # [held edges, H] -> [held edges, H]
        """Computes the softmax over all in-edges of each destination."""
        by_destination = self.edges.by_destination

        def maxima() -> Tensor:
            largest = by_destination.kernels.max(scores)[0]
            if not self.targets.idle:
                arrived = self._gather_partial(largest, layer)
                largest = self._with_partial(self._arrivals.max(arrived)[0], layer)
            return by_destination.spread(largest)

        with torch.no_grad():  # cached, because stale denominators were computed with the earlier maxima
            largest = self.passes.keep(maxima)
        powers = (scores - largest).exp()
        with self.passes.plain():  # all holders must divide by identical numbers
            totals = self._with_partial(self._at_owners(by_destination.sum(powers), layer), layer)
        return powers / by_destination.spread(totals)

    def _gather(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, ...] -> [num_sources, ...], my columns
        return self.with_halo(self.slicing.cut(x, layer) if self.slicing else x, layer)

    def _gather_partial(
        self, z: Tensor, layer: int
    ) -> Tensor:  # [num_targets, ...] -> [num_cell_nodes + num_arrivals, ...]
        """Returns the cell's rows, then the rows received from other holders."""
        num_local = len(self.shard.cell_nodes)
        return torch.cat([z[:num_local], self.targets.to_owners(z[num_local:], layer)])

    @cached_property
    def _arrivals(self) -> EdgeKernels:
        """Kernels that reduce received rows to the cell's nodes."""
        num_local, rows = len(self.shard.cell_nodes), self._receivers.cpu().numpy()
        return EdgeKernels.of(CSC(np.arange(len(rows) + 1), rows, num_sources=num_local), self.device).transpose()

    @cached_property
    def _receivers(self) -> Tensor:  # [num_cell_nodes + num_arrivals]
        """The cell node's row for each received row."""
        local_rows = torch.arange(len(self.shard.cell_nodes), device=self.device)
        return torch.cat([local_rows, self.targets.sent])

    def _join(self, z: Tensor, x: Tensor, layer: int) -> Tensor:
        return self.slicing.join(z, x.shape[-1], layer) if self.slicing else z


class _ExchangedSum(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, engine: Engine, layer: int, kind: Kind, beside: bool
    ) -> Tensor:  # [num_cell_nodes, f] -> [num_cell_nodes, f or 2 f]
        with unwatched():
            return _ExchangedSum._forward(ctx, x, scale, engine, layer, kind, beside)

    @staticmethod
    def _forward(
        ctx: Any, x: Tensor, scale: Tensor | None, engine: Engine, layer: int, kind: Kind, beside: bool
    ) -> Tensor:
        quarters, x = engine.quarters, x.contiguous()
        near, far = quarters.near.edges, quarters.far.edges
        near_by, far_by, near_partial_by, far_partial_by = quarters.factors(kind, engine.degrees, x.dtype)
        ctx.engine, ctx.layer, ctx.kind, ctx.beside = engine, layer, kind, beside
        ctx.own = 0.0 if scale is None else float(scale)
        if scale is not None:
            ctx.save_for_backward(x)
        coming = engine.sources.start_spread(x, layer)
        z = near.kernels.sum_beside(x, near_by) if beside else near.kernels.sum(x, near_by, own=ctx.own)
        if engine.targets.idle:
            with coming.borrow() as halo:
                far.kernels.add_sum(halo, far_by, z)
            return z
        partial, halo = quarters.near_partial.edges.kernels.sum(x, near_partial_by), coming.wait()
        quarters.far_partial.edges.kernels.add_sum(halo, far_partial_by, partial)
        arriving = engine.targets.start_to_owners(partial, layer)
        far.kernels.add_sum(halo, far_by, z)
        with arriving.borrow() as sums:
            engine.targets.arrivals.add_sum(sums, ONE, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        engine, layer, grad = ctx.engine, ctx.layer, grad.contiguous()
        quarters = engine.quarters
        near, far = quarters.near.edges, quarters.far.edges
        factors = quarters.factors(ctx.kind, engine.degrees, grad.dtype)
        near_by, far_by, near_partial_by, far_partial_by = (factor.turned for factor in factors)
        width = grad.shape[1] // 2 if ctx.beside else grad.shape[1]

        scale_grad = None
        if ctx.needs_input_grad[1]:
            (x,) = ctx.saved_tensors
            scale_grad = torch.dot(grad.view(-1), x.view(-1))
        if not ctx.needs_input_grad[0]:
            return None, scale_grad, None, None, None, None

        def back() -> Tensor:
            turned: EdgeKernels = near.transposed
            return turned.sum_beside_backward(grad, near_by) if ctx.beside else turned.sum(grad, near_by, own=ctx.own)

        halo = grad.new_zeros(far.num_src, width)
        far.transposed.add_sum(grad, far_by, halo)
        if engine.targets.idle:
            arriving = engine.sources.start_to_owners(halo, layer)
            out = back()
        else:
            coming = engine.targets.start_spread(grad[:, :width], layer)
            out, partial = back(), coming.wait()
            quarters.far_partial.edges.transposed.add_sum(partial, far_partial_by, halo)
            arriving = engine.sources.start_to_owners(halo, layer)
            quarters.near_partial.edges.transposed.add_sum(partial, near_partial_by, out)
        with arriving.borrow() as gradients:
            engine.sources.arrivals.add_sum(gradients, ONE, out)
        return out, scale_grad, None, None, None, None


class _ExchangedMax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, engine: Engine, layer: int) -> Tensor:  # [num_sources, f] -> [num_cell_nodes, f]
        edges, targets = engine.edges, engine.targets
        best, edge = edges.kernels.max(x)
        place = edge
        if not targets.idle:
            source = engine.source_ids[edges.source_of_edge][edge] if edges.num_edges else edge
            arrived, source = engine._gather_partial(best, layer), engine._gather_partial(source, layer)
            best = engine._arrivals.max(arrived)[0]
            # Among equal values, the lowest source id is selected. Among parallel edges
            # in two cells, the first received one is selected.
            candidates = torch.where(arrived == best[engine._receivers], -source.to(torch.float64), -torch.inf)
            place = engine._arrivals.max(candidates)[1]
        ctx.engine, ctx.layer = engine, layer
        ctx.save_for_backward(edge, place)
        return torch.where((place >= 0) & best.isfinite(), best, 0)  # a holder may have dropped its edges

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        edge, place = ctx.saved_tensors
        engine, num_local = ctx.engine, len(grad)
        if not engine.targets.idle:
            to = engine._receivers
            won = place[to] == torch.arange(len(to), device=grad.device)[:, None]
            grad = torch.where(won, grad[to], 0)
            grad = torch.cat([grad[:num_local], engine.targets.to_holders(grad[num_local:], ctx.layer)])
        return engine.edges.kernels.max_backward(grad.contiguous(), edge), None, None
