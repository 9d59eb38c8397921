"""Ranks that are threads of one process."""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gnnkit.comm import frames
from gnnkit.comm.base import Communicator
from gnnkit.comm.mailbox import CLOSED, DeadlineExceeded, Inbox, Letter, Mailbox, PeerLost

T = TypeVar("T")
Failure = tuple[int, BaseException]  # rank and error


@dataclass(eq=False)
class _Run:
    """State that all threads of a run share."""

    timeout: float  # seconds
    changed: threading.Condition = field(default_factory=threading.Condition)
    gone: dict[int, str] = field(default_factory=dict)  # rank -> why
    failed: int | None = None  # the first rank that failed
    mailboxes: list[tuple[int, QueueMailbox]] = field(default_factory=list)  # rank of the run, mailbox

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


@dataclass(eq=False)
class _Group:
    """State that the threads of a communicator share."""

    run: _Run
    ranks: tuple[int, ...]  # rank in the run of each rank here
    posts: list[Any] = field(init=False)
    arrived: set[int] = field(default_factory=set)  # ranks of the run
    rounds: int = 0  # waits that have ended
    gave_up: dict[int, str] = field(default_factory=dict)  # rank of the run -> why
    groups: dict[tuple[int, tuple[int, ...]], _Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.posts = [None] * len(self.ranks)

    def split(self, generation: int, members: tuple[int, ...]) -> _Group:
        """Returns the group of some ranks, one object for all members.

        Args:
            generation: Number of times that these ranks were split off, with this time.
            members: Ranks of this group.
        """
        with self.run.changed:
            ranks = tuple(self.ranks[member] for member in members)
            return self.groups.setdefault((generation, members), _Group(self.run, ranks))

    def wait(self, rank: int) -> None:
        """Returns when all ranks of the group have come.

        Raises `PeerLost` if a rank is gone, and `DeadlineExceeded` at the deadline.
        """
        changed, number = self.run.changed, self.rounds
        with changed:
            self.arrived.add(rank)
            if len(self.arrived) == len(self.ranks) and self._lost() is None:
                self.rounds += 1
                self.arrived.clear()
                changed.notify_all()
            changed.wait_for(lambda: self.rounds > number or self._lost() is not None, self.run.timeout)
            if self.rounds == number:
                raise self._error(rank)

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
        late = _names(other for other in self.ranks if other not in self.arrived)
        self.gave_up[rank] = f"gave up waiting for {late}"
        self.run.changed.notify_all()
        return DeadlineExceeded(f"rank {rank}: timed out after {self.run.timeout:g} s waiting for {late}")


class Threads(Communicator):
    """Threads of one process on the CPU, for repeatable tests without copies."""

    device = torch.device("cpu")
    in_one_process = True

    def __init__(self, rank: int, group: _Group) -> None:
        self.rank, self.world_size, self._group = rank, len(group.ranks), group
        self.timeout = group.run.timeout
        self._splits: Counter[tuple[int, ...]] = Counter()  # a group may be split off more than once

    @classmethod
    def connect(
        cls, rank: int, world_size: int, *, device: torch.device, timeout: float, listener: socket.socket | None = None
    ) -> Threads:
        """Makes the only rank of one process. `run` makes more."""
        assert world_size == 1
        return cls(rank, _Group(_Run(timeout), (0,)))

    @classmethod
    def run(cls, function: Callable[[Threads], T], world_size: int, *, timeout: float = 120.0) -> list[T]:
        """Calls `function(communicator)` on threads, and returns the results by rank.

        The first rank that fails ends the waits of the others. Raises the rank's error
        with a note that names the rank. A rank that lost a peer is not the first.

        A rank that is still running `timeout` after a failure, or after all other ranks
        have ended, is stuck. The error names the rank. The thread is left behind.

        Args:
            function: The work of each rank.
            world_size: Number of ranks.
            timeout: Deadline in seconds of all that waits for peers. Default: 120.
        """
        _warm_up()
        group = _Group(_Run(timeout), tuple(range(world_size)))
        results: list[Any] = [None] * world_size
        failures: list[Failure] = []
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work(rank: int) -> None:
            failed = False
            try:
                results[rank] = function(cls(rank, group))
            except BaseException as error:  # raised again below, in the caller's thread
                failures.append((rank, error))
                failed = True
            group.run.end(rank, failed=failed)
            ended.put(rank)

        for rank in range(world_size):
            threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True).start()
        stuck = _wait_for_end(ended, world_size, failures, timeout)
        if stuck or failures:
            raise _cause(failures, stuck, timeout)
        return results

    def mailbox(self) -> Mailbox:
        inboxes = self._meet(Inbox(self.rank, self.world_size), list)
        mailbox = QueueMailbox(self.rank, inboxes, self.timeout)
        self._group.run.mailboxes.append((self._group.ranks[self.rank], mailbox))
        return mailbox

    def _meet(self, post: Any, read: Callable[[list[Any]], T]) -> T:
        """Shows `post` to the others and reads all posts.

        No rank goes on, and changes a post, before all have read.
        """
        me = self._group.ranks[self.rank]
        self._group.posts[self.rank] = post
        self._group.wait(me)
        value = read(self._group.posts)
        self._group.wait(me)
        return value

    def split(self, ranks: Sequence[int]) -> Threads:
        members = tuple(ranks)
        self._splits[members] += 1
        return type(self)(members.index(self.rank), self._group.split(self._splits[members], members))

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        def read(posts: list[tuple[Tensor, ...]]) -> Tensor:
            parts = [post[self.rank] for post in posts]
            assert [len(part) for part in parts] == list(recv_counts), "counts of sender and receiver differ"
            return torch.cat(parts)

        return self._meet(torch.split(rows.detach(), list(send_counts)), read)

    def all_reduce(self, x: Tensor) -> Tensor:
        total = self._meet(x.detach(), lambda posts: torch.stack(posts).sum(0))
        return x.copy_(total)

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        value = self._meet(x.detach(), lambda posts: posts[src].clone())
        return x.copy_(value)


