"""Rows of features, in memory or in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.engine.kernels import as_array
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids

_ROUNDED = 1 << 16  # rows at a time


Bits = npt.NDArray[np.uint16]  # of bfloat16, which NumPy has not


def round_rows(table: Floats) -> Bits:  # [n, width] -> [n, width]
    """Rounds numbers to bfloat16, to the even one of two that are equally near."""
    bits = np.empty(table.shape, np.uint16)
    for start in range(0, len(table), _ROUNDED):
        rows = torch.tensor(np.asarray(table[start : start + _ROUNDED]))
        bits[start : start + _ROUNDED] = as_array(rows.to(torch.bfloat16))
    return bits


def of_bits(bits: Bits) -> Tensor:
    """Views bits as bfloat16."""
    return torch.from_numpy(bits).view(torch.bfloat16)


class FeatureStore(ABC):
    """Features of nodes by global id."""

    width: int  # columns of a row
    table: Floats | None = None  # [num_nodes, width] where all rows are at hand, for native gathering ahead

    @abstractmethod
    def rows(self, ids: Ids) -> Tensor:  # [num_ids] -> [num_ids, width]
        """Returns the features of nodes, in the worker's type and on its device."""


class TableFeatures(FeatureStore):
    """Rows of one array in memory or of a mapped file."""

    def __init__(self, table: Floats, nodes: Ids | None, dtype: torch.dtype, device: torch.device) -> None:
        """Keeps the array.

        Args:
            table: [num_rows, width] features.
            nodes: [num_rows] ascending global ids of the rows. None: row i is node i.
            dtype: Type of the rows handed out.
            device: Device of the rows handed out.
        """
        self.width = table.shape[1]
        self.table = table if nodes is None else None
        self._table, self._nodes, self._dtype, self._device = table, nodes, dtype, device

    def rows(self, ids: Ids) -> Tensor:
        positions = ids if self._nodes is None else self._positions(self._nodes, ids)
        return torch.tensor(np.asarray(self._table[positions]), dtype=self._dtype, device=self._device)

    @staticmethod
    def _positions(nodes: Ids, ids: Ids) -> Ids:
        positions = np.minimum(np.searchsorted(nodes, ids), max(len(nodes) - 1, 0))
        if len(ids) and (len(nodes) == 0 or (nodes[positions] != ids).any()):
            raise UserError("features of nodes that other ranks own are not at hand")
        return positions
