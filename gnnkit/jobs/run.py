"""Prepares the data, starts the ranks, and returns the leader's result."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from gnnkit.comm import Card, Communicator, Link, Linked
from gnnkit.config.settings import LinkSettings, Settings
from gnnkit.jobs.notebook import shows_bar
from gnnkit.jobs.order import Order
from gnnkit.jobs.rank_job import RankJob, RankWork
from gnnkit.launch.launcher import Launcher, Ranks
from gnnkit.launch.phases import phase, say
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.signals import if_forced
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.channel import LEADER
from gnnkit.prepare.cut import Needs, Preparation
from gnnkit.prepare.stored import prepared as prepare
from gnnkit.result.folder import PREPARED
from gnnkit.result.result import Result
from gnnkit.utils.storage import naming

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
        prepared = prepare(Preparation(settings, needs, folder, order.graph), in_child)
        say(prepared.summary)
        processes = settings.processes
        where = f" in {processes} process{'es' if processes > 1 else ''}" if processes else ""
        phase(f"starting {settings.world_size} ranks{where}, comm={settings.comm.name}")
        work, launcher = find_work(), settings.create_launcher()

        def start(job: RankJob) -> dict[str, Any]:
            with job.writing() as writing_job:
                one = functools.partial(do_work, work, writing_job)
                one = functools.partial(_on_one_stream, one) if shows_bar(order) else one
                return start_ranks(one, settings, settings.world_size, launcher, meanwhile)

        job = RankJob(settings, folder, prepared, order.model)
        return Result(settings.job.name, _restarting(start, job) if settings.restarts else start(job))


def do_work(work: RankWork, job: RankJob, comm: Communicator) -> dict[str, Any]:
    """Runs `work` on a rank. Disk errors name at least the run folder."""
    with naming(job.folder):
        return work(job, comm)


def _on_one_stream(work: Callable[[Communicator], T], comm: Communicator) -> T:
    """Sends stderr to stdout, because notebooks show stderr in red."""
    sys.stderr = sys.stdout
    return work(comm)


def _restarting(start: Callable[[RankJob], dict[str, Any]], job: RankJob) -> dict[str, Any]:
    from gnnkit.jobs.restarts import restarting

    return restarting(start, job)


def over_link(work: Callable[[Communicator], T], settings: Settings) -> Callable[[Communicator], T]:
    """Wraps the work of a rank in the simulated link, if one is configured."""
    return work if settings.link is None else functools.partial(_linked, work, settings.link)


def _linked(work: Callable[[Communicator], T], link: LinkSettings, comm: Communicator) -> T:
    return work(Linked(comm, Card(Link(link.gigabits, link.milliseconds))))


def start_ranks(
    work: Callable[[Communicator], dict[str, Any]],
    settings: Settings,
    num_ranks: int,
    launcher: Launcher,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Starts ranks, and returns the leader's figures and the lost ranks.

    Args:
        work: The work of each rank. Collective.
        settings: The configuration.
        num_ranks: Number of ranks.
        launcher: Starts the ranks.
        meanwhile: Called a few times a second. Default: does nothing.
    """
    ranks = Ranks(
        over_link(work, settings),
        num_ranks,
        settings.comm.load(),
        settings.timeout,
        min(settings.processes or num_ranks, num_ranks),
    )
    results = launcher.ranks(ranks, meanwhile)
    lost = [f"rank {rank}" for rank in range(num_ranks) if rank not in results]
    return (results[LEADER] or {}) | ({"lost_workers": lost} if lost else {})
