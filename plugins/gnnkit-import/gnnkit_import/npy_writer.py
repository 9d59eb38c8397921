"""Arrays on disk that are written piece by piece."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import one_line

T = TypeVar("T")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raises `UserError` with the file and the remedy for a full or failing disk."""
    try:
        yield
    except OSError as error:
        raise UserError(
            one_line(f"{error.filename or path}: {error.strerror}: fix this, then run the same command again to resume")
        ) from error


class BinaryFile:
    """A file that is read and written at any offset. Errors name the file."""

    def __init__(self, path: Path) -> None:
        """Opens the file, which is created if missing."""
        self.path = path
        with disk_errors(path):
            self._file = io.FileIO(path, "r+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o644))

    def write(self, values: Array, offset: int) -> None:
        """Writes the bytes of an array at an offset.

        Raises `UserError` if the disk is full.
        """
        rest = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        with disk_errors(self.path):
            while rest:
                written = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[written:], offset + written

    def read(self, shape: Sequence[int], dtype: npt.DTypeLike, offset: int) -> Array:
        """Reads an array. Raises `UserError` for too few bytes."""
        count = math.prod(shape)
        values = np.fromfile(self.path, dtype, count, offset=offset)
        if missing := (count - len(values)) * values.itemsize:
            place = offset + values.nbytes
            raise UserError(f"{self.path} has no {missing:,} bytes at {place:,}: it was changed by another program")
        return values.reshape(shape)

    def commit(self) -> None:
        """Syncs the file to disk."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())

    def truncate(self, size: int) -> None:
        """Drops all bytes after the first `size`."""
        os.ftruncate(self._file.fileno(), size)

    def close(self) -> None:
        self._file.close()


class ColumnFiles:
    """Rows in one file per column, which are read and written at any row."""

    def __init__(self, folder: Path, suffix: str, kinds: Mapping[str, np.dtype[Any]]) -> None:
        """Opens the files, which are created if missing.

        Args:
            folder: Folder of the files.
            suffix: Ending of their names, after the column's name.
            kinds: Each column's type, including the shape of a row.
        """
        self.kinds = dict(kinds)
        self._files = {name: BinaryFile(folder / f"{name}.{suffix}") for name in kinds}

    def write(self, rows: Mapping[str, Array], first: int) -> None:
        """Writes rows from row `first` on."""
        for name, file in self._files.items():
            file.write(rows[name], first * self.kinds[name].itemsize)

    def read(self, first: int, count: int) -> dict[str, Array]:
        """Reads `count` rows from row `first` on, by column."""
        return {
            name: file.read((count, *kind.shape), kind.base, first * kind.itemsize)
            for (name, file), kind in zip(self._files.items(), self.kinds.values(), strict=True)
        }

    def commit(self) -> None:
        """Syncs the files to disk."""
        for file in self._files.values():
            file.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


class NpyWriter:
    """Appends rows to an .npy file, which is complete after `finish`."""

    def __init__(
        self, path: Path, dtype: npt.DTypeLike, width: tuple[int, ...] = (), done: int = 0, *, alone: bool = True
    ) -> None:
        """Opens the file.

        Args:
            path: the file.
            dtype: type of the numbers.
            width: shape of a row.
            done: number of rows that the file already has.
            alone: drop later rows. False: other processes write these.
        """
        self.dtype, self._width, self.num_rows = np.dtype(dtype), width, done
        self._header_size = len(self._header())
        self._row = self.dtype.itemsize * int(np.prod(width))
        self._file = BinaryFile(path)
        if alone:
            self._file.truncate(self._header_size + done * self._row)

    def append(self, values: Array) -> None:
        """Writes rows after the last one."""
        self._file.write(values.astype(self.dtype, copy=False), self._header_size + self.num_rows * self._row)
        self.num_rows += len(values)

    def commit(self) -> None:
        self._file.commit()

    def finish(self) -> None:
        """Writes the header, as `np.save` would."""
        self._file.write(np.frombuffer(self._header(), np.uint8), 0)
        self._file.commit()
        self.close()

    def close(self) -> None:
        self._file.close()

    def _header(self) -> bytes:  # NumPy pads it, so its size is the same for any number of rows
        buffer = io.BytesIO()
        fields = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.num_rows, *self._width),
        }
        np.lib.format.write_array_header_1_0(buffer, fields)
        return buffer.getvalue()


def append_all(arrays: Mapping[str, NpyWriter], rows: Mapping[str, Array]) -> None:
    """Appends rows to several arrays, by name."""
    for name, values in rows.items():
        arrays[name].append(values)


def write_behind(write: Callable[[T], None], items: Iterable[T]) -> None:
    """Writes items in a thread, one at a time, while the next item is computed."""
    with ThreadPoolExecutor(1, "behind") as writer:
        last: Future[None] | None = None
        for item in items:
            if last is not None:
                last.result()
            last = writer.submit(write, item)
        if last is not None:
            last.result()
