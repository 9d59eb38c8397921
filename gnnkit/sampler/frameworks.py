"""Conversion of loaded batches to other libraries' formats.

Each function imports its library when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids
from gnnkit.sampler.gather import gather_rows

if TYPE_CHECKING:
    import torch

    from gnnkit.sampler.loaded_batch import LoadedBatch
    from gnnkit.sampler.typed_batch import TypedBatch, TypedBlock
    from gnnkit.sampler.typed_tables import EdgeTable


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

    hops, outer = _nested_hops(batch), batch.blocks[0]
    num_edges = [0, *(len(hop.indices) for hop in hops)]
    tables, nodes = batch.tables, batch.input_nodes
    times = {} if batch.times is None else {"seed_time": tensor(batch.times[: len(batch.seeds)])}
    return Data(
        x=None if batch.x is None else tensor(batch.x),
        y=None if tables.labels is None else tensor(tables.labels[nodes]),
        edge_index=tensor(_core.csc_edges(outer.indptr, outer.indices).reshape(2, -1)),
        edge_attr=_of_edges(tables.edge_features, outer),
        edge_weight=_of_edges(tables.edge_weight, outer),
        importance=None if outer.weight is None else tensor(outer.weight),
        n_id=tensor(nodes.astype(np.int64, copy=False)),
        e_id=_edge_positions(tables.edge_positions, outer),
        input_id=tensor(batch.positions),
        batch_size=len(batch.seeds),
        num_sampled_nodes=[len(batch.seeds), *(len(hop.src_nodes) - hop.num_dst for hop in hops)],
        num_sampled_edges=np.diff(num_edges).tolist(),
        num_nodes=len(nodes),
        **times,
    )


def typed_to_pyg(batch: TypedBatch) -> Any:
    """Creates a PyG `HeteroData` object, as described at `LoadedBatch.to_pyg`."""
    from torch_geometric.data import HeteroData

    hops, tables, data = _nested_hops(batch), batch.tables, HeteroData()
    counts = batch.node_counts([len(batch.minibatch.seeds), *(len(hop.src_nodes) for hop in hops)])
    for table, num_sampled in zip(tables.nodes, counts, strict=True):
        nodes, store = batch.input_nodes[table.name], data[table.name]
        if table.name in batch.x:
            store.x = tensor(batch.x[table.name])
        if table.y is not None:
            store.y = tensor(gather_rows(table.y, nodes))
        store.n_id, store.num_nodes, store.num_sampled_nodes = tensor(nodes), len(nodes), num_sampled
    seeds = data[tables.seed_type.name]
    seeds.input_id, seeds.batch_size = tensor(batch.positions), len(batch.seeds)
    block = batch.outer_block
    hop_ends = [0, *(len(hop.indices) for hop in hops)]
    for edges in tables.arrays.edges:
        data[tuple(edges.relation)].update(_pyg_edges(batch, edges, block, hop_ends))
    return data


def _pyg_edges(batch: TypedBatch, table: EdgeTable, block: TypedBlock, hop_ends: list[int]) -> dict[str, Any]:
    """Returns the attributes of one relation's edges that are present."""
    edges, rows = block.relations[table.relation], batch.tables.arrays.edge_rows
    columns: dict[str, npt.NDArray[Any] | None] = {"importance": edges.weight, "e_id": edges.edge_positions}
    if edges.edge_ids is not None:
        index = edges.edge_ids if rows is None else edges.edge_positions
        for name in ("edge_attr", "edge_weight"):
            values = getattr(table, name)
            columns[name] = None if values is None or index is None else gather_rows(values, index)
    return {
        "edge_index": tensor(np.stack([edges.row, edges.col])),
        "num_sampled_edges": np.diff(np.searchsorted(edges.edges, hop_ends)).tolist(),
        **{name: tensor(column) for name, column in columns.items() if column is not None},
    }


def _nested_hops(batch: LoadedBatch) -> Sequence[Block]:
    """Returns the blocks from the seeds outward, if each continues the previous one.

    Raises `UserError` otherwise.
    """
    outer, *_ = blocks = batch.minibatch.blocks
    if not all(begins_with(outer, hop) for hop in blocks):
        raise UserError("redraw=true: to_pyg needs blocks in which a node draws once, as in PyG; use redraw=false")
    return blocks[::-1]


def begins_with(outer: Block, inner: Block) -> bool:
    """Returns whether the edges of `inner` are the first edges of `outer`."""
    rows, edges = len(inner.indptr), len(inner.indices)
    return np.array_equal(outer.indptr[:rows], inner.indptr) and np.array_equal(outer.indices[:edges], inner.indices)


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
    return (
        tensor(batch.input_nodes),
        tensor(batch.seeds),
        [_dgl_block(block, batch.input_nodes) for block in batch.blocks],
    )


def _dgl_block(block: Block, nodes: Ids) -> Any:
    import dgl

    indices = tensor(block.indices)
    structure = (tensor(block.indptr).to(indices.dtype), indices, indices.new_empty(0))
    dgl_block = dgl.create_block(("csc", structure), num_src_nodes=len(block.src_nodes), num_dst_nodes=block.num_dst)
    dgl_block.srcdata[dgl.NID] = tensor(nodes[: len(block.src_nodes)])
    dgl_block.dstdata[dgl.NID] = tensor(nodes[: block.num_dst])
    if block.edge_ids is not None:
        dgl_block.edata[dgl.EID] = tensor(block.edge_ids)
    return dgl_block


def typed_to_dgl(batch: TypedBatch) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[Any]]:
    """Creates heterogeneous DGL blocks, as described at `LoadedBatch.to_dgl`."""
    inputs = {name: tensor(nodes) for name, nodes in batch.input_nodes.items()}
    outputs = {batch.tables.seed_type.name: tensor(batch.seeds)}
    return inputs, outputs, [_typed_dgl_block(block) for block in batch.blocks]


def _typed_dgl_block(block: TypedBlock) -> Any:
    import dgl

    structure = {
        tuple(relation): ("csc", (tensor(edges.indptr), tensor(edges.row), tensor(np.empty(0, np.int64))))
        for relation, edges in block.relations.items()
    }
    num_src = {name: len(nodes) for name, nodes in block.src_nodes.items()}
    dgl_block = dgl.create_block(structure, num_src_nodes=num_src, num_dst_nodes=dict(block.num_dst))
    for name, nodes in block.src_nodes.items():
        dgl_block.srcnodes[name].data[dgl.NID] = tensor(nodes)
        dgl_block.dstnodes[name].data[dgl.NID] = tensor(nodes[: block.num_dst[name]])
    for relation, edges in block.relations.items():
        if edges.edge_positions is not None:
            dgl_block.edges[tuple(relation)].data[dgl.EID] = tensor(edges.edge_positions)
    return dgl_block
