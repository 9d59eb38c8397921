"""Ranks that are threads of one or several processes.

Sums are computed in rank order, so results are bitwise equal for any number of
processes. Threads of one process meet in a `ThreadGroup`. `ProcessLinks` exchange rows
with the threads of other processes.
"""

from __future__ import annotations

import hashlib
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from gnnkit.comm import frames
from gnnkit.comm.base import Communicator, Counts, sum_in_order
from gnnkit.comm.mailbox import CLOSED, DeadlineExceeded, Fields, Inbox, Mailbox, Message, PeerLost, Tensors
from gnnkit.utils.ranges import even_ranges

_ROWS = "rows"


class ProcessLinks:
    """One process's connections to the other processes. Thread-safe."""

    def __init__(self, ranks: Sequence[range], mailbox: Mailbox, timeout: float) -> None:
        """Stores the arguments.

        Args:
            timeout: Deadline of every wait for a peer, in seconds.
        """
        self.process, self._ranks, self._mailbox, self._timeout = mailbox.rank, ranks, mailbox, timeout
        self._lost_rank: int | None = None  # this process's first rank that failed

    def process_of(self, rank: int) -> int:
        """Returns a rank's process."""
        return next(process for process, ranks in enumerate(self._ranks) if rank in ranks)

    def send(self, src: int, dst: int, group: str, rows: Tensor) -> None:
        """Sends rows from a rank of this process to a rank of another process.

        Rows between two ranks of one group arrive in the order in which they were sent.
        """
        try:
            self._mailbox.put(self.process_of(dst), _tag(src, dst, group), tensors={_ROWS: rows})
        except RuntimeError as error:
            raise self._in_ranks(error, src, dst) from error

    def receive(self, src: int, dst: int, group: str) -> Tensor:
        """Returns rows sent from a rank of another process to a rank of this one."""
        try:
            message = self._mailbox.take(_tag(src, dst, group), src=self.process_of(src), timeout=self._timeout)
        except RuntimeError as error:
            raise self._in_ranks(error, dst, src) from error
        return message.tensors[_ROWS]

    def lose(self, rank: int) -> None:
        """Ends every wait after a rank of this process has failed."""
        if self._lost_rank is None:
            self._lost_rank = rank
        self._mailbox.close()

    def close(self) -> None:
        """Announces to the other processes that no more rows follow."""
        self._mailbox.close()

    def _in_ranks(self, error: RuntimeError, me: int, peer: int) -> RuntimeError:
        """Converts an error about processes into one about ranks."""
        if self._lost_rank is not None:
            return PeerLost(f"rank {me}: lost its peer rank {self._lost_rank}, which failed", self._lost_rank)
        if isinstance(error, PeerLost):
            reason = str(error).partition(", which ")[2] or "is gone"
            return PeerLost(f"rank {me}: lost its peer rank {peer}, whose process {reason}", peer)
        if isinstance(error, DeadlineExceeded):
            return DeadlineExceeded(f"rank {me}: timed out after {self._timeout:g} s waiting for rank {peer}")
        return error


def _tag(src: int, dst: int, group: str) -> str:
    return f"{src} {dst} {group}"


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


T = TypeVar("T")
Failure = tuple[int, BaseException]  # rank and error
FEW = 2**12  # every process computes sums of at most this many numbers completely


