"""comm=slow_link: ranks of one host, with a simulated network link between them.

The cost of a transfer is bytes / bandwidth + latency * rounds:

- rows: the larger of the bytes that this rank sends and receives, in one round. A rank
that does neither pays nothing.
- sums of n bytes over P ranks, as in a ring: 2 (P - 1) / P n bytes, 2 (P - 1) rounds
- broadcasts of n bytes, as in a binomial tree: n bytes in each of ceil(log2 P) rounds
- messages: the bytes of their tensors in one round, for which the receiver waits

A rank's transfers share its network card, so each starts when the previous one's bytes
have been sent. After the actual transfer, the rank sleeps for the remaining time. A
transfer therefore takes at least its cost, and the other ranks wait for the busiest one
at the next collective. Transferred values are unchanged.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnnkit import plugins
from gnnkit.comm import Communicator, Mailbox, Message, Pending
from gnnkit.comm.base import Counts
from gnnkit.comm.mailbox import Fields, Tensors
from gnnkit.errors import UserError
from gnnkit.utils.ranges import real

_DUE = "due over the link"  # message field: the time of its arrival
GIGABITS, MILLISECONDS = 1.0, 0.2  # defaults


@dataclass(frozen=True, slots=True)
class Link:
    """A link between any two ranks."""

    gigabits: float  # Gb/s of each rank's network card
    milliseconds: float  # latency, one way


class Card:
    """A rank's network card, which sends one transfer after the other.

    Times are those of `time.monotonic`, which all processes share.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free = 0.0  # time at which all previous bytes have been sent
        self._lock = threading.Lock()

    def send(self, num_bytes: float, rounds: int = 1) -> float:
        """Starts a transfer and returns the time of its end."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + num_bytes * 8e-9 / self.link.gigabits
            return self._free + rounds * self.link.milliseconds * 1e-3


def sleep_until(moment: float) -> None:
    """Sleeps until a `time.monotonic` time."""
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)


class SlowLink(Communicator):
    """Slows another communicator down to the speed of a link."""

    def __init__(self, comm: Communicator, card: Card) -> None:
        """Stores the arguments.

        Args:
            comm: The communicator of ranks on one host.
            card: This rank's card, shared by all its groups.
        """
        self._comm, self._card = comm, card
        self.rank, self.world_size = comm.rank, comm.world_size
        self.device, self.timeout = comm.device, comm.timeout
        self.in_threads, self.beside, self.is_process_group = comm.in_threads, comm.beside, comm.is_process_group

    @classmethod
    def check_keys(cls, gigabits: float = GIGABITS, milliseconds: float = MILLISECONDS) -> None:
        real("comm.gigabits", gigabits, above=0)
        real("comm.milliseconds", milliseconds, low=0)

    @classmethod
    def connect(
        cls,
        rank: int,
        world_size: int,
        *,
        device: torch.device,
        timeout: float,
        gigabits: float = GIGABITS,
        milliseconds: float = MILLISECONDS,
    ) -> SlowLink:
        """Connects processes of one host. Raises `UserError` for several hosts.

        Args:
            gigabits: Gb/s of each rank's network card.
            milliseconds: One-way latency.
        """
        if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) != world_size:
            raise UserError("comm=slow_link simulates a link between ranks of one host: choose comm=gloo")
        gloo = plugins.load("comm", "gloo").connect(rank, world_size, device=device, timeout=timeout)
        return cls(gloo, Card(Link(gigabits, milliseconds)))

    def split(self, ranks: Sequence[int]) -> SlowLink:
        return SlowLink(self._comm.split(ranks), self._card)

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        end = self._end_of_rows(rows, send_counts, recv_counts)
        received = self._comm.all_to_all(rows, send_counts, recv_counts)
        sleep_until(end)
        return received

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        end = self._end_of_rows(rows, send_counts, recv_counts)
        return _Slow(self._comm.start(rows, send_counts, recv_counts, index=index), end)

    def all_reduce(self, x: Tensor) -> Tensor:
        others = self.world_size - 1
        end = self._card.send(2 * others / self.world_size * _size(x), 2 * others) if others else 0.0
        total = self._comm.all_reduce(x)
        sleep_until(end)
        return total

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        rounds = math.ceil(math.log2(self.world_size))
        end = self._card.send(rounds * _size(x), rounds) if rounds else 0.0
        value = self._comm.broadcast(x, src=src)
        sleep_until(end)
        return value

    def sums_in_order(self) -> bool:
        return self._comm.sums_in_order()

    def mailbox(self) -> Mailbox:
        return LinkedMailbox(self._comm.mailbox(), self._card)

    def close(self) -> None:
        self._comm.close()

    def _end_of_rows(self, rows: Tensor, *counts: Counts) -> float:
        """Returns the time at which a transfer of rows ends, from the counts."""
        num_rows = max(sum(row) - row[self.rank] for row in counts)
        return self._card.send(num_rows * rows.element_size() * math.prod(rows.shape[1:])) if num_rows else 0.0


class LinkedMailbox(Mailbox):
    """Delays another mailbox's messages by their time on the link."""

    def __init__(self, mailbox: Mailbox, card: Card) -> None:
        """Stores the arguments.

        Args:
            mailbox: The mailbox. All its ranks must be wrapped.
        """
        self.rank, self.world_size = mailbox.rank, mailbox.world_size
        self._mailbox, self._card = mailbox, card
        self._lock = threading.Lock()
        self._under_way: list[Message] = []  # received by `poll` before their arrival time

    def put(self, dst: int, tag: str, fields: Fields | None = None, tensors: Tensors | None = None) -> None:
        due = 0.0 if dst == self.rank else self._card.send(sum(map(_size, (tensors or {}).values())))
        self._mailbox.put(dst, tag, {**(fields or {}), _DUE: due}, tensors)

    def take(self, tag: str | None = None, *, src: int | None = None, timeout: float) -> Message:
        with self._lock:
            message = self._oldest(tag, src)
            if message is not None:
                self._under_way.remove(message)
        message = message or self._mailbox.take(tag, src=src, timeout=timeout)
        sleep_until(message.fields[_DUE])
        return _opened(message)

    def poll(self, tag: str | None = None, src: int | None = None) -> Message | None:
        with self._lock:
            message = self._oldest(tag, src)
            if message is None and (message := self._mailbox.poll(tag, src)) is not None:
                self._under_way.append(message)
            if message is None or message.fields[_DUE] > time.monotonic():
                return None
            self._under_way.remove(message)
            return _opened(message)

    def gone(self) -> frozenset[int]:
        return self._mailbox.gone()

    def close(self) -> None:
        self._mailbox.close()

    def _oldest(self, tag: str | None, src: int | None) -> Message | None:
        """Returns the first matching message in flight, without removing it."""
        matching = (message for message in self._under_way if tag in (None, message.tag) and src in (None, message.src))
        return next(matching, None)


class _Slow(Pending):
    """An exchange that ends at a given time or later."""

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


def _opened(message: Message) -> Message:
    return replace(message, fields={name: value for name, value in message.fields.items() if name != _DUE})


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()
