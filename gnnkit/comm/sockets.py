"""Mailboxes over TCP, with one connection per pair of ranks."""

from __future__ import annotations

import contextlib
import math
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.comm import frames
from gnnkit.comm.links import Frames, SocketLink, listen
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


HELLO = 5.0  # seconds within which a new connection must send the token
ENDED = "closed its connection without a goodbye"


class Receiver:
    """One rank's receiver. Accepts ranks with the token, and fills the inbox.

    If a sender's queue is full, the receiver stops reading from that sender only.
    """

    def __init__(
        self, inbox: Inbox, links: dict[int, SocketLink], world_size: int, listener: socket.socket, token: str
    ) -> None:
        """Prepares the thread.

        Args:
            links: Connections by rank. Connections from other ranks are added.
            listener: Listening socket, closed once all ranks are connected.
            token: Secret that a connection must start with.
        """
        self.met = threading.Event()  # set when all ranks are connected, or the thread has stopped
        self._inbox, self._links, self._world_size, self._token = inbox, links, world_size, token
        self._strangers: dict[SocketLink, float] = {}  # deadline of each handshake, by time.monotonic
        self._latest: tuple[Any, ...] = ("",)  # address of the last connection
        self._has_reported = False  # whether a rejected connection has been reported
        self._paused_links: set[SocketLink] = set()
        self._stops_at = math.inf  # by time.monotonic
        self._selector = selectors.DefaultSelector()
        self._listener, (self._bell, self._button) = listener, socket.socketpair()
        for source in (self._listener, self._bell, self._button):
            source.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=f"mailbox of rank {inbox.rank}", daemon=True)

    def listen_to(self, link: SocketLink, rank: int) -> None:
        """Receives a rank's messages over an open connection. Called before `start`."""
        link.start(rank, self._messages(rank))
        self._watch(link)

    def start(self) -> None:
        """Starts the thread."""
        self._selector.register(self._bell, selectors.EVENT_READ, self._hear_bell)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread.start()

    def resume(self) -> None:
        """Continues to read from blocked senders. Called after a message was taken."""
        if self._paused_links:
            self._ring()

    def stop(self, deadline: float) -> None:
        """Stops the thread as soon as all ranks have acknowledged the end.

        `deadline` is by time.monotonic.
        """
        self._stops_at = min(self._stops_at, deadline)
        if self._thread.ident is not None:
            self._ring()
            self._thread.join()
        for link in self._strangers:
            link.socket.close()
        for source in (self._listener, self._bell, self._button, self._selector):
            source.close()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes the thread as well
            self._button.send(b"\0")

    def _hear_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)

    def _serve(self) -> None:
        try:
            while not self._is_done():
                self._end_meeting()
                self._resume()
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._refuse_the_late()
        except Exception as error:
            self._inbox.close(f"has stopped receiving: {error!r}")
            for link in self._links.values():
                link.hang_up()
        finally:
            self.met.set()

    def _is_done(self) -> bool:
        if self._stops_at == math.inf:
            return False
        return time.monotonic() >= self._stops_at or all(link.ended for link in self._links.values())

    def _patience(self) -> float | None:
        """Seconds until the next deadline."""
        nearest = min([self._stops_at, *self._strangers.values()])
        return None if nearest == math.inf else max(nearest - time.monotonic(), 0)

    def _end_meeting(self) -> None:
        """Closes the listener and pending connections once all are connected."""
        if len(self._links) == self._world_size - 1 and not self.met.is_set():
            self._selector.unregister(self._listener)
            self._listener.close()
            for link in list(self._strangers):
                self._end(link, ENDED)
            self.met.set()

    def _refuse_the_late(self) -> None:
        for link, deadline in list(self._strangers.items()):
            if time.monotonic() >= deadline:
                self._end(link, ENDED)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, self._latest = self._listener.accept()
            link = SocketLink(connection)
            link.start(None, self._hello(link))
            self._strangers[link] = time.monotonic() + HELLO
            self._watch(link)

    def _watch(self, link: SocketLink) -> None:
        self._selector.register(link.socket, selectors.EVENT_READ, lambda: self._receive(link))

    def _receive(self, link: SocketLink) -> None:
        """Reads received bytes. A malformed frame closes this connection only."""
        try:
            if not link.receive():
                self._end(link, ENDED)
        except StopIteration:
            self._end(link, CLOSED)
        except OSError:
            self._end(link, ENDED)
        except (ValueError, RuntimeError, MemoryError) as error:
            self._end(link, f"sent a malformed frame: {error}")
        if link.rank is not None and not link.ended and not self._inbox.has_room(link.rank):
            self._selector.unregister(link.socket)
            self._paused_links.add(link)

    def _resume(self) -> None:
        for link in list(self._paused_links):
            if link.rank is not None and self._inbox.has_room(link.rank):
                self._paused_links.remove(link)
                self._watch(link)

    def _end(self, link: SocketLink, reason: str) -> None:
        self._selector.unregister(link.socket)
        link.hang_up()
        if link.rank is None:
            del self._strangers[link]
            link.socket.close()
            self._name_strangers()
        else:
            self._inbox.lose(link.rank, reason)

    def _name_strangers(self) -> None:
        """Reports once that a connection was rejected."""
        if not self._has_reported:
            self._has_reported = True
            line = f"rank {self._inbox.rank} rejects connections without the run's token, from {self._latest[0]}"
            print(line, file=sys.stderr, flush=True)

    def _hello(self, link: SocketLink) -> Frames:
        """Yields buffers for a connection's handshake, then for messages."""
        first = bytearray(frames.HELLO.size)
        yield memoryview(first)
        rank = frames.read_hello(first, self._token)
        if not self._inbox.rank < rank < self._world_size or rank in self._links:
            raise ValueError(f"rank {rank} is not expected")
        del self._strangers[link]
        link.rank, self._links[rank] = rank, link
        yield from self._messages(rank)

    def _messages(self, src: int) -> Frames:
        """Yields buffers for messages of rank `src`, until the end of the stream."""
        while True:
            prefix = bytearray(frames.PREFIX.size)
            yield memoryview(prefix)
            size, body = frames.read_prefix(prefix, frames.MAX_HEADER, self._inbox.limit)
            if size == body == 0:
                return
            header = bytearray(size)
            yield memoryview(header)
            message = frames.open_message(src, header, body)
            for tensor in message.tensors.values():
                yield frames.bytes_of(tensor)
            self._inbox.add(message, size + body)


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
