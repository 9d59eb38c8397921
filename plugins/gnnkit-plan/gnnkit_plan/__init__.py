"""Chooses what a configuration leaves open: by `auto`, job=plan and job=init."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from gnnkit.config.settings import AUTO
from gnnkit.config.settings.fields import Section
from gnnkit.errors import UserError
from gnnkit.jobs.job import Job, Run
from gnnkit.jobs.order import Order
from gnnkit.result.result import Result
from gnnkit.utils.ranges import real

MAX_MINUTES = 1e5  # for trial runs
INIT_CHOICES = ("task", "inputs", "threads")  # sections that job=init chooses unless they are named
_INIT_READS = (*INIT_CHOICES, "dataset", "job", "output", "on_exists", "init", "cache", "seed")


class Plan(Run):
    """job=plan: counts full-graph layouts, and times a few."""

    name = "plan"
    reads_plan = True
    reads_rows = True

    def check(self, order: Order) -> Order:
        order = super().check(order)
        strategy = order.settings.strategy
        if not order.source.trains:
            raise UserError(
                f"job=plan counts steps of training, and model={order.source.name} is a program: run it, as result.json "
                "has its words and bytes"
            )
        if strategy.name != AUTO and not order.settings.create_strategy().reads.all_edges:
            raise UserError(
                f"job=plan counts what steps of full graphs exchange, and strategy={strategy.name} has others: train with "
                "trainer.max_epochs=2, which writes each worker's memory to workers.jsonl"
            )
        return order

    def work(self, order: Order) -> Result:
        from gnnkit_plan.plan import plan

        return plan(order)


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
