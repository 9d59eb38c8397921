"""Weights of a split that rotates, with which the mean gradient is unbiased.

Each rank holds its own chunk of the nodes and in each rotation one other chunk (Grappa,
arXiv 2602.01872). In R = P - 1 rotations every rank meets every other chunk once. An
edge inside a chunk is seen R times, an edge between two chunks once, so the latter
counts R times as much.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit.graph import Block, Floats, Ids


def partner(rank: int, world_size: int, rotation: int) -> int:
    """Returns the rank whose chunk `rank` also holds. Alone: the rank itself."""
    return (rank + 1 + rotation % (world_size - 1)) % world_size if world_size > 1 else rank


def weigh(block: Block, chunk: Ids, degree: Ids, num_rotations: int) -> tuple[Block, Floats]:
    """Weighs the edges of a block, and says how much of each row's in-edges was seen.

    An edge counts in proportion to 1 inside a chunk and to R = `num_rotations` between
    two chunks, and the counts of a row sum up to its degree. The coverage of a row is
    (edges seen inside + R edges seen between) / degree, and 1 without in-edges. The
    mean of a row's coverage over R rotations is 1. Coverage times a weighted sum has
    the sum over all in-edges as mean.

    Args:
        block: Edges held in one rotation, in which all nodes are computed.
        chunk: [num_nodes] chunk of each node of the block.
        degree: [num_nodes] number of in-edges in the whole graph.
        num_rotations: R, until all chunks have met.

    Returns:
        The block with the counts as weights, and the coverage [num_nodes].
    """
    row = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    relative = np.where(chunk[block.indices] == chunk[row], 1.0, num_rotations)
    seen = np.bincount(row, relative, block.num_dst)
    coverage = np.where(degree == 0, 1.0, seen / np.maximum(degree, 1))
    scale = degree / np.where(seen == 0, 1, seen)
    return replace(block, weight=relative * scale[row]), coverage
