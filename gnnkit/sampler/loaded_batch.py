"""A batch yielded by a loader, convertible to several libraries' formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from gnnkit.graph import Block, Ids, MiniBatch
from gnnkit.graph.times import Times
from gnnkit.sampler import frameworks

if TYPE_CHECKING:
    import torch

    from gnnkit.sampler.tables import Tables


NamedArrays: TypeAlias = dict[str, Any]  # arrays or tensors by name, and a list of such dictionaries for blocks


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A sampled batch with its nodes' rows.

    Arrays remain unchanged while the batch or one of its arrays is referenced. They are
    NumPy arrays, with `__dlpack__`. For example, JAX reads them with
    `jax.tree.map(jax.dlpack.from_dlpack, batch.arrays())`.

    A `Loader` yields it. Train on its arrays directly, or convert it: `to_torch` for
    tensors, `to_pyg` for a `Data`, `to_dgl` for DGL's triple. Pass one of these methods
    as the loader's `transform` to convert every batch.
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
        edges = [len(block.indices) for block in self.blocks]
        return f"LoadedBatch({shapes(arrays)}, edges={edges})"

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
        tensors: NamedArrays = _map(frameworks.tensor, self.arrays())
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

        If the seeds have a type, the result is a `HeteroData`, with these fields for
        each node type and relation. `e_id` are positions among the relation's edges.
        """
        return self._as_pyg()

    def to_dgl(self) -> tuple[Any, Any, list[Any]]:
        """Returns input nodes, output nodes and blocks, like DGL's `DataLoader`.

        If the seeds have a type, nodes are dictionaries by node type, and blocks are
        heterogeneous.
        """
        return self._as_dgl()

    def _as_pyg(self) -> Any:
        return frameworks.to_pyg(self)

    def _as_dgl(self) -> tuple[Any, Any, list[Any]]:
        return frameworks.to_dgl(self)


def shapes(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the arrays' names and shapes, such as `x=[12, 3]`."""
    return ", ".join(f"{name}={list(array.shape)}" for name, array in arrays.items())


def _present(arrays: NamedArrays) -> NamedArrays:
    return {name: value for name, value in arrays.items() if value is not None}


def _map(convert: Callable[[Any], Any], arrays: Any) -> Any:
    """Converts all arrays in nested dictionaries and lists."""
    if isinstance(arrays, dict):
        return {name: _map(convert, value) for name, value in arrays.items()}
    return [_map(convert, value) for value in arrays] if isinstance(arrays, list) else convert(arrays)
