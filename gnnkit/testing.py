"""Conformance checks for authors of plugins; the built-in plugins are held to the same."""

from __future__ import annotations

import copy

import numpy as np
import torch

from gnnkit.comm import Communicator
from gnnkit.graph import CSC, Block, Graph, Ids, MiniBatch, Split
from gnnkit.partition import Grid, Partitioner, cut_all
from gnnkit.sampler.base import Sampler


def check_communicator(comm: Communicator) -> None:
    """Collective: every rank of `comm` calls it. Raises `AssertionError` for the first broken promise of the interface."""
    _check_all_to_all(comm)
    _check_sums(comm)
    evens = [rank for rank in range(comm.world_size) if rank % 2 == comm.rank % 2]
    part = comm.split(evens)
    assert (part.rank, part.world_size) == (evens.index(comm.rank), len(evens)), (
        "split numbers ranks in the order given"
    )
    _check_all_to_all(part)
    _check_sums(part)


def _check_all_to_all(comm: Communicator) -> None:
    """Uneven, empty and two-dimensional parts arrive in the order of their senders."""
    send = [(comm.rank + 2 * peer) % 3 for peer in range(comm.world_size)]
    recv = [(peer + 2 * comm.rank) % 3 for peer in range(comm.world_size)]
    rows = [torch.full((count, 2), comm.rank * 100.0 + peer) for peer, count in enumerate(send)]
    expected = [torch.full((count, 2), peer * 100.0 + comm.rank) for peer, count in enumerate(recv)]
    received = comm.all_to_all(torch.cat(rows).to(comm.device), send, recv).cpu()
    assert torch.equal(received, torch.cat(expected)), "all_to_all delivers the parts in the order of their senders"
    nothing = comm.all_to_all(torch.empty(0, 4, device=comm.device), [0] * comm.world_size, [0] * comm.world_size)
    assert nothing.shape == (0, 4), "all_to_all of nothing keeps the shape of rows"


def _check_sums(comm: Communicator) -> None:
    x = torch.arange(3, dtype=torch.float64, device=comm.device) + comm.rank
    total = comm.all_reduce(x)
    ranks = comm.world_size * (comm.world_size - 1) / 2
    assert total is x, "all_reduce works in place"
    assert total.tolist() == [ranks, ranks + comm.world_size, ranks + 2 * comm.world_size], "all_reduce sums"
    last = comm.broadcast(torch.tensor([float(comm.rank)], device=comm.device), src=comm.world_size - 1)
    assert last.item() == comm.world_size - 1, "broadcast sends the source's values"
    parts = comm.gather(torch.full((comm.rank, 1), float(comm.rank), device=comm.device))
    if comm.rank == 0:
        assert [part.tolist() for part in parts] == [[[float(r)]] * r for r in range(comm.world_size)], (
            "gather collects by rank"
        )
    else:
        assert parts == [], "gather leaves nothing on other ranks"


def check_sampler(sampler: Sampler, graph: CSC, seeds: Ids, *, key: int = 7) -> MiniBatch:
    """Checks one batch of `seeds` and its hops; returns the batch. `graph` must have as many sources as destinations."""
    batch = sampler.sample(graph, seeds, key=key)
    assert len(batch.blocks) == sampler.num_hops, f"{len(batch.blocks)} blocks for {sampler.num_hops} hops"
    np.testing.assert_array_equal(batch.seeds, seeds, err_msg="seeds must come back in their order")
    for block in batch.blocks:
        _check_block(block, graph)
    _check_nesting(batch)
    _check_equal(batch, sampler.sample(graph, seeds, key=key), "the same arguments gave another batch")
    _check_equal(batch, sampler.sample(_widen(graph), seeds, key=key), "int64 indices gave another batch")
    _check_draw(sampler, graph, seeds, key)
    return batch


def _check_block(block: Block, graph: CSC) -> None:
    """The block's edges exist, and its arrays fit each other."""
    indptr, num_src = block.indptr, len(block.src_nodes)
    assert (indptr[0], indptr[-1]) == (0, len(block.indices)), "indptr must run from 0 to the number of edges"
    assert (np.diff(indptr) >= 0).all(), "indptr decreases"
    assert block.num_dst <= num_src, "destinations must be the first sources"
    assert len(np.unique(block.src_nodes)) == num_src, "src_nodes repeat"
    assert ((block.src_nodes >= 0) & (block.src_nodes < graph.num_nodes)).all(), "a node that does not exist"
    assert ((block.indices >= 0) & (block.indices < num_src)).all(), "an edge from outside of src_nodes"
    assert block.weight is None or len(block.weight) == len(block.indices), "one weight per edge"
    if block.edge_ids is not None:
        sources = block.src_nodes[block.indices]
        np.testing.assert_array_equal(graph.indices[block.edge_ids], sources, err_msg="edge_ids name other sources")
        rows = np.repeat(block.src_nodes[: block.num_dst], np.diff(indptr))
        owners = np.searchsorted(graph.indptr, block.edge_ids, side="right") - 1
        np.testing.assert_array_equal(owners, rows, err_msg="edge_ids name edges into other nodes")


