"""The jobs of this package."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from gnnkit import plugins
from gnnkit.config.settings.fields import Section
from gnnkit.errors import UserError
from gnnkit.jobs.dispatch import import_for_training
from gnnkit.jobs.job import Job, OnRanks, Run
from gnnkit.jobs.order import Order
from gnnkit.result.result import Result
from gnnkit.utils.ranges import real

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.prepare.cut import Needs

MAX_MINUTES = 1e5  # for trial runs
INIT_CHOICES = ("task", "inputs", "threads")  # sections that job=init chooses unless they are named
_INIT_READS = (*INIT_CHOICES, "dataset", "job", "output", "on_exists", "init", "cache", "seed")


class Train(OnRanks):
    """job=train, which iterates a program instead of training it."""

    name = "train"
    trains = True
    reads_rows = True
    keeps_inputs = True
    headline = (
        "iterations", "residual", "train_loss", "val_", "test_", "best_epoch", "exact", "seconds_per_", "seconds_total",
    )  # fmt: skip

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

    name = "verify"
    reads_rows = True

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit.jobs import verify

        return verify.verify if trains else verify.verify_program

    def needs(self, order: Order) -> Needs:
        return replace(super().needs(order), reference=True)


class Predict(OnRanks):
    """job=predict."""

    name = "predict"
    reads_checkpoint = True
    reads_rows = True
    needs_labels = False

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit.jobs.predict import predict

        return predict


class Test(Predict):
    """job=test, which requires labels."""

    name = "test"
    needs_labels = True
    splits = ("val", "test")


class Partition(Run):
    """job=partition, which checks the ranks' plugins only if `auto` depends on them.

    An existing store is partitioned again, as by job=import.
    """

    name = "partition"
    reads_strategy = False
    keeps_inputs = True
    cuts = True

    def check(self, order: Order) -> Order:
        return _of_store().check(order) if _reads_store(order) else super().check(order)

    def check_parts(self, order: Order) -> Order:
        return super().check_parts(order) if order.settings.is_open and not _reads_store(order) else order

    def done(self, order: Order) -> Result | None:
        if order.settings.on_exists != "refuse" or order.named_folder is None:
            return None
        if _reads_store(order):
            return _of_store().done(order)
        from gnnkit.jobs.store_jobs import find_partition

        return find_partition(replace(order, folder=Path(order.named_folder).absolute()))

    def work(self, order: Order) -> Result:
        if _reads_store(order):
            return _of_store().work(order)
        from gnnkit.jobs.store_jobs import partition

        return partition(order, self.decided(order).settings)


def _of_store() -> Run:
    """Returns the job that partitions a store again, which another package has."""
    return cast("type[Run]", plugins.load("job", "import"))()


def _reads_store(order: Order) -> bool:
    return order.graph is None and order.settings.dataset.create().store_folder is not None


@dataclass(frozen=True, slots=True)
class InitSection(Section):
    """The section `init`."""

    minutes: Annotated[float, functools.partial(real, low=0, high=MAX_MINUTES)]  # time budget of trial runs. 0: none


@dataclass(frozen=True, slots=True)
class InitKeys(Section):
    """The keys of job=init."""

    init: InitSection


class Init(Job):
    """job=init. Writes a configuration, without a run folder."""

    name = "init"
    keys = InitKeys
    reads_strategy = False
    one_run = False

    @classmethod
    def check_keys(cls, names: Collection[str]) -> None:
        unread = next((name for name in names if name.partition(".")[0] not in _INIT_READS), None)
        if unread is not None:
            raise UserError(
                f"{unread}: job=init reads the data, task, inputs and threads, and chooses the rest: leave the key out and "
                "edit the written file"
            )

    def start(self, order: Order) -> Result:
        from gnnkit.jobs.init import init

        return init(order)
