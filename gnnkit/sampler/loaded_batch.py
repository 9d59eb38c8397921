"""A batch yielded by a loader, as arrays, tensors or PyG data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Graph, Ids, MiniBatch
from gnnkit.graph.times import Times
from gnnkit.sampler.gather import gather_rows
from gnnkit.utils.checks import array

if TYPE_CHECKING:
    import torch


NamedArrays: TypeAlias = dict[str, Any]  # arrays or tensors by name, and a list of such dictionaries for blocks


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A sampled batch with its nodes' rows.

    Arrays remain unchanged while the batch or one of its arrays is referenced. They are
    NumPy arrays, with `__dlpack__`. For example, JAX reads them with
    `jax.tree.map(jax.dlpack.from_dlpack, batch.arrays())`.

    A `Loader` yields it. Train on its arrays directly, or convert it: `to_torch` for
    tensors, `to_pyg` for a `Data`. Pass one of these methods as the loader's
    `transform` to convert every batch.
    """

    minibatch: MiniBatch
    positions: Ids  # [num_seeds] position of each seed in the loader's `seeds`
    x: npt.NDArray[Any] | None  # [num_input_nodes, ...] features of `input_nodes`
    tables: Tables  # rows of the complete graph

    @property
    def seeds(self) -> Ids:  # [num_seeds] global ids
        return self.minibatch.seeds

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One block per hop, outermost first, as a model's layers read them."""
        return tuple(self.minibatch.blocks)

    @property
    def input_nodes(self) -> Ids:  # [num_input_nodes] global ids, the seeds first
        return self.minibatch.input_nodes

    @property
    def times(self) -> Times | None:  # [num_input_nodes]
        """Time up to which each of `input_nodes` sees edges. None: all edges.

        The nodes of a batch that is sampled by time repeat if seeds at several times
        reach them, and `src_nodes` of blocks number `input_nodes`.
        """
        return self.minibatch.times

    @property
    def y(self) -> npt.NDArray[Any] | None:  # [num_seeds, ...]
        """The seeds' labels, [num_seeds, ...] in the order of `seeds`.

        None if the graph has no labels. Labels of sampled neighbours are not included.
        """
        return None if self.tables.labels is None else self.tables.labels[self.seeds]

    def __repr__(self) -> str:
        """Returns the shapes of the arrays, and each hop's number of edges."""
        arrays = _present({"seeds": self.seeds, "y": self.y, "input_nodes": self.input_nodes, "x": self.x})
        shapes = ", ".join(f"{name}={list(array.shape)}" for name, array in arrays.items())
        return f"LoadedBatch({shapes}, edges={[len(block.indices) for block in self.blocks]})"

    def arrays(self) -> NamedArrays:
        """Returns all arrays that are not None, by name.

        `blocks` is a list of such dictionaries, outermost hop first.
        """
        arrays = {"x": self.x, "y": self.y, "seeds": self.seeds, "input_nodes": self.input_nodes, "times": self.times}
        rows = ("indptr", "indices", "src_nodes")
        blocks = [{name: getattr(block, name) for name in rows} | block.edge_columns for block in self.blocks]
        return {**_present(arrays), "blocks": blocks}

    def to_torch(self) -> NamedArrays:
        """Returns `arrays()` as tensors that share their memory.

        The memory is reused once neither the batch nor one of its arrays or tensors is
        referenced.
        """
        tensors: NamedArrays = _map(tensor, self.arrays())
        return tensors

    def to(self, device: torch.device | str, non_blocking: bool = False) -> NamedArrays:
        """Copies `to_torch()` to a device. Lightning calls this method for each batch.

        Args:
            device: The torch device.
            non_blocking: Whether to return before the copy has finished.
        """
        result: NamedArrays = _map(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.to_torch())
        return result

    def to_pyg(self) -> Any:
        """Creates a `torch_geometric.data.Data` with the fields of `NeighborLoader`.

        Nodes have `x`, `y` and `n_id`. Edges have `edge_index`, ordered by hop,
        `edge_attr`, `edge_weight` and `e_id`. Further fields are `input_id`,
        `batch_size`, and `num_sampled_nodes` and `num_sampled_edges` per hop.

        `e_id` are positions in the graph's original edge list, so
        `data.edge_attr[e_id]` are rows of the user's `Data`. For a `CSC`, or a `Graph`
        made from one, they are positions in the CSC. Edge attributes are absent if
        blocks have no edge ids. `importance` [num_edges] contains the sampler's
        importance weights.

        Batches by time have `seed_time` [num_seeds], and a node occurs once for each
        time at which it is sampled.

        Other node attributes (`pos`, `train_mask`, ...) are not copied. Index the
        original ones by `n_id`. Raises `UserError` for a sampler with `redraw`.
        """
        return to_pyg(self)


