"""Folders of memory-mapped arrays, one .npy each, written atomically."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import secrets
import shutil
import sys
import threading
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.utils.documents import Json, check_regular, read_object

Array = npt.NDArray[Any]

META = "meta.json"
# NumPy parses headers as Python. CPython 3.11 counts the parser's depth over all
# threads, and raises SystemError if another thread parses at the same time.
_reading = threading.Lock()
_PASSING = ContextVar("passing", default=False)
_PAGES = 1 << 14  # pages read at a time
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[np.generic]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check_npy(file: IO[bytes], size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Checks a .npy file's size against its header, before allocating memory.

    Returns the shape, whether it is in Fortran order, and the dtype. Raises `UserError`
    for a truncated file, and for arrays of Python objects.

    Args:
        file: The file, positioned at the start of the .npy data.
        size: Size of the file in bytes.
        name: Name of the file or array, for the message.
    """
    try:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, tokenize.TokenError) as error:
        raise UserError(f"{name} is not a .npy array: {error}") from error
    if dtype.hasobject:
        raise UserError(f"{name} holds Python objects, which only pickle could read")
    num_bytes = file.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or num_bytes > size:
        raise UserError(f"{name} promises shape {shape} of {dtype}, {num_bytes} bytes, but has {size}")
    return shape, by_column, dtype


def npy_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns the result of `check_npy` for a file, and the offset of its data.

    Used to read files in pieces. Raises `UserError`, which names the file.
    """
    check_regular(path)
    try:
        with _reading, path.open("rb") as file:
            return *check_npy(file, path.stat().st_size, str(path)), file.tell()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def read_npy(path: Path) -> Array:
    """Maps a .npy file's array, read-only. Raises `UserError`, which names the file."""
    check_regular(path)
    for _ in range(100):
        with suppress(SystemError):
            return _map(path)
    return _map(path)


def array_or_file(key: str, value: npt.ArrayLike | str) -> npt.ArrayLike:
    """Returns a configured array, or maps the .npy file that a string names.

    Raises `UserError` with `key` if the file cannot be read.
    """
    if not isinstance(value, str):
        return value
    try:
        return read_npy(Path(value))
    except UserError as error:
        raise UserError(f"{key}={value} cannot be read: {error}") from error


def _map(path: Path) -> Array:
    try:
        with _reading, path.open("rb") as file:
            check_npy(file, path.stat().st_size, str(path))
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def mapped_file(array: Array) -> tuple[Path, int] | None:
    """Returns the file from which an array is mapped, and the offset of its data.

    Returns None for an array in memory, and for an array that is not a contiguous range
    of the mapping.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or not array.flags.c_contiguous:
        return None
    begin = array.ctypes.data - owner.ctypes.data if array.size else 0
    return Path(owner.filename), owner.offset + begin


def expect_random_reads(array: Array | None) -> None:
    """Disables read-ahead for a mapped array's file.

    Otherwise, each read would fetch 32 pages, so a batch would read most of a file
    larger than memory.
    """
    _advise(array, "MADV_RANDOM")


def bring_pages(array: Array) -> None:
    """Reads a mapped file into memory sequentially.

    The ranks of a host share the pages. Does nothing for arrays in memory.
    """
    if mapped_file(array) is not None and array.size:
        pages = array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE]
        for first in range(0, len(pages), _PAGES):
            int(pages[first : first + _PAGES].max())


def forget_pages(array: Array) -> None:
    """Releases a mapped file's pages from this process.

    Written data stay in the file, and later reads fetch the pages again. Does nothing
    for arrays in memory.
    """
    _advise(array, "MADV_DONTNEED")


def _advise(array: Array | None, advice: str) -> None:
    """Calls `madvise` on a mapped file, if the system supports the advice."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, advice):
        owner.madvise(getattr(mmap, advice))


def save_array(path: Path, array: Array) -> None:
    """Writes a .npy file. Raises `OSError`, which names the file, if the disk is full.

    `np.save` leaves the last 4 KB in a C buffer and ignores errors when flushing it,
    which would truncate the file without an error.
    """
    with open_file(path) as file:
        np.save(_Piecewise(file), array, allow_pickle=False)


