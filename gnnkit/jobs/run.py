"""Prepares the data, lets the launcher start the ranks, and returns the result."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnkit.comm import Communicator
from gnnkit.graph import Graph
from gnnkit.jobs.models import Given
from gnnkit.jobs.rank_job import RankJob, RankWork
from gnnkit.launch.phases import phase, say
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.launcher import Launcher, Ranks
from gnnkit.leader.channel import LEADER
from gnnkit.leader.cut import Needs
from gnnkit.leader.folder import PREPARED
from gnnkit.leader.result import Result
from gnnkit.leader.stored import prepared as prepare
from gnnkit.settings import Settings


def run_ranks(
    find_work: Callable[[], RankWork], needs: Needs, settings: Settings, folder: Path, graph: Graph | None, model: Given
) -> Result:
    """Prepares the data in a child, starts the ranks, and returns the leader's result.

    Args:
        find_work: Imports the work of each rank, beside the child.
        needs: The data that the ranks read.
        settings: The configuration.
        folder: The run folder.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    try:
        patience = Patience.of(settings.timeout)
        in_child = functools.partial(run_in_child, patience=patience, beside=find_work)
        prepared = prepare(settings, needs, folder, graph, in_child)
        say(prepared.summary)
        phase(f"starting {settings.world_size} ranks, comm={settings.comm.name}")
        work = functools.partial(find_work(), RankJob(settings, folder, prepared, model))
        return Result(settings.job.name, start_ranks(work, settings, settings.world_size, settings.create_launcher()))
    finally:
        shutil.rmtree(folder / PREPARED, ignore_errors=True)


def start_ranks(
    work: Callable[[Communicator], dict[str, Any]],
    settings: Settings,
    num_ranks: int,
    launcher: Launcher,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Starts ranks, and returns the leader's figures. Names ranks that were lost.

    Args:
        work: The work of each rank. Collective.
        settings: The configuration.
        num_ranks: Number of ranks.
        launcher: Starts the ranks.
        meanwhile: Called a few times a second. Default: does nothing.
    """
    results = launcher.ranks(Ranks(work, num_ranks, settings.comm.load(), settings.timeout), meanwhile)
    lost = [f"rank {rank}" for rank in range(num_ranks) if rank not in results]
    return (results[LEADER] or {}) | ({"lost_workers": lost} if lost else {})
