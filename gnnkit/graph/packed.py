"""Dense features quantized to 16 or 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph.types import Floats
from gnnkit.utils.checks import Array


@dataclass(frozen=True, slots=True, eq=False)
class PackedFeatures:
    """Feature rows in bfloat16 or 8 bits, a half or a quarter of float32's size.

    The class has the shape of the rows. `features[ids]` and `features[:, columns]`
    select rows and columns, and `np.asarray(features)` returns float32. Raises
    `UserError` for arrays of other shapes and types.
    """

    kept: Array  # [n, width] uint16: bits of bfloat16. uint8: steps of `scale` above `offset`
    scale: Floats | None = None  # [width] float32. None: bfloat16
    offset: Floats | None = None  # [width] float32

    def __post_init__(self) -> None:
        kind, width = (np.uint16, None) if self.scale is None else (np.uint8, self.kept.shape[1:])
        for array in (self.scale, self.offset):
            right = array is None if width is None else array is not None and array.shape == width
            if not right or (array is not None and array.dtype != np.float32):
                raise UserError("features: the scale of packed rows must be float32, one number per column")
        if self.kept.dtype != kind or self.kept.ndim != 2:
            raise UserError(f"features: packed rows are {self.kept.dtype}, expected {np.dtype(kind)}")

    @property
    def name(self) -> str:
        """The value of `features.dtype`."""
        return "bf16" if self.scale is None else "int8"

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and width."""
        return self.kept.shape[0], self.kept.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that `np.asarray` returns."""
        return np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        return int(self.kept.nbytes)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, key: Any) -> PackedFeatures:
        """Selects rows, or rows and columns, like NumPy."""
        columns = key[1] if isinstance(key, tuple) else slice(None)
        scale, offset = (None if array is None else array[columns] for array in (self.scale, self.offset))
        return PackedFeatures(self.kept[key], scale, offset)

    def with_rows(self, rows: Array) -> PackedFeatures:
        """Returns other rows with the same scale."""
        return replace(self, kept=rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:  # [n, width]
        """Returns float32 rows. Raises `UserError` if they exceed memory."""
        try:
            if self.scale is None or self.offset is None:
                rows = self.kept.astype(np.uint32)
                rows <<= 16
                numbers: Floats = rows.view(np.float32)
            else:
                numbers = self.kept.astype(np.float32)
                numbers *= self.scale
                numbers += self.offset
        except MemoryError as error:
            raise UserError(f"features need {4 * math.prod(self.shape) / 1e9:.3g} GB of memory as float32") from error
        return numbers if dtype is None else numbers.astype(dtype, copy=False)
