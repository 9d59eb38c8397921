"""Checks of runs by job=verify, and of plugins, which `gnnkit.testing` exports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gnnkit.jobs.job import OnRanks
from gnnkit.jobs.order import Order

if TYPE_CHECKING:
    from gnnkit.jobs.rank_job import RankWork
    from gnnkit.prepare.facts import Needs


class Verify(OnRanks):
    """job=verify, whose ranks also read the full graph as one shard."""

    name = "verify"
    reads_rows = True

    def rank_work(self, *, trains: bool) -> RankWork:
        from gnnkit_testing import verify

        return verify.verify if trains else verify.verify_program

    def needs(self, order: Order) -> Needs:
        return replace(super().needs(order), reference=True)