class QueueMailbox(Mailbox):
    """A mailbox of queues in memory that the ranks share."""

    def __init__(self, rank: int, inboxes: Sequence[Inbox], timeout: float) -> None:
        """Makes the mailbox of one rank.

        Args:
            rank: This rank.
            inboxes: Inbox of every rank, [world_size].
            timeout: Deadline of each `put` in seconds.
        """
        self.rank, self.world_size = rank, len(inboxes)
        self._inbox, self._inboxes, self._timeout = inboxes[rank], inboxes, timeout

    def put(
        self,
        dst: int,
        tag: str,
        fields: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._inbox.check_rank(dst)
        self._inbox.check_open()
        header, parts = frames.encode(tag, fields, tensors, self._inbox.limit)
        self._inboxes[dst].add_in_time(*frames.copy(self.rank, header, parts), self._timeout)

    def take(self, tag: str | None = None, *, src: int | None = None, timeout: float) -> Letter:
        return self._inbox.take(tag, src, timeout)

    def poll(self, tag: str | None = None, src: int | None = None) -> Letter | None:
        return self._inbox.poll(tag, src)

    def gone(self) -> frozenset[int]:
        return self._inbox.gone()

    def close(self) -> None:
        self.leave(CLOSED)

    def leave(self, why: str) -> None:
        """Tells the other ranks why no letter follows."""
        self._inbox.close(why)
        for inbox in self._inboxes:
            inbox.lose(self.rank, why)


def _warm_up() -> None:
    """Makes torch's autograd engine. Two threads at once would crash after a fork."""
    one = torch.ones((), requires_grad=True)
    _ = one * one


def _wait_for_end(
    ended: queue.SimpleQueue[int], world_size: int, failures: Sequence[Failure], timeout: float
) -> list[int]:
    """Waits until all ranks have ended, and returns the ranks that are stuck.

    Args:
        ended: Receives each rank that ends.
        world_size: Number of ranks.
        failures: Errors of the ranks that have ended.
        timeout: Seconds that a rank may run after a failure, or after all other ranks.
    """
    running, deadline = set(range(world_size)), math.inf
    while running:
        try:
            running.remove(ended.get(timeout=None if deadline == math.inf else max(deadline - time.monotonic(), 0)))
        except queue.Empty:
            break
        if failures or len(running) == 1:
            deadline = min(deadline, time.monotonic() + timeout)
    return sorted(running)


def _cause(failures: list[Failure], stuck: list[int], timeout: float) -> BaseException:
    """Returns the first cause of the failure, with notes on the others.

    Args:
        failures: Errors in the order of time.
        stuck: Ranks that do not end.
        timeout: Seconds of the wait for these ranks.
    """
    own = [each for each in failures if not isinstance(each[1], PeerLost | DeadlineExceeded)]
    if stuck and not own:
        since = _told(*failures[0]) if failures else "all other ranks had ended"
        return DeadlineExceeded(f"{_names(stuck)} is stuck, still running {timeout:g} s after {since}")
    late = [each for each in failures if isinstance(each[1], DeadlineExceeded)]
    rank, error = (own or late or failures)[0]
    error.add_note(f"on rank {rank}")
    for other in own[1:]:
        error.add_note(_told(*other))
    if stuck:
        error.add_note(f"{_names(stuck)} is stuck, still running {timeout:g} s later")
    return error


def _told(rank: int, error: BaseException) -> str:
    return f"rank {rank} failed: {type(error).__name__}: {error}"


def _names(ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
