"""A batch that a loader yields, in the forms of several libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from gnnkit.graph import Block, Ids, MiniBatch
from gnnkit.sampler import frameworks
from gnnkit.sampler.tables import Tables

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A sampled batch with the rows of the nodes.

    Arrays stay unchanged as long as somebody holds the batch or an array. Arrays are
    NumPy's, with `__dlpack__`. For example
    `jax.tree.map(jax.dlpack.from_dlpack, batch.arrays())`.
    """

    minibatch: MiniBatch
    positions: Ids  # [num_seeds] position of each seed in the loader's `seeds`
    x: npt.NDArray[Any] | None  # [num_input_nodes, ...] features of `input_nodes`
    tables: Tables  # of the whole graph

    @property
    def seeds(self) -> Ids:  # [num_seeds] global ids
        return self.minibatch.seeds

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One per hop, outermost first."""
        return tuple(self.minibatch.blocks)

    @property
    def input_nodes(self) -> Ids:  # [num_input_nodes] global ids, the seeds first
        return self.minibatch.input_nodes

    @property
    def y(self) -> npt.NDArray[Any] | None:  # [num_seeds, ...]
        """The labels of the seeds."""
        return None if self.tables.labels is None else self.tables.labels[self.seeds]

    def arrays(self) -> dict[str, Any]:
        """Returns all arrays by name, but for None.

        `blocks` is a list of such dictionaries, outermost hop first.
        """
        named = {"x": self.x, "y": self.y, "seeds": self.seeds, "input_nodes": self.input_nodes}
        rows = ("indptr", "indices", "src_nodes")
        blocks = [{name: getattr(block, name) for name in rows} | block.edge_columns for block in self.blocks]
        return {**_present(named), "blocks": blocks}

    def to_torch(self) -> dict[str, Any]:
        """Returns `arrays()` as tensors of the same memory."""
        return _map(frameworks.tensor, self.arrays())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> dict[str, Any]:
        """Copies `to_torch()` to a device. Lightning calls this method for each batch.

        Args:
            device: device of torch.
            non_blocking: whether to return before the copy is done.
        """
        return _map(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.to_torch())

    def to_pyg(self) -> Any:
        """Makes a `torch_geometric.data.Data` with the fields of `NeighborLoader`.

        Nodes have `x`, `y` and `n_id`. Edges have `edge_index` in order of hop,
        `edge_attr`, `edge_weight` and `e_id`. Further fields are `input_id`,
        `batch_size`, and `num_sampled_nodes` and `num_sampled_edges` per hop.

        `e_id` are positions in the list of edges that the graph was made from, so that
        `data.edge_attr[e_id]` are rows of the user's own `Data`. For a `CSC`, and a
        `Graph` made of a CSC, `e_id` are positions in the CSC. Attributes of edges are
        absent if blocks have no edge ids. `importance` [num_edges] holds a sampler's
        importance weights.

        Other attributes of nodes (`pos`, `train_mask`, ...) are absent. Index the
        user's own by `n_id`. Raises `UserError` for a sampler with `redraw`.
        """
        return frameworks.to_pyg(self)

    def to_dgl(self) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
        """Returns input nodes, output nodes and blocks, like DGL's `DataLoader`."""
        return frameworks.to_dgl(self)


def _present(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _map(convert: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Converts all arrays, of the blocks too."""
    blocks = [{name: convert(array) for name, array in block.items()} for block in arrays["blocks"]]
    return {name: blocks if name == "blocks" else convert(value) for name, value in arrays.items()}
