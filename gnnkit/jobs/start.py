"""From a settled configuration to a run folder and a job."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.say import say
from gnnkit.launch.environment import started_rank
from gnnkit.leader.result import Result

if TYPE_CHECKING:
    from gnnkit.graph import Graph
    from gnnkit.jobs.models import Given
    from gnnkit.settings import Settings

_IN_ONE_PROCESS = ("plan", "partition", "init")


def start(
    settings: Settings,
    folder: str | Path | None = None,
    graph: Graph | None = None,
    model: Given = None,
    overrides: Sequence[str] = (),
) -> Result:
    """Runs the job in a new folder, writes `result.json` there, and prints the result.

    Args:
        settings: The configuration.
        folder: The run folder, not yet there. Default: the key `output`, or else
            `outputs/<date>/<time>`.
        graph: Instead of the data set.
        model: Instead of the configured model.
        overrides: As on the command line, kept in the run folder.

    Returns:
        The result, on the leader. Other ranks of a run that was started from outside
        get one without figures.
    """
    begun = time.perf_counter()
    started = started_rank()
    is_leader = started is None or started.rank == 0
    if started is not None and settings.job in _IN_ONE_PROCESS:
        if not is_leader:
            return Result(settings.job, {})
        started = None
    if settings.job == "init":
        from gnnkit.jobs.init import init

        return init(settings, folder, graph)
    from gnnkit.jobs import dispatch

    with contextlib.nullcontext() if started else _collecting_nothing():
        settings = dispatch.check(run_folders.resumed(settings, folder), graph, model)
        run_folder = run_folders.make(settings, folder, overrides) if is_leader else None
        if run_folder is not None and settings.notes:
            say("\n".join(settings.notes))
        result = dispatch.run(settings, run_folder, started, graph, model)
    if run_folder is None:
        return result
    if settings.job == "train":
        result = result.with_figure("seconds_total", time.perf_counter() - begun)
    result = replace(result, folder=run_folder)
    result.save(run_folder)
    say(f"{result.table()}\nwritten to {run_folder}")
    return result


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Turns the garbage collector off in a process that imports, starts and waits.

    Imported modules stay, and each pass over these objects takes long. Processes that
    work turn the collector on.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