class Threads(Communicator):
    """A group of ranks that are threads on the CPU.

    Rows within a process are not copied between ranks. Choose it for tests, debugging
    and small graphs, where starting processes would take longer than training. Python
    code of the ranks shares one interpreter lock, which native kernels and torch
    operators release.
    """

    device = torch.device("cpu")
    in_threads = True

    def __init__(self, rank: int, group: ThreadGroup) -> None:
        self.rank, self.world_size, self._group = rank, len(group.ranks), group
        self.timeout, self.beside = group.run.timeout, frozenset(group.near)
        self._splits: Counter[tuple[int, ...]] = Counter()  # number of subgroups by members

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Threads:
        """Creates a group of one rank. `run` creates larger groups."""
        assert world_size == 1
        return cls(rank, ThreadGroup.of_run(ThreadRun(timeout), 1, range(1)))

    @classmethod
    def run(
        cls,
        function: Callable[[Threads], T],
        world_size: int,
        *,
        timeout: float = 120.0,
        among: Mailbox | None = None,
    ) -> list[T]:
        """Calls `function(communicator)` in threads of this process.

        When a rank fails, the other ranks' waits end. The first failed rank's error is
        raised, with a note that names the rank. Errors that follow from a lost peer do
        not count as first.

        A rank still running `timeout` seconds after a failure, or after all other ranks
        of the process have finished, is considered stuck. The error names the rank, and
        its thread is abandoned.

        Args:
            function: Runs once on each rank.
            timeout: Deadline of every wait for a peer, in seconds. Default: 120.
            among: Connects the processes that hold the ranks, and is closed at the end.
                Default: this is the only process.

        Returns:
            The results of this process's ranks, in rank order.
        """
        _warm_up()
        ranks, process = [range(world_size)], 0
        run = ThreadRun(timeout)
        if among is not None:
            ranks, process = even_ranges(world_size, among.world_size), among.rank
            run.process_links = ProcessLinks(ranks, among, timeout)
        try:
            return cls._run(function, ThreadGroup.of_run(run, world_size, ranks[process]))
        finally:
            run.close()

    @classmethod
    def _run(cls, function: Callable[[Threads], T], group: ThreadGroup) -> list[T]:
        results: dict[int, T] = {}
        failures: list[Failure] = []
        finished_ranks: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work(rank: int) -> None:
            has_failed = False
            try:
                results[rank] = function(cls(rank, group))
            except BaseException as error:  # raised again below, in the caller's thread
                failures.append((rank, error))
                has_failed = True
            group.run.end(rank, has_failed=has_failed)
            finished_ranks.put(rank)

        for rank in group.near:
            threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True).start()
        stuck = _wait_for_end(finished_ranks, group.near, failures, group.run.timeout)
        if stuck or failures:
            raise _cause(failures, stuck, group.run.timeout)
        return [results[rank] for rank in group.near]

    def mailbox(self) -> Mailbox:
        if self._group.far:
            return super().mailbox()
        inboxes = self._meet(("mailbox",), Inbox(self.rank, self.world_size), list)
        mailbox = QueueMailbox(self.rank, inboxes, self.timeout)
        self._group.run.mailboxes.append((self._group.ranks[self.rank], mailbox))
        return mailbox

    def _meet(self, call: Call, post: object, read: Callable[[list[Any]], T]) -> T:
        """Shares `post` with this process's ranks, and reads their posts, by rank.

        No rank continues, and possibly modifies a post, before all have read.

        Args:
            call: Description of the call, which must be equal on all ranks.
        """
        me = self._group.ranks[self.rank]
        self._group.calls[self.rank], self._group.posts[self.rank] = call, post
        self._group.wait(me)
        self._group.check_calls(me)
        value = read(self._group.posts)
        self._group.wait(me)
        return value

    def _learn(self, call: Call, post: Tensor, find: Callable[[list[Any]], Tensor]) -> Tensor:
        """Returns `find(posts)`, computed by one rank of each process."""

        def read(posts: list[Any]) -> None:
            if self.rank == self._group.near[0]:
                self._group.result = find(posts)

        self._meet(call, post, read)
        return self._group.result

    def split(self, ranks: Sequence[int]) -> Threads:
        members = tuple(ranks)
        self._splits[members] += 1
        return type(self)(members.index(self.rank), self._group.split(self._splits[members], members))

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        group, me, parts = self._group, self.rank, torch.split(rows.detach(), list(send_counts))
        for dst in group.far_ranks:
            if send_counts[dst]:
                group.send(me, dst, parts[dst])

        def read(posts: list[Any]) -> Tensor:
            received_parts = [
                posts[src][me] if posts[src] is not None else group.receive(src, me) if count else rows[:0]
                for src, count in enumerate(recv_counts)
            ]
            if [len(part) for part in received_parts] != list(recv_counts):
                raise MismatchedCollectives(f"rank {self.rank}: the counts of sender and receiver differ: {SAME_CALLS}")
            return torch.cat(received_parts)

        return self._meet(("all_to_all",), parts, read)

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(self._learn(("all_reduce", *x.shape), x.detach(), self._sum))

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        if self.rank == src:
            for ranks in self._group.far.values():
                self._group.send(self.rank, ranks[0], x)

        def find(posts: list[Any]) -> Tensor:
            post: Tensor | None = posts[src]
            return self._group.receive(src, self.rank) if post is None else post.clone()

        return x.copy_(self._learn(("broadcast", src, *x.shape), x.detach(), find))

    def _sum(self, posts: list[Any]) -> Tensor:
        """Sums the posts of all processes' ranks, in rank order."""
        rows = torch.stack([posts[rank].reshape(-1) for rank in self._group.near])
        far = self._group.far
        if not far or rows.shape[1] <= FEW:
            for ranks in far.values():
                self._group.send(self.rank, ranks[0], rows)
            total = sum_in_order(chain(*self._by_process(rows)))
        else:
            total = self._sum_by_shares(rows)
        return total.view(posts[self.rank].shape)

    def _sum_by_shares(self, rows: Tensor) -> Tensor:
        """Sums rows [ranks here, n]. Each process sums a share of the columns."""
        far, place = self._group.far, self._group.process
        processes = sorted([*far, place])
        columns = dict(zip(processes, even_ranges(rows.shape[1], len(processes)), strict=True))
        for process, ranks in far.items():
            self._group.send(self.rank, ranks[0], rows[:, columns[process].start : columns[process].stop])
        block = sum_in_order(chain(*self._by_process(rows[:, columns[place].start : columns[place].stop])))
        for ranks in far.values():
            self._group.send(self.rank, ranks[0], block)
        return torch.cat(self._by_process(block))

    def _by_process(self, rows: Tensor) -> list[Tensor]:
        """Returns each process's rows, with `rows` for this one."""
        first = {process: ranks[0] for process, ranks in self._group.far.items()}
        return [
            rows if process not in first else self._group.receive(first[process], self.rank)
            for process in sorted([*first, self._group.process])
        ]


