"""Runs each way with each seed, and shows the table."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gnnkit.config import as_overrides, key_of
from gnnkit.config.settings import AUTO, MAX_RUNS, Choice, launcher_for
from gnnkit.errors import UserError
from gnnkit.jobs import dispatch
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.compare import measured
from gnnkit.jobs.compare.table import Row, Table
from gnnkit.jobs.compare.ways import Way, is_of_job, parse
from gnnkit.jobs.order import Order
from gnnkit.jobs.report import after_comparison
from gnnkit.jobs.sweep.job import DONE, FAILED, Outcome, SweepJob
from gnnkit.jobs.sweep.runner import Runner
from gnnkit.jobs.sweep.table import aligned
from gnnkit.launch.exits import MENDABLE, exit_code
from gnnkit.launch.phases import say
from gnnkit.launcher import JOBS
from gnnkit.result.result import Result
from gnnkit.task import Task

_MONITOR = "trainer.monitor"


def compare(order: Order) -> Result:
    """Runs all ways. Raises `UserError` before the first run, where any way is wrong.

    A way whose parts do not go together is a row that says so, unless all ways are.
    """
    comparison = _Comparison(order)
    with run_folders.opened(order) as folder:
        return comparison.run(folder)


class _Comparison:
    """A checked comparison."""

    def __init__(self, order: Order) -> None:
        self.order, settings = order, order.settings
        _check(order)
        self.ways = parse(settings.compare.ways)
        self.seeds = [settings.seed + index for index in range(settings.compare.seeds)]
        self.task: Task = settings.task.create()
        self.common = [text for text in order.overrides if not is_of_job(key_of(text))]
        self.orders = {(way.name, seed): self._order(way, seed) for seed in self.seeds for way in self.ways}
        self.refused = self._refused()

    def run(self, folder: Path) -> Result:
        """Runs what is not done, seed by seed, and returns the result."""
        begun, self.folder = time.perf_counter(), folder
        self.runner = Runner(
            folder,
            launcher_for(Choice("launcher", "processes", {}), JOBS),
            self.task,
            work=self._work,
            arguments=lambda job: job.overrides,
            preload=lambda job: dispatch.preload(self._ordered(job)),
        )
        try:
            for seed in self.seeds:
                for way in self.ways:
                    self._run(way, seed)
        except BaseException:
            say("\n".join(self._shown(self._table())))
            raise
        return self._told(self._table(), time.perf_counter() - begun)

    def _order(self, way: Way, seed: int) -> Order:
        """Makes the order of a run. Raises `UserError` that names the way."""
        assert self.order.settle is not None
        given = {key_of(text) for text in (*self.order.overrides, *way.overrides)}
        monitored = _MONITOR in given or self.order.settings.trainer.monitor is not None
        keeps = [] if monitored or self.task.progress not in self.task.names else [f"{_MONITOR}={self.task.progress}"]
        overrides = way.over([*self.common, *self._link()], [f"seed={seed}", *keeps])
        exists = as_overrides({"on_exists": self.order.settings.on_exists})
        try:
            settings = self.order.settle([*overrides, "job=train", *exists])
        except UserError as error:
            raise UserError(f"compare.ways: {way.name}: {error}") from error
        return replace(
            self.order, settings=replace(settings, output=None), folder=None, overrides=overrides, settle=None
        )

    def _link(self) -> list[str]:
        """Spells `compare.link` as the key of a run."""
        link = self.order.settings.compare.link
        if link is None:
            return []
        return [f"++comm.link={{gigabits:{link.gigabits},milliseconds:{link.milliseconds}}}"]

    def _refused(self) -> dict[str, str]:
        """Returns why ways are refused, by name. Raises an error where all are."""
        found: dict[str, UserError] = {}
        for way in self.ways:
            try:
                dispatch.check(self.orders[way.name, self.seeds[0]])
            except UserError as error:
                found[way.name] = error
        if len(found) == len(self.ways):
            raise found[self.ways[0].name]
        return {name: str(error) for name, error in found.items()}

    def _run(self, way: Way, seed: int) -> None:
        order, number = self.orders[way.name, seed], len(self.runner.outcomes)
        swept = {"way": way.name, "seed": str(seed)}
        job = SweepJob(number, tuple(order.overrides), swept, order.settings, self.folder / f"{way.stem}-seed{seed}")
        if way.name in self.refused:
            self.runner.outcomes.append(Outcome(job))
            self.runner.take(Outcome(job, FAILED, MENDABLE, self.refused[way.name]))
        else:
            self.runner.run([job])

    def _ordered(self, job: SweepJob) -> Order:
        return replace(self.orders[job.swept["way"], int(job.swept["seed"])], folder=job.folder)

    def _work(self, job: SweepJob) -> int:
        """Does a run, in the process of the run."""
        say(self.order.command(job.overrides))
        return exit_code(lambda: dispatch.start(self._ordered(job)).exit_code)

    def _table(self) -> Table:
        rows = []
        for way in self.ways:
            ended = [outcome for outcome in self.runner.outcomes if outcome.job.swept["way"] == way.name]
            done = [outcome for outcome in ended if outcome.status == DONE]
            failed = next((outcome for outcome in ended if outcome.status != DONE), None)
            error = "" if failed is None else " ".join(filter(None, [failed.status, failed.error]))
            rows.append(Row(way.name, [measured.read(each.job.folder, self.task) for each in done], error))
        return Table(rows, self.task)

    def _shown(self, table: Table) -> list[str]:
        return [*aligned([[*table.head, ""], *table.cells()]), *filter(None, [table.sentence()])]

    def _told(self, table: Table, seconds: float) -> Result:
        outcomes, done = self.runner.outcomes, self.runner.done
        runs = f"{len(done)} of {len(outcomes)} runs done in {seconds:.1f} s"
        figures = {
            "figure": self.task.progress,
            "target": table.target,
            "ways": table.figures(),
            "seeds": self.seeds,
            "summary": table.sentence(),
            "failed": len(outcomes) - len(done),
            "seconds_total": seconds,
            "command": self.order.command(self.order.overrides),
        }
        text = "\n".join([*self._shown(table), f"{runs}, written to {self.folder}"])
        result = Result("compare", figures, text, self.folder)
        result.save(self.folder)
        if self.order.settings.draws_report:
            shown = {each.job.title: each.job.folder for each in done[:MAX_RUNS]}
            after_comparison(shown, self.folder, [*table.head, "remark"], table.cells(whole=True), table.sentence())
        say(result.table())
        return result


def _check(order: Order) -> None:
    """Raises `UserError` for keys that are not of all ways."""
    settings = order.settings
    if settings.strategy.name != AUTO and "strategy" in map(key_of, order.overrides):
        raise UserError(
            f"strategy={settings.strategy.name}: job=compare runs the strategies of compare.ways, leave it out"
        )
    if settings.trainer.resume is not None:
        raise UserError("trainer.resume: the runs of job=compare begin anew, leave it out")
    if not order.source.trains:
        raise UserError(f"job=compare trains, and model={settings.model.name} is a program: choose a model")
