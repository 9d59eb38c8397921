"""Processes of several hosts that meet in a folder of a disk that all of these share.

Each shows in a file that it is alive, twice a second, so the others end within seconds
of its death. Nothing is asked of clocks, ports or locks.
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

from gnnkit.crew import Crew
from gnnkit.documents import read_json
from gnnkit.errors import UserError
from gnnkit.launch.progress import progress
from gnnkit.storage import write_atomically

T = TypeVar("T")
BEAT = 0.5  # seconds between two signs of life
LOST = 10.0  # seconds without one, after which a member is dead. Some disks show a file late
_LOOK = 0.05  # seconds between two looks for a file
_LIST = "members.json"  # of the members that have come, written by the leader


class LostMember(RuntimeError):
    """Another process of an import is dead, or has failed."""


class Met(Crew):
    """Members that all run the same program, as rank 0, 1, ... of `size`."""

    def __init__(self, rank: int, size: int, folder: Path, timeout: float) -> None:
        """Keeps the rank and the place. `met` lets members meet.

        Args:
            rank: Of this process.
            size: Number of processes.
            folder: Where they meet, which the leader removes at the end.
            timeout: Seconds in which all must come.
        """
        super().__init__(size, leads=rank == 0)
        self._rank, self._folder, self._timeout = rank, folder, timeout
        self._own = secrets.token_hex(8)  # tells this process apart from one of an earlier start
        self._names: list[str] = []  # of all members
        self._step = 0
        self._looked = 0.0  # monotonic seconds
        self._signs: dict[int, tuple[Any, float]] = {}  # of life, by rank, and when each was seen first

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """Waits for all members, and stays alive for these until the end of the body.

        Raises `UserError` where some do not come in time.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), name="alive", daemon=True)
        beating.start()
        try:
            self._meet()
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
        if self.leads:
            self._clear()

    def share(self, work: Callable[[int], Any]) -> list[Any]:
        self._step += 1
        self._write(self._path(f"step {self._step}", self._rank), work(self._rank))
        return [self._result(f"step {self._step}", rank) for rank in range(self.size)]

    def lead(self, work: Callable[[], T]) -> T:
        self._step += 1
        if self.leads:
            self._write(self._path(f"step {self._step}", 0), work())
        found: T = self._result(f"step {self._step}", 0)
        return found

    def _clear(self) -> None:
        """Removes the folder, once the others have read the last results."""
        deadline = time.monotonic() + LOST
        while any(self._alive(rank).exists() for rank in range(self.size)) and time.monotonic() < deadline:
            progress("waiting for the other importers' end")
            time.sleep(_LOOK)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _alive(self, rank: int) -> Path:
        return self._folder / f"alive {rank}.json"

    def _path(self, what: str, rank: int) -> Path:
        name = self._names[rank] if self._names else self._own
        return self._folder / f"{what} {rank} {name}.json"

    def _write(self, path: Path, value: Any) -> None:
        write_atomically(path, json.dumps(value).encode())

    def _beat(self, ended: threading.Event) -> None:
        count = 0
        while not ended.wait(BEAT if count else 0):
            count += 1
            with contextlib.suppress(OSError):  # of a full disk: the next pass tells of that
                temporary = self._folder / f"beat {self._own}"
                temporary.write_text(json.dumps([self._own, count]))
                temporary.replace(self._alive(self._rank))

    def _meet(self) -> None:
        """Finds the names of all members, of which the leader makes a list."""
        deadline = time.monotonic() + self._timeout
        if self.leads:
            first: dict[int, Any] = {}
            names: dict[int, str] = {}
            while missing := [rank for rank in range(self.size) if rank not in names]:
                for rank in missing:  # a file that does not change is of an earlier start
                    sign = _read(self._alive(rank))
                    if sign is not None and sign != first.setdefault(rank, sign):
                        names[rank] = sign[0]
                self._pause(deadline, missing)
            self._names = [names[rank] for rank in range(self.size)]
            self._write(self._folder / _LIST, self._names)
            return
        while self._names[self._rank : self._rank + 1] != [self._own]:
            self._names = _read(self._folder / _LIST) or []
            self._pause(deadline, [0])
        if len(self._names) != self.size:
            raise UserError(
                f"{self._folder}: {len(self._names)} processes import together, and rank {self._rank} of others"
            )

    def _pause(self, deadline: float, missing: list[int]) -> None:
        if time.monotonic() > deadline:
            who = ", ".join(map(str, missing))
            raise UserError(
                f"{self._folder}: of {self.size} processes that import together, rank {who} did not come within "
                f"comm.timeout={self._timeout:g} seconds: all need the same command, and output on one disk"
            )
        progress("meeting the other importers")
        time.sleep(_LOOK)

    def _result(self, what: str, rank: int) -> Any:
        """Waits for the result of a member. Raises `LostMember` where one is lost."""
        while (found := _read(self._path(what, rank), whole=True)) is None:
            self.look()
            progress(f"waiting for rank {rank}")
            time.sleep(_LOOK)
        return found[0]

    def look(self) -> None:
        now = time.monotonic()
        if now - self._looked < BEAT:
            return
        self._looked = now
        for rank in range(self.size):
            if (failed := _read(self._path("failed", rank))) is not None:
                raise LostMember(f"rank {rank} has failed: {failed[0]}: {failed[1]}")
            sign = _read(self._alive(rank))
            known, seen = self._signs.get(rank, (None, now))
            self._signs[rank] = (known, seen) if sign in (None, known) else (sign, now)
            if now - self._signs[rank][1] > LOST:
                raise LostMember(f"rank {rank} shows no sign of life for {LOST:g} seconds: it or its host was ended")


def _read(path: Path, *, whole: bool = False) -> Any:
    """Reads a file of JSON. None: there is none yet. `whole` puts it in a list."""
    try:
        found = read_json(path)
    except UserError:
        return None
    return [found] if whole else found
