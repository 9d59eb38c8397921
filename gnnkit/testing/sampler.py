"""What samplers promise."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import CSC, Block, Ids, MiniBatch
from gnnkit.sampler.base import Sampler


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
