"""Access to a run folder: one writing process at a time, and file permissions."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.launch.phases import say

NAME = ".lock"  # present while a process writes
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # raised by some network file systems


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates a folder and locks it for this process and its forks.

    The operating system releases the lock when they end, even after a crash. If another
    process holds the lock, raises a `UserError` with its process id.
    """
    path = folder / NAME
    descriptor = _open_locked(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave the lock to forked processes
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """Opens and locks the file. Returns the file descriptor."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open(path)
        except OSError as error:
            raise UserError(
                f"cannot make the run folder {path.parent}: {error.strerror}: set output=FOLDER to a writable folder"
            ) from error
        if descriptor is None:
            continue
        _lock(descriptor, path)
        if _is_at(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        os.close(descriptor)  # the previous holder has just removed this file


def _open(path: Path) -> int | None:
    """Opens the file. Returns None if another process has just removed its folder."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        if path.parent.is_dir():
            raise
        return None


def _lock(descriptor: int, path: Path) -> None:
    """Locks an open file. Raises `UserError` with the current holder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            say(
                f"{path.parent}: the file system has no locks, so another run can write to this folder at the same time"
            )
            return
        holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise UserError(
            f"cannot use the run folder {path.parent}: {holder} is writing there: wait until it ends, or choose another "
            "folder"
        ) from error


def _is_at(path: Path, descriptor: int) -> bool:
    """Returns whether the open file still has this path."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


_OTHERS = 0o077  # permissions of group and others


@contextmanager
def apply_permissions(permissions: str) -> Iterator[None]:
    """Creates folders as 0700 and files as 0600 under `permissions=private`.

    Under `shared`, the user's umask applies. The umask is a process setting, so it also
    applies to child processes and other threads.
    """
    if permissions == "shared":
        yield
        return
    before = os.umask(_OTHERS)
    os.umask(before | _OTHERS)
    try:
        yield
    finally:
        os.umask(before)
