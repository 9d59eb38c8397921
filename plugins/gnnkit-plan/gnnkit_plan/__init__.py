"""Counts words and memory of layouts, for job=plan and for keys that are `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit.config.settings import AUTO
from gnnkit.jobs.dispatch import import_for_training
from gnnkit.jobs.job import OnRanks
from gnnkit.jobs.order import Order
from gnnkit.result.result import Result

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork


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

        open_ = order.settings.strategy.name == AUTO
        return plan(order) if open_ or order.settings.create_strategy().reads.all_edges else super().work(order)
