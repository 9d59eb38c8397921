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
from gnnkit.jobs.lock import locked
from gnnkit.jobs.redacted import command
from gnnkit.jobs.report import after_run, report
from gnnkit.launch.phases import begin, phase, say
from gnnkit.leader.result import Result

if TYPE_CHECKING:
    from gnnkit.graph import Graph
    from gnnkit.jobs.models import Given
    from gnnkit.settings import Settings

_WITHOUT_RUN = ("report", "init")
_IN_ONE_PROCESS = ("plan", "partition", *_WITHOUT_RUN)


def start(
    settings: Settings,
    folder: str | Path | None = None,
    graph: Graph | None = None,
    model: Given = None,
    overrides: Sequence[str] = (),
    program: str = "gnnkit",
) -> Result:
    """Runs the job in a new folder, writes `result.json` there, and prints the result.

    Args:
        settings: The configuration.
        folder: The run folder, not yet there. Default: the key `output`, or else
            `outputs/<date>/<time>`.
        graph: Instead of the data set.
        model: Instead of the configured model.
        overrides: As on the command line, kept in the run folder.
        program: What was called, for people. Default: the command.

    Returns:
        The result, on the leader. Other ranks of a run that was started from outside
        get one without figures.
    """
    begun = time.perf_counter()
    begin()
    started = settings.started
    is_leader = started is None or started.rank == 0
    if settings.job.name in _IN_ONE_PROCESS:
        if not is_leader:
            return Result(settings.job.name, {})
        started = None
    if settings.job.name in _WITHOUT_RUN:
        return _without_run(settings, folder, graph)
    settings = run_folders.resumed(settings, folder)
    if is_leader:
        phase(f"job={settings.job}: checking the configuration")
    from gnnkit.jobs import dispatch

    with contextlib.ExitStack() as held:
        with contextlib.nullcontext() if started else _collecting_nothing():
            settings = dispatch.check(settings, graph, model)
            if (found := dispatch.done(settings, folder, graph)) is not None:
                say(found.table())
                return found
            run_folder = held.enter_context(run_folders.opened(settings, folder, overrides)) if is_leader else None
            if run_folder is not None and settings.notes:
                say("\n".join(settings.notes))
            result = dispatch.run(settings, run_folder, started, graph, model)
        if run_folder is None:
            return result
        if settings.job.trains:
            result = timed(result, time.perf_counter() - begun)
            result = result.with_figure("command", command(overrides, program))
        return _told(settings, replace(result, run_folder=run_folder), run_folder)


def _told(settings: Settings, result: Result, run_folder: Path) -> Result:
    """Writes and prints the result, and draws the report of a training run.

    Args:
        settings: The configuration.
        result: The result.
        run_folder: The run folder.
    """
    result.save(run_folder)
    say(result.table())
    if settings.draws_report:
        phase("drawing report.html")
        after_run(run_folder)
    say(f"written to {run_folder}")
    return result


def _without_run(settings: Settings, folder: str | Path | None, graph: Graph | None) -> Result:
    """Does a job that makes no run folder.

    `init` writes a configuration. `report` writes into the folder of the one run, or
    into a new folder for several.
    """
    if settings.job.name == "init":
        from gnnkit.jobs.init import init

        return init(settings, folder, graph)
    named, first = settings.output if folder is None else folder, Path(settings.runs[0])
    if named is not None or len(settings.runs) > 1:
        held: contextlib.AbstractContextManager[Path | None] = run_folders.bare(settings, folder)
    else:
        held = locked(first) if first.is_dir() else contextlib.nullcontext()
    with held as target:
        result = report(settings.runs, target)
    say(result.table())
    return result


def timed(result: Result, total: float) -> Result:
    """Adds the wall time and its parts.

    Args:
        result: The result of a training run.
        total: Seconds of the whole job.
    """
    result = result.with_figure("seconds_total", total)
    if "phases" not in result:  # of a program
        return result
    known = result["phases"]
    phases = {"starting": total - sum(known.values()), **known}
    setup = sum(phases[name] for name in ("starting", "reading", "partitioning", "cutting"))
    return result.with_figure("phases", phases).with_figure("seconds_setup", setup)


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
