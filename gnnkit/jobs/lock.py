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

NAME = ".lock"  # in the folder, while a process writes there
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of some network file systems


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder, and holds it for this process and those that it forks.

    The system lets go of the lock when these have ended, however they end. Raises
    `UserError` that names the process where another one holds the folder.
    """
    path = folder / NAME
    descriptor = _taken(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing leaves the lock to forked processes
        os.close(descriptor)


def _taken(path: Path) -> int:
    """Opens and locks the file. Returns the descriptor."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # another process has removed the folder again
            continue
        except OSError as error:
            raise UserError(
                f"cannot make the run folder {path.parent}: {error.strerror}: name a folder that you may write with "
                "output=FOLDER"
            ) from error
        _lock(descriptor, path)
        if _is_at(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        os.close(descriptor)  # of a file that its holder has removed meanwhile


def _lock(descriptor: int, path: Path) -> None:
    """Locks an open file. Raises `UserError` that names who holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            say(f"{path.parent}: the file system has no locks, so nothing keeps another run out of this folder")
            return
        holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise UserError(
            f"cannot use the run folder {path.parent}: {holder} writes there now: wait for its end, or choose another "
            "folder"
        ) from error


def _is_at(path: Path, descriptor: int) -> bool:
    """Tells whether the open file still has this name."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


_OTHERS = 0o077  # permissions of the group and of everybody


@contextmanager
def apply_permissions(permissions: str) -> Iterator[None]:
    """Creates folders with 0700 and files with 0600, under `permissions=private`.

    Processes that are started meanwhile do so too. Under `shared`, the user's umask
    decides. The umask belongs to the process, so files that other threads create
    meanwhile are private too.
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
