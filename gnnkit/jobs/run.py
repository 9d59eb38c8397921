"""Prepares the data and runs the ranks, which are started here or externally."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from gnnkit.comm import LEADER, Communicator, Mailbox
from gnnkit.comm.agreement import agree
from gnnkit.comm.survivors import pause
from gnnkit.config import leaves
from gnnkit.config.settings import (
    AUTO,
    Choice,
    PartitionSettings,
    Settings,
    with_choice,
    with_partition,
)
from gnnkit.errors import UserError
from gnnkit.jobs.job import shows_bar
from gnnkit.jobs.models import describe
from gnnkit.jobs.order import Order, redact_config
from gnnkit.jobs.rank_job import RankJob, RankWork
from gnnkit.launch.launcher import Launcher, Ranks
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.progress import phase, say
from gnnkit.launch.signals import if_forced
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare.facts import Needs, Preparation, Prepared
from gnnkit.prepare.kept import fingerprint
from gnnkit.prepare.stored import prepare_run
from gnnkit.result.result import PREPARED, Result, versions
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import naming

if TYPE_CHECKING:
    from gnnkit.jobs.job import OnRanks

OWN_KEYS = (
    "output",
    "cache",
    "threads",
    "report",
    "launcher.name",
    "launcher.ask",
    "trainer.progress_bar",
)  # may differ between ranks
_PREPARATION = "preparation"  # tag of the leader's messages
T = TypeVar("T")


def run_ranks(
    find_work: Callable[[], RankWork], needs: Needs, order: Order, meanwhile: Callable[[], None] = lambda: None
) -> Result:
    """Prepares the data in a child process, then runs the ranks.

    Args:
        find_work: Imports the ranks' function while the child prepares.
        needs: The data that the ranks read.
        order: The request, with the run folder.
        meanwhile: Called a few times a second. Default: does nothing.
    """
    settings, folder = order.settings, order.run_folder
    clear = functools.partial(shutil.rmtree, folder / PREPARED, ignore_errors=True)
    with if_forced(clear), contextlib.ExitStack() as stack:
        stack.callback(clear)
        patience = Patience.of(settings.timeout)
        in_child = functools.partial(run_in_child, patience=patience, beside=find_work, meanwhile=meanwhile)
        data = prepare_run(Preparation(settings, needs, folder, order.graph), in_child)
        say(data.summary)
        processes = settings.processes
        suffix = f" in {processes} process{'es' if processes > 1 else ''}" if processes else ""
        phase(f"starting {settings.world_size} ranks{suffix}, comm={settings.comm.name}")
        work, launcher = find_work(), settings.create_launcher()

        def start(job: RankJob) -> Json:
            with job.writing() as writing_job:
                rank_work = functools.partial(do_work, work, writing_job)
                rank_work = functools.partial(_on_one_stream, rank_work) if shows_bar(order) else rank_work
                return start_ranks(rank_work, settings, settings.world_size, launcher, meanwhile)

        job = RankJob(settings, folder, data, order.model)
        return Result(settings.job.name, _restarting(start, job) if settings.restarts else start(job))


def do_work(work: RankWork, job: RankJob, comm: Communicator) -> Json:
    """Runs `work` on a rank. Disk errors name at least the run folder."""
    with naming(job.folder):
        return work(job, comm)


def _on_one_stream(work: Callable[[Communicator], T], comm: Communicator) -> T:
    """Sends stderr to stdout, because notebooks show stderr in red."""
    sys.stderr = sys.stdout
    return work(comm)


def _restarting(start: Callable[[RankJob], Json], job: RankJob) -> Json:
    from gnnkit.jobs.restarts import restarting

    return restarting(start, job)


def start_ranks(
    work: Callable[[Communicator], Json],
    settings: Settings,
    num_ranks: int,
    launcher: Launcher,
    meanwhile: Callable[[], None] = lambda: None,
) -> Json:
    """Starts ranks, and returns the leader's figures and the lost ranks.

    Args:
        work: The work of each rank. Collective.
        settings: The configuration.
        num_ranks: Number of ranks.
        launcher: Starts the ranks.
        meanwhile: Called a few times a second. Default: does nothing.
    """
    ranks = Ranks(
        work,
        num_ranks,
        settings.comm.load(),
        settings.timeout,
        min(settings.processes or num_ranks, num_ranks),
        keys=settings.comm.arguments,
    )
    results = launcher.ranks(ranks, meanwhile)
    lost_ranks = [f"rank {rank}" for rank in range(num_ranks) if rank not in results]
    return (results[LEADER] or {}) | ({"lost_workers": lost_ranks} if lost_ranks else {})


def join(job: OnRanks, work: RankWork, order: Order) -> Result:
    """Does the work of one externally started rank. Only the leader has figures.

    The ranks connect and compare their configurations. Then the leader prepares the
    data while the others wait.

    Args:
        job: Resolves `auto` in the order, and names the data that the ranks read.
        work: The work of each rank.
        order: The request. The leader's run folder must be on a shared disk.
    """
    settings, started_rank = order.settings, order.settings.started
    assert started_rank is not None
    rank_jobs: list[RankJob] = []

    def first(comm: Communicator) -> None:
        agree(comm, identity(order))
        with comm.mailbox() as mailbox:
            rank_jobs.append(_prepare_for_others(mailbox, job, order) if order.is_leader else _receive(mailbox, order))

    def run_rank(comm: Communicator) -> Json:
        with rank_jobs[0].writing() if comm.rank == LEADER else contextlib.nullcontext(rank_jobs[0]) as rank_job:
            return do_work(work, rank_job, comm)

    sizes = settings.world_size, settings.comm.load(), settings.timeout, started_rank.world_size
    try:
        results = settings.create_launcher().ranks(Ranks(run_rank, *sizes, first, settings.comm.arguments))
        return Result(settings.job.name, next(iter(results.values())))
    finally:
        if order.is_leader:
            shutil.rmtree(order.run_folder / PREPARED, ignore_errors=True)


def _prepare_for_others(mailbox: Mailbox, job: OnRanks, order: Order) -> RankJob:
    """Resolves `auto`, prepares the data in a child, and informs the other ranks.

    Sends heartbeats until then. Arguments as in `join`.
    """
    other_ranks, last = [rank for rank in range(mailbox.world_size) if rank != mailbox.rank], time.monotonic()
    timeout, folder = order.settings.timeout, order.run_folder

    def send(**fields: object) -> None:
        for rank in other_ranks:
            mailbox.put(rank, _PREPARATION, fields)

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last > pause(timeout):
            send()
            last = time.monotonic()

    try:
        order = job.decided(order, beat)
        in_child = functools.partial(run_in_child, patience=Patience.of(timeout), meanwhile=beat)
        data = prepare_run(Preparation(order.settings, job.needs(order), folder, order.graph), in_child)
    except UserError as error:
        send(error=str(error))
        raise
    send(folder=str(folder), prepared=data.to_dict(), decision=decision_of(order.settings))
    say(data.summary)
    return RankJob(order.settings, folder, data, order.model)


def _receive(mailbox: Mailbox, order: Order) -> RankJob:
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


def decision_of(settings: Settings) -> dict[str, object] | None:
    """Returns the leader's decision as plain data, or None if nothing was `auto`."""
    if settings.decided is None:
        return None
    choices = [settings.strategy, *([] if settings.sampler is None else [settings.sampler])]
    return {
        "partition": asdict(settings.partition),
        "choices": [asdict(choice) for choice in choices],
        "decided": dict(settings.decided),
    }


