"""Runs the jobs of a sweep or a comparison, and records their results."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gnnkit_report.runs_page import DONE, Sweep, SweptRun, numbers_of

from gnnkit.config import RECORD, key_of
from gnnkit.errors import UserError
from gnnkit.jobs import preload, start
from gnnkit.jobs.order import Order, command, redact_override
from gnnkit.launch import progress
from gnnkit.launch.launcher import Jobs, Launcher
from gnnkit.launch.progress import say
from gnnkit.result.result import finite, format_figure
from gnnkit.task import Task
from gnnkit.utils.documents import read_object, read_or_empty, read_yaml
from gnnkit.utils.storage import write_atomically

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
        return progress.exit_code(lambda: start(self.order).exit_code)

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
        on_end: Callable[[SweptRun], None] = lambda run: None,
    ) -> None:
        """Stores the arguments.

        Args:
            folder: Receives `results.json` and `results.csv`.
            launcher: Starts the jobs.
            task: Declares the figures of a run.
            on_end: Called with each run that has ended.
        """
        self.folder, self.launcher, self.task, self.ended = folder, launcher, task, on_end
        self.runs: list[SweptRun] = []

    def run(self, jobs: Sequence[SweepJob]) -> None:
        """Runs a batch of jobs, except those that are done already."""
        self.runs += [job.row() for job in jobs]
        done = [job for job in jobs if job.order.settings.on_exists == "resume" and job.is_done()]
        for job in done:
            self.record(job.ended(0), "done before")
        if pending := [job for job in jobs if job not in done]:
            self._launch(pending)

    def record(self, run: SweptRun, remark: str = "") -> None:
        """Stores a run that has ended, calls `on_end`, and prints a line."""
        self.runs[run.number] = run
        self.ended(run)
        self.write()
        text = " ".join(filter(None, [remark, _line(run, self.task)]))
        say(f"[{run.number}] {run.name or 'one job'}: {text}")

    def write(self) -> None:
        """Writes `results.json` and `results.csv` atomically."""
        rows = [_row(run) for run in self.runs]
        write_atomically(self.folder / "results.json", json.dumps(finite(rows), indent=2, allow_nan=False).encode())
        keys = list(dict.fromkeys(key for run in self.runs for key in run.swept))
        figures = list(dict.fromkeys(name for run in self.runs for name in run.figures if name not in keys))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["job", "status", "exit_code", *keys, *figures, "folder"])
        for run in self.runs:
            values = [run.swept.get(name, run.figures.get(name, "")) for name in (*keys, *figures)]
            writer.writerow([run.number, run.status, run.exit_code, *values, run.folder])
        write_atomically(self.folder / "results.csv", text.getvalue().encode())

    @property
    def done(self) -> list[SweptRun]:
        """The runs that have succeeded."""
        return [run for run in self.runs if run.status == DONE]

    @property
    def exit_code(self) -> int:
        """0 if all jobs have succeeded."""
        return 0 if len(self.done) == len(self.runs) else progress.FAILED

    def _launch(self, jobs: Sequence[SweepJob]) -> None:
        batch = Jobs(
            [job.arguments for job in jobs],
            lambda number: jobs[number].work(),
            lambda: preload(jobs[0].order),
            [job.log for job in jobs],
        )
        with contextlib.closing(self.launcher.jobs(batch)) as exit_codes:
            for number, code in exit_codes:
                self.record(jobs[number].ended(code))


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the last override of each key."""
    return {key_of(str(text)): str(text) for text in overrides}


def _figures(folder: Path) -> tuple[dict[str, float], str | None]:
    """Reads the numbers in `result.json`, and the main figure's name."""
    try:
        result = read_object(folder / "result.json")
    except UserError:
        return {}, None
    return numbers_of(result), result.get("main_figure", {}).get("name")


def _error(log: Path) -> str:
    lines = [line.strip() for line in read_or_empty(log).splitlines()]
    messages = [line for line in lines if line.startswith("gnnkit: error: ")]
    return (messages or [line for line in lines if line] or [""])[-1].removeprefix("gnnkit: error: ")


def _row(run: SweptRun) -> dict[str, object]:
    return {
        "job": run.number,
        "status": run.status,
        "exit_code": run.exit_code,
        "overrides": list(run.overrides),
        "swept": run.swept,
        "figures": dict(run.figures),
        "error": run.remark,
        "folder": str(run.folder),
    }


def _line(run: SweptRun, task: Task) -> str:
    """Returns one line about a run that has ended."""
    if run.status != DONE:
        return f"{run.status} with exit code {run.exit_code}: {run.remark or run.log}"
    columns = Sweep([run], run.main or task.progress, task.lower_is_better).columns
    return "  ".join(f"{name} {format_figure(run.figures[name])}" for name in columns) or DONE
