"""gnnkit -m: checks every job, runs one after the other, and shows the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gnnkit_report import runs_page
from gnnkit_report.runs_page import Sweep, SweptRun

from gnnkit.config import HydraSettings, fill, key_of
from gnnkit.config.settings import AUTO, Choice, Settings, launcher_for, settle
from gnnkit.errors import UserError
from gnnkit.jobs import check
from gnnkit.jobs.folder import apply_permissions, check_free, locked, new_folder
from gnnkit.jobs.job import as_a_warning
from gnnkit.jobs.order import Order, plain_yaml
from gnnkit.launch.launcher import JOBS, Launcher
from gnnkit.launch.progress import say
from gnnkit.task import Task
from gnnkit.utils.ranges import local_path
from gnnkit_sweep.plans import GridSearch, OptunaSearch, Overrides, SweepPlan
from gnnkit_sweep.runner import Runner, SweepJob
from gnnkit_sweep.spaces import spaces

_PAGE_SHARE = 0.05  # of the time, for writing pages between jobs


def run(
    overrides: Sequence[str],
    options: Sequence[str],
    hydra: HydraSettings,
    compose: Callable[[Sequence[str]], dict[str, Any]],
) -> int:
    """Runs all jobs of a sweep, and returns the exit code.

    Raises `UserError` before the first job starts if any job is invalid.

    Args:
        overrides: Keys with one value or several, as typed.
        options: Arguments that determine where configurations are found, such as
            --config-dir DIR.
        hydra: The keys under `hydra`.
        compose: Composes the configuration of one job.
    """
    sweep = _Sweep(overrides, options, hydra, compose)
    with apply_permissions(sweep.settings.permissions):
        return sweep.run()


class _Sweep:
    def __init__(
        self,
        overrides: Sequence[str],
        options: Sequence[str],
        hydra: HydraSettings,
        compose: Callable[[Sequence[str]], dict[str, Any]],
    ) -> None:
        self.options, self.hydra, self.compose = options, hydra, compose
        self.overrides = list(overrides)  # of the jobs, all together
        is_grid = self.hydra["sweeper.name"] == "basic"
        if is_grid:
            GridSearch(overrides)  # raises for spaces to search
        self.settings = self._settled(_first_values(overrides))
        self.launcher = self._launcher()
        self.task: Task = self.settings.task.create()
        self.plan: SweepPlan = GridSearch(self.overrides) if is_grid else self._search()
        self.checked = {overrides: self._settled(overrides) for overrides in self.plan.first()}
        for settings in self.checked.values():
            check(Order(settings))
        with apply_permissions(self.settings.permissions):
            self.folder = self._folder()
        self.next_page = 0.0  # time of `time.monotonic` of the next page
        self.runner = Runner(self.folder, self.launcher, self.task, self._ended)

    def run(self) -> int:
        start = time.perf_counter()
        with locked(self.folder):
            try:
                for batch in self.plan.batches():
                    self.runner.run(self._jobs(batch))
            finally:
                self._show(time.perf_counter() - start)
        return self.runner.exit_code

    def _ended(self, run: SweptRun) -> None:
        self.plan.tell(run)
        if time.monotonic() >= self.next_page:
            self._write_page(is_last=False)

    def _write_page(self, *, is_last: bool) -> None:
        """Writes the page. A failure is printed as a line, and the sweep continues."""
        start, sweep = time.monotonic(), self._runs_so_far(is_last=is_last)
        if self.settings.draws_report:
            with as_a_warning():
                runs_page.write(sweep, self.folder, f"Sweep over {', '.join(sweep.keys)}".removesuffix(" over "))
        self.next_page = time.monotonic() + (time.monotonic() - start) / _PAGE_SHARE

    def _runs_so_far(self, *, is_last: bool) -> Sweep:
        return Sweep(self.runner.runs, *self.plan.goal(self.runner.runs, self.task), is_last)

    def _show(self, seconds: float) -> None:
        runs, done = self.runner.runs, self.runner.done
        if not runs:
            return
        self.runner.write()
        sweep = self._runs_so_far(is_last=True)
        means = runs_page.means_table(sweep)
        lines = [runs_page.runs_table(sweep, self.folder).aligned(), *([means.aligned()] if means else [])]
        if (best := self.plan.best()) is not None:
            (self.folder / "optimization_results.yaml").write_text(plain_yaml(best), encoding="utf-8")
            values = " ".join(f"{key}={value}" for key, value in best["best_evaluated_params"].items())
            lines.append(f"best {best['metric']} {best['best_evaluated_value']:.4g}: {values}")
        self._write_page(is_last=True)
        lines.append(f"{len(done)} of {len(runs)} jobs done in {seconds:.1f} s, written to {self.folder}")
        say("\n".join(lines))

    def _search(self) -> OptunaSearch:
        if not self.settings.job.trains:
            raise UserError(f"hydra/sweeper=optuna compares trained models: job={self.settings.job.name} has none")
        return OptunaSearch(self.overrides, self.hydra.under("sweeper"), self.task)

    def _launcher(self) -> Launcher:
        """Returns the jobs' launcher: `launcher` if it starts jobs, or hydra/launcher.

        A launcher that starts ranks only, or is swept, is passed on to the jobs. The
        ranks of jobs that `launcher` starts use the default launcher.
        """
        choice = self.settings.launcher
        overrides = [text for text in self.overrides if key_of(text).partition(".")[0] != "launcher"]
        is_swept = any(space.key.partition(".")[0] == "launcher" for space in spaces(self.overrides)[1])
        has_keys = any(key.startswith("launcher.") for key in self.hydra.typed)
        if has_keys or is_swept or choice.name == AUTO or JOBS not in choice.load().starts:
            return self._launcher_of_hydra()
        self.overrides = overrides if len(overrides) < len(self.overrides) else [*overrides, f"launcher={AUTO}"]
        return launcher_for(choice, JOBS)

    def _launcher_of_hydra(self) -> Launcher:
        name = self.hydra.means["launcher"]
        try:
            return launcher_for(Choice("launcher", name, self.hydra.under("launcher")), JOBS)
        except UserError as error:  # with the keys as typed
            text, override = str(error), self.hydra.typed.get("launcher.name", f"launcher={name}")
            if text.startswith("launcher."):
                raise UserError(f"hydra.{text}") from error
            raise UserError(text.replace(f"launcher={name}", override, 1)) from error

    def _settled(self, overrides: Sequence[str]) -> Settings:
        settings = settle(self.compose(overrides))
        if settings.started is not None:
            raise UserError("-m starts its own jobs: remove torchrun, srun or mpirun, or remove -m")
        if settings.job.several:
            raise UserError(f"job={settings.job.name} starts its own runs: remove -m")
        if settings.output is not None:
            raise UserError("output applies to a single run: set a sweep's folder with hydra.sweep.dir=DIR")
        if settings.upload is not None:
            raise UserError("upload applies to a single run: remove it, and copy the sweep's folder")
        return settings

    def _folder(self) -> Path:
        """Makes the folder of the sweep."""
        path = self.hydra["sweep.dir"]
        if path is None:
            return new_folder(Path("multirun"))
        folder = local_path("hydra.sweep.dir", fill(str(path), self.settings.composed)).absolute()
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
        jobs = [self._job(number, overrides) for number, overrides in enumerate(batch, len(self.runner.runs))]
        folders = [job.folder for job in jobs]
        for job in jobs:
            if folders.count(job.folder) > 1:
                raise UserError(
                    f"hydra.sweep.subdir gives two jobs the folder {job.folder}: add ${{hydra.job.num}} to the name"
                )
            check_free(job.folder, job.order.settings)
        return jobs

    def _job(self, number: int, overrides: Overrides) -> SweepJob:
        constants = set(self.overrides)
        values = dict(text.lstrip("+").split("=", 1) for text in overrides if text not in constants)
        settings = self.checked.get(overrides) or self._settled(overrides)
        name = ",".join(f"{key}={value}".replace("/", "_") for key, value in values.items())
        subdir = fill(str(self.hydra["sweep.subdir"]), settings.composed, num=number, override_dirname=name)
        order = Order(settings, folder=self.folder / subdir, overrides=overrides, options=self.options)
        return SweepJob(number, order, values, self._arguments(order))

    def _arguments(self, order: Order) -> list[str]:
        """Returns the arguments of `gnnkit` that run the job alone."""
        folder = str(order.folder).replace("\\", "\\\\").replace("'", "\\'")
        verbose = [text for key, text in self.hydra.typed.items() if key == "verbose"]
        return [*order.options, *order.overrides, *verbose, f"hydra.run.dir='{folder}'"]


def _first_values(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with the first value of each swept key."""
    constants, axes = spaces(overrides)
    return [*constants, *(f"{space.key}={space.ends[0]}" for space in axes)]