def adopt(settings: Settings, plain: Mapping[str, Any] | None) -> Settings:
    """Applies the leader's decision, from `decision_of`."""
    if plain is None:
        return settings
    section = plain["partition"]
    settings = with_partition(settings, PartitionSettings(**section | {"nodes": Choice(**section["nodes"])}))
    for choice in plain["choices"]:
        settings = with_choice(settings, Choice(**choice))
    return replace(settings, decided=plain["decided"])


def identity(order: Order) -> dict[str, str]:
    """Returns the values that must be equal on all ranks, by key.

    Secrets are omitted, as in `config.yaml`.
    """
    settings, graph, model = order.settings, order.graph, order.model
    keys = {key: json.dumps(value) for key, value in leaves(redact_config(settings.composed))}
    choices = [settings.dataset, settings.partition.nodes, settings.sampler, settings.strategy]
    choices += [settings.order, settings.comm, settings.sync, settings.model, settings.task]
    choices += [*settings.logger, *settings.callback]
    return {
        **{key: value for key, value in keys.items() if key not in OWN_KEYS},
        **{
            f"{choice.kind}={choice.name}": choice.origin
            for choice in choices
            if choice is not None and choice.name != AUTO
        },
        **{f"version of {name}": version for name, version in versions().items()},
        "build of torch": torch.__version__,
        **({} if graph is None else {"graph": fingerprint(graph)}),
        **({} if model is None else {"given model": order.source.name}),
        **(describe(model) if isinstance(model, nn.Module) else {}),
    }
