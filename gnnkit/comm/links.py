"""TCP connections between ranks."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Generator

from gnnkit.comm import frames
from gnnkit.errors import UserError

BURST = 64  # reads from one connection before serving the others
Frames = Generator[memoryview, None, None]  # buffers to fill, in order


class SocketLink:
    """A connection to another rank, and the frame being received."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        self.socket, self.sending = connection, threading.Lock()
        self.rank: int | None = None  # None before the handshake
        self.ended = False

    def start(self, rank: int | None, arriving: Frames) -> None:
        """Prepares to receive.

        Args:
            rank: The peer, None if unknown.
            arriving: Yields buffers for the received bytes.
        """
        self.rank, self._arriving, self._buffer = rank, arriving, next(arriving)

    def receive(self) -> bool:
        """Fills buffers with received bytes. Returns False at the end of the stream."""
        for _ in range(BURST):
            try:
                count = self.socket.recv_into(self._buffer)
            except BlockingIOError:
                return True
            if not count:
                return False
            self._buffer = self._buffer[count:]
            while not self._buffer:
                self._buffer = next(self._arriving)
        return True

    def send(self, views: list[memoryview], deadline: float) -> None:
        """Writes all views. The caller must hold `sending`.

        Raises `TimeoutError` at the deadline, and `OSError` if the connection is
        closed.

        Args:
            views: Bytes to write, in order.
            deadline: By time.monotonic.
        """
        views = [view for view in views if len(view)]
        while views:
            try:
                num_sent = self.socket.sendmsg(views[:64])  # in one write
            except BlockingIOError:
                self._wait_for_room(deadline)
                continue
            while views and num_sent >= len(views[0]):
                num_sent -= len(views.pop(0))
            if num_sent:
                views[0] = views[0][num_sent:]

    def say_goodbye(self, deadline: float) -> None:
        """Announces the end of the stream, unless a message is still being sent."""
        if self.ended or not self.sending.acquire(timeout=max(deadline - time.monotonic(), 0)):
            return
        try:
            with contextlib.suppress(OSError):
                self.send([memoryview(frames.GOODBYE)], deadline)
                self.socket.shutdown(socket.SHUT_WR)
        finally:
            self.sending.release()

    def hang_up(self) -> None:
        """Closes the connection at once, for readers and writers on both ends."""
        self.ended = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _wait_for_room(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT)
        seconds = deadline - time.monotonic()
        if seconds <= 0 or not poll.poll(min(seconds, 3600.0) * 1000):
            raise TimeoutError


def listen(world_size: int) -> socket.socket:
    """Opens a rank's listening socket.

    The socket is bound to loopback if gnnkit started the ranks (GNNKIT_LOCAL is set).
    Otherwise it is bound to the interface GLOO_SOCKET_IFNAME, or to the local address
    on the route to MASTER_ADDR. Without these variables, it is bound to loopback.
    """
    family, host = _own_address()
    return socket.create_server((host, 0), family=family, backlog=world_size + 128)


def _own_address() -> tuple[socket.AddressFamily, str]:
    interface, leader = os.environ.get("GLOO_SOCKET_IFNAME"), os.environ.get("MASTER_ADDR")
    if os.environ.get("GNNKIT_LOCAL") or not (interface or leader):
        return socket.AF_INET, "127.0.0.1"
    if interface and sys.platform == "linux":
        return socket.AF_INET, _address_of(interface.split(",")[0])
    family, _, _, _, address = socket.getaddrinfo(leader, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # selects the route without sending anything
        return family, probe.getsockname()[0]


def _address_of(interface: str) -> str:
    """Returns a network interface's IPv4 address."""
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, 0x8915, request)  # SIOCGIFADDR
        except OSError as error:
            raise UserError(
                f"GLOO_SOCKET_IFNAME={interface}: expected an interface with an IPv4 address: {error}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def keep_alive(connection: socket.socket) -> None:
    """Lets the system close an idle connection after 4 s without a probe's answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
