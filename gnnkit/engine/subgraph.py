"""The sampled edges of all layers as one graph, for modules of (x, edge_index)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine.block import BlockAdjacency
from gnnkit.graph import Block, Ids


class Subgraph(BlockAdjacency):
    """A batch as one graph, like the output of PyG's NeighborLoader.

    Each node has the in-edges drawn when it entered the batch, and nodes of the last
    hop have none. Every row is a destination, so layers may keep all rows. As in PyG,
    each drawn edge counts once: a sum is over the drawn edges, and degrees refer to the
    batch.
    """

    @classmethod
    def of(cls, layers: Sequence[BlockAdjacency]) -> tuple[Subgraph, Tensor]:
        """Joins a batch's layers.

        Returns the graph, and its rows [num_dst] int64 within the rows of `layers[0]`.

        Args:
            layers: Adjacencies by layer. Each one's sources begin with its
                destinations, which are the sources of the next.
        """
        first = layers[0]
        block, rows = _join_blocks([layer._block for layer in layers])
        graph = cls(first._layers, block, first.key, reweight=False)
        graph._pool = first._pool  # of `again`, no other rank takes part
        return graph, torch.from_numpy(rows).to(first._layers.device)


def _join_blocks(blocks: Sequence[Block]) -> tuple[Block, Ids]:
    """Returns all edges as one block, and its nodes as positions in `blocks[0]`."""
    nodes, num_reached = blocks[0].src_nodes, 0
    degrees, indices, edge_ids = [], [], []
    for block in reversed(blocks):
        begin = block.indptr[num_reached]
        degrees.append(np.diff(block.indptr[num_reached:]))
        indices.append(block.indices[begin:])
        edge_ids.append(None if block.edge_ids is None else block.edge_ids[begin:])
        num_reached = block.num_dst
    sources = np.concatenate(indices)
    is_used = np.zeros(len(nodes), np.bool_)
    is_used[:num_reached] = is_used[sources] = True
    rows = np.flatnonzero(is_used)
    indptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.concatenate([*degrees, np.zeros(len(rows) - num_reached, np.int64)]), out=indptr[1:])
    places = np.cumsum(is_used) - 1
    ids = [part for part in edge_ids if part is not None]
    all_ids = np.concatenate(ids) if len(ids) == len(blocks) else None
    return Block(indptr, places[sources], nodes[rows], all_ids), rows
