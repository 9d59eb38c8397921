"""A rank's edges by relation, between rows numbered by node type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine.rank_graph import RankGraph
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.graph import Ids
from gnnkit.graph.schema import Relation, Schema, number_by_type
from gnnkit.partition.shard import Shard, grouped

if TYPE_CHECKING:
    from gnnkit.engine.layer_routes import LayerRoutes


@dataclass(frozen=True, slots=True, eq=False)
class RelationGraph:
    """All in-edges of one relation that enter a rank's rows.

    Sources are the rank's rows of the source type, followed by the relation's halo:
    the other ranks' rows that this relation's edges read.
    """

    relation: Relation
    rank_graph: RankGraph  # numbers rows within their types. Weights are those of this relation's edges
    edges: Tensor  # [edges of the relation] int64 positions among the held edges
    num_src: int  # own rows of the source type
    num_dst: int  # own rows of the destination type
    route: Route | None  # brings the halo. None: there are no other ranks


@dataclass(frozen=True, slots=True, eq=False)
class TypedGraph:
    """A rank's rows by node type, and its edges by relation."""

    rows: Mapping[str, Tensor]  # [rows of the type] int64 positions among the rank's rows
    nodes: Mapping[str, Tensor]  # [rows of the type] int64 global ids
    relations: tuple[RelationGraph, ...]  # in the order of `Schema.relations`

    @classmethod
    def of_shard(cls, shard: Shard, types: Tensor, weight: Tensor | None, schema: Schema, plane: Peers) -> TypedGraph:
        """Splits a shard's edges by relation. Collective.

        Args:
            shard: This rank's shard, which holds all in-edges of the owned rows.
            types: [held edges] int64 each edge's relation.
            weight: [held edges] edge weights. If None, the graph has none.
            schema: The graph's types, with the node types of each relation.
            plane: Connects the ranks.
        """
        rows, halo = TypedRows.of(np.asarray(shard.owned, np.int64), schema), np.asarray(shard.halo, np.int64)
        destination = np.repeat(np.arange(len(rows.nodes)), shard.num_in_edges)
        ends = TypedEnds(np.asarray(shard.csc.indices, np.int64), destination, types.cpu().numpy())
        relations = []
        for relation, edges in ends.by_relation(schema):
            source = ends.source[edges]
            away = np.unique(source[source >= len(rows.nodes)]) - len(rows.nodes)  # ascending, so sorted by (cell, id)
            demand = Demand.of(halo[away], np.asarray(shard.halo_cell)[away], plane.comm)
            route = Route("gather", demand, rows.nodes[rows.by_type[relation.source]], plane)
            graph = rows.graph(relation, ends.take(edges), (away, halo[away]), _take(weight, edges), types.device)
            relations.append(RelationGraph(relation, graph, _to(edges, types.device), *rows.sizes(relation), route))
        return cls(*rows.as_tensors(types.device), tuple(relations))

    @classmethod
    def of_block(
        cls,
        rows: TypedRows,
        halo: Ids,
        ends: TypedEnds,
        weight: Tensor | None,
        route: Route | None,
        device: torch.device,
    ) -> TypedGraph:
        """Splits a batch's edges by relation, without communication.

        A relation's halo contains all the batch's rows of the source type that other
        ranks own, also those that only other relations read.

        Args:
            rows: This rank's rows.
            halo: [num_halo] global ids of other ranks' rows, in the order of `route`.
            ends: The edges. Sources are the rows, then the halo.
            weight: [num_edges] edge weights. If None, the graph has none.
            route: Brings the halo. If None, there is none.
            device: Device of the edges.
        """
        schema = rows.schema
        away = _by_name(number_by_type(halo, schema.type_sizes)[0], schema)
        routes = {
            name: None if route is None else route.part(places, schema.nodes(name))
            for name, places in rows.by_type.items()
        }
        relations = []
        for relation, edges in ends.by_relation(schema):
            sources = (away[relation.source], halo[away[relation.source]])
            graph = rows.graph(relation, ends.take(edges), sources, _take(weight, edges), device)
            sizes = rows.sizes(relation)
            relations.append(RelationGraph(relation, graph, _to(edges, device), *sizes, routes[relation.source]))
        return cls(*rows.as_tensors(device), tuple(relations))


