"""Batches of several types, compared with a hop loop in Python and with brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_pyg.subgraph import DrawRule, SampledSubgraph, Seeds, grow
from gnnkit_pyg.subgraph_sampler import SubgraphSampler
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from gnnkit import _core
from gnnkit.graph import Ids
from gnnkit.pyg import NeighborLoader
from gnnkit.sampler.base import Reading, Visibility
from tests.pyg.graphs import heterogeneous, homogeneous


class HopLoop:
    """Draws hop by hop with `Sampler.draw`, and numbers nodes in a dictionary."""

    def __init__(self, sampler: SubgraphSampler, seeds: Seeds, rule: DrawRule) -> None:
        self.graph, self.seeds, self.rule = sampler.graph, seeds, rule
        first = 0
        self.nodes: dict[str, list[tuple[int, int]]] = {}  # (tree, node)
        for name, nodes in seeds.nodes.items():
            trees = first + np.arange(len(nodes)) if seeds.disjoint else np.zeros(len(nodes), np.int64)
            self.nodes[name] = list(zip(trees.tolist(), nodes.tolist(), strict=True))
            first += len(nodes)
        self.local = {
            name: {pair: at for at, pair in reversed(list(enumerate(self.nodes[name])))} for name in self.nodes
        }
        self.edges: dict[Any, list[tuple[int, int, int]]] = {name: [] for name in self.graph.relations}

    def run(self, key: int) -> HopLoop:
        drawn = dict.fromkeys(self.nodes, 0)
        for hop in range(self.rule.num_hops):
            known = {name: len(nodes) for name, nodes in self.nodes.items()}
            for position, (name, relation) in enumerate(self.graph.relations.items()):
                rows = range(drawn[relation.destination], known[relation.destination])
                self._draw(name, rows, hop, _core.derive(key, position))
            drawn = known
        return self

    def _draw(self, name: Any, rows: range, hop: int, key: int) -> None:
        relation = self.graph.relations[name]
        drawing, num_nodes = self.nodes[relation.destination], self.graph.num_nodes[relation.destination]
        keys = [self._key(relation.destination, row, num_nodes) for row in rows]
        bounds = None if self.seeds.bounds is None else self.seeds.bounds[[drawing[row][0] for row in rows]]
        times = relation.times
        visibility = None if times is None else Visibility(times, bounds, latest=self.rule.last)
        reading = Reading(relation.csc, keys=np.array(keys, np.int64), visibility=visibility)
        nodes = np.array([drawing[row][1] for row in rows], np.int64)
        native = relation.native([self.rule.fanouts[name][hop]], self.rule.replace)
        indptr, sources, ids, *_ = native.draw(reading, nodes, 0, key, 1)
        for at, row in enumerate(rows):
            for edge in range(indptr[at], indptr[at + 1]):
                pair = drawing[row][0], int(sources[edge])
                if pair not in self.local[relation.source]:
                    self.local[relation.source][pair] = len(self.nodes[relation.source])
                    self.nodes[relation.source].append(pair)
                self.edges[name].append((self.local[relation.source][pair], row, int(ids[edge])))

    def _key(self, name: str, row: int, num_nodes: int) -> int:
        tree, node = self.nodes[name][row]
        is_repeated = self.local[name][tree, node] != row
        return num_nodes + row if is_repeated else tree * num_nodes + node


def seeds_of(sampler: SubgraphSampler, name: str, count: int, bounds: Ids | None) -> Seeds:
    nodes = {other: np.empty(0, np.int64) for other in sampler.graph.num_nodes}
    nodes[name] = np.arange(count) % (2 * count // 3)  # the last third repeats
    return Seeds(nodes, sampler.disjoint, bounds)


def assert_equal(subgraph: SampledSubgraph, loop: HopLoop) -> None:
    for name, nodes in loop.nodes.items():
        assert subgraph.nodes[name].tolist() == [node for _, node in nodes]
        if subgraph.trees is not None:
            assert subgraph.trees[name].tolist() == [tree for tree, _ in nodes]
    for key, edges in loop.edges.items():
        drawn = subgraph.edges[key]
        assert list(zip(*drawn.ends.tolist(), drawn.edge.tolist(), strict=True)) == edges


@pytest.mark.parametrize(
    "data", [homogeneous(), homogeneous(torch.int32), heterogeneous()], ids=["one", "int32", "typed"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"disjoint": True},
        {"disjoint": True, "replace": True},
        {"time_attr": "time"},
        {"time_attr": "time", "temporal_strategy": "last"},
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 3])
def test_one_call_of_the_core_draws_what_a_loop_over_hops_draws(
    data: Data | HeteroData, options: dict[str, Any], threads: int
) -> None:
    sampler = SubgraphSampler(data, [4, 3, 2], **options)
    bounds = np.arange(30) % 22 if sampler.is_temporal else None
    seeds = seeds_of(sampler, "paper" if sampler.is_hetero else "", 30, bounds)
    rule = DrawRule(
        sampler.fanouts(),
        3,
        replace=sampler.replace,
        last=sampler.temporal_strategy == "last",
        induced=False,
        most_draws=2**40,
        threads=threads,
    )
    assert_equal(grow(sampler.graph, seeds, 5, rule), HopLoop(sampler, seeds, rule).run(5))


def random_typed(random: np.random.Generator) -> HeteroData:
    """A typed graph with few distinct times, and one node type without times."""
    data, sizes = HeteroData(), {"a": int(random.integers(1, 9)), "b": int(random.integers(1, 9)), "c": 4}
    for name, size in sizes.items():
        data[name].num_nodes = size
        if name != "c":
            data[name].time = torch.from_numpy(random.integers(0, 6, size))
    for source, destination in (("a", "a"), ("a", "b"), ("b", "a"), ("c", "b"), ("b", "c")):
        count = int(random.integers(0, 12))
        ends = [random.integers(0, sizes[source], count), random.integers(0, sizes[destination], count)]
        data[source, "to", destination].edge_index = torch.from_numpy(np.stack(ends))
    return data


def visible_tree(data: HeteroData, seed: tuple[str, int], bound: int, hops: int) -> set[tuple[str, int]]:
    """Returns the nodes that paths of visible edges reach, by brute force."""
    reached = {seed}
    for _ in range(hops):
        for source, name, destination in data.edge_types:
            time = data[source].time.tolist() if "time" in data[source] else [-1] * data[source].num_nodes
            for row, col in data[source, name, destination].edge_index.T.tolist():
                if (destination, col) in reached and time[row] <= bound:
                    reached = reached | {(source, row)}
    return reached


def by_tree(output: Any) -> dict[int, set[tuple[str, int]]]:
    pairs: dict[int, set[tuple[str, int]]] = {}
    for name, nodes in output.node.items():
        for node, tree in zip(nodes.tolist(), output.batch[name].tolist(), strict=True):
            pairs.setdefault(tree, set()).add((name, node))
    return pairs


def sample(data: Any, seeds: Tensor, times: Tensor | None, name: str | None = None, **options: Any) -> Any:
    torch.manual_seed(1)
    return SubgraphSampler(data, **options).sample_from_nodes(NodeSamplerInput(None, seeds, times, name))


def test_trees_of_drawn_typed_graphs_reach_what_brute_force_reaches() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        data = random_typed(random)
        seeds, times = torch.arange(data["b"].num_nodes), torch.from_numpy(random.integers(-1, 7, data["b"].num_nodes))
        # As many hops as nodes: every path ends.
        output = sample(data, seeds, times, "b", num_neighbors=[-1] * 24, time_attr="time")
        trees = by_tree(output)
        for tree, (seed, bound) in enumerate(zip(seeds.tolist(), times.tolist(), strict=True)):
            assert trees[tree] == visible_tree(data, ("b", seed), bound, 24)


def test_rows_added_after_a_seed_change_nothing() -> None:
    random = np.random.default_rng(1)
    for _ in range(40):
        data = random_typed(random)
        seeds, bound = torch.arange(data["b"].num_nodes), int(random.integers(0, 6))
        times, later = torch.full((len(seeds),), bound), data.clone()
        for name in ("a", "b"):
            more = torch.from_numpy(random.integers(bound + 1, 9, 3))
            later[name].time, later[name].num_nodes = torch.cat([data[name].time, more]), data[name].num_nodes + 3
        for key in data.edge_types:
            if key[0] == "c":
                continue  # nodes without times are always visible
            ends = [random.integers(data[key[0]].num_nodes, later[key[0]].num_nodes, 9)]
            ends += [random.integers(0, later[key[2]].num_nodes, 9)]
            later[key].edge_index = torch.cat([data[key].edge_index, torch.from_numpy(np.stack(ends))], 1)
        for strategy in ("uniform", "last"):
            options: dict[str, Any] = {"num_neighbors": [-1] * 3, "time_attr": "time", "temporal_strategy": strategy}
            assert by_tree(sample(later, seeds, times, "b", **options)) == by_tree(
                sample(data, seeds, times, "b", **options)
            )


@pytest.mark.parametrize(
    ("node", "bound", "expected"),
    [
        (0, 0, []),
        (0, 1, [0]),
        (0, 2, [0, 1, 2]),  # two events of equal time
        (0, 4, [0, 1, 2, 4]),
        (1, 3, [3]),
        (1, 9, [3, 5]),
        (5, 9, []),
    ],
)
def test_every_row_of_a_small_graph_sees_events_up_to_its_time(node: int, bound: int, expected: list[int]) -> None:
    #                 0  1  2  3  4  5  6  7
    source = torch.tensor([1, 2, 3, 2, 4, 0, 1, 0])
    target = torch.tensor([0, 0, 0, 1, 0, 1, 2, 3])
    data = Data(edge_index=torch.stack([source, target]), num_nodes=6, when=torch.tensor([1, 2, 2, 3, 4, 5, 6, 7]))
    data.event = torch.arange(8)
    for strategy, most in (("uniform", -1), ("last", 8), ("last", 2), ("last", 1)):
        options: dict[str, Any] = {"time_attr": "when", "temporal_strategy": strategy, "threads": 0}
        loader = NeighborLoader(data, [most], torch.tensor([node]), torch.tensor([bound]), **options)
        events = next(iter(loader)).event.tolist()
        assert sorted(events) == (expected if most < 0 else expected[-most:])


def test_an_induced_subgraph_has_the_visible_edges_of_each_tree() -> None:
    data = homogeneous()
    seeds, times = torch.arange(20), torch.arange(20) * 2
    options: dict[str, Any] = {"num_neighbors": [3, 3], "time_attr": "edge_time"}
    drawn = sample(data, seeds, times, **options)
    induced = sample(data, seeds, times, subgraph_type="induced", **options)
    assert torch.equal(drawn.node, induced.node)
    permutation = SubgraphSampler(data, **options).edge_permutation
    assert isinstance(permutation, Tensor)
    position = {
        (tree, node): at for at, (tree, node) in enumerate(zip(drawn.batch.tolist(), drawn.node.tolist(), strict=True))
    }
    expected = []
    for edge, (source, target) in enumerate(data.edge_index.T.tolist()):
        for tree, bound in enumerate(times.tolist()):
            ends = position.get((tree, source)), position.get((tree, target))
            if None not in ends and data.edge_time[edge] <= bound:
                expected.append((*ends, edge))
    edges = zip(induced.row.tolist(), induced.col.tolist(), permutation[induced.edge].tolist(), strict=True)
    assert sorted(edges) == sorted(expected)


def test_edges_that_are_sorted_here_take_half_the_memory_and_sorted_edges_none() -> None:
    data = homogeneous()
    sampler = SubgraphSampler(data, [1])
    ordered = Data(num_nodes=data.num_nodes, edge_index=data.edge_index[:, sampler.edge_permutation])
    (copied,) = sampler.graph.relations.values()
    (shared,) = SubgraphSampler(ordered, [1], is_sorted=True).graph.relations.values()
    assert copied.csc.indices.dtype == np.int32
    assert np.array_equal(copied.csc.indices, shared.csc.indices)
    assert np.shares_memory(shared.csc.indices, ordered.edge_index.numpy())
