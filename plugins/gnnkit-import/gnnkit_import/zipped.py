"""The arrays of an .npz archive, read piece by piece."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gnnkit_formats.pieces import WholeArrays

from gnnkit.errors import UserError
from gnnkit.graph.zipped import BAD_ZIP
from gnnkit.utils.storage import Array


class ZippedArrays(WholeArrays):
    """The arrays of an .npz file, which may exceed memory."""

    def rows(self, name: str) -> ZippedRows:
        with self.open(name) as (file, (shape, by_column, dtype)):
            return ZippedRows(self.file, name, shape, dtype, by_column, file.tell())


@dataclass(frozen=True, slots=True)
class ZippedRows:
    """An array in an .npz file that is decompressed while it is read."""

    file: zipfile.ZipFile
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool  # whether the file is in Fortran order
    begin: int  # byte offset of the numbers

    def flat(self, step: int, first: int = 0, last: int | None = None) -> Iterator[Array]:
        """Yields the numbers `first` to `last` in file order, `step` at a time.

        Yields one empty piece if there are none. Raises `UserError` for a damaged file.
        """
        last, size = math.prod(self.shape) if last is None else last, self.dtype.itemsize
        try:
            with self.file.open(f"{self.name}.npy") as file:
                file.seek(self.begin + first * size)
                for begin in range(first, max(last, first + 1), step):
                    count = min(step, last - begin)
                    data = file.read(count * size)
                    if len(data) < count * size:
                        raise UserError(f"{self.name} is truncated")
                    numbers = np.frombuffer(data, self.dtype)
                    yield numbers.astype(self.dtype.newbyteorder("="), copy=False)
        except (*BAD_ZIP, OSError) as error:
            raise UserError(f"{self.name} cannot be read: {error}") from error

    def pieces(self, step: int) -> Iterator[Array]:
        """Yields all rows, `step` at a time, or one empty piece if there are none."""
        if self.by_column and len(self.shape) > 1:
            raise UserError(f"{self.name} is stored by column, and cannot be read by rows")
        width = math.prod(self.shape[1:])
        if not self.shape[0] or not width:
            yield np.empty(self.shape, self.dtype)
            return
        for some in self.flat(step * width):
            yield some.reshape(-1, *self.shape[1:])
