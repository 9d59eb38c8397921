"""Conversion of loaded batches to other libraries' formats.

Each function imports its library when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids
from gnnkit.sampler.gather import gather_rows

if TYPE_CHECKING:
    import torch

    from gnnkit.sampler.loaded import LoadedBatch


def page_locked(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Allocates page-locked memory, or ordinary memory without a GPU.

    A GPU copies page-locked memory asynchronously.
    """
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()


def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Returns a tensor that shares an array's memory, also for ml_dtypes' bfloat16."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_pyg(batch: LoadedBatch) -> Any:
    """Creates a PyG `Data` object, as described at `LoadedBatch.to_pyg`."""
    from torch_geometric.data import Data

    hops = batch.blocks[::-1]
    outer = batch.blocks[0]
    if not all(_begins_with(outer, hop) for hop in hops):
        raise UserError("redraw=true: to_pyg needs blocks in which a node draws once, as in PyG; use redraw=false")
    num_edges = [0, *(len(hop.indices) for hop in hops)]
    targets = np.repeat(np.arange(outer.num_dst), np.diff(outer.indptr))
    tables = batch.tables
    return Data(
        x=None if batch.x is None else tensor(batch.x),
        y=None if tables.labels is None else tensor(tables.labels[outer.src_nodes]),
        edge_index=tensor(np.stack([outer.indices.astype(np.int64, copy=False), targets])),
        edge_attr=_of_edges(tables.edge_features, outer),
        edge_weight=_of_edges(tables.edge_weight, outer),
        importance=None if outer.weight is None else tensor(outer.weight),
        n_id=tensor(outer.src_nodes.astype(np.int64, copy=False)),
        e_id=_edge_positions(tables.edge_positions, outer),
        input_id=tensor(batch.positions),
        batch_size=len(batch.seeds),
        num_sampled_nodes=[len(batch.seeds), *(len(hop.src_nodes) - hop.num_dst for hop in hops)],
        num_sampled_edges=np.diff(num_edges).tolist(),
        num_nodes=len(outer.src_nodes),
    )


def _begins_with(outer: Block, inner: Block) -> bool:
    """Returns whether the edges of `inner` are the first edges of `outer`."""
    return np.array_equal(outer.indptr[: len(inner.indptr)], inner.indptr) and np.array_equal(
        outer.indices[: len(inner.indices)], inner.indices
    )


def _of_edges(table: npt.NDArray[Any] | None, block: Block) -> torch.Tensor | None:  # [num_block_edges, ...]
    """Gathers a block's edge rows from a table in CSC order."""
    if table is None or block.edge_ids is None:
        return None
    return tensor(gather_rows(table, block.edge_ids))


def _edge_positions(positions: Ids | None, block: Block) -> torch.Tensor | None:  # [num_block_edges] int64
    """Returns positions of a block's edges in the graph's original edge list."""
    if positions is None or block.edge_ids is None:
        return None if block.edge_ids is None else tensor(block.edge_ids)
    return tensor(gather_rows(positions, block.edge_ids).astype(np.int64, copy=False))


def to_dgl(batch: LoadedBatch) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """Creates DGL blocks, as described at `LoadedBatch.to_dgl`."""
    return tensor(batch.input_nodes), tensor(batch.seeds), [_dgl_block(block) for block in batch.blocks]


def _dgl_block(block: Block) -> Any:
    import dgl

    indices = tensor(block.indices)
    structure = (tensor(block.indptr).to(indices.dtype), indices, indices.new_empty(0))
    dgl_block = dgl.create_block(("csc", structure), num_src_nodes=len(block.src_nodes), num_dst_nodes=block.num_dst)
    dgl_block.srcdata[dgl.NID] = tensor(block.src_nodes)
    dgl_block.dstdata[dgl.NID] = tensor(block.src_nodes[: block.num_dst])
    if block.edge_ids is not None:
        dgl_block.edata[dgl.EID] = tensor(block.edge_ids)
    return dgl_block
