"""Arrays on disk that are written piece by piece."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.utils.checks import Array


class BinaryFile:
    """A file that is read and written at any offset. Errors name the file."""

    def __init__(self, path: Path) -> None:
        """Opens the file, which is created if missing."""
        self.path = path
        try:
            self._file = io.FileIO(path, "r+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o644))
        except OSError as error:
            raise self._failed(error) from error

    def write(self, values: Array, offset: int) -> None:
        """Writes the bytes of an array at an offset.

        Raises `UserError` if the disk is full.
        """
        rest = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError as error:
            raise self._failed(error) from error

    def read(self, shape: Sequence[int], dtype: npt.DTypeLike, offset: int) -> Array:
        """Reads an array. Raises `UserError` for too few bytes."""
        values = np.empty(tuple(shape), dtype)
        rest = values.reshape(-1).view(np.uint8).data
        while rest:
            read = os.preadv(self._file.fileno(), [rest], offset)
            if not read:
                raise UserError(
                    f"{self.path} has no {len(rest):,} bytes at {offset:,}: it was changed by another program"
                )
            rest, offset = rest[read:], offset + read
        return values

    def commit(self) -> None:
        """Syncs the file to disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def truncate(self, size: int) -> None:
        """Drops all bytes after the first `size`."""
        os.ftruncate(self._file.fileno(), size)

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> UserError:
        return UserError(f"{self.path}: {error.strerror}: free disk space, then run the same command again to resume")


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


class BackgroundTask:
    """Runs one task at a time in a thread.

    Raises a task's error when the next one starts, or at the end.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "background")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if failed is None:
                self.wait()
        finally:
            self._pool.shutdown()

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Starts a task after the previous one has finished."""
        self.wait()
        self._last = self._pool.submit(work, *arguments)

    def wait(self) -> None:
        """Waits for the last task."""
        last, self._last = self._last, None
        if last is not None:
            last.result()
