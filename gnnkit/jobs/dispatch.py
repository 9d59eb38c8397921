"""Selects the job by name, and starts it.

Torch is imported only for jobs that need it, and Lightning only for training. Both are
imported once before the ranks fork, and Lightning while the data are prepared.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.config import EXPERIMENT, key_of
from gnnkit.config.settings import AUTO
from gnnkit.errors import UserError
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.job import Job, OnRanks, Run
from gnnkit.jobs.lock import apply_permissions, locked
from gnnkit.jobs.notebook import shows_bar
from gnnkit.jobs.order import Order
from gnnkit.jobs.report import report
from gnnkit.launch.environment import count_call
from gnnkit.launch.phases import begin, say
from gnnkit.result.result import Result

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.prepare.cut import Needs

# Lightning's loggers import s3fs where it is installed.
_MODULES = ("numpy.ma", "numpy.random", "torch.utils.tensorboard", "gnnkit.jobs.trial_steps", "s3fs")


class Train(OnRanks):
    """job=train, which iterates a program instead of training it."""

    def rank_work(self, *, trains: bool) -> RankWork:
        if not trains:
            from gnnkit.jobs.iterate import run_program

            return run_program
        import_for_training()
        from gnnkit.jobs.train import train

        return train

    def check_parts(self, order: Order) -> Order:
        order = super().check_parts(order)
        for choice in order.settings.logger:
            choice.create().check()
        if order.settings.callback:
            from gnnkit import callback

            for choice in order.settings.callback:
                callback.check(choice.name, choice.create())
        return order

    def finish(self, order: Order, result: Result, seconds: float) -> Result:
        result = result.with_figure("seconds_total", seconds)
        if "phases" in result:  # absent for programs
            known = result["phases"]
            phases = {"starting": seconds - sum(known.values()), **known}
            setup = sum(phases[name] for name in ("starting", "reading", "partitioning", "cutting"))
            result = result.with_figure("phases", phases).with_figure("seconds_setup", setup)
        return result.with_figure("command", order.command(order.overrides))


class Verify(OnRanks):
    """job=verify, whose ranks also read the full graph as one shard."""

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit.jobs import verify

        return verify.verify if trains else verify.verify_program

    def needs(self, order: Order) -> Needs:
        return replace(super().needs(order), reference=True)


class Predict(OnRanks):
    """job=predict, and job=test, which requires labels."""

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit.jobs.predict import predict

        return predict


class Explain(OnRanks):
    """job=explain, whose leader reads the complete graph."""

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit.jobs.explain import explain

        return explain

    def needs(self, order: Order) -> Needs:
        return replace(super().needs(order), graph=True, features=True)


class Plan(OnRanks):
    """job=plan: counts and times full-graph layouts, or runs sampled steps on ranks."""

    on_ranks = False

    def rank_work(self, *, trains: bool) -> RankWork:
        import_for_training()
        from gnnkit.jobs.trial_steps import plan_batches

        return plan_batches

    def work(self, order: Order) -> Result:
        from gnnkit.jobs.plan import plan

        open_ = order.settings.strategy.name == AUTO
        return plan(order) if open_ or order.settings.create_strategy().reads.all_edges else super().work(order)


class Partition(Run):
    """job=partition, which checks the ranks' plugins only if `auto` depends on them.

    An existing store is partitioned again, as by job=import.
    """

    def check(self, order: Order) -> Order:
        return _IMPORT.check(order) if _reads_store(order) else super().check(order)

    def check_parts(self, order: Order) -> Order:
        return super().check_parts(order) if order.settings.is_open and not _reads_store(order) else order

    def done(self, order: Order) -> Result | None:
        if order.settings.on_exists != "refuse" or order.named_folder is None:
            return None
        if _reads_store(order):
            return _IMPORT.done(order)
        from gnnkit.jobs.store_jobs import find_partition

        return find_partition(replace(order, folder=Path(order.named_folder).absolute()))

    def work(self, order: Order) -> Result:
        if _reads_store(order):
            return _IMPORT.work(order)
        from gnnkit.jobs.store_jobs import partition

        return partition(order, self.decided(order).settings)


class Import(Run):
    """job=import, which resumes an interrupted import in the run folder.

    Externally started ranks import together.
    """

    on_ranks = True

    def check(self, order: Order) -> Order:
        from gnnkit.jobs.store_jobs import check_import

        check_import(order.settings, from_python=order.graph is not None)
        if _together(order) and order.named_folder is None:
            raise UserError("job=import on externally started ranks needs output=FOLDER on a disk that all hosts share")
        return super().check(order)

    def check_parts(self, order: Order) -> Order:
        return order

    def done(self, order: Order) -> Result | None:
        if order.settings.on_exists == "replace" or order.named_folder is None:
            return None

        from gnnkit.jobs.store_jobs import find_import

        return find_import(replace(order, folder=Path(order.named_folder).absolute()))

    def work(self, order: Order) -> Result:
        from gnnkit.jobs.store_jobs import import_tables

        return import_tables(order, together=_together(order))


_IMPORT = Import()


def _together(order: Order) -> bool:
    """Whether externally started ranks do the job together."""
    started = order.settings.started
    return _BY_NAME[order.settings.job.name].on_ranks and started is not None and started.world_size > 1


def _reads_store(order: Order) -> bool:
    return order.graph is None and order.settings.dataset.create().store_folder is not None


class Report(Job):
    """job=report. Writes into the run's folder, or into a new one for several runs."""

    def start(self, order: Order) -> Result:
        runs = order.settings.runs
        held: contextlib.AbstractContextManager[Path | None]
        if order.named_folder is not None or len(runs) > 1:
            held = run_folders.bare(order)
        else:
            held = locked(Path(runs[0])) if Path(runs[0]).is_dir() else contextlib.nullcontext()
        with held as target:
            result = report(runs, target)
        say(result.table())
        return result


