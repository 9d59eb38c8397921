"""Arrays in files."""

from __future__ import annotations

import errno
import io
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.utils import storage
from gnnkit.utils.storage import Array, reserve, save_array, save_arrays


def test_an_array_is_read_although_another_thread_parses_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(5))
    failures, load = [SystemError("AST constructor recursion depth mismatch")] * 2, np.load

    def sometimes(*args: Any, **keys: Any) -> Any:
        if failures:
            raise failures.pop()
        return load(*args, **keys)

    monkeypatch.setattr(np, "load", sometimes)
    assert storage.read_npy(tmp_path / "ids.npy").tolist() == [0, 1, 2, 3, 4]
    assert not failures


def limited(work: Callable[[], object], size: int) -> list[str]:
    """Does some work where a file may have `size` bytes, as on a full disk.

    Returns what the error says, nothing for work that is done.
    """

    def told() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            work()
        except OSError as error:
            os.write(1, f"{error.strerror}: {error.filename}".encode())

    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writes, 1)
        told()
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as file:
        return file.read().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("missing", [1, 100, 5000])
def test_a_disk_that_is_full_is_told_by_file_for_the_last_bytes_too(missing: int, tmp_path: Path) -> None:
    path, array = tmp_path / "x.npy", np.arange(2000)
    size = 128 + array.nbytes
    assert limited(lambda: save_array(path, array), size) == []
    assert path.read_bytes() == npy(array)
    assert limited(lambda: save_array(path, array), size - missing) == [f"File too large: {path}"]
    (line,) = limited(lambda: save_arrays(tmp_path / "all", {"x": array}, {}), size - missing)
    assert line.startswith(f"File too large: {tmp_path}/")
    assert line.endswith("x.npy")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), np.float16),
        np.array(["a", "bcd"]),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(7),
    ],
)
def test_arrays_are_written_as_numpy_writes_them(array: Array, tmp_path: Path) -> None:
    save_array(tmp_path / "x.npy", array)
    assert (tmp_path / "x.npy").read_bytes() == npy(array)


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_a_file_that_is_mapped_has_its_room_before(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    assert path.stat().st_blocks == 0
    reserve(path)
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_a_reader_that_fails_again_and_again_tells_the_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(5))

    def never(*_: Any, **__: Any) -> Any:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(np, "load", never)
    with pytest.raises(SystemError, match="recursion depth"):
        storage.read_npy(tmp_path / "ids.npy")


def test_room_is_taken_where_the_file_system_can_and_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.touch()
    reserve(path)  # no byte, no room
    path.write_bytes(bytes(9))
    code = errno.EOPNOTSUPP

    def allocate(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    reserve(path)  # a file system that cannot: nothing is lost
    assert path.read_bytes() == bytes(9)
    code = errno.ENOSPC
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        reserve(path)


def test_a_user_without_a_home_has_no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert storage.cache_folder() == tmp_path / ".cache/gnnkit"
    monkeypatch.setenv("HOME", "nowhere")
    assert storage.cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert storage.cache_folder() == Path("/cache/gnnkit")


def test_a_folder_that_cannot_be_put_in_place_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_arrays(tmp_path / "graph", {"x": np.arange(3)}, {})

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        save_arrays(tmp_path / "graph", {"x": np.arange(4)}, {})
    assert storage.load_arrays(tmp_path / "graph")[0]["x"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
