"""Draws at the owners are the draws of one process with the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine.remote.frontier import Frontier
from gnnkit.engine.remote.owners import MessageCounter, Owners
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, MiniBatch
from gnnkit.partition import Grid, Partition, Shard, cut_all
from gnnkit.sampler import (
    FullSampler,
    LaborSampler,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)

GRAPH = check_graph(48)
KEY = 7
SAMPLERS: dict[str, Sampler] = {
    "neighbor": NeighborSampler([3, 2, 2]),
    "neighbor, none in hop 1": NeighborSampler([3, 0, 2], importance="sum"),
    "neighbor, redrawn": NeighborSampler([3, 2], redraw=True, importance="sum"),
    "neighbor, replaced": NeighborSampler([3, 2], replace=True, importance="mean"),
    "neighbor, without edge ids": NeighborSampler([3, 2], edge_ids=False),
    "weighted": WeightedSampler([3, 2], importance="sum"),
    "weighted, replaced and redrawn": WeightedSampler([3, 2], replace=True, redraw=True),
    "weighted, hubs less": WeightedSampler([2, 2], alpha=0.5),
    "labor": LaborSampler([3, 2], importance="sum"),
    "labor, redrawn": LaborSampler([3, 2], redraw=True),
    "full": FullSampler(2),
}
PARTITIONS: dict[str, Callable[[int], Ids]] = {
    "contiguous": lambda ranks: np.arange(GRAPH.num_nodes) * ranks // GRAPH.num_nodes,
    "random": lambda ranks: np.random.default_rng(1).integers(0, ranks, GRAPH.num_nodes),
    "one owns nothing": lambda ranks: np.random.default_rng(2).integers(0, max(ranks - 1, 1), GRAPH.num_nodes),
}


def shards(ranks: int, partition: str = "random", graph: Graph = GRAPH) -> list[Shard]:
    owner = PARTITIONS[partition](ranks).astype(np.int32)
    return list(cut_all(graph, Partition(owner, None, Grid(ranks, 1, 1))))


def seeds(rank: int) -> Ids:
    """Of each rank. Rank 2 has none, isolated nodes (45 to 47) are among the others."""
    return np.random.default_rng(rank).permutation(GRAPH.num_nodes)[: 0 if rank == 2 else 12]


def sample_ranks(sampler: Sampler, cut: Sequence[Shard]) -> list[tuple[MiniBatch, np.ndarray, MessageCounter]]:
    def work(comm: Communicator) -> tuple[MiniBatch, np.ndarray, MessageCounter]:
        shard, counter = cut[comm.rank], MessageCounter.zeros(comm.world_size)
        frontier = Frontier(shard, Owners.of(shard, comm), sampler, comm)
        return *frontier.sample(seeds(comm.rank), KEY, comm, counter), counter

    return Threads.run(work, len(cut))


def assert_equal(found: MiniBatch, expected: MiniBatch) -> None:
    np.testing.assert_array_equal(found.seeds, expected.seeds, strict=True)
    assert len(found.blocks) == len(expected.blocks)
    for first, two in zip(found.blocks, expected.blocks, strict=True):
        for name in ("indptr", "indices", "src_nodes", "edge_ids", "weight"):
            first_values, second_values = getattr(first, name), getattr(two, name)
            assert (first_values is None) == (second_values is None), name
            if first_values is not None:
                np.testing.assert_array_equal(first_values, second_values, strict=True, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("partition", PARTITIONS)
def test_batches_are_equal_to_the_bit_on_any_partition(sampler: Sampler, partition: str) -> None:
    for ranks in (1, 2, 4):
        for rank, (batch, edges, counter) in enumerate(sample_ranks(sampler, shards(ranks, partition))):
            assert_equal(batch, sampler.sample(GRAPH.csc, seeds(rank), key=KEY))
            assert GRAPH.csc.weight is not None
            assert GRAPH.edge_features is not None
            np.testing.assert_array_equal(edges["weight"], GRAPH.csc.weight[edges["id"]])
            np.testing.assert_array_equal(edges["features"], GRAPH.edge_features[edges["id"]])
            assert counter.num_messages.max() <= 2 * sampler.num_hops, "two messages to each rank and hop"
            assert counter.num_messages[rank] == counter.num_bytes[rank] == 0


def test_a_graph_without_weights_and_features_of_edges_is_drawn() -> None:
    bare = Graph(type(GRAPH.csc)(GRAPH.csc.indptr, GRAPH.csc.indices), GRAPH.features, GRAPH.labels, GRAPH.split)
    for rank, (batch, edges, _) in enumerate(sample_ranks(NeighborSampler([2, 2]), shards(3, graph=bare))):
        assert_equal(batch, NeighborSampler([2, 2]).sample(bare.csc, seeds(rank), key=KEY))
        assert edges.dtype.names == ("source", "id")


def test_nodes_that_repeat_draw_alike_and_owners_draw_without_messages() -> None:
    sampler, nodes = NeighborSampler([2]), np.array([5, 9, 5, 30])
    cut = shards(3)

    def work(comm: Communicator) -> None:
        shard = cut[comm.rank]
        frontier = Frontier(shard, Owners.of(shard, comm), sampler, comm)
        sample = frontier.draw(nodes, 0, KEY, comm)
        reference = sampler.draw(GRAPH.csc, nodes, 0, key=KEY)
        np.testing.assert_array_equal(sample.indptr, reference.indptr)
        np.testing.assert_array_equal(sample.edges["source"], reference.sources)
        own_rows = frontier.draw_owned(shard.owned[::-1], 0, KEY)
        reference = sampler.draw(GRAPH.csc, shard.owned[::-1], 0, key=KEY)
        np.testing.assert_array_equal(own_rows.hop.indptr, reference.indptr)
        np.testing.assert_array_equal(own_rows.hop.sources, reference.sources)
        np.testing.assert_array_equal(own_rows.hop.edge_ids, reference.edge_ids)

    Threads.run(work, 3)


def test_a_grid_that_spreads_in_edges_is_refused_on_every_rank() -> None:
    owner = np.random.default_rng(1).integers(0, 4, GRAPH.num_nodes).astype(np.int32)
    with pytest.raises(UserError, match=r"use partition\.grid=1d") as refused:
        sample_ranks(NeighborSampler([2]), list(cut_all(GRAPH, Partition(owner, None, Grid(2, 2, 1)))))
    assert len(refused.value.__notes__) == 4, "on rank 0, and a note on each other rank"
