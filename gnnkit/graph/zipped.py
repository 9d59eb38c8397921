"""Reader for .npz archives."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.utils.documents import check_regular
from gnnkit.utils.memory import available_memory
from gnnkit.utils.storage import Array, check_npy

# zipfile's exceptions for files that are not valid archives.
BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)
_SMALL = 1 << 24  # arrays up to this size are read without a memory check


class Arrays:
    """The arrays of an .npz file. Headers are checked against the file size."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        try:
            self.file = zipfile.ZipFile(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except BAD_ZIP as error:
            raise UserError(f"not an .npz file: {error}") from error

    def __enter__(self) -> Arrays:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [name.removesuffix(".npy") for name in self.file.namelist()]

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self.file.namelist()

    def __getitem__(self, name: str) -> Array:
        with self.open(name) as (file, (shape, _, dtype)):
            _check_memory(name, math.prod(shape) * dtype.itemsize, self.file.getinfo(f"{name}.npy").compress_size)
            file.seek(0)
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def optional(self, name: str) -> Array | None:
        """Reads an array. Returns None if it is missing."""
        return self[name] if name in self else None  # noqa: SIM401 - there is no `get`

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[IO[bytes], tuple[tuple[int, ...], bool, np.dtype[Any]]]]:
        """Opens an array, and yields its file with the checked header."""
        if name not in self:
            raise UserError(f"no array {name!r}, only {sorted(self.file.namelist())}")
        info = self.file.getinfo(f"{name}.npy")
        try:
            with self.file.open(info) as file:
                # Deflate compresses at most by this ratio.
                yield file, check_npy(file, min(info.file_size, info.compress_size * 1032), name)
        except (*BAD_ZIP, OSError) as error:
            raise UserError(f"{name} cannot be read: {error}") from error


def _check_memory(name: str, size: int, packed_size: int) -> None:
    """Raises `UserError` for an array that exceeds free memory.

    A file of 8 MB may unpack to 8 GB. Any ratio is accepted if the memory suffices.
    """
    room = available_memory()
    if size > _SMALL and size > room:
        raise UserError(
            f"{name} unpacks from {packed_size:,} to {size:,} bytes, and {room:,.0f} bytes of memory are free: import the "
            "file with job=import, which reads it in pieces, or take a machine with more memory"
        )