class Compare(Job):
    """job=compare: several training runs, each in its own process and folder."""

    def check(self, order: Order) -> Order:
        if order.settings.started is not None:
            raise UserError("job=compare starts its own runs: remove torchrun, srun or mpirun")
        return order

    def start(self, order: Order) -> Result:
        from gnnkit.jobs.sweep import compare

        return compare(self.check(order))


class Init(Job):
    """job=init. Writes a configuration, without a run folder."""

    def start(self, order: Order) -> Result:
        from gnnkit.jobs.init import init

        return init(order)


_BY_NAME: dict[str, Job] = {
    "train": Train(),
    "verify": Verify(),
    "plan": Plan(),
    "partition": Partition(),
    "import": _IMPORT,
    "predict": Predict(),
    "explain": Explain(),
    "test": Predict(),
    "report": Report(),
    "compare": Compare(),
    "init": Init(),
}


def start(order: Order) -> Result:
    """Does the job and prints the result. A run's folder holds `result.json`.

    Returns the result on the leader. Other externally started ranks return one without
    figures.
    """
    begin(silent=shows_bar(order))
    if _implies_task(order):
        order = replace(order, settings=replace(order.settings, implies_task=True))
    job = _BY_NAME[order.settings.job.name]
    if not (order.is_leader or job.on_ranks):
        return Result(order.settings.job.name, {})
    if job.on_ranks and order.settings.started is not None:
        count_call()
    with apply_permissions(order.settings.permissions):
        return job.start(order)


def _implies_task(order: Order) -> bool:
    """Returns whether the user has left the task of a new model at its default."""
    settings, keys = order.settings, {*map(key_of, order.overrides)}
    is_new = not settings.job.reads_checkpoint and settings.trainer.resume is None
    return is_new and bool(keys) and not order.options and keys.isdisjoint(("task", EXPERIMENT))


def check(order: Order) -> Order:
    """Raises `UserError` if the job cannot do the order."""
    return _BY_NAME[order.settings.job.name].check(order)


def preload(order: Order) -> None:
    """Imports everything that the job's ranks import, before processes fork."""
    job = _BY_NAME[order.settings.job.name]
    if isinstance(job, OnRanks):
        job.rank_work(trains=order.source.trains)


def import_for_training() -> None:
    """Imports the modules that training ranks need, once for all forked ranks."""
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
