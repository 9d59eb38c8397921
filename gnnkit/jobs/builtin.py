"""The jobs of this package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gnnkit import plugins
from gnnkit.jobs.job import OnRanks, Run, import_for_training
from gnnkit.jobs.order import Order
from gnnkit.result.result import Result

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork


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
            rank_phases = result["phases"]
            phases = {"starting": seconds - sum(rank_phases.values()), **rank_phases}
            setup = sum(phases[name] for name in ("starting", "reading", "partitioning", "cutting"))
            result = result.with_figure("phases", phases).with_figure("seconds_setup", setup)
        return result.with_figure("command", order.command(order.overrides))


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
        return order if _reads_store(order) else super().check_parts(order)

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
