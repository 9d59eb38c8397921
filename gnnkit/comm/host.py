"""Discovery of a group's ranks on the same host, and connections between them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.comm import frames
from gnnkit.utils.documents import Json

Gather = Callable[[bytes], list[bytes]]  # gathers bytes of equal length from all ranks. Collective
RECORD = 256  # bytes that each rank shares
MEETING = 10.0  # maximum seconds to wait for connections


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """A group's other ranks, as seen from one rank."""

    links: dict[int, socket.socket]  # to ranks on this host, by rank
    far: tuple[int, ...]  # ranks on other hosts


def meet(rank: int, world_size: int, gather: Gather, timeout: float, *, able: bool) -> Neighbours | None:
    """Connects each pair of ranks on the same host by a message-oriented socket.

    Collective. The sockets have abstract names. They reach ranks of the same kernel and
    network namespace, and leave no files. Each rank authenticates its peers by a random
    token.

    Args:
        world_size: Number of ranks in the group.
        gather: Gathers bytes from all ranks.
        timeout: Deadline in seconds.
        able: Whether this rank can use the connections. Otherwise it counts as far.

    Returns:
        None on all ranks if no two share a host, or if a connection fails.
    """
    token, links = secrets.token_hex(16), dict[int, socket.socket]()
    with contextlib.ExitStack() as stack:
        own_record: Json = {"host": f"rank {rank}"}  # a unique default
        listener = _listen(world_size) if able else None
        if listener is not None:
            stack.enter_context(listener)
            own_record = {"host": host(), "name": listener.getsockname().hex(), "token": token}
        records = [json.loads(record) for record in gather(json.dumps(own_record).encode().ljust(RECORD))]
        hosts = [record["host"] for record in records]
        if len(set(hosts)) == world_size:
            return None
        near = [peer for peer in range(world_size) if hosts[peer] == hosts[rank] and peer != rank]
        with contextlib.suppress(OSError):
            if listener is not None:
                _connect(links, rank, near, listener, records, time.monotonic() + min(timeout, MEETING))
    if min(gather(bytes([len(links) == len(near)]))) == b"\0":
        for link in links.values():
            link.close()
        return None
    return Neighbours(links, tuple(peer for peer in range(world_size) if hosts[peer] != hosts[rank]))


def host() -> str:
    """Returns an identifier shared by the ranks that can reach each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.geteuid()}"


def _listen(world_size: int) -> socket.socket | None:
    """Opens a listening socket, or returns None if the system does not support them."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind("")  # lets the system choose an abstract name
        listener.listen(world_size + 128)
        host()
        stack.pop_all()  # keeps the socket open
        return listener
    return None


def _connect(
    links: dict[int, socket.socket],
    rank: int,
    near: Sequence[int],
    listener: socket.socket,
    records: Sequence[Mapping[str, Any]],
    deadline: float,
) -> None:
    """Connects to lower ranks, and accepts connections from higher ranks.

    Args:
        records: Name and token of each rank's listener.
        deadline: By time.monotonic.
    """
    connections = dict[int, socket.socket]()
    for peer in near:
        if peer < rank:
            connections[peer] = link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            link.settimeout(_seconds_left(deadline))
            link.connect(bytes.fromhex(records[peer]["name"]))
            if _user(link) != os.geteuid():
                raise PermissionError("a stranger listens")
            link.send(frames.hello(records[peer]["token"], rank))
    higher_ranks = {peer for peer in near if peer > rank}
    connections.update(_answer(higher_ranks, listener, records[rank]["token"], deadline))
    for link in connections.values():
        link.setblocking(False)
    links.update(connections)


def _answer(ranks: set[int], listener: socket.socket, token: str, deadline: float) -> dict[int, socket.socket]:
    """Accepts the connections of expected ranks, without waiting for other callers.

    Raises `TimeoutError` at the deadline.
    """
    connections = dict[int, socket.socket]()
    with selectors.DefaultSelector() as calls:
        calls.register(listener, selectors.EVENT_READ)
        while ranks - connections.keys():
            ready = calls.select(_seconds_left(deadline))
            if not ready and time.monotonic() >= deadline:
                raise TimeoutError("ranks of this host did not connect")
            for connection in (key.fileobj for key, _ in ready):
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    calls.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                calls.unregister(connection)
                caller = _caller(connection, token)
                if caller is None or caller not in ranks - connections.keys():
                    connection.close()
                else:
                    connections[caller] = connection
        for key in list(calls.get_map().values()):  # unauthenticated connections
            if isinstance(key.fileobj, socket.socket) and key.fileobj is not listener:
                key.fileobj.close()
    return connections


def _caller(connection: socket.socket, token: str) -> int | None:
    """Returns the rank that sent the first bytes, or None if the token is invalid."""
    with contextlib.suppress(ValueError, OSError):
        if _user(connection) == os.geteuid():
            return frames.read_hello(connection.recv(frames.HELLO.size, socket.MSG_DONTWAIT), token)
    return None


def _user(link: socket.socket) -> int:
    """Returns the peer's user id, as reported by the kernel."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _seconds_left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)