@dataclass(frozen=True, slots=True, eq=False)
class TypedEnds:
    """Edges between a rank's rows, with their relations."""

    source: Ids  # [num_edges] int64 rows, or the number of rows plus a position in the halo
    destination: Ids  # [num_edges] int64 rows
    types: Ids  # [num_edges] int64 relation of each edge

    def by_relation(self, schema: Schema) -> Iterator[tuple[Relation, Ids]]:
        """Yields each relation and its edges' positions, ascending."""
        relations = schema.relations or ()
        order, bounds = grouped(self.types, len(relations))
        for number, relation in enumerate(relations):
            yield relation, order[bounds[number] : bounds[number + 1]]

    def take(self, edges: Ids) -> TypedEnds:
        """Selects edges by position."""
        return TypedEnds(self.source[edges], self.destination[edges], self.types[edges])


@dataclass(frozen=True, slots=True, eq=False)
class TypedRows:
    """A rank's rows, numbered within their types."""

    schema: Schema
    nodes: Ids  # [num_rows] int64 global ids
    by_type: Mapping[str, Ids]  # positions of each type's rows, ascending
    places: Ids  # [num_rows] int64 number of each row within its type

    @classmethod
    def of(cls, nodes: Ids, schema: Schema) -> TypedRows:
        """Numbers the rows of some nodes, in their order."""
        by_type, places = number_by_type(nodes, schema.type_sizes)
        return cls(schema, nodes, _by_name(by_type, schema), places)

    def sizes(self, relation: Relation) -> tuple[int, int]:
        """Returns the numbers of rows of a relation's source and destination type."""
        return len(self.by_type[relation.source]), len(self.by_type[relation.destination])

    def graph(
        self,
        relation: Relation,
        ends: TypedEnds,
        halo: tuple[Ids, Ids],
        weight: Tensor | None,
        device: torch.device,
    ) -> RankGraph:
        """Numbers a relation's edges within the types.

        Args:
            relation: The relation.
            ends: Its edges.
            halo: Ascending positions of the relation's sources in the halo, and their
                global ids.
            weight: [edges of the relation] weights. If None, the graph has none.
            device: Device of the edges.
        """
        rows, (away, away_nodes) = self.by_type[relation.source], halo
        source, is_own = np.empty_like(ends.source), ends.source < len(self.nodes)
        source[is_own] = self.places[ends.source[is_own]]
        source[~is_own] = len(rows) + np.searchsorted(away, ends.source[~is_own] - len(self.nodes))
        src_nodes = _to(np.append(self.nodes[rows], away_nodes), device)
        dst_nodes = _to(self.nodes[self.by_type[relation.destination]], device)
        edge_index = _to(np.stack([source, self.places[ends.destination]]), device)
        return RankGraph(edge_index, weight, src_nodes, dst_nodes=dst_nodes)

    def as_tensors(self, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns positions and global ids of each type's rows."""
        rows = {name: _to(places, device) for name, places in self.by_type.items()}
        return rows, {name: _to(self.nodes[places], device) for name, places in self.by_type.items()}


def _by_name(by_type: Sequence[Ids], schema: Schema) -> dict[str, Ids]:
    return dict(zip((name for name, _ in schema.node_types), by_type, strict=True))


def _take(weight: Tensor | None, edges: Ids) -> Tensor | None:
    return None if weight is None else weight[_to(edges, weight.device)]


def _to(ids: Ids, device: torch.device) -> Tensor:
    return torch.from_numpy(ids).to(device)


class RelationRows:
    """One relation's edges in a pass, and the rows that they read.

    Layers of one relation, such as PyG's, read rows through it. Other ranks' rows are
    exchanged when a layer reads them.
    """

    def __init__(self, graph: RelationGraph, routes: LayerRoutes) -> None:
        """Stores the edges, and the routes of the layer that reads them."""
        self.alone = routes.alone
        self.rank_graph, self.num_src, self.num_dst = graph.rank_graph, graph.num_src, graph.num_dst
        self.bipartite = graph.relation.source != graph.relation.destination
        self._graph, self._routes = graph, routes

    @property
    def num_halo(self) -> int:
        """Number of rows that other ranks own."""
        nodes = self.rank_graph.nodes
        return 0 if nodes is None else len(nodes) - self.num_src

    def halo(self, x: Tensor) -> Tensor:  # [num_src, f] -> [num_halo, f]
        """Returns the other ranks' source rows. Collective."""
        return self._routes.relation_halo(x, self._graph)
