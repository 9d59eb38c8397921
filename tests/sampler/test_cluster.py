from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnkit.graph import CSC
from gnnkit.sampler import ClusterSampler, FullSampler, Loader
from gnnkit.testing import check_sampler


def edges(graph: CSC) -> set[tuple[int, int]]:
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return set(zip(graph.indices.tolist(), rows.tolist(), strict=True))


@pytest.mark.slow
def test_batches_hold_all_edges_between_the_clusters_of_the_seeds(graph: CSC) -> None:
    clusters = np.arange(graph.num_nodes) % 7
    sampler = ClusterSampler(clusters, num_hops=2)
    seeds = np.flatnonzero(np.isin(clusters, (2, 5)))
    batch = check_sampler(sampler, graph, seeds, deterministic=True)
    np.testing.assert_array_equal(batch.input_nodes, seeds)
    for block in batch.blocks:
        rows = np.repeat(block.src_nodes[: block.num_dst], np.diff(block.indptr))
        held = set(zip(block.src_nodes[block.indices].tolist(), rows.tolist(), strict=True))
        chosen = set(seeds.tolist())
        assert held == {(u, v) for u, v in edges(graph) if u in chosen and v in chosen}


def test_nodes_that_reach_no_seed_are_left_out() -> None:
    ring = CSC(np.arange(11), (np.arange(10) - 1) % 10)  # in-edges from the node before
    batch = ClusterSampler(np.array([0] * 6 + [1] * 4), num_hops=2).sample(ring, np.array([5]), key=1)
    np.testing.assert_array_equal(batch.input_nodes, [5, 4, 3])
    assert ClusterSampler(np.array([0] * 6 + [1] * 4)).sample(ring, np.array([6]), key=1).input_nodes.tolist() == [6]


def test_one_cluster_is_the_full_neighbourhood(graph: CSC) -> None:
    one = ClusterSampler(np.zeros(graph.num_nodes, np.int32), num_hops=2).sample(graph, np.arange(20), key=1)
    full = check_sampler(FullSampler(2), graph, np.arange(20))
    for a, b in zip(one.blocks, full.blocks, strict=True):
        np.testing.assert_array_equal(a.edge_ids, b.edge_ids)
        np.testing.assert_array_equal(a.src_nodes, b.src_nodes)


@pytest.mark.parametrize("batching", ["plain", "balanced"])
def test_a_loader_gives_every_rank_whole_clusters_and_every_seed_once(graph: CSC, batching: str) -> None:
    clusters, seeds = np.arange(graph.num_nodes) ** 2 % 11, np.arange(0, graph.num_nodes, 3)
    num_clusters = len(np.unique(clusters[seeds]))
    loaders = [
        Loader(graph, ClusterSampler(clusters), seeds, 2, rank=rank, world_size=2, batching=batching, seed=1)
        for rank in range(2)
    ]
    assert [len(loader) for loader in loaders] == [-(-num_clusters // 4)] * 2
    epochs = [[[batch.seeds for batch in loader] for loader in loaders] for _ in range(2)]
    for ranks in epochs:
        batches = [batch for rank in ranks for batch in rank]
        np.testing.assert_array_equal(np.sort(np.concatenate(batches)), seeds)
        held = [np.unique(clusters[batch]) for batch in batches]
        assert len(np.concatenate(held)) == num_clusters  # none is in two batches
        assert all(len(names) == 2 for rank in ranks for names in map(np.unique, (clusters[b] for b in rank[:-1])))
    assert [b.tolist() for b in epochs[0][0]] != [b.tolist() for b in epochs[1][0]]


def test_clusters_are_read_from_a_file_and_checked(graph: CSC, tmp_path: Path) -> None:
    np.save(tmp_path / "clusters.npy", np.zeros(graph.num_nodes, np.int64))
    assert ClusterSampler(str(tmp_path / "clusters.npy")).sample(graph, np.arange(3), key=1).blocks
    (tmp_path / "text.npy").write_text("no")
    for name in ("text.npy", "none.npy"):
        with pytest.raises(ValueError, match=rf"sampler\.clusters=.*{name} cannot be read"):
            ClusterSampler(str(tmp_path / name))
    with pytest.raises(ValueError, match=r"sampler\.clusters has 3 entries, but the graph has 2000 nodes"):
        ClusterSampler([0, 1, 2]).sample(graph, np.arange(3), key=1)
    with pytest.raises(ValueError, match=r"sampler\.clusters has dtype float64, expected integers"):
        ClusterSampler([0.5])
