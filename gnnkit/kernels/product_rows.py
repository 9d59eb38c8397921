"""Input rows that a layer multiplies by a weight before it does anything else."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gnnkit.graph import Ids


class ProductRows(ABC):
    """Rows [n, width] that are no tensor, and have no gradient."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Type of products."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where products are computed."""

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __matmul__(self, weight: Tensor) -> Tensor:  # [width, k] -> [n, k]
        """Multiplies by a weight, which gets a gradient."""

    @abstractmethod
    def __getitem__(self, rows: slice) -> ProductRows:
        """Returns the first rows."""

    @abstractmethod
    def take(self, places: Ids) -> ProductRows:
        """Returns the rows at some places, [k]."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> ProductRows:
        """Returns the same rows, whose products are of a type."""

    @abstractmethod
    def dropout(self, ids: Tensor, p: float, key: int) -> ProductRows:
        """Does what `dropout` does to a tensor.

        Args:
            ids: [n] int64 global id of each row.
            p: Probability in [0, 1) that a number is zeroed.
            key: Key of all draws.
        """

    @abstractmethod
    def isfinite(self) -> Tensor:  # [...] bool
        """Says of numbers, or of many at once, whether they are finite."""


Rows = Tensor | ProductRows  # that a model's first layer reads


def first_rows(rows: slice, count: int) -> bool:
    """Says whether a slice is of all `count` rows. Raises for other than the first."""
    if rows in (slice(count), slice(None)):
        return True
    if rows != slice(rows.stop):
        raise IndexError(f"the first rows can be taken, not {rows}")
    return False
