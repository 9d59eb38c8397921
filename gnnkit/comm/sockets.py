"""Mailboxes over TCP, with one connection per pair of ranks."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.comm import frames
from gnnkit.comm.links import SocketLink, accept_ranks, listen
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

if TYPE_CHECKING:
    from gnnkit.comm.base import Communicator


ENDED = "closed its connection without a goodbye"
LINGER = 1.0  # seconds within which peers must acknowledge the end


class SocketMailbox(Mailbox):
    """A mailbox between processes connected by TCP.

    A thread for each peer receives its messages, so senders do not wait for the
    receiver to take them. If a peer's queue is full, only its thread stops reading. The
    listening socket is closed as soon as all ranks have connected.
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
        self._has_reported = False  # whether a rejected connection has been reported
        try:
            with listener:
                self._meet(listener, addresses, token)
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
        return self._inbox.take(tag, src, timeout)

    def poll(self, tag: str | None = None, src: int | None = None) -> Message | None:
        return self._inbox.poll(tag, src)

    def gone(self) -> frozenset[int]:
        return self._inbox.gone()

    def close(self) -> None:
        self._inbox.close(CLOSED)
        deadline, links = time.monotonic() + LINGER, list(self._links.values())
        for link in links:
            link.say_goodbye(deadline)
        for link in links:  # ends when the peer acknowledges
            link.reader.join(max(deadline - time.monotonic(), 0))
        for link in links:
            link.hang_up()
            link.reader.join()
            link.close()

    def _meet(self, listener: socket.socket, addresses: Sequence[tuple[str, int]], token: str) -> None:
        deadline = time.monotonic() + self._timeout
        for rank in range(self.rank):
            self._add(rank, self._connect(rank, addresses[rank], token, deadline))
        higher_ranks = range(self.rank + 1, self.world_size)
        for rank, connection in accept_ranks(higher_ranks, listener, token, deadline, refuse=self._report_stranger):
            self._add(rank, connection)
        if missing := [rank for rank in higher_ranks if rank not in self._links]:
            raise DeadlineExceeded(f"rank {self.rank}: timed out: ranks {missing} did not connect their mailboxes")

    def _add(self, rank: int, connection: socket.socket) -> None:
        """Starts to receive from a rank."""
        link = SocketLink(connection)
        name = f"mailbox of rank {self.rank} from rank {rank}"
        link.reader = threading.Thread(target=self._receive, args=(rank, link), name=name, daemon=True)
        link.reader.start()
        self._links[rank] = link

    def _receive(self, rank: int, link: SocketLink) -> None:
        """Receives a rank's messages. A malformed frame ends this connection only."""
        try:
            self._read_messages(rank, link)
            reason = CLOSED
        except OSError:
            reason = ENDED
        except Exception as error:
            reason = f"sent a malformed frame: {error}"
        link.hang_up()
        self._inbox.lose(rank, reason)

    def _read_messages(self, rank: int, link: SocketLink) -> None:
        """Fills the inbox until the rank says goodbye."""
        while True:
            size, body = frames.read_prefix(link.read(frames.PREFIX.size), frames.MAX_HEADER, self._inbox.limit)
            if size == body == 0:
                return
            message = frames.open_message(rank, link.read(size), body)
            for tensor in message.tensors.values():
                link.fill(frames.bytes_of(tensor))
            self._inbox.add(message, size + body)
            self._inbox.wait_for_room(rank)

    def _report_stranger(self, address: Any) -> None:
        """Reports once that a connection was rejected."""
        if not self._has_reported:
            self._has_reported = True
            line = f"rank {self.rank} rejects connections without the run's token, from {address[0]}"
            print(line, file=sys.stderr, flush=True)

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
