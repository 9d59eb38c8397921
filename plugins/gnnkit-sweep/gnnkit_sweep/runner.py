"""Runs the jobs of a sweep or a comparison, and records their results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gnnkit.config import RECORD, key_of
from gnnkit.errors import UserError
from gnnkit.jobs import dispatch
from gnnkit.jobs.order import Order, command, redact_override
from gnnkit.launch import exits
from gnnkit.launch.launcher import Jobs, Launcher
from gnnkit.launch.phases import say
from gnnkit.task import Task
from gnnkit.utils.documents import read_object, read_or_empty, read_yaml
from gnnkit_sweep import table
from gnnkit_sweep.rows import DONE, SweptRun

FAILED, UNFINISHED = "failed", "not finished"


@dataclass(frozen=True, slots=True, eq=False)
class SweepJob:
    """One job, checked and not started."""

    number: int  # its place among the runs
    order: Order  # with one value for each key, and the run folder
    swept: Mapping[str, str]  # the values of swept keys
    arguments: Sequence[str] = ()  # of `gnnkit`, to run the job alone

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.order.run_folder

    @property
    def log(self) -> Path:
        """The file with the job's output."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def is_done(self) -> bool:
        """Returns whether the run folder holds the result of these overrides."""
        try:
            record = read_yaml(self.folder / RECORD / "overrides.yaml")
        except UserError:
            return False
        overrides = _by_key([redact_override(text) for text in self.order.overrides])
        is_same = isinstance(record, list) and _by_key(record) == overrides
        return is_same and (self.folder / "result.json").is_file()

    def work(self) -> int:
        """Does the job in the calling process, and returns the exit code."""
        say(command(self.arguments, self.order.program))
        return exits.exit_code(lambda: dispatch.start(self.order).exit_code)

    def row(self, status: str = UNFINISHED, exit_code: int | None = None, remark: str = "") -> SweptRun:
        """Returns the job's row in tables and on the page."""
        values = {key: redact_override(f"{key}={value}").partition("=")[2] for key, value in self.swept.items()}
        overrides = [redact_override(text) for text in self.order.overrides]
        files = self.folder, self.log
        return SweptRun(self.number, status, values, {}, *files, remark, exit_code, overrides=overrides)

    def ended(self, exit_code: int) -> SweptRun:
        """Reads the result of the job that has ended, and returns its row."""
        row = self.row(FAILED if exit_code else DONE, exit_code, _error(self.log) if exit_code else "")
        figures, main = _figures(self.folder)
        return replace(row, figures=figures, main=main)


class Runner:
    """Runs jobs in order. Records and prints the result of a job when it ends."""

    def __init__(
        self,
        folder: Path,
        launcher: Launcher,
        task: Task,
        on_end: Callable[[int, SweptRun], None] = lambda in_batch, run: None,
    ) -> None:
        """Stores the arguments.

        Args:
            folder: Receives `results.json` and `results.csv`.
            launcher: Starts the jobs.
            task: Declares the figures of a run.
            on_end: Called with each run that has ended, and its number in the batch.
        """
        self.folder, self.launcher, self.task, self.ended = folder, launcher, task, on_end
        self.runs: list[SweptRun] = []

    def run(self, jobs: Sequence[SweepJob]) -> None:
        """Runs a batch of jobs, except those that are done already."""
        first = len(self.runs)
        self.runs += [job.row() for job in jobs]
        done = [job for job in jobs if job.order.settings.on_exists == "resume" and job.is_done()]
        for job in done:
            self.record(job.ended(0), job.number - first, "done before")
        if pending := [job for job in jobs if job not in done]:
            self._launch(pending, first)

    def refuse(self, job: SweepJob, reason: str) -> None:
        """Records a job that cannot start."""
        self.runs.append(job.row())
        self.record(job.row(FAILED, exits.USER_ERROR, reason))

    def record(self, run: SweptRun, in_batch: int = 0, remark: str = "") -> None:
        """Stores a run that has ended, calls `on_end`, and prints a line."""
        self.runs[run.number] = run
        self.ended(in_batch, run)
        self.write()
        text = " ".join(filter(None, [remark, table.line(run, self.task)]))
        say(f"[{run.number}] {run.name or 'one job'}: {text}")

    def write(self) -> None:
        """Writes the files with a row for each job."""
        table.write(self.runs, self.folder)

    @property
    def done(self) -> list[SweptRun]:
        """The runs that have succeeded."""
        return [run for run in self.runs if run.status == DONE]

    @property
    def exit_code(self) -> int:
        """0 if all jobs have succeeded."""
        return 0 if len(self.done) == len(self.runs) else exits.FAILED

    def _launch(self, jobs: Sequence[SweepJob], first: int) -> None:
        batch = Jobs(
            [job.arguments for job in jobs],
            lambda number: jobs[number].work(),
            lambda: dispatch.preload(jobs[0].order),
            [job.log for job in jobs],
        )
        with contextlib.closing(self.launcher.jobs(batch)) as exit_codes:
            for number, code in exit_codes:
                self.record(jobs[number].ended(code), jobs[number].number - first)


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the last override of each key."""
    return {key_of(str(text)): str(text) for text in overrides}


def _figures(folder: Path) -> tuple[dict[str, float], str | None]:
    """Reads the numbers in `result.json`, and the main figure's name."""
    try:
        result = read_object(folder / "result.json")
    except UserError:
        return {}, None
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return numbers, result.get("main_figure", {}).get("name")


def _error(log: Path) -> str:
    lines = [line.strip() for line in read_or_empty(log).splitlines()]
    messages = [line for line in lines if line.startswith("gnnkit: error: ")]
    return (messages or [line for line in lines if line] or [""])[-1].removeprefix("gnnkit: error: ")
