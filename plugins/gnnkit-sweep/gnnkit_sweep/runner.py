"""Runs the jobs of a sweep or a comparison, and records their outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gnnkit.config import RECORD, key_of
from gnnkit.errors import UserError
from gnnkit.jobs import dispatch
from gnnkit.jobs.order import Order, command, redact_override
from gnnkit.launch import exits
from gnnkit.launch.launcher import Jobs, Launcher
from gnnkit.launch.phases import say
from gnnkit.task import Task
from gnnkit.utils.documents import read_object, read_yaml
from gnnkit_sweep import table
from gnnkit_sweep.rows import DONE, SweptRun

FAILED, UNFINISHED = "failed", "not finished"


@dataclass(frozen=True, slots=True, eq=False)
class SweepJob:
    """One job, checked and not started."""

    number: int  # its place among the outcomes
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

    @property
    def title(self) -> str:
        """The swept values in short form."""
        return " ".join(redact_override(f"{key}={value}") for key, value in self.swept.items()) or "one job"

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


@dataclass(frozen=True, slots=True, eq=False)
class JobOutcome:
    """The result of a job, or the reason why there is none."""

    job: SweepJob
    status: str = UNFINISHED
    exit_code: int | None = None
    error: str = ""  # the last line of the log about an error
    figures: Mapping[str, float] = field(default_factory=dict)  # numbers of `result.json`
    main: str | None = None  # the main validation figure's name, if it has trained

    @classmethod
    def of(cls, job: SweepJob, exit_code: int) -> JobOutcome:
        """Reads the result of a job that has ended."""
        status = FAILED if exit_code else DONE
        return cls(job, status, exit_code, _error(job.log) if exit_code else "", *_figures(job.folder))

    @property
    def run(self) -> SweptRun:
        """The row of the job in tables and on the page, without secrets."""
        job = self.job
        values = {key: redact_override(f"{key}={value}").partition("=")[2] for key, value in job.swept.items()}
        return SweptRun(job.number, self.status, values, self.figures, job.folder, job.log, self.error)


class Runner:
    """Runs jobs in order. Records and prints the outcome of a job when it ends."""

    def __init__(
        self,
        folder: Path,
        launcher: Launcher,
        task: Task,
        on_end: Callable[[int, JobOutcome], None] = lambda in_batch, outcome: None,
    ) -> None:
        """Stores the arguments.

        Args:
            folder: Receives `results.json` and `results.csv`.
            launcher: Starts the jobs.
            task: Declares the figures of a run.
            on_end: Called with each outcome, and the number of its job in the batch.
        """
        self.folder, self.launcher, self.task, self.ended = folder, launcher, task, on_end
        self.outcomes: list[JobOutcome] = []

    def run(self, jobs: Sequence[SweepJob]) -> None:
        """Runs a batch of jobs, except those that are done already."""
        first = len(self.outcomes)
        self.outcomes += [JobOutcome(job) for job in jobs]
        done = [job for job in jobs if job.order.settings.on_exists == "resume" and job.is_done()]
        for job in done:
            self.record(JobOutcome.of(job, 0), job.number - first, "done before")
        if pending := [job for job in jobs if job not in done]:
            self._launch(pending, first)

    def refuse(self, job: SweepJob, reason: str) -> None:
        """Records a job that cannot start."""
        self.outcomes.append(JobOutcome(job))
        self.record(JobOutcome(job, FAILED, exits.USER_ERROR, reason))

    def record(self, outcome: JobOutcome, in_batch: int = 0, remark: str = "") -> None:
        """Stores an outcome, calls `ended`, and prints a line."""
        self.outcomes[outcome.job.number] = outcome
        self.ended(in_batch, outcome)
        self.write()
        text = " ".join(filter(None, [remark, table.line(outcome, self.task)]))
        say(f"[{outcome.job.number}] {outcome.job.title}: {text}")

    def write(self) -> None:
        """Writes the files with a row for each job."""
        table.write(self.outcomes, self.folder)

    @property
    def done(self) -> list[JobOutcome]:
        """The outcomes of jobs that have succeeded."""
        return [outcome for outcome in self.outcomes if outcome.status == DONE]

    @property
    def exit_code(self) -> int:
        """0 if all jobs have succeeded."""
        return 0 if len(self.done) == len(self.outcomes) else exits.FAILED

    def _launch(self, jobs: Sequence[SweepJob], first: int) -> None:
        batch = Jobs(
            [job.arguments for job in jobs],
            lambda number: jobs[number].work(),
            lambda: dispatch.preload(jobs[0].order),
            [job.log for job in jobs],
        )
        with contextlib.closing(self.launcher.jobs(batch)) as exit_codes:
            for number, code in exit_codes:
                self.record(JobOutcome.of(jobs[number], code), jobs[number].number - first)


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
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    messages = [line for line in lines if line.startswith("gnnkit: error: ")]
    return (messages or [line for line in lines if line] or [""])[-1].removeprefix("gnnkit: error: ")
