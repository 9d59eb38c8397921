"""Where threads of one process meet."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnnkit.comm.letters import Letters
from gnnkit.comm.mailbox import DeadlineExceeded, PeerLost

if TYPE_CHECKING:
    from torch import Tensor

    from gnnkit.comm.threads import QueueMailbox

Call = tuple[object, ...]  # name of a collective, and what must be equal on all ranks
ALIKE = "all ranks must make the same calls in one order, also those of self.log(sync_dist=True) and of metrics"


class MismatchedCollectives(RuntimeError):
    """The error of ranks that meet in different collectives."""


@dataclass(eq=False)
class Run:
    """State that all threads of this process share."""

    timeout: float  # seconds
    changed: threading.Condition = field(default_factory=threading.Condition)
    gone: dict[int, str] = field(default_factory=dict)  # rank -> why
    failed: int | None = None  # the first rank that failed
    mailboxes: list[tuple[int, QueueMailbox]] = field(default_factory=list)  # rank of the run, mailbox
    letters: Letters | None = None  # to ranks of other processes. None: there are none

    def end(self, rank: int, *, failed: bool) -> None:
        """Tells the others that a rank is gone. A failure ends every wait."""
        why = "failed" if failed else "has ended"
        with self.changed:
            self.gone[rank] = why
            if failed and self.failed is None:
                self.failed = rank
            self.changed.notify_all()
        for owner, mailbox in list(self.mailboxes):
            if owner == rank:
                mailbox.leave(why)
        if failed and self.letters is not None:
            self.letters.lose(rank)

    def close(self) -> None:
        """Lets go of connections."""
        if self.letters is not None:
            self.letters.close()


@dataclass(eq=False)
class Group:
    """State that the threads of a communicator share."""

    run: Run
    name: str  # equal in all processes
    ranks: tuple[int, ...]  # rank in the run of each rank here
    near: tuple[int, ...]  # ranks here that are threads of this process, ascending
    posts: list[Any] = field(init=False)  # by rank here. None: of other processes
    calls: list[Call | None] = field(init=False)  # by rank here. None: of other processes
    found: Tensor = field(init=False)  # what one thread has found for all
    arrived: set[int] = field(default_factory=set)  # ranks of the run
    rounds: int = 0  # waits that have ended
    gave_up: dict[int, str] = field(default_factory=dict)  # rank of the run -> why
    groups: dict[tuple[int, tuple[int, ...]], Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.posts, self.calls = [None] * len(self.ranks), [None] * len(self.ranks)
        self.far: dict[int, list[int]] = {}  # other process -> its ranks here
        self.process = 0 if self.run.letters is None else self.run.letters.process
        for rank in sorted({*range(len(self.ranks))} - {*self.near}):
            assert self.run.letters is not None
            self.far.setdefault(self.run.letters.process_of(self.ranks[rank]), []).append(rank)
        self.far_ranks = [rank for ranks in self.far.values() for rank in ranks]

    @classmethod
    def of_run(cls, run: Run, world_size: int, near: Iterable[int]) -> Group:
        """Makes the group of all ranks."""
        return cls(run, "", tuple(range(world_size)), tuple(near))

    def split(self, generation: int, members: tuple[int, ...]) -> Group:
        """Returns the group of some ranks, one object for all members of this process.

        Args:
            generation: Number of times that these ranks were split off, with this time.
            members: Ranks of this group.
        """
        with self.run.changed:
            if (generation, members) not in self.groups:
                ranks = tuple(self.ranks[member] for member in members)
                near = tuple(place for place, member in enumerate(members) if member in self.near)
                name = hashlib.sha256(f"{self.name} {generation} {members}".encode()).hexdigest()[:16]
                self.groups[generation, members] = Group(self.run, name, ranks, near)
            return self.groups[generation, members]

    def wait(self, rank: int) -> None:
        """Returns when all ranks of the group in this process have come.

        Raises `PeerLost` if a rank is gone, and `DeadlineExceeded` at the deadline.
        """
        changed, number = self.run.changed, self.rounds
        with changed:
            self.arrived.add(rank)
            if len(self.arrived) == len(self.near) and self._lost() is None:
                self.rounds += 1
                self.arrived.clear()
                changed.notify_all()
            changed.wait_for(lambda: self.rounds > number or self._lost() is not None, self.run.timeout)
            if self.rounds == number:
                raise self._error(rank)

    def check_calls(self, rank: int) -> None:
        """Raises `MismatchedCollectives` unless all ranks of this process agree.

        Args:
            rank: The rank of the run that asks.
        """
        if any(self.calls[rank] != self.calls[self.near[0]] for rank in self.near):
            calls = ", ".join(f"rank {self.ranks[rank]} in {_spelt(self.calls[rank] or ())}" for rank in self.near)
            raise MismatchedCollectives(f"rank {rank}: ranks are in different collectives ({calls}): {ALIKE}")

    def _lost(self) -> int | None:
        """Returns a rank that is gone."""
        if self.run.failed is not None:
            return self.run.failed
        return next((rank for rank in self.ranks if rank in self.run.gone or rank in self.gave_up), None)

    def _error(self, rank: int) -> RuntimeError:
        lost = self._lost()
        if lost is not None:
            why = self.run.gone.get(lost) or self.gave_up[lost]
            return PeerLost(f"rank {rank}: lost its peer rank {lost}, which {why}", lost)
        late = named(self.ranks[other] for other in self.near if self.ranks[other] not in self.arrived)
        self.gave_up[rank] = f"gave up waiting for {late}"
        self.run.changed.notify_all()
        return DeadlineExceeded(f"rank {rank}: timed out after {self.run.timeout:g} s waiting for {late}")


def named(ranks: Iterable[int] | Sequence[int]) -> str:
    """Names ranks in a message."""
    return ", ".join(f"rank {rank}" for rank in ranks)


def _spelt(call: Call) -> str:
    name, *rest = call
    return f"{name}{rest}" if rest else f"{name}"
