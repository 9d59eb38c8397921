"""The node types of rows, and products with one weight per type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.graph.schema import types_of_nodes
from gnnkit.kernels.once import linear


class RowTypes:
    """The node type of each row of a layer, for weights per node type.

    Rows are grouped by type, so that each type needs one matrix product.
    """

    def __init__(self, types: Ids, num_types: int, device: torch.device) -> None:
        """Sorts the rows by type, unless they are sorted.

        Args:
            types: [num_rows] node type of each row.
            num_types: Number of node types.
            device: Device of the rows.
        """
        self.sizes: list[int] = np.bincount(types, minlength=num_types).tolist()
        self._order: Tensor | None = None  # [num_rows] rows by type. None: rows are sorted
        if np.any(types[1:] < types[:-1]):
            order = np.argsort(types, kind="stable")
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
            self._order, self._places = (torch.from_numpy(rows).to(device) for rows in (order, places))

    @classmethod
    def of(cls, ids: Ids, type_sizes: Sequence[int] | None, num_types: int, device: torch.device) -> RowTypes:
        """Looks up the types of nodes.

        Raises `UserError` if the model has weights for another number of types.

        Args:
            ids: [num_rows] global ids.
            type_sizes: [num_node_types] number of nodes of each type, in the order of
                ids. If None, all nodes have one type.
            num_types: Number of node types that the model has weights for.
            device: Device of the rows.
        """
        count = 1 if type_sizes is None else len(type_sizes)
        if count != num_types:
            raise UserError(
                f"the model has weights for num_node_types={num_types}, and the graph has {count}: make the model "
                f"with num_node_types={count}, or call it with a Graph that has its node types"
            )
        return cls(types_of_nodes(ids, type_sizes or ()), num_types, device)

    def products(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:  # [num_rows, f] -> [num_rows, k]
        """Multiplies each row by its type's weight, and adds the type's bias.

        Args:
            x: [num_rows, f].
            weights: [num_types, f, k].
            biases: [num_types, k].
        """
        parts = zip(torch.split(self._sort(x), self.sizes), weights, biases, strict=True)
        return self._in_order(torch.cat([torch.addmm(bias, rows, weight) for rows, weight, bias in parts]))

    def spread(self, values: Tensor) -> Tensor:  # [num_types, k] -> [num_rows, k]
        """Copies values of types to their rows."""
        parts = zip(values, self.sizes, strict=True)
        return self._in_order(torch.cat([value.expand(size, -1) for value, size in parts]))

    def _sort(self, x: Tensor) -> Tensor:
        return x if self._order is None else _permute(x, self._order, self._places)

    def _in_order(self, x: Tensor) -> Tensor:
        return x if self._order is None else _permute(x, self._places, self._order)


def _permute(x: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """Selects each row once, so that the gradient is a selection too."""
    return linear(x, lambda x: x.index_select(0, rows), lambda grad: grad.index_select(0, places))
