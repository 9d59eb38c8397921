"""Arrays in a folder, one .npy each, written whole or not at all, and memory-mapped."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gnnkit.documents import check_regular, read_object
from gnnkit.errors import UserError

Array = npt.NDArray[Any]

META = "meta.json"
# NumPy parses headers as Python. CPython 3.11 counts the depth of all threads at once,
# and raises SystemError if another thread parses at the same moment.
_reading = threading.Lock()
_PASSING = ContextVar("passing", default=False)
_TRIES = 100
_PAGES = 1 << 14  # that are brought at a time
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check_npy(file: IO[bytes], size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Checks a .npy file against the size in the header, before allocating anything.

    Returns shape, whether columns stand one behind the other, and type. Raises
    `UserError` for too few bytes, and for arrays of Python objects.

    Args:
        file: The file, at the begin of the .npy.
        size: Bytes of the file.
        name: Name of the file or array, for the message.
    """
    try:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except (ValueError, TypeError, KeyError, SyntaxError, OverflowError) as error:
        raise UserError(f"{name} is not a .npy array: {error}") from error
    if dtype.hasobject:
        raise UserError(f"{name} holds Python objects, which only pickle could read")
    promised = file.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or promised > size:
        raise UserError(f"{name} promises shape {shape} of {dtype}, {promised} bytes, but has {size}")
    return shape, by_column, dtype


def npy_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns what `check_npy` does of a file, and the place of the first number.

    For files that are read piece by piece. Raises `UserError` naming the file.
    """
    check_regular(path)
    try:
        with _reading, path.open("rb") as file:
            return *check_npy(file, path.stat().st_size, str(path)), file.tell()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def read_npy(path: Path) -> Array:
    """Maps the array of a .npy file, read-only. Raises `UserError` naming the file."""
    check_regular(path)
    for _ in range(_TRIES):
        with suppress(SystemError):
            return _map(path)
    return _map(path)


def _map(path: Path) -> Array:
    try:
        with _reading, path.open("rb") as file:
            check_npy(file, path.stat().st_size, str(path))
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def mapped_file(array: Array) -> tuple[Path, int] | None:
    """Finds the file that an array is mapped from, and the place of its first number.

    None for an array in memory, and for one that is no range of the mapped numbers.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or not array.flags.c_contiguous:
        return None
    begin = array.ctypes.data - owner.ctypes.data if array.size else 0
    return Path(owner.filename), owner.offset + begin


def expect_random_reads(array: Array | None) -> None:
    """Tells the system not to read ahead in a file that `array` is mapped from.

    Otherwise each read brings 32 pages, and a batch would read most of a file that is
    larger than memory.
    """
    _advise(array, "MADV_RANDOM")


def bring_pages(array: Array) -> None:
    """Reads a mapped file into memory, from its begin to its end.

    Ranks of a host share the pages. Does nothing for arrays in memory.
    """
    if mapped_file(array) is not None and array.size:
        pages = array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE]
        for first in range(0, len(pages), _PAGES):
            int(pages[first : first + _PAGES].max())


def forget_pages(array: Array) -> None:
    """Lets go of the pages of a mapped file that this process has touched.

    The file keeps written data, and later reads bring the pages back. Does nothing for
    arrays in memory.
    """
    _advise(array, "MADV_DONTNEED")


def _advise(array: Array | None, advice: str) -> None:
    """Gives the system an advice on a mapped file, if the system knows the advice."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, advice):
        owner.madvise(getattr(mmap, advice))


def save_array(path: Path, array: Array) -> None:
    """Writes an .npy. Raises `OSError` that names the file where the disk is full.

    `np.save` leaves the last 4 KB to a buffer of C, and does not hear when these find
    no room: the file is shorter, and nothing says so.
    """
    with opened(path) as file:
        np.save(_Piecewise(file), array, allow_pickle=False)


class _Piecewise:
    """A file that NumPy does not know as one, and so writes to by Python."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def reserve(path: Path) -> None:
    """Takes the room on the disk for all bytes of a sparse file, to be mapped.

    Raises `OSError` that names the file where the disk is full. Later a write to a
    mapped page without room would end the process (SIGBUS).
    """
    if not path.stat().st_size or not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
                raise OSError(error.errno, error.strerror, str(path)) from error


