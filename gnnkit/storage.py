"""Arrays in files: a folder with one .npy per field, written whole or not at all, and memory-mapped back."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_META = "meta.json"
# NumPy parses headers as Python, and CPython 3.11 counts the depth for all threads together and gets it wrong.
_reading = threading.Lock()
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check_npy(file: IO[bytes], size: int, name: str) -> None:
    """Checks that the .npy in `file` holds what its header promises within `size` bytes, before anything is allocated.

    Raises `ValueError` naming `name` for anything else, and for arrays of Python objects.
    """
    try:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except (ValueError, TypeError, KeyError, SyntaxError, OverflowError) as error:
        raise ValueError(f"{name} is not a .npy array: {error}") from None
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which only pickle could read")
    promised = file.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or promised > size:
        raise ValueError(f"{name} promises shape {shape} of {dtype}, {promised} bytes, but has {size}")


def read_npy(path: Path) -> Array:
    """The array of a .npy file, memory-mapped read-only. Raises `ValueError` naming the file."""
    try:
        with _reading, path.open("rb") as file:
            check_npy(file, path.stat().st_size, str(path))
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def expect_random_reads(array: Array | None) -> None:
    """Tells the system not to read ahead in the file that `array` is mapped from, if it is.

    Else each read brings 32 pages: of a graph larger than memory, a batch would read most of the file.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        owner.madvise(mmap.MADV_RANDOM)


def forget_pages(array: Array) -> None:
    """Lets go of the pages of a mapped file that this process has touched.

    The file keeps what was written, and later reads bring the pages back. Does nothing for
    arrays in memory.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def save_arrays(folder: Path, arrays: Mapping[str, Array | None], meta: Mapping[str, Any]) -> None:
    """Writes the arrays that are not None, and `meta` as JSON, into `folder`. A reader finds all of it or nothing.

    An earlier folder of arrays is replaced; anything else of that name raises `ValueError`.
    """
    if folder.exists() and not _is_ours(folder):
        raise ValueError(f"{folder} exists and holds something else: it will not be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(folder)
    temporary.mkdir()
    try:
        for name, array in arrays.items():
            if array is not None:
                with _synced(temporary / f"{name}.npy") as file:
                    np.save(file, array, allow_pickle=False)
        with _synced(temporary / _META) as file:
            file.write(json.dumps(meta).encode())
        _sync_folder(temporary)
        _move(temporary, folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_arrays(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays of a folder, memory-mapped read-only, and its `meta`. Raises `ValueError` naming the file at fault."""
    try:
        meta = json.loads((folder / _META).read_bytes())
    except OSError as error:
        raise ValueError(f"{folder / _META}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{folder / _META} is not JSON: {error}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{folder / _META} holds no JSON object")
    return {path.stem: read_npy(path) for path in sorted(folder.glob("*.npy"))}, meta


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and ((folder / _META).is_file() or not any(folder.iterdir()))


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file. The file has its old content or the new one, whatever happens in between."""
    temporary = _beside(path)
    try:
        with _synced(temporary) as file:
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(folder: Path) -> Path:
    """A new name on the same file system, so that a rename is one step."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")


def _move(temporary: Path, folder: Path) -> None:
    """A folder that holds files cannot be renamed over, so an earlier one steps aside first."""
    while True:
        try:
            return os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        aside = _beside(folder)
        with suppress(FileNotFoundError):  # another writer moved it
            os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
