"""One sampled subgraph of a graph of several types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit import _core
from gnnkit.graph import Ids
from gnnkit.pyg.checks import EdgeType
from gnnkit.pyg.local_ids import LocalIds
from gnnkit.pyg.relation import DrawRule, RelationEdges
from gnnkit.sampler.base import Reading
from gnnkit.utils.memory import check_memory


@dataclass(frozen=True, eq=False)
class LocalEdges:
    """The edges that one relation contributes, in local ids."""

    row: Ids  # [num_edges] sources
    col: Ids  # [num_edges] destinations
    edge: Ids  # [num_edges] positions in the relation's CSC
    counts: Sequence[int] | None  # edges per hop. None: an induced subgraph


@dataclass(frozen=True, eq=False)
class SampledSubgraph:
    """The nodes and edges of a batch, with an entry for each node and edge type."""

    nodes: Mapping[str, Ids]  # the seeds first
    trees: Mapping[str, Ids] | None  # tree of each node. None: the batch is not disjoint
    counts: Mapping[str, Sequence[int]] | None  # nodes found per hop, the seeds first
    edges: Mapping[EdgeType, LocalEdges]


@dataclass(frozen=True, eq=False)
class Growth:
    """Draws the hops of a batch, relation by relation.

    All relations of a hop draw for the nodes known when the hop begins.
    """

    relations: Mapping[EdgeType, RelationEdges]
    ids: Mapping[str, LocalIds]
    bounds: Ids | None  # [num_trees] latest visible time of each tree. None: no times
    rule: DrawRule
    key: int

    def directional(self, fanouts: Mapping[EdgeType, list[int]], num_hops: int) -> SampledSubgraph:
        """Returns the edges that were drawn."""
        drawn: dict[EdgeType, list[LocalEdges]] = {name: [] for name in self.relations}
        for hop in range(num_hops):
            for position, (name, relation) in enumerate(self.relations.items()):
                key = _core.derive(self.key, position)
                drawn[name].append(self._draw(relation, fanouts[name][hop], key))
            for ids in self.ids.values():
                ids.close_hop()
        counts = {name: ids.counts for name, ids in self.ids.items()}
        return self._subgraph({name: _join(hops) for name, hops in drawn.items()}, counts)

    def induced(self, fanouts: Mapping[EdgeType, list[int]], num_hops: int) -> SampledSubgraph:
        """Returns all edges among the nodes that were found."""
        self.directional(fanouts, num_hops)
        edges = {name: self._among(relation) for name, relation in self.relations.items()}
        return self._subgraph(edges, None)

    def _draw(self, relation: RelationEdges, fanout: int, key: int) -> LocalEdges:
        ids = self.ids[relation.destination]
        codes = ids.frontier()
        if self.rule.replace:
            what = f"num_neighbors={fanout} with replacement, for {len(codes)} nodes of a batch,"
            check_memory(what, len(codes) * fanout * self.rule.draw_bytes)
        return self._edges(relation, codes, ids.drawn, ids.keys(codes), fanout, key)

    def _among(self, relation: RelationEdges) -> LocalEdges:
        """Draws all in-edges of all nodes, and drops those whose source is unknown."""
        unweighted = RelationEdges(relation.source, relation.destination, relation.csc.weighted(None), relation.times)
        num_sources = len(self.ids[relation.source].codes)
        edges = self._edges(unweighted, self.ids[relation.destination].codes, 0, None, -1, 0)
        known = edges.row < num_sources
        return LocalEdges(edges.row[known], edges.col[known], edges.edge[known], None)

    def _edges(
        self, relation: RelationEdges, codes: Ids, first: int, keys: Ids | None, fanout: int, key: int
    ) -> LocalEdges:
        """Draws for `codes`, whose local ids begin at `first`."""
        ids = self.ids[relation.destination]
        trees = ids.trees(codes)
        bounds = self.bounds[trees] if self.bounds is not None and trees is not None else None
        drawn = relation.draw(ids.nodes(codes), keys, bounds, fanout, key, self.rule)
        degrees = np.diff(drawn.indptr)
        row = self.ids[relation.source].add(drawn.sources, None if trees is None else np.repeat(trees, degrees))
        col = np.repeat(np.arange(first, first + len(codes)), degrees)
        assert drawn.edge_ids is not None
        return LocalEdges(row, col, drawn.edge_ids, [len(row)])

    def _subgraph(
        self, edges: Mapping[EdgeType, LocalEdges], counts: Mapping[str, Sequence[int]] | None
    ) -> SampledSubgraph:
        trees = {name: ids.trees(ids.codes) for name, ids in self.ids.items()}
        disjoint = {name: tree for name, tree in trees.items() if tree is not None}
        nodes = {name: ids.nodes(ids.codes) for name, ids in self.ids.items()}
        return SampledSubgraph(nodes, disjoint or None, counts, edges)


def _join(hops: Sequence[LocalEdges]) -> LocalEdges:
    def joined(arrays: list[Ids]) -> Ids:
        return np.concatenate([np.empty(0, np.int64), *arrays])

    return LocalEdges(
        joined([hop.row for hop in hops]),
        joined([hop.col for hop in hops]),
        joined([hop.edge for hop in hops]),
        [len(hop.row) for hop in hops],
    )


def grow_one_type(relation: RelationEdges, seeds: Ids, fanouts: list[int], key: int, rule: DrawRule) -> SampledSubgraph:
    """Draws all hops of distinct seeds of one type in one call of the core.

    Equals `Growth.directional`.
    """
    sampler = relation.native(fanouts, rule.replace)
    nodes, known, indptr, row, edge, *_ = sampler.sample(Reading(relation.csc), seeds, key, rule.threads)
    col = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    drawn = [0, *known[:-1]]
    counts = np.diff(indptr[drawn]).tolist()
    edges = LocalEdges(row, col, edge, counts)
    name = relation.source
    return SampledSubgraph({name: nodes}, None, {name: np.diff([0, *known]).tolist()}, {(name, name, name): edges})
