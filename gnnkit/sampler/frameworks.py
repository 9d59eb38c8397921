"""Loaded batches as other libraries know them. Each is imported only by the function that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph import Block
from gnnkit.sampler.gather import gather_rows

if TYPE_CHECKING:
    import torch

    from gnnkit.sampler.loader import LoadedBatch


def page_locked(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory that a GPU reads by itself while the processor goes on; as any other where there is no GPU."""
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()


def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """The same memory as a tensor; bfloat16 (of ml_dtypes) too."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_pyg(batch: LoadedBatch) -> Any:
    """As `LoadedBatch.to_pyg` says."""
    from torch_geometric.data import Data

    hops = batch.blocks[::-1]
    outer = batch.blocks[0]
    if not all(_begins_with(outer, hop) for hop in hops):
        raise ValueError("to_pyg needs blocks that are parts of one another, as PyG draws a node once: redraw=false")
    num_edges = [0, *(len(hop.indices) for hop in hops)]
    targets = np.repeat(np.arange(outer.num_dst), np.diff(outer.indptr))
    return Data(
        x=None if batch.x is None else tensor(batch.x),
        y=None if batch.labels is None else tensor(batch.labels[outer.src_nodes]),
        edge_index=tensor(np.stack([outer.indices.astype(np.int64, copy=False), targets])),
        edge_attr=_edge_attr(batch),
        n_id=tensor(outer.src_nodes.astype(np.int64, copy=False)),
        e_id=None if outer.edge_ids is None else tensor(outer.edge_ids),
        input_id=tensor(batch.positions),
        batch_size=len(batch.seeds),
        num_sampled_nodes=[len(batch.seeds), *(len(hop.src_nodes) - hop.num_dst for hop in hops)],
        num_sampled_edges=np.diff(num_edges).tolist(),
        num_nodes=len(outer.src_nodes),
    )


def _begins_with(outer: Block, inner: Block) -> bool:
    """Whether the edges of `inner` are the first ones of `outer`."""
    return np.array_equal(outer.indptr[: len(inner.indptr)], inner.indptr) and np.array_equal(
        outer.indices[: len(inner.indices)], inner.indices
    )


def _edge_attr(batch: LoadedBatch) -> torch.Tensor | None:
    edge_ids = batch.blocks[0].edge_ids
    if batch.edge_features is None or edge_ids is None:
        return None
    return tensor(gather_rows(batch.edge_features, edge_ids))


def to_dgl(batch: LoadedBatch) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """As `LoadedBatch.to_dgl` says."""
    return tensor(batch.input_nodes), tensor(batch.seeds), [_dgl_block(block) for block in batch.blocks]


def _dgl_block(block: Block) -> Any:
    import dgl

    indices = tensor(block.indices)
    structure = (tensor(block.indptr).to(indices.dtype), indices, indices.new_empty(0))
    made = dgl.create_block(("csc", structure), num_src_nodes=len(block.src_nodes), num_dst_nodes=block.num_dst)
    made.srcdata[dgl.NID] = tensor(block.src_nodes)
    made.dstdata[dgl.NID] = tensor(block.src_nodes[: block.num_dst])
    if block.edge_ids is not None:
        made.edata[dgl.EID] = tensor(block.edge_ids)
    return made
