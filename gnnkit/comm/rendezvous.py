"""Where processes meet, and the proof that each of them belongs to the run.

Ranks of one machine meet in a file that only their user can open, so nobody listens.
Others meet at MASTER_ADDR and MASTER_PORT, in torch's store, which knows no password.
Gloo's connections know none either. So members of each group prove to each other that
they know the token of the run. No rank sends anything of the run before.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnnkit.comm import adopted
from gnnkit.comm.mailbox import PeerLost
from gnnkit.errors import UserError

FILE = "GNNKIT_STORE"  # environment variable, the file in which ranks of one machine meet
TOKEN = "GNNKIT_TOKEN"  # environment variable, the secret of the run
_CLOSED = re.compile("closed|reset|broken pipe", re.IGNORECASE)  # what torch says of a store that is gone
_SIZE = 32  # bytes of a challenge, and of the answer
_LOOPBACK = "127.0.0.1"


def meeting(rank: int, world_size: int, timeout: float) -> Any:
    """Returns the store in which ranks find each other. None: torchrun's own.

    The store of a group that the program has made is taken.

    Raises `UserError` on rank 0 where the port of the meeting point is taken.

    Args:
        rank: This rank.
        world_size: Number of ranks.
        timeout: Deadline in seconds.
    """
    deadline = timedelta(seconds=timeout)
    if file := os.environ.get(FILE):
        store = dist.FileStore(file, world_size)  # type: ignore[attr-defined]
        store.set_timeout(deadline)
        return store
    if (found := adopted.store()) is not None:
        found.set_timeout(deadline)
        return found
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = _listen(address, port, world_size) if rank == 0 else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port if listener is None else listener.getsockname()[1],
        world_size,
        rank == 0,
        deadline,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


@contextlib.contextmanager
def absence_told(world_size: int, timeout: float) -> Iterator[None]:
    """Raises `UserError` where ranks that others have started do not come.

    Raises `PeerLost` where rank 0 was there and has died.

    Args:
        world_size: Number of ranks.
        timeout: Deadline in seconds.
    """
    try:
        yield
    except dist.DistError as error:
        if os.environ.get(FILE):  # of this machine, where a rank that is gone says why
            raise
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = str(error).partition("\n")[0]
        if _CLOSED.search(reason):
            raise PeerLost(f"lost its peer rank 0 while the ranks met at {place}: {reason}", 0) from error
        raise UserError(
            f"not all of {world_size} ranks met at {place} within comm.timeout={timeout:g} s ({reason}): start all of "
            "them, name the first machine's address, and let firewalls pass their ports"
        ) from error


def prove(group: dist.ProcessGroup, device: torch.device) -> None:
    """Makes sure that every member knows the token of the run. Collective.

    Each member answers a challenge of each other one. Raises `UserError` where an
    answer is wrong. Without a token, all have the empty one.

    Args:
        group: The group.
        device: Where the tensors of the group's transfers are.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size == 1:
        return
    token, peers = os.environ.get(TOKEN, "").encode(), range(world_size)
    asked = [secrets.token_bytes(_SIZE) for _ in peers]
    heard = _swap(asked, group, device)
    answers = _swap([_answer(token, heard[peer], rank, peer) for peer in peers], group, device)
    for peer in peers:
        if not hmac.compare_digest(answers[peer], _answer(token, asked[peer], peer, rank)):
            raise UserError(
                f"rank {dist.get_global_rank(group, peer)} does not know the token of this run: give all ranks one "
                f"{TOKEN}, or a stranger has taken its place"
            )


def _answer(token: bytes, challenge: bytes, src: int, dst: int) -> bytes:
    return hmac.digest(token, challenge + f"{src} to {dst}".encode(), "sha256")


def _swap(rows: Sequence[bytes], group: dist.ProcessGroup, device: torch.device) -> list[bytes]:
    """Sends each member its row, and returns the rows received. Collective."""
    sent = torch.tensor([list(row) for row in rows], dtype=torch.uint8, device=device)
    received: Tensor = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return [bytes(row) for row in received.tolist()]


def _listen(address: str, port: int, world_size: int) -> socket.socket:
    """Opens the meeting point at its own address, if this host has the address.

    A store that binds by itself listens on all interfaces, at any address given.
    """
    host = _LOOPBACK if os.environ.get("GNNKIT_LOCAL") else address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=max(world_size, 128))
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:  # a service's, which leads here
            return socket.create_server(("", port), backlog=max(world_size, 128))
        raise UserError(f"MASTER_PORT={port}: {os.strerror(error.errno or 0)}; set another port") from error