class _Piecewise:
    """A file object that NumPy writes to through Python."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def reserve(path: Path) -> None:
    """Allocates disk space for all bytes of a sparse file to be mapped.

    Raises `OSError`, which names the file, if the disk is full. Without this, writing
    to a mapped page on a full disk would kill the process (SIGBUS).
    """
    if not path.stat().st_size or not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system does not support it
                raise OSError(error.errno, error.strerror, str(path)) from error


def save_arrays(folder: Path, arrays: Mapping[str, Array | None], meta: Mapping[str, object]) -> None:
    """Writes arrays and `meta` into a folder, atomically.

    Replaces an existing folder of arrays. Raises `UserError` if `folder` is anything
    else.

    Args:
        folder: The folder.
        arrays: Arrays by name. None is omitted.
        meta: Plain data for JSON.
    """
    with whole_folder(folder, meta) as temporary:
        for name, array in arrays.items():
            if array is not None:
                save_array(temporary / f"{name}.npy", array)
                _sync(temporary / f"{name}.npy")


@contextmanager
def whole_folder(folder: Path, meta: Mapping[str, object]) -> Iterator[Path]:
    """Creates a folder for arrays, which replaces `folder` when everything is written.

    Args:
        folder: The folder, as for `save_arrays`.
        meta: Plain data for JSON.
    """
    if folder.exists() and not _is_ours(folder):
        raise UserError(f"{folder} exists and holds something else: it will not be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(folder)
    temporary.mkdir()
    try:
        yield temporary
        with open_synced(temporary / META) as file:
            file.write(json.dumps(meta).encode())
        _sync(temporary)
        _move(temporary, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_meta(folder: Path, meta: Mapping[str, object]) -> None:
    """Writes `meta`, which completes a folder with separately written arrays."""
    write_atomically(folder / META, json.dumps(meta).encode())


def load_arrays(folder: Path) -> tuple[dict[str, Array], Json]:
    """Maps a folder's arrays, read-only, and reads `meta`.

    Raises `UserError`, which names the faulty file.
    """
    meta = read_object(folder / META)
    return {path.stem: read_npy(path) for path in sorted(folder.glob("*.npy"))}, meta


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and ((folder / META).is_file() or not any(folder.iterdir()))


def write_atomically(path: Path, *content: bytes | memoryview, within: Path | None = None) -> None:
    """Replaces a file atomically: readers see either the old or the new content.

    Args:
        path: The file.
        *content: The new content, in pieces.
        within: Folder for the temporary file, on the same file system. Default: the
            file's folder.
    """
    temporary = _beside(path if within is None else within / path.name)
    try:
        with open_synced(temporary) as file:
            for piece in content:
                file.write(piece)
        put_in_place(temporary, path)
    except OSError as error:  # names the final file, because users do not know the temporary one
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, path: Path) -> None:
    """Renames a temporary file to `path`."""
    temporary.replace(path)
    _sync(path.parent)


def cache_folder() -> Path | None:
    """Returns this platform's cache folder, or None for a user without a home."""
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "gnnkit"
    home = Path(os.path.expanduser("~"))  # Path.home raises if there is none
    if not home.is_absolute():
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "gnnkit/Cache"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "gnnkit"


@contextmanager
def passing() -> Iterator[None]:
    """Writes arrays without waiting for the disk.

    Use it for files that are not needed after a crash of the machine.
    """
    token = _PASSING.set(True)
    try:
        yield
    finally:
        _PASSING.reset(token)


def sync_files(folder: Path) -> None:
    """Waits until a folder's files are on disk."""
    for path in (*folder.rglob("*"), folder):
        _wait_for(path)


@contextmanager
def open_synced(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file for writing, and waits until it is on disk at the end."""
    with open_file(path) as file:
        yield file
    _sync(path)


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file for writing. Errors name the file."""
    with naming(path), path.open("wb") as file:
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the file or folder to disk errors that do not name one.

    A failed write to an open file does not name it.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _UNNAMED:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


_UNNAMED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # errors of writing to an open file


class Lines:
    """A file of lines, each of which is written immediately."""

    def __init__(self, path: Path) -> None:
        """Opens the file for appending. Errors in each method name it."""
        self.path = path
        self._file = path.open("ab", buffering=0)

    def add(self, line: str) -> None:
        """Writes a line. Does nothing after the file was closed."""
        if self._file.closed:
            return
        content = memoryview(f"{line}\n".encode())
        with naming(self.path):
            while content:
                content = content[self._file.write(content) :]

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _sync(path: Path) -> None:
    if not _PASSING.get():
        _wait_for(path)


def _wait_for(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(folder: Path) -> Path:
    """Returns a temporary name on the same file system, so that a rename is atomic."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")


def _move(temporary: Path, folder: Path) -> None:
    """Renames `temporary` to `folder`.

    An existing folder is moved away first, because a folder cannot replace another.
    """
    while True:
        try:
            return os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        aside = _beside(folder)
        with suppress(FileNotFoundError):  # another writer has moved it
            os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
