"""A host that is cut off or without power, noticed within seconds.

TCP sends again for a quarter of an hour what nobody acknowledges, and gloo waits until
`comm.timeout`. TCP's probes (keep-alive) are quick, but only where nothing is under
way. So each process keeps a connection to the first one on which nothing is sent. The
systems at both ends answer probes, whatever the processes do: a process that computes,
waits or is stopped is not taken for a lost one. When probes are not answered, all
connections with that host are shut, so who waits there gets an error at once.
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
_MEETING = 10.0  # seconds, at most, until all have connected
_GONE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


@contextlib.contextmanager
def sentry(comm: Communicator) -> Iterator[None]:
    """Watches the hosts of other processes during the body. Collective at its begin.

    Does nothing where all processes are on this host.
    """
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "") or comm.world_size == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        links = _connect(comm, stack)
        watch = threading.Thread(target=_watch, args=(comm.rank, links), name="sentry", daemon=True)
        watch.start()
        try:
            yield
        finally:
            for link in links:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            watch.join()


def _connect(comm: Communicator, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connects all processes with the first one. Collective."""
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
    """Returns the connections that begin with the token, as many as come in time."""
    links, deadline = list[socket.socket](), time.monotonic() + _MEETING
    while len(links) < count and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(OSError):
            link = stack.enter_context(listener.accept()[0])
            link.settimeout(1.0)  # of a stranger, who says nothing
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
                    key.fileobj.recv(1)  # the end: the process has ended, or this one ends
                except OSError as error:
                    if error.errno in _GONE:
                        print(f"rank {rank}: the host {key.data} does not answer any more", file=sys.stderr, flush=True)
                        hang_up(None if rank else key.data)


def hang_up(host: str | None) -> None:
    """Shuts the TCP connections of this process with a host. None: with all others.

    Those of gloo too, which has no other way to end a wait.
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
