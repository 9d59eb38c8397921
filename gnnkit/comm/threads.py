"""Ranks that are threads of one process."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gnnkit.comm.base import Communicator

T = TypeVar("T")


@dataclass(eq=False)
class _Meeting:
    """What the threads of a group share."""

    world_size: int
    timeout: float  # seconds
    barrier: threading.Barrier = field(init=False)
    posts: list[Any] = field(init=False)
    groups: dict[tuple[int, tuple[int, ...]], _Meeting] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world_size)
        self.posts = [None] * self.world_size

    def group(self, generation: int, ranks: tuple[int, ...]) -> _Meeting:
        with self.lock:
            return self.groups.setdefault((generation, ranks), _Meeting(len(ranks), self.timeout))

    def abort(self) -> None:
        """Ends the wait of every thread, here and in the groups split off."""
        with self.lock:
            self.barrier.abort()
            for group in self.groups.values():
                group.abort()


class Threads(Communicator):
    """Threads of one process on the CPU: cheap, repeatable tests, and nothing copied between processes."""

    device = torch.device("cpu")
    in_one_process = True

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.world_size, self._meeting = rank, meeting.world_size, meeting
        self._splits: Counter[tuple[int, ...]] = Counter()  # a group may be split off more than once

    @classmethod
    def connect(
        cls, rank: int, world_size: int, *, device: torch.device, timeout: float, listener: socket.socket | None = None
    ) -> Threads:
        """Of one process there is one rank; `run` makes more."""
        assert world_size == 1
        return cls(rank, _Meeting(world_size, timeout))

    @classmethod
    def run(cls, function: Callable[[Threads], T], world_size: int, *, timeout: float = 120.0) -> list[T]:
        """`function(communicator)` on `world_size` threads; their results by rank. The first thread that fails ends the others."""
        # A forked process makes torch's autograd engine anew at the first use of it; two threads at once would crash there.
        one = torch.ones((), requires_grad=True)
        _ = one * one
        meeting = _Meeting(world_size, timeout)
        results: list[Any] = [None] * world_size
        errors: list[tuple[int, BaseException]] = []

        def work(rank: int) -> None:
            try:
                results[rank] = function(cls(rank, meeting))
            except BaseException as error:  # re-raised below, in the caller's thread
                errors.append((rank, error))
                meeting.abort()

        threads = [
            threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            rank, error = errors[0]
            error.add_note(f"on rank {rank}")
            raise error
        return results

    def _wait(self) -> None:
        try:
            self._meeting.barrier.wait(self._meeting.timeout)
        except threading.BrokenBarrierError:
            raise RuntimeError(
                f"rank {self.rank}: another rank failed or was late by {self._meeting.timeout} s"
            ) from None

    def _meet(self, post: Any, read: Callable[[list[Any]], T]) -> T:
        """Shows `post` to the others and reads theirs; nobody goes on, and changes what it posted, before all have read."""
        self._meeting.posts[self.rank] = post
        self._wait()
        value = read(self._meeting.posts)
        self._wait()
        return value

    def split(self, ranks: Sequence[int]) -> Threads:
        members = tuple(ranks)
        self._splits[members] += 1
        return type(self)(members.index(self.rank), self._meeting.group(self._splits[members], members))

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
