"""Blocks of all ranks, with the columns of the input rows split over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.adjacency import dropout_key
from gnnkit.engine.block import BlockAdjacency, LayerValues
from gnnkit.engine.pool import Pool, pool_of
from gnnkit.exchange.route import Demand, Route
from gnnkit.graph import Block, Ids
from gnnkit.graph.batch import EDGE_COLUMNS
from gnnkit.kernels.dropout import dropout


class ColumnAdjacency(BlockAdjacency):
    """The joined first blocks of all ranks. `x` has some columns of all their rows.

    Products of a linear layer are sent to each block's rank and added up there.
    """

    def __init__(self, layers: LayerValues, block: Block, route: Route, columns: slice, key: int) -> None:
        """Adds self-loops if the model requires them.

        Args:
            layers: Node and edge values of the joined blocks.
            block: The joined blocks.
            route: From the ranks that hold columns to the blocks' ranks.
            columns: Input columns that this rank holds.
            key: Key of the layer and step.
        """
        super().__init__(layers, block, key)
        self.columns, self._route = columns, route

    def add_columns(self, z: Tensor) -> Tensor:  # [num_dst, f] -> [rows of this rank's block, f]
        return self._route.collect(z, 0)

    def product(self, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.add_columns(z @ weight) + bias

    def dropout(self, x: Tensor, p: float, *, training: bool, draw: int = 0) -> Tensor:
        if not training or p == 0:
            return x
        if self._is_input(x):
            return dropout(x, self.src_nodes, p, dropout_key(self.key, draw), self.columns.start)
        return dropout(x, self._own_dst, p, dropout_key(self.key, draw))

    def pool(self, num_rows: int) -> Pool:
        return pool_of(self._pool, self._own_dst[:num_rows])

    @property
    def _own_dst(self) -> Tensor:  # [destinations of this rank's block] int64 global ids
        return self._route.sent_ids[: self._route.owned_counts[0]]

    def _is_input(self, x: Tensor) -> bool:
        """Whether `x` is the layer's input, and not rows of this rank's block."""
        return tuple(x.shape) == (self.edges.num_src, self.columns.stop - self.columns.start)


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Joins blocks without common rows. All destinations come first."""
    first_dst = np.cumsum([0, *(block.num_dst for block in blocks)])  # position of each block's destinations
    first_rest = first_dst[-1] + np.cumsum([0, *(len(block.src_nodes) - block.num_dst for block in blocks)])
    first_edge = np.cumsum([0, *(len(block.indices) for block in blocks)])
    indptr, indices = [np.zeros(1, np.int64)], []
    for i, block in enumerate(blocks):
        rows, is_dst = block.indices.astype(np.int64), block.indices < block.num_dst
        indices.append(rows + np.where(is_dst, first_dst[i], first_rest[i] - block.num_dst))
        indptr.append(block.indptr[1:] + first_edge[i])
    nodes = [block.src_nodes[: block.num_dst] for block in blocks] + [b.src_nodes[b.num_dst :] for b in blocks]
    columns = {name: np.concatenate([block.edge_columns[name] for block in blocks]) for name in blocks[0].edge_columns}
    return Block(np.concatenate(indptr), np.concatenate(indices), np.concatenate(nodes), **columns)


def pack_block(block: Block, device: torch.device) -> Tensor:  # [num_numbers] int64
    """Serialises a block to one array, for `unpack_block`."""
    columns = dict(block.edge_columns)
    if block.weight is not None:
        columns["weight"] = block.weight.astype(np.float64).view(np.int64)
    present = sum(1 << i for i, name in enumerate(EDGE_COLUMNS) if name in columns)  # one bit per column
    head = np.array([block.num_dst, len(block.src_nodes), len(block.indices), present], np.int64)
    parts = [head, block.indptr, block.indices, block.src_nodes, *columns.values()]
    return torch.from_numpy(np.concatenate(parts, dtype=np.int64)).to(device)


def unpack_block(numbers: Ids) -> Block:
    """Deserialises a block from `pack_block`. `numbers` is [num_numbers] int64."""
    num_dst, num_src, num_edges, present = numbers[:4].tolist()
    names = [name for i, name in enumerate(EDGE_COLUMNS) if present >> i & 1]
    sizes = [num_dst + 1, num_edges, num_src, *[num_edges] * len(names)]
    indptr, indices, nodes, *parts = np.split(numbers[4:], np.cumsum(sizes)[:-1])
    columns: dict[str, Any] = dict(zip(names, parts, strict=True))
    if "weight" in columns:
        columns["weight"] = columns["weight"].view(np.float64)
    return Block(indptr, indices, nodes, **columns)


def demand_of_blocks(blocks: Sequence[Block], comm: Communicator) -> Demand:
    """Returns which rows of the joined blocks are sent to the blocks' ranks.

    Both sides order a block's rows as in the block.

    Args:
        blocks: [world_size] each rank's block.
        comm: The ranks.
    """
    dst = [torch.from_numpy(block.src_nodes[: block.num_dst].astype(np.int64)) for block in blocks]
    local_dst = dst[comm.rank].repeat(comm.world_size).to(comm.device)
    return Demand(
        torch.cat(dst).to(comm.device), [len(ids) for ids in dst], local_dst, [len(dst[comm.rank])] * comm.world_size
    )
