"""Synchronisation between threads of one process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnnkit.comm.mailbox import DeadlineExceeded, PeerLost
from gnnkit.comm.process_links import ProcessLinks

if TYPE_CHECKING:
    from torch import Tensor

    from gnnkit.comm.threads import QueueMailbox

Call = tuple[object, ...]  # a collective's name, and the arguments that must be equal on all ranks
SAME_CALLS = "all ranks must make the same calls in the same order, including self.log(sync_dist=True) and metrics"


class MismatchedCollectives(RuntimeError):
    """Raised if ranks call different collectives at the same time.

    A strategy or model whose ranks take different branches causes it. Threads detect
    this immediately, whereas processes may wait until the deadline, so `comm=threads`
    helps to find the call.
    """


@dataclass(eq=False)
class ThreadRun:
    """State shared by all threads of this process."""

    timeout: float  # seconds
    changed: threading.Condition = field(default_factory=threading.Condition)
    gone: dict[int, str] = field(default_factory=dict)  # reason by rank
    failed: int | None = None  # the first rank that failed
    mailboxes: list[tuple[int, QueueMailbox]] = field(default_factory=list)  # rank in the run, mailbox
    process_links: ProcessLinks | None = None  # connects ranks of other processes, if there are any

    def end(self, rank: int, *, has_failed: bool) -> None:
        """Records that a rank has exited. A failure ends every wait."""
        reason = "failed" if has_failed else "has ended"
        with self.changed:
            self.gone[rank] = reason
            if has_failed and self.failed is None:
                self.failed = rank
            self.changed.notify_all()
        for owner, mailbox in list(self.mailboxes):
            if owner == rank:
                mailbox.leave(reason)
        if has_failed and self.process_links is not None:
            self.process_links.lose(rank)

    def close(self) -> None:
        """Closes connections."""
        if self.process_links is not None:
            self.process_links.close()


@dataclass(eq=False)
class ThreadGroup:
    """State shared by the threads of a communicator."""

    run: ThreadRun
    name: str  # equal in all processes
    ranks: tuple[int, ...]  # run rank of each group rank
    near: tuple[int, ...]  # group ranks that are threads of this process, ascending
    posts: list[Any] = field(init=False)  # by group rank, None for ranks of other processes
    calls: list[Call | None] = field(init=False)  # by group rank, None for ranks of other processes
    result: Tensor = field(init=False)  # a result that one thread computes for all
    arrived: set[int] = field(default_factory=set)  # run ranks
    rounds: int = 0  # number of completed waits
    gave_up: dict[int, str] = field(default_factory=dict)  # reason by run rank
    groups: dict[tuple[int, tuple[int, ...]], ThreadGroup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.posts, self.calls = [None] * len(self.ranks), [None] * len(self.ranks)
        self.far: dict[int, list[int]] = {}  # group ranks of each other process
        self.process = 0 if self.run.process_links is None else self.run.process_links.process
        for rank in sorted({*range(len(self.ranks))} - {*self.near}):
            assert self.run.process_links is not None
            self.far.setdefault(self.run.process_links.process_of(self.ranks[rank]), []).append(rank)
        self.far_ranks = [rank for ranks in self.far.values() for rank in ranks]

    @classmethod
    def of_run(cls, run: ThreadRun, world_size: int, near: Iterable[int]) -> ThreadGroup:
        """Creates the group of all ranks."""
        return cls(run, "", tuple(range(world_size)), tuple(near))

    def split(self, generation: int, members: tuple[int, ...]) -> ThreadGroup:
        """Returns a subgroup, the same object for all its members in this process.

        Args:
            generation: How many times these ranks have been split off, including this
                time.
        """
        with self.run.changed:
            if (generation, members) not in self.groups:
                ranks = tuple(self.ranks[member] for member in members)
                near = tuple(place for place, member in enumerate(members) if member in self.near)
                name = hashlib.sha256(f"{self.name} {generation} {members}".encode()).hexdigest()[:16]
                self.groups[generation, members] = ThreadGroup(self.run, name, ranks, near)
            return self.groups[generation, members]

    def wait(self, rank: int) -> None:
        """Waits until all of the group's ranks in this process have arrived.

        Raises `PeerLost` if a rank has exited, and `DeadlineExceeded` at the deadline.
        """
        condition, number = self.run.changed, self.rounds
        with condition:
            self.arrived.add(rank)
            if len(self.arrived) == len(self.near) and self._find_lost() is None:
                self.rounds += 1
                self.arrived.clear()
                condition.notify_all()
            condition.wait_for(lambda: self.rounds > number or self._find_lost() is not None, self.run.timeout)
            if self.rounds == number:
                raise self._error(rank)

    def send(self, src: int, dst: int, rows: Tensor) -> None:
        """Sends rows from group rank `src` to `dst`, which is in another process."""
        assert self.run.process_links is not None
        self.run.process_links.send(self.ranks[src], self.ranks[dst], self.name, rows)

    def receive(self, src: int, dst: int) -> Tensor:
        """Receives rows that group rank `src`, in another process, sends to `dst`."""
        assert self.run.process_links is not None
        return self.run.process_links.receive(self.ranks[src], self.ranks[dst], self.name)

    def check_calls(self, rank: int) -> None:
        """Raises `MismatchedCollectives` unless all ranks of this process agree.

        Args:
            rank: The calling rank of the run.
        """
        if any(self.calls[rank] != self.calls[self.near[0]] for rank in self.near):
            calls = ", ".join(
                f"rank {self.ranks[rank]} in {_format_call(self.calls[rank] or ())}" for rank in self.near
            )
            raise MismatchedCollectives(f"rank {rank}: ranks are in different collectives ({calls}): {SAME_CALLS}")

    def _find_lost(self) -> int | None:
        """Returns a rank that has exited."""
        if self.run.failed is not None:
            return self.run.failed
        return next((rank for rank in self.ranks if rank in self.run.gone or rank in self.gave_up), None)

    def _error(self, rank: int) -> RuntimeError:
        lost_rank = self._find_lost()
        if lost_rank is not None:
            reason = self.run.gone.get(lost_rank) or self.gave_up[lost_rank]
            return PeerLost(f"rank {rank}: lost its peer rank {lost_rank}, which {reason}", lost_rank)
        late = format_ranks(
            self.ranks[group_rank] for group_rank in self.near if self.ranks[group_rank] not in self.arrived
        )
        self.gave_up[rank] = f"gave up waiting for {late}"
        self.run.changed.notify_all()
        return DeadlineExceeded(f"rank {rank}: timed out after {self.run.timeout:g} s waiting for {late}")


def format_ranks(ranks: Iterable[int] | Sequence[int]) -> str:
    """Formats ranks for a message."""
    return ", ".join(f"rank {rank}" for rank in ranks)


def _format_call(call: Call) -> str:
    name, *arguments = call
    return f"{name}{arguments}" if arguments else f"{name}"
