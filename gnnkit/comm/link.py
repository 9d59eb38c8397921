"""A link between ranks of one host, simulated: transfers take the time of a network.

The cost of a transfer is bytes / bandwidth + latency times rounds:

- rows: the bytes that this rank sends to others, or gets if these are more; one round.
  Nothing where there are neither
- sums of n bytes over P ranks, as in a ring: 2 (P - 1) / P n bytes, 2 (P - 1) rounds
- broadcasts of n bytes, as in a binomial tree: n bytes in each of ceil(log2 P) rounds
- letters: the bytes of their tensors; one round, which the receiver waits for

Transfers of a rank share its card: one begins when the bytes of the one before are
through. A rank waits for what is left of that time when the transfer itself is over. So
a transfer takes at least its cost, and the others wait for the busiest rank where they
meet next. Values are those without a link.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gnnkit.comm.base import Communicator
from gnnkit.comm.mailbox import Letter, Mailbox
from gnnkit.comm.pending import Pending

_DUE = "due over the link"  # field of a letter: the moment of its arrival


@dataclass(frozen=True, slots=True)
class Link:
    """A link between any two ranks."""

    gigabits: float  # in a second, of each rank's card
    milliseconds: float  # latency, one way


class Card:
    """The card of one rank, which sends one thing after the other.

    Moments are those of `time.monotonic`, which is one clock for all processes.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free = 0.0  # moment at which the bytes so far are through
        self._lock = threading.Lock()

    def send(self, num_bytes: float, rounds: int = 1) -> float:
        """Begins a transfer now, and returns the moment of its end."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + num_bytes * 8e-9 / self.link.gigabits
            return self._free + rounds * self.link.milliseconds * 1e-3


def sleep_until(moment: float) -> None:
    """Sleeps until a moment of `time.monotonic`, if that is to come."""
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)


class Linked(Communicator):
    """Another communicator, as slow as a link."""

    def __init__(self, comm: Communicator, card: Card) -> None:
        """Keeps the parts.

        Args:
            comm: Does the work, on a host that all its ranks share.
            card: Of this rank, shared by all groups that are split off.
        """
        self._comm, self._card = comm, card
        self.rank, self.world_size = comm.rank, comm.world_size
        self.device, self.timeout = comm.device, comm.timeout
        self.in_threads, self.beside, self.is_process_group = comm.in_threads, comm.beside, comm.is_process_group

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Linked:
        raise NotImplementedError("Linked needs a communicator of ranks that are connected")

    def split(self, ranks: Sequence[int]) -> Linked:
        return Linked(self._comm.split(ranks), self._card)

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        end = self._end_of_rows(rows, send_counts, recv_counts)
        received = self._comm.all_to_all(rows, send_counts, recv_counts)
        sleep_until(end)
        return received

    def start(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        index: Tensor | None = None,
    ) -> Pending:
        end = self._end_of_rows(rows, send_counts, recv_counts)
        return _Slow(self._comm.start(rows, send_counts, recv_counts, index=index), end)

    def all_reduce(self, x: Tensor) -> Tensor:
        end = self.end_of_sum(_size(x))
        total = self._comm.all_reduce(x)
        sleep_until(end)
        return total

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        rounds = math.ceil(math.log2(self.world_size))
        end = self._card.send(rounds * _size(x), rounds) if rounds else 0.0
        value = self._comm.broadcast(x, src=src)
        sleep_until(end)
        return value

    def end_of_sum(self, num_bytes: int) -> float:
        others = self.world_size - 1
        return self._card.send(2 * others / self.world_size * num_bytes, 2 * others) if others else 0.0

    def mailbox(self) -> Mailbox:
        return LinkedMailbox(self._comm.mailbox(), self._card)

    def close(self) -> None:
        self._comm.close()

    def _end_of_rows(self, rows: Tensor, *counts: Sequence[int]) -> float:
        """Returns the moment at which rows have travelled, by counts of both ways."""
        num_rows = max(sum(row) - row[self.rank] for row in counts)
        return self._card.send(num_rows * rows.element_size() * math.prod(rows.shape[1:])) if num_rows else 0.0


class LinkedMailbox(Mailbox):
    """Another mailbox, whose letters arrive after their time on the link."""

    def __init__(self, mailbox: Mailbox, card: Card) -> None:
        """Keeps the parts.

        Args:
            mailbox: Carries the letters. All its ranks have such a mailbox around.
            card: Of this rank.
        """
        self.rank, self.world_size = mailbox.rank, mailbox.world_size
        self._mailbox, self._card = mailbox, card
        self._lock = threading.Lock()
        self._under_way: list[Letter] = []  # seen by `poll` before they were due

    def put(
        self,
        dst: int,
        tag: str,
        fields: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        due = 0.0 if dst == self.rank else self._card.send(sum(map(_size, (tensors or {}).values())))
        self._mailbox.put(dst, tag, {**(fields or {}), _DUE: due}, tensors)

    def take(self, tag: str | None = None, *, src: int | None = None, timeout: float) -> Letter:
        with self._lock:
            letter = self._oldest(tag, src)
            if letter is not None:
                self._under_way.remove(letter)
        letter = letter or self._mailbox.take(tag, src=src, timeout=timeout)
        sleep_until(letter.fields[_DUE])
        return _opened(letter)

    def poll(self, tag: str | None = None, src: int | None = None) -> Letter | None:
        with self._lock:
            letter = self._oldest(tag, src)
            if letter is None and (letter := self._mailbox.poll(tag, src)) is not None:
                self._under_way.append(letter)
            if letter is None or letter.fields[_DUE] > time.monotonic():
                return None
            self._under_way.remove(letter)
            return _opened(letter)

    def gone(self) -> frozenset[int]:
        return self._mailbox.gone()

    def close(self) -> None:
        self._mailbox.close()

    def _oldest(self, tag: str | None, src: int | None) -> Letter | None:
        """Returns the first letter under way that matches. Stays under way."""
        matching = (message for message in self._under_way if tag in (None, message.tag) and src in (None, message.src))
        return next(matching, None)


class _Slow(Pending):
    """An exchange that ends at a moment, or later."""

    def __init__(self, exchange: Pending, end: float) -> None:
        self._exchange, self._end = exchange, end

    def wait(self) -> Tensor:
        received = self._exchange.wait()
        sleep_until(self._end)
        return received

    @contextmanager
    def borrow(self) -> Iterator[Tensor]:
        with self._exchange.borrow() as rows:
            sleep_until(self._end)
            yield rows


def _opened(letter: Letter) -> Letter:
    return replace(letter, fields={name: value for name, value in letter.fields.items() if name != _DUE})


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()
