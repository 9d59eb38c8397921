"""Reader for .npz archives."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.utils.documents import check_regular
from gnnkit.utils.memory import available_memory
from gnnkit.utils.storage import Array, check_npy

# What zipfile raises for files that are not valid archives.
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)
_SMALL = 1 << 24  # arrays up to this size are read without a memory check
_MAX_RATIO = 1032  # deflate's highest compression ratio


class Arrays:
    """The arrays of an .npz file. Headers are checked against the file size."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except _BAD_ZIP as error:
            raise UserError(f"not an .npz file: {error}") from error

    def __enter__(self) -> Arrays:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [name.removesuffix(".npy") for name in self._zip.namelist()]

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._zip.namelist()

    def __getitem__(self, name: str) -> Array:
        with self._open(name) as (file, (shape, _, dtype)):
            _check_memory(name, math.prod(shape) * dtype.itemsize, self._zip.getinfo(f"{name}.npy").compress_size)
            file.seek(0)
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def optional(self, name: str) -> Array | None:
        """Reads an array. Returns None if it is missing."""
        return self[name] if name in self else None  # noqa: SIM401 - there is no `get`

    def rows(self, name: str) -> ZippedRows:
        """Opens an array to read it piece by piece."""
        with self._open(name) as (file, (shape, by_column, dtype)):
            return ZippedRows(self._zip, name, shape, dtype, by_column, file.tell())

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], tuple[tuple[int, ...], bool, np.dtype[Any]]]]:
        """Opens an array, and yields its file with the checked header."""
        if name not in self:
            raise UserError(f"no array {name!r}, only {sorted(self._zip.namelist())}")
        info = self._zip.getinfo(f"{name}.npy")
        try:
            with self._zip.open(info) as file:
                yield file, check_npy(file, min(info.file_size, info.compress_size * _MAX_RATIO), name)
        except (*_BAD_ZIP, OSError) as error:
            raise UserError(f"{name} cannot be read: {error}") from error


def _check_memory(name: str, size: int, packed: int) -> None:
    """Raises `UserError` for an array that exceeds free memory.

    A file of 8 MB may unpack to 8 GB. Any ratio is accepted if the memory suffices.
    """
    room = available_memory()
    if size > _SMALL and size > room:
        raise UserError(
            f"{name} unpacks from {packed:,} to {size:,} bytes, and {room:,.0f} bytes of memory are free: import the "
            "file with job=import, which reads it in pieces, or take a machine with more memory"
        )


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
        except (*_BAD_ZIP, OSError) as error:
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