class QueueMailbox(Mailbox):
    """A mailbox for ranks in one process, which share in-memory queues."""

    def __init__(self, rank: int, inboxes: Sequence[Inbox], timeout: float) -> None:
        """Creates one rank's mailbox.

        Args:
            inboxes: [world_size] every rank's inbox.
            timeout: Deadline of each `put`, in seconds.
        """
        self.rank, self.world_size = rank, len(inboxes)
        self._inbox, self._inboxes, self._timeout = inboxes[rank], inboxes, timeout

    def put(self, dst: int, tag: str, fields: Fields | None = None, tensors: Tensors | None = None) -> None:
        self._inbox.check_rank(dst)
        self._inbox.check_open()
        header, parts = frames.encode(tag, fields, tensors, self._inbox.limit)
        self._inboxes[dst].add_in_time(*frames.copy(self.rank, header, parts), self._timeout)

    def take(self, tag: str | None = None, *, src: int | None = None, timeout: float) -> Message:
        return self._inbox.take(tag, src, timeout)

    def poll(self, tag: str | None = None, src: int | None = None) -> Message | None:
        return self._inbox.poll(tag, src)

    def gone(self) -> frozenset[int]:
        return self._inbox.gone()

    def close(self) -> None:
        self.leave(CLOSED)

    def leave(self, reason: str) -> None:
        """Announces the end of this rank's messages, with the reason."""
        self._inbox.close(reason)
        for inbox in self._inboxes:
            inbox.lose(self.rank, reason)


def _warm_up() -> None:
    """Initialises torch's autograd engine, which is not thread-safe after a fork."""
    scalar = torch.ones((), requires_grad=True)
    _ = scalar * scalar


def _wait_for_end(
    finished_ranks: queue.SimpleQueue[int], ranks: Iterable[int], failures: Sequence[Failure], timeout: float
) -> list[int]:
    """Waits until all ranks have finished. Returns the ranks that are stuck.

    Args:
        timeout: Seconds that a rank may run after a failure, or after all other ranks.
    """
    running, deadline = set(ranks), math.inf
    while running:
        seconds = None if deadline == math.inf else max(deadline - time.monotonic(), 0)
        try:
            running.remove(finished_ranks.get(timeout=seconds))
        except queue.Empty:
            break
        if failures or len(running) == 1:
            deadline = min(deadline, time.monotonic() + timeout)
    return sorted(running)


def _cause(failures: list[Failure], stuck: list[int], timeout: float) -> BaseException:
    """Returns the root cause of a failure, with notes on the other errors.

    Args:
        timeout: Seconds waited for these ranks.
    """
    causes = [failure for failure in failures if not isinstance(failure[1], PeerLost | DeadlineExceeded)]
    late = [failure for failure in failures if isinstance(failure[1], DeadlineExceeded)]
    if stuck and not causes:
        since = _describe(*(late or failures)[0]) if failures else "all other ranks had ended"
        return DeadlineExceeded(f"{format_ranks(stuck)} is stuck, still running {timeout:g} s after {since}")
    rank, error = (causes or late or failures)[0]
    error.add_note(f"on rank {rank}")
    for other_failure in causes[1:]:
        error.add_note(_describe(*other_failure))
    if stuck:
        error.add_note(f"{format_ranks(stuck)} is stuck, still running {timeout:g} s later")
    return error


def _describe(rank: int, error: BaseException) -> str:
    return f"rank {rank} failed: {type(error).__name__}: {error}"
