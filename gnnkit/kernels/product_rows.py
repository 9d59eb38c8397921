"""Input rows that a layer first multiplies by a weight, such as sparse ones.

The product of sparse rows is a weighted sum over edges: row v of X has an edge from
each column with a number, and the weight's rows are the sources. The reversed edges
give the weight's gradient. Both take time linear in the stored numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit import _core
from gnnkit.graph import CSC, Ids, SparseFeatures
from gnnkit.kernels.sums import Factors, NativeKernels, wide

# Bytes per stored number, besides its value: its column, and its row and position in
# the reversed edges.
PLACE_BYTES = 12


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


class Places:
    """The stored numbers' rows and columns, on CPUs."""

    def __init__(self, table: SparseFeatures) -> None:
        self.table = table
        self.native = _core.Aggregator(table.csr.indptr, table.csr.indices, table.shape[1])
        self.kernels = NativeKernels(self.native)

    @cached_property
    def transpose(self) -> Any:
        """Each column's rows."""
        return self.kernels.transpose()


class SparseRows(ProductRows):
    """Rows [n, width] that store only non-zero numbers.

    A model that `reads_sparse` receives them instead of a tensor, if the features are
    sparse. Layer 0 multiplies them by its first weight, which gives a dense tensor.
    """

    def __init__(self, places: Places, values: Tensor, dtype: torch.dtype | None = None) -> None:
        """Stores the numbers.

        Args:
            places: Rows and columns of the numbers.
            values: [num_stored] float32 or float64.
            dtype: The dtype of products. If None, that of `values`.
        """
        self.places, self.values, self._dtype = places, values, dtype or values.dtype

    @classmethod
    def of(cls, table: SparseFeatures, dtype: torch.dtype) -> SparseRows:
        """Creates rows from a table, with numbers converted to `dtype`."""
        return cls(Places(table), torch.tensor(np.asarray(table.values), dtype=dtype))

    @classmethod
    def zeros(cls, shape: tuple[int, int], dtype: torch.dtype) -> SparseRows:
        """Creates rows without stored numbers."""
        csr = CSC(np.zeros(shape[0] + 1, np.int64), np.zeros(0, np.int32), num_sources=shape[1])
        return cls.of(SparseFeatures(csr), dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.places.table.shape

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def __matmul__(self, weight: Tensor) -> Tensor:
        result: Tensor = _SparseProduct.apply(weight.to(self.dtype), self.values, self.places)
        return result

    def __getitem__(self, rows: slice) -> SparseRows:
        if first_rows(rows, len(self)):
            return self
        table = self.places.table.first(len(range(len(self))[rows]))
        return SparseRows(Places(table), self.values[: table.csr.num_edges], self.dtype)

    def take(self, places: Ids) -> SparseRows:
        return SparseRows.of(self.places.table[places], self.values.dtype).to(self.dtype)

    def to(self, dtype: torch.dtype) -> SparseRows:
        return SparseRows(self.places, self.values.to(wide(dtype)), dtype)

    def dropout(self, ids: Tensor, p: float, key: int) -> SparseRows:
        out, threads = torch.empty_like(self.values), torch.get_num_threads()
        self.places.native.drop_stored(self.values.numpy(), ids.numpy(), p, key, out.numpy(), threads=threads)
        return SparseRows(self.places, out, self.dtype)

    def isfinite(self) -> Tensor:  # [num_stored]
        """Returns which stored numbers are finite."""
        return self.values.isfinite()


class _SparseProduct(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Tensor, places: Places) -> Tensor:
        ctx.places = places
        ctx.save_for_backward(values)
        return places.kernels.sum(weight, Factors(values[:, None]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (values,) = ctx.saved_tensors
        return ctx.places.transpose.sum(grad, Factors(values[:, None])), None, None
