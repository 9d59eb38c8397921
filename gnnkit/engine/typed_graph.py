"""A rank's edges by relation, between rows numbered by node type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine.rank_graph import RankGraph
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.graph import Ids
from gnnkit.graph.schema import Relation, Schema
from gnnkit.partition.shard import Shard


@dataclass(frozen=True, slots=True, eq=False)
class RelationGraph:
    """All in-edges of one relation that enter a rank's rows.

    Sources are the rank's rows of the source type, followed by the relation's halo:
    the other ranks' rows that edges of this relation read.
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
            types: [held edges] int64 relation of each edge.
            weight: [held edges] edge weights. None: the graph has none.
            schema: The graph's types, with the node types of each relation.
            plane: Connects the ranks.
        """
        owned, halo = np.asarray(shard.owned, np.int64), np.asarray(shard.halo, np.int64)
        source = np.asarray(shard.csc.indices, np.int64)
        destination = np.repeat(np.arange(len(owned)), shard.num_in_edges)
        by_type = _rows_by_type(owned, schema)
        place = _places(by_type, len(owned))
        relations = []
        for number, relation in enumerate(schema.relations or ()):
            edges = np.flatnonzero(types.cpu().numpy() == number)
            src, rows = source[edges], by_type[relation.source]
            away = np.unique(src[src >= len(owned)]) - len(owned)  # ascending, so still sorted by (cell, id)
            demand = Demand.of(halo[away], np.asarray(shard.halo_cell)[away], plane.comm)
            route = Route("gather", demand, owned[rows], plane)
            local, is_own = np.empty_like(src), src < len(owned)
            local[is_own] = place[src[is_own]]
            local[~is_own] = len(rows) + np.searchsorted(away, src[~is_own] - len(owned))
            ends = np.stack([local, place[destination[edges]]])
            ids = (np.append(owned[rows], halo[away]), owned[by_type[relation.destination]])
            graph = _rank_graph(ends, ids, edges, weight, types.device)
            picked = torch.from_numpy(edges).to(types.device)
            relations.append(RelationGraph(relation, graph, picked, len(rows), len(ids[1]), route))
        return cls(*_as_tensors(by_type, owned, types.device), tuple(relations))


def _rows_by_type(nodes: Ids, schema: Schema) -> dict[str, Ids]:
    """Returns the positions of each type's nodes, in the order of `nodes`."""
    ranges = {name: schema.nodes(name) for name, _ in schema.node_types}
    return {name: np.flatnonzero((nodes >= ids.start) & (nodes < ids.stop)) for name, ids in ranges.items()}


def _places(by_type: Mapping[str, Ids], count: int) -> Ids:  # [count]
    """Returns each row's number within its type."""
    place = np.zeros(count, np.int64)
    for rows in by_type.values():
        place[rows] = np.arange(len(rows))
    return place


def _rank_graph(ends: Ids, ids: tuple[Ids, Ids], edges: Ids, weight: Tensor | None, device: torch.device) -> RankGraph:
    src_nodes, dst_nodes = (torch.from_numpy(side).to(device) for side in ids)
    picked = None if weight is None else weight[torch.from_numpy(edges).to(device)]
    return RankGraph(torch.from_numpy(ends).to(device), picked, src_nodes, dst_nodes=dst_nodes)


def _as_tensors(
    by_type: Mapping[str, Ids], nodes: Ids, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    rows = {name: torch.from_numpy(places).to(device) for name, places in by_type.items()}
    return rows, {name: torch.from_numpy(nodes[places]).to(device) for name, places in by_type.items()}


class RelationRows:
    """One relation's edges in a pass, and the rows that they read."""

    def __init__(self, graph: RelationGraph, halo: Callable[[Tensor, RelationGraph], Tensor]) -> None:
        """Stores the edges.

        Args:
            graph: The edges.
            halo: Returns the relation's halo, from own rows of the source type.
        """
        self.rank_graph, self.num_src, self.num_dst = graph.rank_graph, graph.num_src, graph.num_dst
        self.bipartite = graph.relation.source != graph.relation.destination
        self._graph, self._halo = graph, halo

    @property
    def num_halo(self) -> int:
        """Number of rows that other ranks own."""
        nodes = self.rank_graph.nodes
        return 0 if nodes is None else len(nodes) - self.num_src

    def halo(self, x: Tensor) -> Tensor:  # [num_src, f] -> [num_halo, f]
        """Returns the other ranks' source rows. Collective."""
        return self._halo(x, self._graph)
