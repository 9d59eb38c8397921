"""Rows that a rank keeps, and the estimates by which rows are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine.remote.owners import Owners, SourceSums
from gnnkit.engine.remote.tier import KeptRows, most_read
from gnnkit.graph import Floats, Ids
from gnnkit.sampler import Fanouts
from tests.remote.test_frontier import GRAPH, PARTITIONS, shards

ROW = np.dtype([("label", np.int64)])


def rows(nodes: Ids) -> np.ndarray:
    array = np.empty(len(nodes), ROW)
    array["label"] = nodes * 10
    return array


def read(cache: KeptRows, *nodes: int) -> list[int]:
    """Reads a batch as `OwnedRows.fetch` does. Returns the nodes that were missing."""
    ids = np.array(nodes)
    is_cached = cache.has(ids)
    out = np.empty(is_cached.sum(), ROW)
    cache.read(ids[is_cached], out)
    assert out["label"].tolist() == (ids[is_cached] * 10).tolist()
    cache.add(ids[~is_cached], rows(ids[~is_cached]))
    return ids[~is_cached].tolist()


def test_the_rows_read_last_stay() -> None:
    cache = KeptRows(3, ROW, "lru")
    assert read(cache, 7, 2) == [7, 2]
    assert read(cache, 5) == [5]
    assert read(cache, 2, 9) == [9], "7 was read longest ago"
    assert cache.ids.tolist() == [2, 5, 9]
    assert read(cache, 1, 2, 3, 4) == [1, 3, 4], "2 was there before the batch"
    assert len(cache.ids) == 3


def test_rows_that_were_filled_in_stay_until_others_are() -> None:
    cache = KeptRows(2, ROW)
    assert read(cache, 4) == [4]
    cache.fill(np.array([8, 3]), rows(np.array([8, 3])))
    assert read(cache, 3, 4, 8) == [4]
    assert read(cache, 4) == [4]
    cache.fill(np.array([4]), rows(np.array([4])))
    assert read(cache, 3, 4) == [3]
    assert read(KeptRows(0, ROW, "lru"), 1) == [1]


def test_the_rows_read_most_often_are_selected() -> None:
    batches = [np.array(nodes) for nodes in ([5, 1, 2], [2, 4], [4, 2, 5])]
    assert most_read(batches, 6, 2).tolist() == [2, 4], "of equal ones the lowest ids"
    assert most_read(batches, 6, 9).tolist() == [2, 4, 5, 1]
    assert most_read(batches, 6, 9, times=2).tolist() == [2, 4, 5]
    assert most_read([], 6, 9).tolist() == []


def inclusion(fanouts: list[int], first: Floats) -> Floats:
    """The definition, in loops over nodes and edges."""
    csc, absent, probability = GRAPH.csc, 1 - first, first
    for fanout in fanouts:
        miss_probability = np.ones(GRAPH.num_nodes)
        for node in range(GRAPH.num_nodes):
            sources = csc.indices[csc.indptr[node] : csc.indptr[node + 1]]
            for source in sources:
                share = 1 if fanout < 0 else min(1, fanout / len(sources))
                miss_probability[source] *= 1 - share * probability[node]
        probability = 1 - miss_probability
        absent = absent * miss_probability
    return 1 - absent


@pytest.mark.parametrize("partition", PARTITIONS)
def test_probabilities_and_out_edges_are_those_of_the_whole_graph(partition: str) -> None:
    first = np.random.default_rng(0).random(GRAPH.num_nodes) * 0.3
    reference = inclusion([2, -1], first)
    degree = np.bincount(GRAPH.csc.indices, minlength=GRAPH.num_nodes)
    for ranks in (1, 3):
        cut = shards(ranks, partition)

        def work(comm: Communicator) -> None:
            shard = cut[comm.rank]  # noqa: B023
            sums = SourceSums(shard, Owners.of(shard, comm), comm)
            np.testing.assert_array_equal(sums.out_edges(), degree[shard.owned])
            np.testing.assert_array_equal(sums.spread(sums.out_edges()), degree[shard.sources])
            np.testing.assert_allclose(
                sums.inclusion(Fanouts((2, -1)), first[shard.owned]), reference[shard.owned], rtol=1e-9
            )

        Threads.run(work, ranks)
