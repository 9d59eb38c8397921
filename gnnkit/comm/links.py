"""TCP connections between ranks, and the detection of hosts that are gone.

TCP retransmits unacknowledged data for a quarter of an hour, and Gloo waits until
`comm.timeout`. TCP keep-alive probes are quick, but they are sent only on idle
connections. Each process therefore keeps an idle connection to the first process. The
operating systems answer its probes, even if a process computes, waits or is stopped.
When probes remain unanswered, all connections with that host are shut down, so that
waiting operations fail at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import math
import os
import secrets
import select
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.comm import frames
from gnnkit.errors import UserError

if TYPE_CHECKING:
    from gnnkit.comm.base import Communicator

BUFFER = 2**16  # bytes received at once, of many small messages
HELLO = 5.0  # seconds within which a new connection must send the token


class SocketLink:
    """A connection to another rank, which one thread reads."""

    reader: threading.Thread

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        self.socket, self.sending = connection, threading.Lock()
        self.stream = io.BufferedReader(connection.makefile("rb", 0), BUFFER)
        self.ended = False

    def read(self, size: int) -> bytes:
        """Waits for `size` bytes. Raises `OSError` if the stream ends before."""
        content = self.stream.read(size)
        if len(content) < size:
            raise ConnectionError("the stream has ended")
        return content

    def fill(self, buffer: memoryview) -> None:
        """Fills a buffer with received bytes. Raises as `read` does."""
        if self.stream.readinto(buffer) < len(buffer):
            raise ConnectionError("the stream has ended")

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
                num_sent = self.socket.sendmsg(views[:64], [], socket.MSG_DONTWAIT)  # in one write
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

    def close(self) -> None:
        """Closes the connection, after `reader` has ended."""
        with self.sending:
            self.stream.close()
            self.socket.close()

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


def accept_ranks(
    ranks: Iterable[int],
    listener: socket.socket,
    token: str,
    deadline: float,
    *,
    is_trusted: Callable[[socket.socket], bool] = lambda _: True,
    refuse: Callable[[object], object] = lambda _: None,
) -> Iterator[tuple[int, socket.socket]]:
    """Yields the connections of ranks that start with `frames.hello`.

    Other callers are disconnected, and do not delay the ranks. Ends when all ranks have
    connected, or at the deadline.

    Args:
        ranks: The expected ranks.
        deadline: By time.monotonic.
        is_trusted: Whether a caller's hello is read. Default: always.
        refuse: Called with the address of each other caller. Default: does nothing.
    """
    missing = set(ranks)
    listener.setblocking(False)
    with selectors.DefaultSelector() as calls:
        calls.register(listener, selectors.EVENT_READ)
        try:
            while missing and (seconds := deadline - time.monotonic()) > 0:
                for key, _ in calls.select(min(seconds, HELLO)):
                    connection: Any = key.fileobj
                    if connection is listener:
                        _take_call(calls, listener)
                    elif (rank := _caller(connection, token, is_trusted)) is not None and rank in missing:
                        calls.unregister(connection)
                        missing.remove(rank)
                        yield rank, connection
                    else:
                        calls.modify(connection, selectors.EVENT_READ, (key.data[0], -math.inf))
                _end_calls(calls, time.monotonic(), refuse)
        finally:
            _end_calls(calls, math.inf, refuse)


def _take_call(calls: selectors.BaseSelector, listener: socket.socket) -> None:
    """Registers a caller, who has `HELLO` seconds for the hello."""
    with contextlib.suppress(BlockingIOError, ConnectionError):  # the caller has left
        caller, address = listener.accept()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, frames.HELLO.size)
        calls.register(caller, selectors.EVENT_READ, (address, time.monotonic() + HELLO))


def _end_calls(calls: selectors.BaseSelector, until: float, refuse: Callable[[object], object]) -> None:
    """Disconnects the callers whose time for the hello ends by `until`."""
    for key in list(calls.get_map().values()):
        if key.data is not None and key.data[1] <= until:
            calls.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            refuse(key.data[0])


def _caller(connection: socket.socket, token: str, is_trusted: Callable[[socket.socket], bool]) -> int | None:
    """Returns the rank in a connection's first bytes, or None for a stranger."""
    with contextlib.suppress(ValueError, OSError):
        if is_trusted(connection):
            rank = frames.read_hello(connection.recv(frames.HELLO.size, socket.MSG_DONTWAIT), token)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            return rank
    return None


def keep_alive(connection: socket.socket) -> None:
    """Lets the system close an idle connection after 4 s without a probe's answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_MEETING = 10.0  # maximum seconds until all have connected
_GONE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


@contextlib.contextmanager
def monitor_hosts(comm: Communicator) -> Iterator[None]:
    """Monitors the other processes' hosts within the context. Entering is collective.

    Does nothing if all processes are on this host.
    """
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "") or comm.world_size == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        links = _connect(comm, stack)
        watch = threading.Thread(target=_watch, args=(comm.rank, links), name="host monitor", daemon=True)
        watch.start()
        try:
            yield
        finally:
            for link in links:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            watch.join()


def _connect(comm: Communicator, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connects all processes to the first one. Collective."""
    if comm.rank == 0:
        listener, token = stack.enter_context(listen(comm.world_size)), secrets.token_hex(16)
        comm.share([*listener.getsockname()[:2], token])
        callers = accept_ranks(range(1, comm.world_size), listener, token, time.monotonic() + _MEETING)
        links = [stack.enter_context(link) for _, link in callers]
    else:
        host, port, token = comm.share(None)
        links = [stack.enter_context(socket.create_connection((host, port), timeout=_MEETING))]
        links[0].sendall(frames.hello(token, comm.rank))
    for link in links:
        keep_alive(link)
    return links


def _watch(rank: int, links: list[socket.socket]) -> None:
    """Waits for the end of each connection."""
    with selectors.DefaultSelector() as selector:
        for link in links:
            link.setblocking(False)
            selector.register(link, selectors.EVENT_READ, link.getpeername()[0])
        while selector.get_map():
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                try:
                    key.fileobj.recv(1)  # end of stream: this or the other process exits normally
                except OSError as error:
                    if error.errno in _GONE:
                        print(f"rank {rank}: the host {key.data} no longer responds", file=sys.stderr, flush=True)
                        hang_up(None if rank else key.data)


def hang_up(host: str | None) -> None:
    """Shuts down this process's TCP connections with one host, or with all hosts.

    This includes Gloo's connections, because their waits cannot be ended otherwise.
    """
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as link:
                if link.family in (socket.AF_INET, socket.AF_INET6) and _is_with(link, host):
                    link.shutdown(socket.SHUT_RDWR)


def _is_with(link: socket.socket, host: str | None) -> bool:
    address = ipaddress.ip_address(link.getpeername()[0].partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return not address.is_loopback if host is None else str(address) == host
