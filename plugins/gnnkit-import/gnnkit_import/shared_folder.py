"""Processes on several hosts that cooperate through a folder on a shared disk.

Each process writes a heartbeat file twice a second, so the others stop within seconds
of its death. No clocks, ports or locks are needed.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gnnkit.errors import UserError
from gnnkit.launch.progress import progress
from gnnkit.utils.documents import read_json
from gnnkit.utils.storage import write_atomically
from gnnkit_import.work_group import WorkGroup

T = TypeVar("T")
HEARTBEAT = 0.5  # seconds between heartbeats
LOST = 10.0  # seconds without a heartbeat after which a process is lost. Some disks show files late
_POLL = 0.05  # seconds between checks for a file
_LIST = "members.json"  # the processes' names, written by the leader


class LostMember(RuntimeError):
    """Another process of an import has died or failed."""


class SharedFolderGroup(WorkGroup):
    """Ranks that run the same program and share a folder."""

    def __init__(self, rank: int, size: int, folder: Path, timeout: float) -> None:
        """Stores the arguments. `joined` starts the group.

        Args:
            folder: The shared folder. The leader removes it at the end.
            timeout: Seconds within which all ranks must join.
        """
        super().__init__(size, is_leader=rank == 0)
        self._rank, self._folder, self._timeout = rank, folder, timeout
        self._name = secrets.token_hex(8)  # distinguishes this start from earlier ones
        self._names: list[str] = []  # [size] all processes' names
        self._step = 0
        self._checked = 0.0  # monotonic seconds
        self._heartbeats: dict[int, tuple[Any, float]] = {}  # by rank, with the time of its first appearance

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Waits for all ranks, and writes heartbeats while the body runs.

        Raises `UserError` if some do not join in time.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), name="heartbeat", daemon=True)
        beating.start()
        try:
            self._join()
            yield
        except LostMember:
            raise
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._write(self._path("failed", self._rank), [type(error).__name__, str(error)])
            raise
        finally:
            ended.set()
            beating.join()
            self._alive(self._rank).unlink(missing_ok=True)
        if self.is_leader:
            self._clear()

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        self._step += 1
        self._write(self._path(f"step {self._step}", self._rank), work(self._rank))
        return [self._result(f"step {self._step}", rank) for rank in range(self.size)]

    def run_on_leader(self, work: Callable[[], T]) -> T:
        self._step += 1
        if self.is_leader:
            self._write(self._path(f"step {self._step}", 0), work())
        result: T = self._result(f"step {self._step}", 0)
        return result

    def wait(self) -> None:
        self.run(lambda rank: None)

    def _clear(self) -> None:
        """Removes the folder after the others have read the last results."""
        deadline = time.monotonic() + LOST
        while any(self._alive(rank).exists() for rank in range(self.size)) and time.monotonic() < deadline:
            progress("waiting for the other importers' end")
            time.sleep(_POLL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _alive(self, rank: int) -> Path:
        return self._folder / f"alive {rank}.json"

    def _path(self, what: str, rank: int) -> Path:
        name = self._names[rank] if self._names else self._name
        return self._folder / f"{what} {rank} {name}.json"

    def _write(self, path: Path, value: Any) -> None:
        write_atomically(path, json.dumps(value).encode())

    def _beat(self, ended: threading.Event) -> None:
        count = 0
        while not ended.wait(HEARTBEAT if count else 0):
            count += 1
            with contextlib.suppress(OSError):  # a full disk is reported by the next pass
                temporary = self._folder / f"beat {self._name}"
                temporary.write_text(json.dumps([self._name, count]))
                temporary.replace(self._alive(self._rank))

    def _join(self) -> None:
        """Finds the names of all processes. The leader lists them in a file."""
        deadline = time.monotonic() + self._timeout
        if self.is_leader:
            first: dict[int, Any] = {}
            names: dict[int, str] = {}
            while missing := [rank for rank in range(self.size) if rank not in names]:
                for rank in missing:  # an unchanging heartbeat was left by an earlier start
                    heartbeat = _read(self._alive(rank))
                    if heartbeat is not None and heartbeat != first.setdefault(rank, heartbeat):
                        names[rank] = heartbeat[0]
                self._pause(deadline, missing)
            self._names = [names[rank] for rank in range(self.size)]
            self._write(self._folder / _LIST, self._names)
            return
        while self._names[self._rank : self._rank + 1] != [self._name]:
            self._names = _read(self._folder / _LIST) or []
            self._pause(deadline, [0])
        if len(self._names) != self.size:
            raise UserError(
                f"{self._folder}: {len(self._names)} processes import together, but rank {self._rank} expects {self.size}"
            )

    def _pause(self, deadline: float, missing: list[int]) -> None:
        if time.monotonic() > deadline:
            who = ", ".join(map(str, missing))
            raise UserError(
                f"{self._folder}: rank {who} of {self.size} did not join the import within "
                f"comm.timeout={self._timeout:g} s: start all ranks with the same command, and output on a shared disk"
            )
        progress("meeting the other importers")
        time.sleep(_POLL)

    def _result(self, what: str, rank: int) -> Any:
        """Waits for a rank's result. Raises `LostMember` if a rank is lost."""
        while (result := _read(self._path(what, rank), wrap=True)) is None:
            self.check()
            progress(f"waiting for rank {rank}")
            time.sleep(_POLL)
        return result[0]

    def check(self) -> None:
        now = time.monotonic()
        if now - self._checked < HEARTBEAT:
            return
        self._checked = now
        for rank in range(self.size):
            if (failed := _read(self._path("failed", rank))) is not None:
                raise LostMember(f"rank {rank} has failed: {failed[0]}: {failed[1]}")
            heartbeat = _read(self._alive(rank))
            last, seen = self._heartbeats.get(rank, (None, now))
            self._heartbeats[rank] = (last, seen) if heartbeat in (None, last) else (heartbeat, now)
            if now - self._heartbeats[rank][1] > LOST:
                raise LostMember(f"rank {rank} has sent no heartbeat for {LOST:g} seconds: it or its host was ended")


def _read(path: Path, *, wrap: bool = False) -> Any:
    """Reads a JSON file, into a list if `wrap`. Returns None if it is not ready."""
    try:
        content = read_json(path)
    except UserError:
        return None
    return [content] if wrap else content
