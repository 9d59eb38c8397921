"""Edge weights for a rotating split, which make the mean gradient unbiased.

Each rank holds its own chunk of nodes and, in each rotation, one other chunk (Grappa,
arXiv 2602.01872). In R = P - 1 rotations, every rank meets every other chunk once. An
edge within a chunk is seen R times and an edge between chunks once, so the latter is
weighted by R.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit.graph import Block, Floats, Ids


def partner(rank: int, world_size: int, rotation: int) -> int:
    """Returns the rank whose chunk `rank` also holds, or `rank` if it is alone."""
    return (rank + 1 + rotation % (world_size - 1)) % world_size if world_size > 1 else rank


def weigh(block: Block, chunk: Ids, degree: Ids, num_rotations: int) -> tuple[Block, Floats]:
    """Weights a block's edges, and computes each row's coverage.

    An edge counts 1 within a chunk and R = `num_rotations` between chunks. A row's
    counts are normalised to add up to its degree. Its coverage is (seen edges inside +
    R * seen edges between) / degree, or 1 without in-edges. Over R rotations, a row's
    mean coverage is 1, and the mean of coverage times weighted sum is the sum over all
    in-edges.

    Args:
        block: Edges held in one rotation, with all nodes as destinations.
        chunk: [num_nodes] chunk of each node of the block.
        degree: [num_nodes] number of in-edges in the complete graph.
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
