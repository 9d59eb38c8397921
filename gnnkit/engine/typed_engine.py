"""Aggregation over the held edges by relation."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.engine.adjacency import EdgesByType, Weigh
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.rank_graph import copy_on_write
from gnnkit.engine.relations import Combine, Pairs, shares_of_shard
from gnnkit.engine.topology import FixedRows, Topology
from gnnkit.engine.typed_attention import RelationAttention, SharedAttention
from gnnkit.engine.typed_edges import AddedRelations, EdgeList, RowTypes, TypedEdges
from gnnkit.engine.typed_graph import TypedGraph
from gnnkit.errors import UserError
from gnnkit.graph.schema import Schema
from gnnkit.partition.shard import Shard


class TypedEngine(EdgesByType):
    """Exchanges and aggregates over one rank's edges, by relation.

    Methods with `routes` are collective, in forward and backward.
    """

    def __init__(self, topology: Topology, fixed_rows: FixedRows, *, inverse_edges: bool) -> None:
        """Stores the arguments.

        Args:
            topology: Held edges, and routes.
            fixed_rows: Constant input rows.
            inverse_edges: Whether the held edges include the reverse of each edge, with
                separate relations.
        """
        self.topology, self._fixed, self.inverse_edges = topology, fixed_rows, inverse_edges
        self._outdated: tuple[int, ...] = ()  # relations whose degrees in the shard include removed edges
        self._row_types: RowTypes | None = None
        self._pairs: dict[bool, Pairs] = {}
        self._typed_edges: dict[AddedRelations, TypedEdges] = {}
        self._typed_graph: tuple[Schema, TypedGraph] | None = None

    def select_edges(self, topology: Topology, fixed_rows: FixedRows, relations: tuple[int, ...]) -> TypedEngine:
        """Returns an engine over some of the held edges.

        Args:
            topology: The selected edges.
            fixed_rows: Constant input rows.
            relations: The only relations of edges that are not selected.
        """
        engine = TypedEngine(topology, fixed_rows, inverse_edges=self.inverse_edges)
        engine._outdated, engine._row_types = relations, self._row_types
        return engine

    @cached_property
    def edge_types(self) -> Tensor:  # [held edges] int64
        """Relation of each held edge.

        Raises `UserError` if the held edges have no types.
        """
        self._check_types()
        topology = self.topology
        if topology.shard.edge_types is None:
            return torch.zeros_like(topology.edge_ids)
        return torch.tensor(np.asarray(topology.shard.edge_types, np.int64), device=topology.device)

    def _check_types(self) -> None:
        shard = self.topology.shard
        if shard.num_relations > 1 and shard.edge_types is None:
            raise UserError(
                "these edges have no types: a relational model does not support added self-loops (self_loops), or "
                "a task that predicts edges of several relations"
            )

    def pairs(self, inverse: bool) -> Pairs:
        """Returns the (row, relation) pairs of the held edges. Collective on first use.

        Raises `UserError` if the held edges have no types.

        Args:
            inverse: Whether to add reversed edges, with separate relations.
        """
        if inverse not in self._pairs:
            self._check_types()
            shard, topology = self._with_relation_degrees(), self.topology
            factor = shares_of_shard(shard, lambda: topology.degrees, inverse=inverse)
            edges, count = EdgeList.of_shard(shard, AddedRelations(inverse)), shard.num_relations * (1 + inverse)
            self._pairs[inverse] = Pairs.of_edges(edges, factor, (self._num_rows,) * 2, count, topology.device)
        return self._pairs[inverse]

    @property
    def _num_rows(self) -> int:
        """Number of rows [cell_nodes | halo | partial]."""
        shard = self.topology.shard
        return len(shard.cell_nodes) + len(shard.halo) + len(shard.partial)

    def _with_relation_degrees(self) -> Shard:
        """Returns the shard with current degrees within relations. Collective."""
        topology, relations = self.topology, self._outdated
        shard = topology.shard
        if shard.edge_types is None or shard.relation_degrees is None or not relations:
            return shard
        weights = torch.from_numpy(shard.edge_types[:, None] == np.array(relations))
        weights = weights.to(topology.device, topology.dtype)
        edge_weight = topology.edges.weight(topology.dtype)
        into, out_of = topology.sums_at_owners(
            topology.edges, weights if edge_weight is None else weights * edge_weight
        )
        of_targets = torch.cat([into, topology.targets.values(into)]).cpu().numpy()
        of_sources = torch.cat([out_of, topology.sources.values(out_of)]).cpu().numpy()
        destinations = np.repeat(np.arange(shard.csc.num_nodes), np.diff(shard.csc.indptr))
        degrees = np.array(shard.relation_degrees)
        for column, relation in enumerate(relations):
            edges = np.flatnonzero(shard.edge_types == relation)
            degrees[edges, 0] = of_targets[destinations[edges], column]
            degrees[edges, 1] = of_sources[shard.csc.indices[edges], column]
        return replace(shard, relation_degrees=degrees)

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        shard = self.topology.shard
        assert num_rows == len(self.topology.nodes), "a shard's source rows are its destinations"
        if self._row_types is None or len(self._row_types.sizes) != num_types:
            owned_nodes = np.asarray(shard.owned)
            self._row_types = RowTypes.of(owned_nodes, shard.type_sizes, num_types, self.topology.device)
        return self._row_types

    def typed_graph(self, schema: Schema, routes: LayerRoutes) -> TypedGraph:
        """Splits the edges on first use, which is collective.

        Raises `UserError` if other ranks hold in-edges of this rank's rows.
        """
        if self._typed_graph is None or self._typed_graph[0] != schema:
            topology = self.topology
            weight = topology.rank_graph.weight
            graph = TypedGraph.of_shard(topology.shard, self.edge_types, weight, schema, topology.sources.plane)
            self._typed_graph = (schema, graph)
        return self._typed_graph[1]

    def edges(self, added: AddedRelations) -> TypedEdges:
        """Returns the held edges with their relations, and the added ones.

        Raises `UserError` if the held edges have no types.
        """
        new_relations = added.beyond(inverse=self.inverse_edges)
        if new_relations not in self._typed_edges:
            self._check_types()
            shard = self.topology.shard
            edges, count = EdgeList.of_shard(shard, new_relations), new_relations.count(shard.num_relations)
            sizes = self._num_rows, self._num_rows
            self._typed_edges[new_relations] = TypedEdges.of(edges, *sizes, count, self.topology.device)
        return self._typed_edges[new_relations]

    def attend(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, routes: LayerRoutes, weigh: Weigh
    ) -> Tensor:
        edges, new_relations = self.edges(attention.added), attention.added.beyond(inverse=self.inverse_edges)
        return SharedAttention(edges, new_relations, routes, self.topology.sources, self.topology.targets)(
            x, y, attention, weigh(edges.ids)
        )

    def sum(self, x: Tensor, combine: Combine, routes: LayerRoutes, *, inverse: bool, blocks: bool) -> Tensor:
        """Combines the means of each relation, and sums the results over holders.

        Each row is sent once, for any number of relations, and so are the sums after
        `combine`. Inverse relations read target rows and add to source rows.
        """
        if self.inverse_edges:
            assert inverse, "the graph was prepared for a model that reads inverse edges"
            inverse = False  # they are among the held edges
        pairs, topology = self.pairs(inverse), self.topology
        columns = topology.slicing.columns(x.shape[-1])
        if blocks:
            means = self._block_means(self._all_rows(x, routes, inverse), pairs, columns, x.shape[1])
        else:
            means = self._means(x, pairs, routes, inverse)
        sums = combine(means, pairs, columns)
        num_local, halo = len(topology.shard.cell_nodes), len(topology.shard.halo)
        z = sums[:num_local]
        if not topology.targets.idle:
            z = z + topology.targets.collect(sums[num_local + halo :], routes.layer)
        if inverse and not topology.sources.idle:
            z = z + topology.sources.collect(sums[num_local : num_local + halo], routes.layer)
        return topology.slicing.add_rows(z, routes.layer)

    def _means(self, x: Tensor, pairs: Pairs, routes: LayerRoutes, inverse: bool) -> Tensor:  # [num_pairs, f / S]
        """Returns the means of pairs. Means of constant rows are cached."""

        def means() -> Tensor:
            return pairs.means(self._all_rows(x, routes, inverse))

        cached_means = self._fixed.result(x, ("means", inverse), means)
        return means() if cached_means is None else copy_on_write(cached_means)

    def _block_means(self, rows: Tensor, pairs: Pairs, columns: slice, width: int) -> Tensor:  # [num_pairs, k]
        """Returns the means of each relation's block, with zeros for other slices."""
        if self.topology.slicing.num_slices > 1:
            rows = F.pad(rows, (columns.start, width - columns.stop))
        return pairs.block_means(rows)

    def _all_rows(self, x: Tensor, routes: LayerRoutes, inverse: bool) -> Tensor:
        return routes.all_rows(routes.slicing.cut(x, routes.layer), halo=True, partial=inverse)