def _check_nesting(batch: MiniBatch) -> None:
    """What one block computes is what the next one reads."""
    for outer, inner in zip(batch.blocks, batch.blocks[1:], strict=False):
        assert outer.num_dst == len(inner.src_nodes), "a block must compute what the next one reads"
        np.testing.assert_array_equal(outer.src_nodes[: outer.num_dst], inner.src_nodes)
    if batch.blocks:
        np.testing.assert_array_equal(batch.blocks[-1].src_nodes[: batch.blocks[-1].num_dst], batch.seeds)


def _check_draw(sampler: Sampler, graph: CSC, nodes: Ids, key: int) -> None:
    """A hop drawn alone fits its nodes and does not change from call to call."""
    hop, again = (sampler.draw(graph, nodes, 0, key=key) for _ in range(2))
    assert len(hop.indptr) == len(nodes) + 1, "one row per node"
    assert hop.indptr[-1] == len(hop.sources), "indptr must end at the number of draws"
    np.testing.assert_array_equal(hop.indptr, again.indptr, err_msg="the same arguments gave another hop")
    np.testing.assert_array_equal(hop.sources, again.sources, err_msg="the same arguments gave another hop")
    if hop.edge_ids is not None:
        np.testing.assert_array_equal(graph.indices[hop.edge_ids], hop.sources, err_msg="edge_ids name other sources")


def _check_equal(one: MiniBatch, other: MiniBatch, message: str) -> None:
    for a, b in zip(one.blocks, other.blocks, strict=True):
        for name in ("indptr", "indices", "src_nodes", "edge_ids", "weight"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=f"{message}: {name}")


def _widen(graph: CSC) -> CSC:
    return CSC(graph.indptr, graph.indices.astype(np.int64), graph.weight, graph.num_sources)


def check_partitioner(partitioner: Partitioner) -> None:
    """On graphs with every corner and grids of 1 to 8 ranks: every node has one owner, every edge one cell, and both do not
    change from call to call. Raises `AssertionError` for the first broken promise.

    The graphs have coordinates, edge weights and edge features, so that any partitioner finds what it needs.
    """
    for graph in example_graphs():
        before = copy.deepcopy(graph)
        for shape in ((1, 1, 1), (3, 1, 1), (2, 2, 1), (1, 3, 1), (2, 2, 2)):
            _check_partition(partitioner, graph, Grid(*shape))
        for name in ("indptr", "indices"):
            assert np.array_equal(getattr(graph.csc, name), getattr(before.csc, name)), "the graph must not change"


def _check_partition(partitioner: Partitioner, graph: Graph, grid: Grid) -> None:
    partition, again = partitioner.assign(graph, grid), partitioner.assign(graph, grid)
    where = f"{graph.num_nodes} nodes on {grid}"
    assert partition.grid == grid, f"{where}: another grid"
    assert partition.node_rank.shape == (graph.num_nodes,), f"{where}: one owner for each node"
    assert partition.node_rank.dtype == np.int32, f"{where}: owners are int32"
    assert np.array_equal(partition.node_rank, again.node_rank), f"{where}: other owners in the second call"
    cells = partition.cells_of_edges(graph)
    assert np.array_equal(cells, again.cells_of_edges(graph)), f"{where}: other cells in the second call"
    shards = list(cut_all(graph, partition))
    owned = np.sort(np.concatenate([shard.owned for shard in shards]))
    assert np.array_equal(owned, np.arange(graph.num_nodes)), f"{where}: every node has one owner"
    held = np.sort(np.concatenate([shard.edge_ids for shard in shards if shard.slice == 0]))
    assert np.array_equal(held, np.arange(graph.num_edges)), f"{where}: every edge has one cell"


def example_graphs() -> list[Graph]:
    """Small graphs with every corner: no nodes, no edges, one node, isolated nodes, self-loops, parallel edges, a hub; weights, edge
    features and coordinates; every split, and nodes without label."""
    rng = np.random.default_rng(0)
    hub = (np.r_[np.arange(30), np.zeros(30)], np.r_[np.zeros(30), np.arange(30)])
    random = rng.integers(0, 20, (2, 60))
    parallel = np.repeat(rng.integers(0, 9, (2, 8)), 3, axis=1)
    edges = [((), (), 0), ((), (), 1), ((0, 0), (0, 0), 1), ((), (), 7), (*hub, 30), (*random, 24), (*parallel, 9)]
    return [_example_graph(np.array(src, np.int64), np.array(dst, np.int64), n) for src, dst, n in edges]


def _example_graph(src: Ids, dst: Ids, num_nodes: int) -> Graph:
    rng = np.random.default_rng(num_nodes)
    labels = rng.integers(-1, 3, num_nodes)
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        features=rng.normal(size=(num_nodes, 4)),
        labels=labels,
        split=np.where(labels < 0, Split.NONE, rng.integers(0, len(Split), num_nodes)),
        weight=rng.uniform(0.5, 2, len(src)),
        edge_features=rng.normal(size=(len(src), 2)),
        coordinates=rng.normal(size=(num_nodes, 2)),
    )