def save_arrays(folder: Path, arrays: Mapping[str, Array | None], meta: Mapping[str, Any]) -> None:
    """Writes arrays and `meta` into a folder. A reader finds all or nothing.

    Replaces an earlier folder of arrays. Raises `UserError` for anything else of this
    name.

    Args:
        folder: The folder.
        arrays: Arrays by name. None is left out.
        meta: Plain data for JSON.
    """
    with whole_folder(folder, meta) as temporary:
        for name, array in arrays.items():
            if array is not None:
                save_array(temporary / f"{name}.npy", array)
                _sync(temporary / f"{name}.npy")


@contextmanager
def whole_folder(folder: Path, meta: Mapping[str, Any]) -> Iterator[Path]:
    """Makes a folder for arrays, which takes the place of `folder` when all is written.

    Args:
        folder: The folder, like that of `save_arrays`.
        meta: Plain data for JSON.
    """
    if folder.exists() and not _is_ours(folder):
        raise UserError(f"{folder} exists and holds something else: it will not be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(folder)
    temporary.mkdir()
    try:
        yield temporary
        with synced(temporary / META) as file:
            file.write(json.dumps(meta).encode())
        _sync(temporary)
        _move(temporary, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Completes a folder whose arrays were written one by one, with `meta`."""
    write_atomically(folder / META, json.dumps(meta).encode())


def load_arrays(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Maps the arrays of a folder, read-only, and reads `meta`.

    Raises `UserError` naming the file at fault.
    """
    meta = read_object(folder / META)
    return {path.stem: read_npy(path) for path in sorted(folder.glob("*.npy"))}, meta


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and ((folder / META).is_file() or not any(folder.iterdir()))


def write_atomically(path: Path, *content: bytes | memoryview, within: Path | None = None) -> None:
    """Replaces a file. At any time, the file has the old content or the new.

    Args:
        path: The file.
        *content: The new content, in pieces.
        within: Folder on the same file system in which the file is made. Default: its
            own.
    """
    temporary = _beside(path if within is None else within / path.name)
    try:
        with synced(temporary) as file:
            for piece in content:
                file.write(piece)
        put_in_place(temporary, path)
    except OSError as error:  # of a file that the user has never heard of
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, path: Path) -> None:
    """Replaces the file at `path` by another one, which loses its name."""
    temporary.replace(path)
    _sync(path.parent)


def cache_folder() -> Path | None:
    """Finds this platform's cache folder. Returns None for a user without a home."""
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "gnnkit"
    home = Path(os.path.expanduser("~"))  # Path.home raises where there is none
    if not home.is_absolute():
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "gnnkit/Cache"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "gnnkit"


@contextmanager
def passing() -> Iterator[None]:
    """Writes arrays without waiting for the disk.

    For files that nobody reads once the machine has stopped.
    """
    token = _PASSING.set(True)
    try:
        yield
    finally:
        _PASSING.reset(token)


def sync_files(folder: Path) -> None:
    """Waits until the files of a folder are on the disk."""
    for path in (*folder.rglob("*"), folder):
        _wait_for(path)


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file to be written, which is on the disk after the block."""
    with opened(path) as file:
        yield file
    _sync(path)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file to be written. Errors name the file."""
    with naming(path), path.open("wb") as file:
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises an error of a disk that names the file or folder for one that does not.

    A write that finds no room says nothing of the file.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _UNNAMED:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def of_disk(error: OSError) -> UserError | None:
    """Returns the error of a disk, with the file and what to do about it.

    None for other errors, and for those that name no file.
    """
    cure = _CURES.get(error.errno or 0)
    if cure is None or error.filename is None:
        return None
    return UserError(f"{error.filename}: {error.strerror}: {cure}")


_ROOM = "free some, or name a folder on another disk with output=FOLDER; on_exists=resume goes on from a checkpoint"
_WRITABLE = "change its permissions, or name a folder that you may write with output=FOLDER"
_CURES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EIO: "check the disk or its network, or name a folder on another disk with output=FOLDER",
}


_UNNAMED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # of writing to an open file


class Lines:
    """A file that grows line by line, each of which is written at once."""

    def __init__(self, path: Path) -> None:
        """Opens the file at its end. Errors of each method name it."""
        self.path = path
        self._file = path.open("ab", buffering=0)

    def add(self, line: str) -> None:
        """Writes a line. Does nothing once the file is closed."""
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
    """Makes up a name on the same file system, so that a rename is one step."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")


def _move(temporary: Path, folder: Path) -> None:
    """Renames `temporary` to `folder`.

    An earlier folder steps aside first, because a folder cannot replace another.
    """
    while True:
        try:
            return os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        aside = _beside(folder)
        with suppress(FileNotFoundError):  # moved by another writer
            os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
