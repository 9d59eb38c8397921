"""Joins a run whose ranks were started before."""

from __future__ import annotations

import functools
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnkit.comm import Communicator, Mailbox
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.decide import adopt, to_plain
from gnnkit.jobs.identity import identity
from gnnkit.jobs.models import Given
from gnnkit.jobs.rank_job import RankJob, RankWork
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.handshake import agree
from gnnkit.launch.phases import say
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.launcher import Ranks
from gnnkit.leader.channel import LEADER
from gnnkit.leader.cut import Needs, Prepared
from gnnkit.leader.folder import PREPARED
from gnnkit.leader.result import Result
from gnnkit.leader.stored import prepared as prepare
from gnnkit.settings import Settings

HEARTBEAT = 1.0  # seconds, at most a quarter of comm.timeout
_PREPARATION = "preparation"  # tag of the leader's letters


def join(
    work: RankWork,
    needs: Callable[[Settings], Needs],
    decided: Callable[[Callable[[], None]], Settings],
    settings: Settings,
    folder: Path | None,
    started: StartedRank,
    graph: Graph | None,
    model: Given,
) -> Result:
    """Does one rank's work. Returns the result, with figures on the leader only.

    The ranks connect and compare configurations. Then the leader prepares the data, and
    the others wait.

    Args:
        work: The work of each rank.
        needs: Says which data the ranks read.
        decided: Gives the settings with the leader's decisions. Calls its argument a
            few times a second.
        settings: The configuration.
        folder: The run folder, for the leader only, on a disk that all ranks see.
        started: This rank.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """

    def joined(comm: Communicator) -> dict[str, Any]:
        agree(comm, identity(settings, graph, model))
        with comm.mailbox() as mailbox:
            if folder is None:
                job = _hear_of_job(mailbox, settings, model)
            else:
                job = _prepare_for_others(mailbox, settings, needs, decided, folder, graph, model)
        return work(job, comm)

    ranks = Ranks(joined, started.world_size, settings.comm.load(), settings.timeout)
    try:
        return Result(settings.job.name, settings.create_launcher().ranks(ranks)[started.rank])
    finally:
        if folder is not None:
            shutil.rmtree(folder / PREPARED, ignore_errors=True)


def _prepare_for_others(
    mailbox: Mailbox,
    settings: Settings,
    needs: Callable[[Settings], Needs],
    decided: Callable[[Callable[[], None]], Settings],
    folder: Path,
    graph: Graph | None,
    model: Given,
) -> RankJob:
    """Decides, prepares the data in a child, and tells the other ranks.

    Sends heartbeats meanwhile.

    Args:
        mailbox: Between the ranks.
        settings: The configuration.
        needs: Says which data the ranks read.
        decided: Gives the settings with the leader's decisions.
        folder: The run folder.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    others, last = [rank for rank in range(mailbox.world_size) if rank != mailbox.rank], time.monotonic()

    def tell(**fields: Any) -> None:
        for rank in others:
            mailbox.put(rank, _PREPARATION, fields)

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last > min(HEARTBEAT, settings.timeout / 4):
            tell()
            last = time.monotonic()

    try:
        settings, patience = decided(beat), Patience.of(settings.timeout)
        in_child = functools.partial(run_in_child, patience=patience, meanwhile=beat)
        prepared = prepare(settings, needs(settings), folder, graph, in_child)
    except UserError as error:
        tell(error=str(error))
        raise
    tell(folder=str(folder), prepared=prepared.to_dict(), decision=to_plain(settings))
    say(prepared.summary)
    return RankJob(settings, folder, prepared, model)


def _hear_of_job(mailbox: Mailbox, settings: Settings, model: Given) -> RankJob:
    """Waits for the leader's preparation. Each heartbeat renews the deadline.

    Args:
        mailbox: Between the ranks.
        settings: The configuration.
        model: Instead of the configured model.
    """
    while True:
        message = mailbox.take(_PREPARATION, src=LEADER, timeout=settings.timeout).fields
        if "error" in message:
            raise UserError(message["error"])
        if "prepared" in message:
            settings = adopt(settings, message["decision"])
            return RankJob(settings, _seen(Path(message["folder"])), Prepared(**message["prepared"]), model)


def _seen(folder: Path) -> Path:
    """Returns the leader's run folder. Raises `UserError` where this host has none."""
    if not (folder / PREPARED).is_dir():
        raise UserError(
            f"output={folder}: host {socket.gethostname()} finds no data there that the leader prepared, "
            "name a folder on a disk that all hosts see under the same path"
        )
    return folder