def _present(arrays: NamedArrays) -> NamedArrays:
    return {name: value for name, value in arrays.items() if value is not None}


def _map(convert: Callable[[Any], object], arrays: object) -> Any:
    """Converts all arrays in nested dictionaries and lists."""
    if isinstance(arrays, dict):
        return {name: _map(convert, value) for name, value in arrays.items()}
    return [_map(convert, value) for value in arrays] if isinstance(arrays, list) else convert(arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The rows of all nodes and edges of a graph, edges in CSC order."""

    features: npt.NDArray[Any] | None = None  # [num_nodes, ...] C-contiguous
    labels: npt.NDArray[Any] | None = None  # [num_nodes, ...]
    edge_features: npt.NDArray[Any] | None = None  # [num_edges, ...]
    edge_weight: Floats | None = None  # [num_edges]
    edge_positions: Ids | None = None  # [num_edges] position of each edge in the graph's original edge list

    @classmethod
    def of(cls, graph: Graph | CSC, features: object | None, labels: object | None) -> Tables:
        """Returns the graph's features and labels, unless others are given.

        Raises `UserError` unless a table has a row of fixed size for each node.

        Args:
            graph: The graph. A CSC only has weights.
            features: [num_nodes, ...] replacement of the graph's features, or None.
            labels: [num_nodes, ...] replacement of the graph's labels, or None.
        """
        if isinstance(graph, CSC):
            tables, num_nodes = cls(edge_weight=graph.weight), graph.num_sources
        else:
            own_features, num_nodes = np.asarray(graph.whole_features), graph.num_nodes
            tables = cls(own_features, graph.labels, graph.edge_features, graph.csc.weight, graph.edge_positions)
        given = {"features": features, "labels": labels}
        read = {
            name: _rows_per_node(name, array(name, rows), num_nodes) for name, rows in given.items() if rows is not None
        }
        return replace(tables, **read)

    def load(self, minibatch: MiniBatch, positions: Ids, buffers: Sequence[npt.NDArray[np.uint8]]) -> LoadedBatch:
        """Joins a batch with its gathered features, in the first buffer."""
        x = None
        if self.features is not None:
            shape = (len(minibatch.input_nodes), *self.features.shape[1:])
            x = buffers[0][: math.prod(shape) * self.features.itemsize].view(self.features.dtype).reshape(shape)
        return LoadedBatch(minibatch, positions, x, self)


def _rows_per_node(name: str, rows: npt.NDArray[Any], num_nodes: int) -> npt.NDArray[Any]:
    """Raises `UserError` unless a table has a row of fixed size for each node."""
    if rows.ndim == 0 or len(rows) != num_nodes or rows.dtype.hasobject:
        shape = f"{rows.dtype} of shape {list(rows.shape)}"
        raise UserError(f"{name} must have a row of fixed size for each of {num_nodes} nodes, got {shape}")
    return rows


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


def _nested_hops(batch: LoadedBatch) -> Sequence[Block]:
    """Returns the blocks from the seeds outward, if each continues the previous one.

    Raises `UserError` otherwise.
    """
    outer, *_ = blocks = batch.minibatch.blocks
    for hop in blocks:  # the edges of an inner hop are the first ones of the outermost
        rows, edges = len(hop.indptr), len(hop.indices)
        if np.array_equal(outer.indptr[:rows], hop.indptr) and np.array_equal(outer.indices[:edges], hop.indices):
            continue
        raise UserError("redraw=true: to_pyg needs blocks in which a node draws once, as in PyG; use redraw=false")
    return blocks[::-1]


def _of_edges(table: npt.NDArray[np.generic] | None, block: Block) -> torch.Tensor | None:  # [num_block_edges, ...]
    """Gathers a block's edge rows from a table in CSC order."""
    if table is None or block.edge_ids is None:
        return None
    return tensor(gather_rows(table, block.edge_ids))


def _edge_positions(positions: Ids | None, block: Block) -> torch.Tensor | None:  # [num_block_edges] int64
    """Returns positions of a block's edges in the graph's original edge list."""
    if positions is None or block.edge_ids is None:
        return None if block.edge_ids is None else tensor(block.edge_ids)
    return tensor(gather_rows(positions, block.edge_ids).astype(np.int64, copy=False))
