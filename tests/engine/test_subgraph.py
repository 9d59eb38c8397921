"""The blocks of a batch as one graph, against draws written down by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnkit.engine import BlockAdjacency, BlockLayers, as_one_graph
from gnnkit.graph import Block, Graph
from gnnkit.sampler import FullSampler, NeighborSampler, Sampler


def make_graph() -> Graph:
    rng = np.random.default_rng(0)
    ends, weight = rng.integers(0, 40, (2, 160)), rng.uniform(1, 2, 160)
    return Graph.from_edges(*ends, 40, weight=weight, edge_features=rng.normal(size=(160, 2)))


def drawn(graph: Graph, sampler: Sampler, seeds: list[int]) -> tuple[list[Block], tuple[BlockAdjacency, ...]]:
    blocks = list(sampler.sample(graph.csc, np.array(seeds), key=3).blocks)
    layers = BlockLayers(graph, None, torch.float64, torch.device("cpu"))
    return blocks, layers.layers(blocks, 5)


SAMPLERS = [NeighborSampler([2]), NeighborSampler([2, 3]), NeighborSampler([1, 2, 3]), FullSampler(num_hops=3)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: f"{type(sampler).__name__}{sampler.num_hops}")
def test_each_node_has_the_edges_of_the_hop_that_reached_it(sampler: Sampler) -> None:
    graph = make_graph()
    blocks, layers = drawn(graph, sampler, [7, 3, 30])
    reference: dict[int, list[int]] = {}
    for block in reversed(blocks):
        for row, node in enumerate(block.src_nodes[: block.num_dst].tolist()):
            begin, end = block.indptr[row : row + 2]
            assert block.edge_ids is not None
            reference.setdefault(node, block.edge_ids[begin:end].tolist())
    subgraph, rows = as_one_graph(layers)
    nodes = subgraph.src_nodes.numpy()
    assert nodes[:3].tolist() == [7, 3, 30]
    assert np.array_equal(nodes, blocks[0].src_nodes[rows.numpy()])
    source, destination = subgraph.rank_graph.edge_index.numpy()
    ids = subgraph.edge_ids.numpy()
    results: dict[int, list[int]] = {node: [] for node in reference}
    for edge, end in zip(ids.tolist(), nodes[destination].tolist(), strict=True):
        results[end].append(edge)
    assert results == reference
    ends = np.repeat(np.arange(40), np.diff(graph.csc.indptr))
    assert np.array_equal(nodes[source], graph.csc.indices[ids])
    assert np.array_equal(nodes[destination], ends[ids])
    assert set(nodes.tolist()) == set(reference) | set(nodes[source].tolist())
    assert subgraph.num_dst == len(nodes)


def test_drawn_edges_have_the_weights_and_features_of_the_graph() -> None:
    graph = make_graph()
    _, layers = drawn(graph, NeighborSampler([2, 2]), [1, 2])
    subgraph, _ = as_one_graph(layers)
    ids = subgraph.edge_ids.numpy()
    assert graph.csc.weight is not None
    assert graph.edge_features is not None
    assert subgraph.rank_graph.weight is not None
    assert subgraph.edge_features is not None
    np.testing.assert_array_equal(subgraph.rank_graph.weight, graph.csc.weight[ids])
    np.testing.assert_array_equal(subgraph.edge_features, graph.edge_features[ids])


def test_a_batch_without_seeds_is_an_empty_graph() -> None:
    _, layers = drawn(make_graph(), NeighborSampler([2, 2]), [])
    subgraph, rows = as_one_graph(layers)
    assert (subgraph.num_dst, subgraph.num_edges, len(rows)) == (0, 0, 0)
