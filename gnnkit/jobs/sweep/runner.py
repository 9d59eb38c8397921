"""Runs the jobs of a sweep, and keeps what became of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gnnkit.jobs.sweep import table
from gnnkit.jobs.sweep.job import DONE, Outcome, SweepJob
from gnnkit.launch.exits import FAILED
from gnnkit.launch.phases import say
from gnnkit.launcher import Jobs, Launcher
from gnnkit.task import Task


class Runner:
    """The outcomes of all jobs so far. Writes and tells each as the job ends."""

    def __init__(
        self,
        folder: Path,
        launcher: Launcher,
        task: Task,
        *,
        work: Callable[[SweepJob], int],
        arguments: Callable[[SweepJob], Sequence[str]],
        preload: Callable[[SweepJob], None],
        tell: Callable[[int, Outcome], None] = lambda in_batch, outcome: None,
    ) -> None:
        """Keeps the parts.

        Args:
            folder: Gets `results.json` and `results.csv`.
            launcher: Starts the jobs.
            task: Knows the figures of a run.
            work: Does a job in the process of the job. Returns the exit code.
            arguments: Of `gnnkit`, that do a job alone.
            preload: Imports what a job imports, before forks.
            tell: Takes each outcome, by the number of the job in its batch.
        """
        self.folder, self.launcher, self.task = folder, launcher, task
        self.work, self.arguments, self.preload, self.tell = work, arguments, preload, tell
        self.outcomes: list[Outcome] = []

    def run(self, jobs: Sequence[SweepJob]) -> None:
        """Runs a batch of jobs, except those that are done already.

        The number of each job is its place among the outcomes.
        """
        first = len(self.outcomes)
        self.outcomes += [Outcome(job) for job in jobs]
        kept = [job for job in jobs if job.settings.on_exists == "resume" and job.is_done()]
        for job in kept:
            self.take(Outcome.of(job, 0), job.number - first, "done before")
        rest = [job for job in jobs if job not in kept]
        if rest:
            self._launch(rest, first)

    def take(self, outcome: Outcome, in_batch: int = 0, remark: str = "") -> None:
        """Keeps an outcome, tells the plan, and says so in a line."""
        self.outcomes[outcome.job.number] = outcome
        self.tell(in_batch, outcome)
        self.write()
        text = " ".join(filter(None, [remark, table.line(outcome, self.task)]))
        say(f"[{outcome.job.number}] {outcome.job.title}: {text}")

    def write(self) -> None:
        """Writes the files with a row for each job."""
        table.write(self.outcomes, self.folder)

    @property
    def done(self) -> list[Outcome]:
        """The outcomes of jobs that have succeeded."""
        return [outcome for outcome in self.outcomes if outcome.status == DONE]

    @property
    def exit_code(self) -> int:
        """0 if all jobs have succeeded."""
        return 0 if len(self.done) == len(self.outcomes) else FAILED

    def _launch(self, jobs: Sequence[SweepJob], first: int) -> None:
        launched = Jobs(
            [self.arguments(job) for job in jobs],
            lambda number: self.work(jobs[number]),
            lambda: self.preload(jobs[0]),
            [job.log for job in jobs],
        )
        with contextlib.closing(self.launcher.jobs(launched)) as ended:
            for number, code in ended:
                self.take(Outcome.of(jobs[number], code), jobs[number].number - first)
