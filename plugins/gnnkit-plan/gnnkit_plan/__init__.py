"""Chooses what a configuration leaves open: by `auto`, job=plan and job=init."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from gnnkit.config.settings import AUTO
from gnnkit.config.settings.fields import Section
from gnnkit.errors import UserError
from gnnkit.jobs.dispatch import import_for_training
from gnnkit.jobs.job import Job, OnRanks
from gnnkit.jobs.order import Order
from gnnkit.result.result import Result
from gnnkit.utils.ranges import real

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork

MAX_MINUTES = 1e5  # for trial runs
INIT_CHOICES = ("task", "inputs", "threads")  # sections that job=init chooses unless they are named
_INIT_READS = (*INIT_CHOICES, "dataset", "job", "output", "on_exists", "init", "cache", "seed")


class Plan(OnRanks):
    """job=plan: counts and times full-graph layouts, or runs sampled steps on ranks."""

    name = "plan"
    reads_plan = True
    reads_rows = True
    on_ranks = False

    def rank_work(self, *, trains: bool) -> RankWork:
        import_for_training()
        from gnnkit_plan.trial_steps import plan_batches

        return plan_batches

    def work(self, order: Order) -> Result:
        from gnnkit_plan.plan import plan

        if order.settings.strategy.name == AUTO or order.settings.create_strategy().reads.all_edges:
            return plan(order)
        result = super().work(order)
        peaks = ", ".join(f"{peak / 2**20:,.1f}" for peak in result.get("memory", ()))
        return replace(result, summary=Result("plan", {**result.figures, "memory": f"{peaks} MiB by rank"}).table())


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
        from gnnkit_plan.init import init

        return init(order)
