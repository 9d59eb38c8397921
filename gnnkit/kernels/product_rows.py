"""Input rows that a layer first multiplies by a weight."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gnnkit.graph import Ids


class ProductRows(ABC):
    """Rows [n, width] that are not stored as a tensor, and have no gradient.

    A layer can multiply them by a weight, which gives a tensor, and nothing else.
    Sparse rows and rows on disk are of this kind.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of products."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of products."""

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __matmul__(self, weight: Tensor) -> Tensor:  # [width, k] -> [n, k]
        """Multiplies by a weight, which receives a gradient."""

    @abstractmethod
    def __getitem__(self, rows: slice) -> ProductRows:
        """Returns the first rows."""

    @abstractmethod
    def take(self, places: Ids) -> ProductRows:
        """Returns the rows at the given positions, [k]."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> ProductRows:
        """Returns the rows with another product dtype."""

    @abstractmethod
    def dropout(self, ids: Tensor, p: float, key: int) -> ProductRows:
        """Applies dropout, like `kernels.dropout.dropout` to a tensor.

        Args:
            ids: [n] int64 global row ids.
            p: Dropout probability, in [0, 1).
        """

    @abstractmethod
    def isfinite(self) -> Tensor:  # [...] bool
        """Returns whether numbers, or groups of numbers, are finite."""


Rows = Tensor | ProductRows  # input of a model's first layer


def first_rows(rows: slice, count: int) -> bool:
    """Returns whether a slice covers all `count` rows. Raises unless it starts at 0."""
    if rows in (slice(count), slice(None)):
        return True
    if rows != slice(rows.stop):
        raise IndexError(f"expected a slice of the first rows, got {rows}")
    return False
