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

from gnnkit.checks import Array
from gnnkit.errors import UserError


class File:
    """Bytes at any place of a file. Errors name the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = io.FileIO(path, "r+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o644))
        except OSError as error:
            raise self._failed(error) from error

    def write(self, values: Array, place: int) -> None:
        """Writes the bytes of an array at a place.

        Raises `UserError` where the disk takes no more.
        """
        rest = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, place)
                rest, place = rest[written:], place + written
        except OSError as error:
            raise self._failed(error) from error

    def read(self, shape: Sequence[int], dtype: npt.DTypeLike, place: int) -> Array:
        """Reads an array. Raises `UserError` for too few bytes."""
        found = np.empty(tuple(shape), dtype)
        rest = found.reshape(-1).view(np.uint8).data
        while rest:
            read = os.preadv(self._file.fileno(), [rest], place)
            if not read:
                raise UserError(
                    f"{self.path} has no {len(rest):,} bytes at {place:,}: it was changed by another program"
                )
            rest, place = rest[read:], place + read
        return found

    def commit(self) -> None:
        """Brings what was written to the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def cut(self, size: int) -> None:
        """Drops all bytes behind the first `size`."""
        os.ftruncate(self._file.fileno(), size)

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> UserError:
        return UserError(
            f"{self.path}: {error.strerror}: the same command goes on from what is finished, once there is room"
        )


class Rows:
    """An .npy of rows that are appended. The file is whole after `finish`."""

    def __init__(
        self, path: Path, dtype: npt.DTypeLike, width: tuple[int, ...] = (), done: int = 0, *, alone: bool = True
    ) -> None:
        """Opens the file.

        Args:
            path: the file.
            dtype: of the numbers.
            width: shape of a row.
            done: rows that are written already, before those that are appended.
            alone: drop later rows. Otherwise other processes write these.
        """
        self.dtype, self._width, self.num_rows = np.dtype(dtype), width, done
        self._header = len(self._head())
        self._row = self.dtype.itemsize * int(np.prod(width))
        self._file = File(path)
        if alone:
            self._file.cut(self._header + done * self._row)

    def append(self, values: Array) -> None:
        """Writes rows behind the others."""
        self._file.write(values.astype(self.dtype, copy=False), self._header + self.num_rows * self._row)
        self.num_rows += len(values)

    def commit(self) -> None:
        self._file.commit()

    def finish(self) -> None:
        """Writes the header, as `np.save` would."""
        self._file.write(np.frombuffer(self._head(), np.uint8), 0)
        self._file.commit()
        self.close()

    def close(self) -> None:
        self._file.close()

    def _head(self) -> bytes:  # NumPy leaves room for the digits of any number of rows
        head = io.BytesIO()
        shape = (self.num_rows, *self._width)
        described: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(head, described)
        return head.getvalue()


def append_all(arrays: Mapping[str, Rows], found: Mapping[str, Array]) -> None:
    """Writes rows behind those of several arrays, by name."""
    for name, values in found.items():
        arrays[name].append(values)


class Behind:
    """Does one thing after the other, beside the caller.

    Raises the error of a thing where the next one is given, or at the end.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "behind")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if failed is None:
                self.wait()
        finally:
            self._pool.shutdown()

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Begins a thing, once the one before is done."""
        self.wait()
        self._last = self._pool.submit(work, *arguments)

    def wait(self) -> None:
        """Waits until all is done."""
        last, self._last = self._last, None
        if last is not None:
            last.result()
