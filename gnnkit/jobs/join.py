"""Runs one rank of an externally started run."""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnkit.comm import Communicator, Mailbox
from gnnkit.errors import UserError
from gnnkit.jobs.decide import adopt, to_plain
from gnnkit.jobs.identity import identity
from gnnkit.jobs.order import Order
from gnnkit.jobs.rank_job import RankJob, RankWork
from gnnkit.jobs.run import do_work, over_link
from gnnkit.launch.handshake import agree
from gnnkit.launch.launcher import Ranks
from gnnkit.launch.phases import say
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.channel import LEADER
from gnnkit.prepare.cut import Needs, Preparation, Prepared
from gnnkit.prepare.stored import prepared as prepare
from gnnkit.result.folder import PREPARED
from gnnkit.result.result import Result

HEARTBEAT = 1.0  # seconds, capped at comm.timeout / 4
_PREPARATION = "preparation"  # tag of the leader's messages


def join(
    work: RankWork,
    needs: Callable[[Order], Needs],
    decided: Callable[[Order, Callable[[], None]], Order],
    order: Order,
) -> Result:
    """Does one rank's work. Returns the result, with figures only on the leader.

    The ranks connect and compare their configurations. Then the leader prepares the
    data while the others wait.

    Args:
        work: The work of each rank.
        needs: Returns the data that the ranks read.
        decided: Resolves each `auto` in the order. Calls its second argument a few
            times a second.
        order: The request. The leader's run folder must be on a shared disk.
    """
    settings, started = order.settings, order.settings.started
    assert started is not None

    prepared: list[RankJob] = []

    def first(comm: Communicator) -> None:
        agree(comm, identity(order))
        with comm.mailbox() as mailbox:
            prepared.append(
                _prepare_for_others(mailbox, needs, decided, order)
                if order.is_leader
                else _receive_preparation(mailbox, order)
            )

    def joined(comm: Communicator) -> dict[str, Any]:
        with prepared[0].writing() if comm.rank == LEADER else contextlib.nullcontext(prepared[0]) as job:
            return do_work(work, job, comm)

    ranks = Ranks(
        over_link(joined, settings),
        settings.world_size,
        settings.comm.load(),
        settings.timeout,
        started.world_size,
        first,
    )
    try:
        results = settings.create_launcher().ranks(ranks)
        return Result(settings.job.name, next(iter(results.values())))
    finally:
        if order.is_leader:
            shutil.rmtree(order.run_folder / PREPARED, ignore_errors=True)


def _prepare_for_others(
    mailbox: Mailbox,
    needs: Callable[[Order], Needs],
    decided: Callable[[Order, Callable[[], None]], Order],
    order: Order,
) -> RankJob:
    """Resolves `auto`, prepares the data in a child, and informs the other ranks.

    Sends heartbeats until then. Arguments as in `join`.
    """
    others, last = [rank for rank in range(mailbox.world_size) if rank != mailbox.rank], time.monotonic()
    timeout, folder = order.settings.timeout, order.run_folder

    def tell(**fields: Any) -> None:
        for rank in others:
            mailbox.put(rank, _PREPARATION, fields)

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last > min(HEARTBEAT, timeout / 4):
            tell()
            last = time.monotonic()

    try:
        order = decided(order, beat)
        in_child = functools.partial(run_in_child, patience=Patience.of(timeout), meanwhile=beat)
        prepared = prepare(Preparation(order.settings, needs(order), folder, order.graph), in_child)
    except UserError as error:
        tell(error=str(error))
        raise
    tell(folder=str(folder), prepared=prepared.to_dict(), decision=to_plain(order.settings))
    say(prepared.summary)
    return RankJob(order.settings, folder, prepared, order.model)


def _receive_preparation(mailbox: Mailbox, order: Order) -> RankJob:
    """Waits for the leader's preparation. Each heartbeat resets the timeout."""
    while True:
        message = mailbox.take(_PREPARATION, src=LEADER, timeout=order.settings.timeout).fields
        if "error" in message:
            raise UserError(message["error"])
        if "prepared" in message:
            settings = adopt(order.settings, message["decision"])
            return RankJob(
                settings, _check_shared(Path(message["folder"])), Prepared(**message["prepared"]), order.model
            )


def _check_shared(folder: Path) -> Path:
    """Returns the leader's run folder. Raises `UserError` if it is not shared."""
    if not (folder / PREPARED).is_dir():
        raise UserError(
            f"output={folder}: host {socket.gethostname()} finds no data there that the leader prepared, "
            "name a folder on a disk that all hosts see under the same path"
        )
    return folder
