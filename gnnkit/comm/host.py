"""Whether the ranks of a group run on one host, and connections between these ranks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.comm import frames

Gather = Callable[[bytes], list[bytes]]  # this rank's bytes -> those of all ranks. Collective, equal lengths
RECORD = 256  # bytes that a rank tells the others
MEETING = 10.0  # seconds, at most, until the others have connected


def connect(rank: int, world_size: int, gather: Gather, timeout: float, *, able: bool) -> dict[int, socket.socket]:
    """Connects each pair of ranks by a socket that keeps the bounds of messages.

    Collective. All ranks decide alike. A socket of this kind has an abstract name, so
    it reaches the ranks of one kernel and one network namespace, and no file is left
    behind. Each rank gives the others a random token of its own, which keeps strangers
    out.

    Args:
        rank: This rank.
        world_size: Number of ranks in the group.
        gather: Tells all ranks the bytes of each.
        timeout: Deadline in seconds.
        able: Whether this rank can use the connections.

    Returns:
        Sockets by rank. Empty on all ranks if a rank is not able, or runs elsewhere.
    """
    token, links = secrets.token_hex(16), dict[int, socket.socket]()
    with contextlib.ExitStack() as stack:
        listener = _listen(world_size) if able else None
        here: dict[str, Any] = {}
        if listener is not None:
            stack.enter_context(listener)
            here = {"host": host(), "name": listener.getsockname().hex(), "token": token}
        there = [json.loads(each) for each in gather(json.dumps(here).encode().ljust(RECORD))]
        if listener is None or any(each.get("host") != here["host"] for each in there):
            return {}
        try:
            _meet(links, rank, listener, there, time.monotonic() + min(timeout, MEETING))
        except OSError:
            _close(links)
    if min(gather(bytes([len(links) == world_size - 1]))) == b"\0":
        _close(links)
    return links


def host() -> list[str | int]:
    """Describes what ranks that reach each other have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, os.stat("/proc/self/ns/net").st_ino, os.geteuid()]


def _listen(world_size: int) -> socket.socket | None:
    """Opens a listening socket, None where the system has no such sockets."""
    if sys.platform != "linux":
        return None
    listener = None
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")  # the system chooses an abstract name
        listener.listen(world_size + 128)
        host()
    except OSError:
        if listener is not None:
            listener.close()
        return None
    return listener


def _meet(
    links: dict[int, socket.socket],
    rank: int,
    listener: socket.socket,
    there: Sequence[Mapping[str, Any]],
    deadline: float,
) -> None:
    """Connects to the ranks below, and waits for the ranks above to connect.

    Args:
        links: Takes the sockets by rank.
        rank: This rank.
        listener: Listening socket of this rank.
        there: Name and token of each rank's listener.
        deadline: Monotonic seconds.
    """
    for peer in range(rank):
        links[peer] = link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(_left(deadline))
        link.connect(bytes.fromhex(there[peer]["name"]))
        if _user(link) != os.geteuid():
            raise PermissionError("a stranger listens")
        link.send(frames.hello(there[peer]["token"], rank))
    while len(links) < len(there) - 1:
        listener.settimeout(_left(deadline))
        connection, _ = listener.accept()
        connection.settimeout(_left(deadline))
        peer = _greeted(connection, there[rank]["token"])
        if peer is None or not rank < peer < len(there) or peer in links:
            connection.close()
        else:
            links[peer] = connection
    for link in links.values():
        link.setblocking(False)


def _greeted(connection: socket.socket, token: str) -> int | None:
    """Returns the rank at the other end, None for a stranger."""
    if _user(connection) != os.geteuid():
        return None
    with contextlib.suppress(ValueError):
        return frames.read_hello(connection.recv(frames.MAX_HELLO)[frames.PREFIX.size :], token)
    return None


def _user(link: socket.socket) -> int:
    """Returns the user at the other end, as the kernel says."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)


def _close(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()
    links.clear()
