"""One sampled subgraph of a graph of several types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit import _core
from gnnkit.graph import Ids
from gnnkit.sampler.base import Reading
from gnnkit_pyg.checks import EdgeType
from gnnkit_pyg.sampled_graph import SampledGraph


@dataclass(frozen=True, eq=False)
class LocalEdges:
    """The edges that one relation contributes, in local ids."""

    ends: Ids  # [2, num_edges] sources and destinations
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
class DrawRule:
    """What all draws of a batch share."""

    fanouts: Mapping[EdgeType, list[int]]  # [num_hops] by relation
    num_hops: int
    replace: bool
    last: bool  # draw the latest edges before the bound instead of any
    induced: bool  # return all edges among the nodes instead of the drawn ones
    most_draws: int  # draws with replacement of a relation in a hop
    threads: int


@dataclass(frozen=True, eq=False)
class Seeds:
    """The nodes around which a batch grows.

    In a disjoint batch, each seed has a tree of its own, and a node is in the batch
    once per tree. Otherwise, a seed that repeats keeps its place, draws independently,
    and edges lead to its first occurrence.
    """

    nodes: Mapping[str, Ids]  # [num_seeds] int64 by node type
    disjoint: bool
    bounds: Ids | None  # [num_trees] int64 latest visible time of each tree. None: no times

    def trees(self) -> dict[str, Ids]:  # [num_seeds] uint32 by type
        """Returns the tree of each seed, counted over all types, or nothing."""
        if not self.disjoint:
            return dict.fromkeys(self.nodes, np.empty(0, np.uint32))
        ends = np.cumsum([0, *map(len, self.nodes.values())])
        return dict(zip(self.nodes, np.split(np.arange(ends[-1], dtype=np.uint32), ends[1:-1]), strict=True))


def grow(graph: SampledGraph, seeds: Seeds, key: int, rule: DrawRule) -> SampledSubgraph:
    """Draws all hops of a batch in one call of the core.

    All relations of a hop draw for the nodes known when the hop begins.
    """
    num_nodes, trees = graph.num_nodes, seeds.trees()
    starts = [(seeds.nodes[name], trees[name], count) for name, count in num_nodes.items()]
    trees_of_seeds = (np.arange(sum(map(len, trees.values()))), seeds.bounds, None) if seeds.disjoint else None
    nodes, sampled_edges, _ = _core.grow(
        list(_edge_types(graph, rule)),
        starts,
        trees_of_seeds,
        rule.num_hops,
        key,
        induced=rule.induced,
        most_draws=rule.most_draws,
        threads=rule.threads,
    )
    ends = {name: [0, *sizes] for name, (_, _, sizes) in zip(num_nodes, nodes, strict=True)}  # of hops, in `nodes`
    edges = {}
    for (name, relation), (indptr, row, edge, *_) in zip(graph.relations.items(), sampled_edges, strict=True):
        counts = None if rule.induced else np.diff(indptr[ends[relation.destination][:-1]]).tolist()
        edges[name] = LocalEdges(_core.csc_edges(indptr, row).reshape(2, -1), edge, counts)
    return SampledSubgraph(
        nodes={name: ids for name, (ids, _, _) in zip(num_nodes, nodes, strict=True)},
        trees={name: trees for name, (_, trees, _) in zip(num_nodes, nodes, strict=True)} if seeds.disjoint else None,
        counts=None if rule.induced else {name: np.diff(of_type).tolist() for name, of_type in ends.items()},
        edges=edges,
    )


def _edge_types(graph: SampledGraph, rule: DrawRule) -> Iterator[tuple[_core.Sampler, Reading, int, int]]:
    """Yields the sampler, edges and node types of each relation."""
    places = {name: place for place, name in enumerate(graph.num_nodes)}
    for name, relation in graph.relations.items():
        sampler = relation.native(rule.fanouts[name] or [0], rule.replace)
        yield sampler, relation.reading(latest=rule.last), places[relation.source], places[relation.destination]
