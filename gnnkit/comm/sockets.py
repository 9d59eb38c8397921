"""Mailboxes over TCP, with one connection per pair of ranks."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnnkit.comm import frames
from gnnkit.comm.links import SocketLink, listen
from gnnkit.comm.mailbox import (
    CLOSED,
    LIMIT,
    DeadlineExceeded,
    Fields,
    Inbox,
    Mailbox,
    Message,
    PeerLost,
    Tensors,
    not_taken,
)
from gnnkit.comm.receiver import ENDED, Receiver

if TYPE_CHECKING:
    from gnnkit.comm.base import Communicator

LINGER = 1.0  # seconds within which peers must acknowledge the end


class SocketMailbox(Mailbox):
    """A mailbox between processes connected by TCP.

    A thread receives messages, so senders do not wait for the receiver to take them.
    The listening socket is closed as soon as all ranks have connected.
    """

    def __init__(
        self,
        rank: int,
        listener: socket.socket,
        addresses: Sequence[tuple[str, int]],
        token: str,
        timeout: float,
        limit: int = LIMIT,
    ) -> None:
        """Connects to lower ranks, and accepts connections from higher ranks.

        Args:
            listener: This rank's listening socket, which the mailbox closes.
            addresses: [world_size] host and port of every rank's listener.
            token: The run's secret, equal on all ranks.
            timeout: Deadline of the rendezvous and of each `put`, in seconds.
            limit: Queued bytes per sender at which the sender blocks.
        """
        self.rank, self.world_size = rank, len(addresses)
        self._timeout = min(timeout, threading.TIMEOUT_MAX)
        self._inbox = Inbox(rank, self.world_size, limit)
        self._links: dict[int, SocketLink] = {}  # by rank
        self._receiver = Receiver(self._inbox, self._links, self.world_size, listener, token)
        try:
            self._meet(addresses, token)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, comm: Communicator) -> SocketMailbox:
        """Exchanges addresses and token through `comm`, then connects. Collective."""
        listener = listen(comm.world_size)
        try:
            token = comm.share(secrets.token_hex(16))
            address = listener.getsockname()[:2]
            addresses = [tuple(comm.share(address, src=rank)) for rank in range(comm.world_size)]
        except BaseException:
            listener.close()
            raise
        return cls(comm.rank, listener, addresses, token, comm.timeout)

    def put(self, dst: int, tag: str, fields: Fields | None = None, tensors: Tensors | None = None) -> None:
        self._inbox.check_rank(dst)
        header, parts = frames.encode(tag, fields, tensors, self._inbox.limit)
        if dst == self.rank:
            self._inbox.add_in_time(*frames.copy(self.rank, header, parts), self._timeout)
        else:
            self._send(dst, tag, [memoryview(frames.prefix(header, parts) + header), *parts])

    def take(self, tag: str | None = None, *, src: int | None = None, timeout: float) -> Message:
        message = self._inbox.take(tag, src, timeout)
        self._receiver.resume()
        return message

    def poll(self, tag: str | None = None, src: int | None = None) -> Message | None:
        message = self._inbox.poll(tag, src)
        self._receiver.resume()
        return message

    def gone(self) -> frozenset[int]:
        return self._inbox.gone()

    def close(self) -> None:
        self._inbox.close(CLOSED)
        deadline = time.monotonic() + LINGER
        for link in list(self._links.values()):
            link.say_goodbye(deadline)
        self._receiver.stop(deadline)
        for link in self._links.values():
            with link.sending:
                link.socket.close()

    def _meet(self, addresses: Sequence[tuple[str, int]], token: str) -> None:
        deadline = time.monotonic() + self._timeout
        for rank in range(self.rank):
            self._links[rank] = link = SocketLink(self._connect(rank, addresses[rank], token, deadline))
            self._receiver.listen_to(link, rank)
        self._receiver.start()
        if not self._receiver.met.wait(max(deadline - time.monotonic(), 0)):
            missing = [rank for rank in range(self.rank + 1, self.world_size) if rank not in self._links]
            raise DeadlineExceeded(f"rank {self.rank}: timed out: ranks {missing} did not connect their mailboxes")
        self._inbox.check_open()

    def _connect(self, rank: int, address: tuple[str, int], token: str, deadline: float) -> socket.socket:
        host, port = address
        try:
            connection = socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), 0.01))
            connection.sendall(frames.hello(token, self.rank))
        except OSError as error:
            raise PeerLost(
                (
                    f"rank {self.rank}: cannot reach its peer rank {rank} at {host}:{port}: {error}; "
                    "set GLOO_SOCKET_IFNAME to an interface that all hosts can reach"
                ),
                rank,
            ) from error
        return connection

    def _send(self, dst: int, tag: str, views: list[memoryview]) -> None:
        self._inbox.check(dst)
        link, deadline = self._links[dst], time.monotonic() + self._timeout
        if not link.sending.acquire(timeout=self._timeout):
            raise not_taken(self.rank, dst, tag, self._timeout)
        try:
            link.send(views, deadline)
        except BaseException as error:
            late = isinstance(error, TimeoutError)
            self._inbox.lose(dst, f"took no messages for {self._timeout:g} s" if late else ENDED)
            link.hang_up()  # a partial frame cannot be taken back
            if late:
                raise not_taken(self.rank, dst, tag, self._timeout) from None
            if isinstance(error, OSError):
                self._inbox.check(dst)
            raise
        finally:
            link.sending.release()
