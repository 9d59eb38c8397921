"""Rendezvous of processes, and the proof that each belongs to the run.

Ranks of one machine meet in a file that only their user can open, so that no port is
needed. Other ranks meet at MASTER_ADDR and MASTER_PORT, in torch's store. Neither this
store nor Gloo's connections are authenticated, so the members of each group prove to
each other that they have the run's token, before any of the run's data are sent.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnnkit.comm.mailbox import PeerLost
from gnnkit.errors import UserError

CALL = "GNNKIT_CALL"  # environment variable: the number of this run among this process's runs
FILE = "GNNKIT_STORE"  # environment variable: the rendezvous file of ranks on one machine
TOKEN = "GNNKIT_TOKEN"  # environment variable: the run's secret
_CLOSED = re.compile("closed|reset|broken pipe", re.IGNORECASE)  # torch's error messages for a closed store
_POSTED = "gnnkit/run"  # key under which rank 0 posts the run. null: no run
_POLL = 0.02  # seconds between reads of the key
_SIZE = 32  # bytes of a challenge and of its answer
_LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def meeting(rank: int, world_size: int, timeout: float) -> Iterator[Any]:
    """Yields the store in which a run's ranks rendezvous.

    A process may take part in any number of runs, one after the other. Rank 0 therefore
    posts each run's number and a new name, and removes the post when all ranks have met
    or failed to. Every rank joins the run with its own number, so that all ranks meet
    again after a run that some of them rejected. The post is in the store of the
    program's process group, in torchrun's store, or at MASTER_PORT, which is then
    released.

    Raises `UserError` on rank 0 if the port is in use. `timeout` is in seconds.
    """
    deadline = timedelta(seconds=timeout)
    store: Any
    if file := os.environ.get(FILE):
        store = dist.FileStore(file, world_size)  # type: ignore[attr-defined]
        store.set_timeout(deadline)
        yield store
        return
    lasting = _lasting_store(rank, world_size, deadline)
    if rank:
        yield _join(rank, world_size, timeout, lasting)
        return
    board = _serve(int(os.environ["MASTER_PORT"]), world_size, deadline)[0] if lasting is None else lasting
    try:
        name, place = secrets.token_hex(8), None
        if lasting is None:
            store, place = _serve(0, world_size, deadline)
        else:
            store = dist.PrefixStore(f"gnnkit-{name}", lasting)  # type: ignore[attr-defined]
        board.set(_POSTED, json.dumps({"call": _call(), "name": name, "place": place}))
        try:
            yield store
        finally:
            with contextlib.suppress(dist.DistError):
                board.set(_POSTED, "null")
    finally:
        del board  # closes the port, even if a traceback keeps this frame alive


def _lasting_store(rank: int, world_size: int, deadline: timedelta) -> Any:
    """Returns the store of the program's process group or of torchrun, or None."""
    if (store := program_store()) is not None:
        store.set_timeout(deadline)
        return store
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", rank, world_size, timeout=deadline))[0]


def _serve(port: int, world_size: int, deadline: timedelta) -> tuple[Any, tuple[str, int]]:
    """Opens a store on rank 0, and returns it with its host and port.

    Args:
        port: The port. 0: any free one.
        deadline: Deadline of each wait.
    """
    address = os.environ["MASTER_ADDR"]
    listener = _listen(address, port, world_size)
    if listener is None:  # a previous process group of this process still holds the port
        store = dist.TCPStore(address, port, world_size, True, deadline, wait_for_workers=False, multi_tenant=True)  # type: ignore[attr-defined]
        return store, (address, port)
    host, port = listener.getsockname()[:2]
    reachable_host = socket.gethostbyname(socket.gethostname()) if host in ("0.0.0.0", "::") else address
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, world_size, True, deadline, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, (reachable_host, port)


def _call() -> int:
    return int(os.environ.get(CALL, "0"))


def _join(rank: int, world_size: int, timeout: float, lasting: Any) -> Any:
    """Waits until rank 0 has posted the run with this rank's number.

    The port may still belong to the previous run. Its store then closes or stays empty,
    and the rank tries again. While rank 0 is in an earlier run, the deadline is
    extended.

    Args:
        timeout: Deadline in seconds.
        lasting: A store that outlives a run. If None, the ranks meet at a port.
    """
    end, board = time.monotonic() + timeout, lasting
    while True:
        remaining, run = timedelta(seconds=max(end - time.monotonic(), _POLL)), None
        try:
            if board is None:
                board = _reach(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size, remaining)
            board.wait([_POSTED], remaining)
            run = json.loads(board.get(_POSTED))
        except dist.DistError:
            if lasting is not None or time.monotonic() >= end:
                raise
            board = None
        if run is not None and run["call"] == _call():
            break
        if run is not None and run["call"] < _call():
            end = time.monotonic() + timeout
        if time.monotonic() >= end or (run is not None and run["call"] > _call()):
            raise dist.DistStoreError("rank 0 is not in this run")
        time.sleep(_POLL)
    if run["place"] is None:
        return dist.PrefixStore(f"gnnkit-{run['name']}", board)  # type: ignore[attr-defined]
    host, port = run["place"]
    return _reach(host, port, world_size, timedelta(seconds=timeout))


