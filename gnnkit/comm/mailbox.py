"""Point-to-point messages between ranks."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from torch import Tensor

from gnnkit.utils.documents import Json

LIMIT = 2**30  # maximum bytes of messages from one sender that a rank queues, and of one message
OVERHEAD = 1024  # bytes of memory per message, in addition to header and tensors
CLOSED = "has closed its mailbox"
Fields: TypeAlias = Mapping[str, Any]  # plain JSON values
Tensors: TypeAlias = Mapping[str, Tensor]


class PeerLost(RuntimeError):
    """Raised by a rank that waits for a peer that has exited.

    `rank` is the peer. Its exit is the cause; this error is the consequence.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class DeadlineExceeded(RuntimeError):
    """Raised by a rank that has waited for a peer until the deadline.

    The peer may be alive but slow. The message names the peer, the seconds and what was
    awaited. A longer `comm.timeout` helps if ranks are slow on purpose, as under a
    debugger.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message from one rank to another, as `Mailbox.take` returns it.

    The receiver owns the tensors and may modify them. `tag` separates messages that
    different parts of a program send.
    """

    src: int  # the sending rank
    tag: str
    fields: Json  # plain JSON values
    tensors: dict[str, Tensor]  # on the CPU, owned by the receiver


class Mailbox(ABC):
    """Point-to-point messages between the ranks of a group.

    `Communicator.mailbox` creates a mailbox. Ranks are the communicator's ranks. The
    methods are thread-safe and not collective. A mailbox must be closed after use, for
    example by a `with` statement.

    Messages from one sender with one tag arrive in the order in which they were sent. A
    rank may send messages to itself. Tensors must be dense. CUDA tensors arrive on the
    CPU.

    Use it where some ranks communicate while the others compute: parameter servers,
    the leader, and work that is stolen or moved. For exchanges of all ranks, a
    communicator's collectives are faster.
    """

    rank: int
    world_size: int

    @abstractmethod
    def put(self, dst: int, tag: str, fields: Fields | None = None, tensors: Tensors | None = None) -> None:
        """Sends a message. The caller may then modify `fields` and `tensors`.

        Blocks only while `dst` queues `LIMIT` bytes of this rank's messages. Raises
        `DeadlineExceeded` after the communicator's `timeout`, and `PeerLost` at once if
        `dst` has exited. Both errors name `dst`.

        Args:
            dst: The receiving rank.
            tag: Tag that the receiver filters by.
            fields: Plain JSON values with text keys. Default: none.
            tensors: Tensors by name, of any shape. Default: none.
        """

    @abstractmethod
    def take(self, tag: str | None = None, *, src: int | None = None, timeout: float) -> Message:
        """Removes and returns the oldest matching message. Waits until there is one.

        Raises `DeadlineExceeded` after `timeout`. Raises `PeerLost` at once if no
        message matches and `src` has exited. Without `src`, raises it only if all other
        ranks have exited.

        Args:
            tag: Tag of the message. Default: any.
            src: The sending rank. Default: any.
            timeout: Maximum wait in seconds.
        """

    @abstractmethod
    def poll(self, tag: str | None = None, src: int | None = None) -> Message | None:
        """Removes and returns the oldest matching message, or returns None at once.

        Args:
            tag: Tag of the message. Default: any.
            src: The sending rank. Default: any.
        """

    @abstractmethod
    def gone(self) -> frozenset[int]:
        """Returns the ranks from which no more messages will arrive.

        Their earlier messages may still be queued.
        """

    @abstractmethod
    def close(self) -> None:
        """Announces the end of this rank's messages, and drops the queued ones.

        Messages that this rank has sent still arrive.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Inbox:
    """The queued messages of one rank, and the peers that have exited."""

    def __init__(self, rank: int, world_size: int, limit: int = LIMIT) -> None:
        """Creates an empty inbox.

        Args:
            rank: The receiving rank.
            limit: Queued bytes per sender at which the sender blocks.
        """
        self.rank, self.limit = rank, limit
        self._condition = threading.Condition()
        self._arrivals = itertools.count()
        self._queues: dict[tuple[int, str], deque[tuple[int, int, Message]]] = {}  # arrival number, bytes, message
        self._queued_bytes = [0] * world_size  # queued bytes by sender
        self._exit_reasons: dict[int, str] = {}  # reason by rank
        self._close_reason = ""  # reason

    def add(self, message: Message, num_bytes: int) -> None:
        """Appends a message, regardless of the limit."""
        with self._condition:
            if self._close_reason:
                return
            queue = self._queues.setdefault((message.src, message.tag), deque())
            queue.append((next(self._arrivals), num_bytes + OVERHEAD, message))
            self._queued_bytes[message.src] += num_bytes + OVERHEAD
            self._condition.notify_all()

    def add_in_time(self, message: Message, num_bytes: int, timeout: float) -> None:
        """Appends a message once there is room, for a sender in the same process.

        Args:
            timeout: Maximum wait in seconds.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._close_reason or self.has_room(message.src), timeout)
            if self._close_reason:
                raise PeerLost(
                    f"rank {message.src}: lost its peer rank {self.rank}, which {self._close_reason}", self.rank
                )
            if not self.has_room(message.src):
                raise not_taken(message.src, self.rank, message.tag, timeout)
            self.add(message, num_bytes)

    def has_room(self, src: int) -> bool:
        """Returns whether rank `src` may send another message."""
        return self._queued_bytes[src] < self.limit

    def wait_for_room(self, src: int) -> None:
        """Waits until rank `src` may send another message, or `close` is called."""
        with self._condition:
            self._condition.wait_for(lambda: self._close_reason or self.has_room(src))

    def lose(self, rank: int, reason: str) -> None:
        """Records that `rank` sends no more messages. The first reason is kept."""
        with self._condition:
            self._exit_reasons.setdefault(rank, reason)
            self._condition.notify_all()

    def gone(self) -> frozenset[int]:
        """Implements `Mailbox.gone`."""
        with self._condition:
            return frozenset(self._exit_reasons)

    def close(self, reason: str) -> None:
        """Drops all messages and ends every wait. The first reason is kept."""
        with self._condition:
            self._close_reason = self._close_reason or reason
            self._queues.clear()
            self._queued_bytes = [0] * len(self._queued_bytes)
            self._condition.notify_all()

    def check(self, rank: int | None) -> None:
        """Raises if the mailbox is closed, or if `rank`, or every peer, has exited."""
        self.check_open()
        if rank is None and self._exit_reasons and len(self._exit_reasons) == len(self._queued_bytes) - 1:
            rank = next(iter(self._exit_reasons))
        if rank in self._exit_reasons:
            raise PeerLost(f"rank {self.rank}: lost its peer rank {rank}, which {self._exit_reasons[rank]}", rank)

    def check_open(self) -> None:
        """Raises if this mailbox is closed."""
        if self._close_reason:
            raise RuntimeError(f"rank {self.rank} {self._close_reason}")

    def check_rank(self, rank: int | None) -> None:
        """Raises if the rank does not exist."""
        if rank is not None and not 0 <= rank < len(self._queued_bytes):
            raise ValueError(f"rank {self.rank}: rank {rank} does not exist among {len(self._queued_bytes)} ranks")

    def take(self, tag: str | None, src: int | None, timeout: float) -> Message:
        """Implements `Mailbox.take`."""
        self.check_rank(src)
        deadline = time.monotonic() + timeout
        with self._condition:
            while (message := self.poll(tag, src)) is None:
                self.check(src)
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    raise DeadlineExceeded(self._late(tag, src, timeout))
                self._condition.wait(min(seconds, threading.TIMEOUT_MAX))
            return message

    def poll(self, tag: str | None, src: int | None) -> Message | None:
        """Implements `Mailbox.poll`."""
        self.check_rank(src)
        with self._condition:
            matching = [key for key in self._queues if src in (None, key[0]) and tag in (None, key[1])]
            if not matching:
                return None
            oldest = min(matching, key=lambda key: self._queues[key][0][0])
            _, num_bytes, message = self._queues[oldest].popleft()
            if not self._queues[oldest]:
                del self._queues[oldest]
            self._queued_bytes[message.src] -= num_bytes
            self._condition.notify_all()
            return message

    def _late(self, tag: str | None, src: int | None, timeout: float) -> str:
        message = "message" if tag is None else f"message {tag!r}"
        sender = "any rank" if src is None else f"rank {src}"
        full = "".join(
            f"; rank {rank} waits, because {num_bytes} bytes of its other messages are not taken"
            for rank, num_bytes in enumerate(self._queued_bytes)
            if src in (None, rank) and num_bytes >= self.limit
        )
        exits = "".join(f"; rank {rank} {reason}" for rank, reason in self._exit_reasons.items())
        return f"rank {self.rank}: timed out after {timeout:g} s: no {message} from {sender}{full}{exits}"


def not_taken(src: int, dst: int, tag: str, timeout: float) -> DeadlineExceeded:
    """Creates the error for a receiver that does not take the sender's messages.

    Args:
        src: The sending rank.
        dst: The receiving rank.
        timeout: Seconds waited.
    """
    return DeadlineExceeded(f"rank {src}: timed out after {timeout:g} s: rank {dst} takes no messages, {tag!r} waits")
