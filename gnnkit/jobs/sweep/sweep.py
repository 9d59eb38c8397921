"""Runs a sweep: checks every job, runs one after the other, and shows the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.config import HydraSettings, fill, spaces
from gnnkit.errors import UserError
from gnnkit.jobs import dispatch, start
from gnnkit.jobs.folder import check_free, new_folder
from gnnkit.jobs.lock import locked
from gnnkit.jobs.redacted import plain_yaml
from gnnkit.jobs.report import after_sweep
from gnnkit.jobs.sweep import table
from gnnkit.jobs.sweep.cluster import Cluster
from gnnkit.jobs.sweep.job import DONE, Launch, Outcome, SweepJob
from gnnkit.jobs.sweep.local import Local
from gnnkit.jobs.sweep.plans import Grid, Overrides, Plan, Search
from gnnkit.launch.environment import started_rank
from gnnkit.launch.phases import say
from gnnkit.ranges import local_path, num_cores, whole
from gnnkit.settings import Settings, settle
from gnnkit.task import Task

FAILED = 1  # exit code, if any job has failed


@dataclass(frozen=True, slots=True)
class Command:
    """What the command line brings to a sweep."""

    overrides: Sequence[str]
    options: Sequence[str]  # beside the overrides, such as --config-dir DIR
    hydra: HydraSettings
    compose: Callable[[Sequence[str]], dict[str, Any]]
    attempt: Callable[[Callable[[], int]], int]  # calls, and turns errors into an exit code


def run(command: Command) -> int:
    """Runs all jobs of a sweep, and returns the exit code.

    Raises `UserError` before the first job starts, where any job is wrong.
    """
    if started_rank() is not None:
        raise UserError("-m starts jobs of its own: leave torchrun, srun or mpirun out, or leave -m out")
    return _Sweep(command).run()


class _Sweep:
    def __init__(self, command: Command) -> None:
        self.command, self.hydra = command, command.hydra
        self.launch = self._launcher()
        is_grid = self.hydra["sweeper.name"] == "basic"
        grid = Grid(command.overrides) if is_grid else None
        self.settings = self._settled(_first_values(command.overrides))
        self.task: Task = self.settings.task.create()
        self.plan: Plan = grid or self._search()
        self.checked = {overrides: self._settled(overrides) for overrides in self.plan.first()}
        for settings in self.checked.values():
            dispatch.check(settings)
        self.folder = self._folder()
        self.outcomes: list[Outcome] = []

    def run(self) -> int:
        begun = time.perf_counter()
        with locked(self.folder):
            return self._run(begun)

    def _run(self, begun: float) -> int:
        try:
            for batch in self.plan.batches():
                self._run_batch(self._jobs(batch))
        finally:
            self._show(time.perf_counter() - begun)
        return FAILED if any(outcome.status != DONE for outcome in self.outcomes) else 0

    def _run_batch(self, jobs: Sequence[SweepJob]) -> None:
        first = len(self.outcomes)
        self.outcomes += [Outcome(job) for job in jobs]
        kept = [job for job in jobs if job.settings.on_exists == "resume" and job.is_done()]
        for job in kept:
            self._take(Outcome.of(job, 0), job.number - first, "done before")
        rest = [job for job in jobs if job not in kept]
        if rest and isinstance(self.launch, Local):
            dispatch.preload(rest[0].settings)
        for job, code in self.launch(rest) if rest else ():
            self._take(Outcome.of(job, code), job.number - first)

    def _take(self, outcome: Outcome, in_batch: int, remark: str = "") -> None:
        """Keeps an outcome, tells the plan, and says so in a line."""
        self.outcomes[outcome.job.number] = outcome
        self.plan.tell(in_batch, outcome)
        table.write(self.outcomes, self.folder)
        text = " ".join(filter(None, [remark, table.line(outcome, self.task)]))
        say(f"[{outcome.job.number}] {outcome.job.title}: {text}")

    def _show(self, seconds: float) -> None:
        if not self.outcomes:
            return
        table.write(self.outcomes, self.folder)
        lines = [table.shown(self.outcomes, self.task)]
        if (best := self.plan.best()) is not None:
            (self.folder / "optimization_results.yaml").write_text(plain_yaml(best), encoding="utf-8")
            chosen = " ".join(f"{key}={value}" for key, value in best["best_evaluated_params"].items())
            lines.append(f"best {best['metric']} {best['best_evaluated_value']:.4g}: {chosen}")
        done = [outcome.job for outcome in self.outcomes if outcome.status == DONE]
        if self.settings.job == "train" and self.settings.report:
            after_sweep({f"{job.number}: {job.title}": job.folder for job in done}, self.folder)
        lines.append(f"{len(done)} of {len(self.outcomes)} jobs done in {seconds:.1f} s, written to {self.folder}")
        say("\n".join(lines))

    def _search(self) -> Search:
        if self.settings.job != "train":
            raise UserError(f"hydra/sweeper=optuna compares trained models: job={self.settings.job} has none")
        return Search(self.command.overrides, self.hydra.under("sweeper"), self.task)

    def _launcher(self) -> Launch:
        name, keys = self.hydra["launcher.name"], self.hydra.under("launcher")
        if name.startswith("submitit"):
            return Cluster(name.removeprefix("submitit_"), keys, self._arguments)
        if name == "basic":
            return Local(self._work, 1)
        number = whole("hydra.launcher.n_jobs", keys["n_jobs"], -1, 2**16)
        if number == 0:
            raise UserError("hydra.launcher.n_jobs=0 must be -1 or a whole number from 1")
        return Local(self._work, num_cores() if number < 0 else number)

    def _settled(self, overrides: Sequence[str]) -> Settings:
        settings = settle(self.command.compose(overrides))
        if settings.output is not None:
            raise UserError("output names one run folder: name the folder of a sweep with hydra.sweep.dir=DIR")
        return settings

    def _folder(self) -> Path:
        """Makes the folder of the sweep."""
        named = self.hydra["sweep.dir"]
        if named is None:
            return new_folder(Path("multirun"))
        folder = local_path("hydra.sweep.dir", fill(str(named), self.settings.composed)).absolute()
        if (folder / "results.json").exists() and self.settings.on_exists == "refuse":
            raise UserError(
                f"hydra.sweep.dir={folder} holds a sweep: choose another folder, on_exists=resume to run what is "
                "missing, or on_exists=replace"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"hydra.sweep.dir={folder}: {error.strerror}") from error
        return folder

    def _jobs(self, batch: Sequence[Overrides]) -> list[SweepJob]:
        jobs = [self._job(number, overrides) for number, overrides in enumerate(batch, len(self.outcomes))]
        folders = [job.folder for job in jobs]
        for job in jobs:
            if folders.count(job.folder) > 1:
                raise UserError(
                    f"hydra.sweep.subdir gives two jobs the folder {job.folder}: add ${{hydra.job.num}} to the name"
                )
            check_free(job.folder, job.settings.on_exists)
        return jobs

    def _job(self, number: int, overrides: Overrides) -> SweepJob:
        fixed = set(self.command.overrides)
        swept = dict(text.lstrip("+").split("=", 1) for text in overrides if text not in fixed)
        settings = self.checked.get(overrides) or self._settled(overrides)
        name = ",".join(f"{key}={value}".replace("/", "_") for key, value in swept.items())
        subdir = fill(str(self.hydra["sweep.subdir"]), settings.composed, num=number, override_dirname=name)
        return SweepJob(number, overrides, swept, settings, self.folder / subdir)

    def _work(self, job: SweepJob) -> int:
        """Does a job, in the process of the job."""

        def work() -> int:
            result = start(job.settings, job.folder, overrides=job.overrides)
            return 0 if result.get("verified", True) else FAILED

        say(f"gnnkit {' '.join(self._arguments(job))}")
        return self.command.attempt(work)

    def _arguments(self, job: SweepJob) -> list[str]:
        """Returns the arguments of `gnnkit` that do the job alone."""
        quoted = str(job.folder).replace("\\", "\\\\").replace("'", "\\'")
        verbose = [text for key, text in self.hydra.given.items() if key == "verbose"]
        return [*self.command.options, *job.overrides, *verbose, f"hydra.run.dir='{quoted}'"]


def _first_values(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with the first value of each swept key."""
    fixed, swept = spaces(overrides)
    return [*fixed, *(f"{space.key}={space.ends[0]}" for space in swept)]