def _reach(host: str, port: int, world_size: int, deadline: timedelta) -> Any:
    """Connects to rank 0's store."""
    return dist.TCPStore(host, port, world_size, False, deadline, wait_for_workers=False)  # type: ignore[attr-defined]


@contextlib.contextmanager
def report_absence(world_size: int, timeout: float) -> Iterator[None]:
    """Raises `UserError` if ranks that were started externally do not arrive.

    Raises `PeerLost` if rank 0 arrived and exited.
    """
    try:
        yield
    except dist.DistError as error:
        if os.environ.get(FILE):  # on this machine, an exited rank reports its own error
            raise
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = str(error).partition("\n")[0]
        if _CLOSED.search(reason):
            raise PeerLost(f"lost its peer rank 0 while the ranks met at {place}: {reason}", 0) from error
        raise UserError(
            f"not all of {world_size} ranks met at {place} within comm.timeout={timeout:g} s ({reason}): start all of "
            "them, check the first machine's address, and open their ports in firewalls"
        ) from error


def prove(group: dist.ProcessGroup, device: torch.device) -> None:
    """Checks that every member has the run's token. Collective.

    Each member answers a challenge from each other member. Raises `UserError` for a
    wrong answer. Without a token, an empty one is used.

    Args:
        device: Device of the tensors to send.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size == 1:
        return
    token, peers = os.environ.get(TOKEN, "").encode(), range(world_size)
    challenges = [secrets.token_bytes(_SIZE) for _ in peers]
    peer_challenges = _swap(challenges, group, device)
    answers = _swap([_answer(token, peer_challenges[peer], rank, peer) for peer in peers], group, device)
    for peer in peers:
        if not hmac.compare_digest(answers[peer], _answer(token, challenges[peer], peer, rank)):
            raise UserError(
                f"rank {dist.get_global_rank(group, peer)} does not have this run's token: set the same {TOKEN} on all ranks; "
                "otherwise, a foreign process has taken its place"
            )


def _answer(token: bytes, challenge: bytes, src: int, dst: int) -> bytes:
    return hmac.digest(token, challenge + f"{src} to {dst}".encode(), "sha256")


def _swap(rows: Sequence[bytes], group: dist.ProcessGroup, device: torch.device) -> list[bytes]:
    """Sends each member its row, and returns the received rows. Collective."""
    send_buffer = torch.tensor([list(row) for row in rows], dtype=torch.uint8, device=device)
    recv_buffer: Tensor = torch.empty_like(send_buffer)
    dist.all_to_all_single(recv_buffer, send_buffer, group=group)
    return [bytes(row) for row in recv_buffer.tolist()]


def _listen(address: str, port: int, world_size: int) -> socket.socket | None:
    """Binds a port to the given address, if the address belongs to this host.

    torch's store would listen on all interfaces. Returns None if this process holds the
    port already. Raises `UserError` if another process does.
    """
    host = _LOOPBACK if os.environ.get("GNNKIT_LOCAL") else address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=max(world_size, 128))
    except OSError as error:
        if (
            isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        ):  # a service address that is forwarded to this host
            return socket.create_server(("", port), backlog=max(world_size, 128))
        if error.errno == errno.EADDRINUSE and _is_own(host, port):
            return None
        raise UserError(f"MASTER_PORT={port}: {os.strerror(error.errno or 0)}; set another port") from error


def _is_own(host: str, port: int) -> bool:
    """Returns whether a store of this process listens at a port."""
    try:
        dist.TCPStore(host, port, 1, True, timedelta(seconds=1), wait_for_workers=False, multi_tenant=True)  # type: ignore[attr-defined]
    except dist.DistError:
        return False
    return True


_program_store: Any = None  # of the process group that is set aside
_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state")


@contextmanager
def set_aside() -> Iterator[None]:
    """Sets the program's process groups aside, and restores them at the end.

    A run creates its own groups with their own deadlines and backend. Its default group
    is the one that Lightning and DDP use. Ranks rendezvous in the program's store,
    which avoids a second port. Does nothing if the program has created no group.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        yield
        return
    global _program_store  # noqa: PLW0603 - one per process, as torch's
    c10d, world = dist.distributed_c10d, dist.distributed_c10d._world
    _program_store = c10d._get_default_store()
    timeout, count = _program_store.timeout, world.group_count
    tables = {name: dict(getattr(world, name)) for name in _TABLES}  # torch keeps one of each for all worlds
    c10d._world = c10d._World()
    _fill(c10d._world, {name: {} for name in _TABLES})
    try:
        yield
    finally:
        _program_store.set_timeout(timeout)
        _program_store, c10d._world = None, world
        world.group_count = count
        _fill(world, tables)


def program_store() -> Any:
    """Returns the store of the program's process group, or None."""
    return _program_store


def _fill(world: Any, tables: Mapping[str, dict[Any, Any]]) -> None:
    """Fills torch's group tables. Their names would clash between two worlds."""
    from torch._C import _distributed_c10d as groups

    groups._unregister_all_process_groups()
    for name, table in tables.items():
        getattr(world, name).clear()
        getattr(world, name).update(table)
    for group, name in tables["pg_names"].items():
        groups._register_process_group(name, group)
