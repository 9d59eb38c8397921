"""Detection, within seconds, of hosts that are disconnected or without power.

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
import hmac
import ipaddress
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.comm.links import keep_alive, listen

if TYPE_CHECKING:
    from gnnkit.comm.base import Communicator

_SIZE = 32  # bytes of the token, after which nothing is sent
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
        listener = stack.enter_context(listen(comm.world_size))
        token = secrets.token_bytes(_SIZE)
        comm.share([*listener.getsockname()[:2], token.hex()])
        return _accept(listener, token, comm.world_size - 1, stack)
    host, port, token_ = comm.share(None)
    link = stack.enter_context(socket.create_connection((host, port), timeout=_MEETING))
    link.sendall(bytes.fromhex(token_))
    keep_alive(link)
    return [link]


def _accept(listener: socket.socket, token: bytes, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Returns the connections that send the token before the deadline."""
    links, deadline = list[socket.socket](), time.monotonic() + _MEETING
    while len(links) < count and (seconds := deadline - time.monotonic()) > 0:
        listener.settimeout(seconds)
        with contextlib.suppress(OSError):
            link = stack.enter_context(listener.accept()[0])
            link.settimeout(1.0)  # for connections that send nothing
            if hmac.compare_digest(link.recv(_SIZE, socket.MSG_WAITALL), token):
                keep_alive(link)
                links.append(link)
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
