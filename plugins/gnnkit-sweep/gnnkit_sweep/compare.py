"""job=compare: trains by several schemes on one graph, and compares them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

from gnnkit.config.settings import AUTO, Section
from gnnkit.errors import UserError
from gnnkit.jobs import Job, Order, Result
from gnnkit.utils.ranges import shown, whole

WAYS = ("vertex_centric", "preset_workload", "individual_sample", "joint_sample")  # compared by default
MAX_SEEDS = 100  # of a comparison


def _ways(key: str, value: Any) -> tuple[str, ...]:
    """Reads one strategy, or a list of strategies, to compare."""
    ways = WAYS if value == AUTO else [value] if isinstance(value, str) else value
    if not isinstance(ways, list | tuple) or not all(isinstance(way, str) for way in ways):
        raise UserError(f"{key}={shown(value)} must be a list of strategies: [NAME,'NAME KEY=VALUE']")
    if not ways:
        raise UserError(f"{key}=[] must name at least one strategy")
    return tuple(ways)


@dataclass(frozen=True, slots=True)
class CompareSection(Section):
    """The section `compare`."""

    ways: Annotated[tuple[str, ...], _ways]  # a strategy's name and further overrides, separated by spaces
    seeds: Annotated[int, functools.partial(whole, low=1, high=MAX_SEEDS)]  # runs per strategy


@dataclass(frozen=True, slots=True)
class CompareKeys(Section):
    """The keys of job=compare."""

    compare: CompareSection


class Compare(Job):
    """job=compare: several training runs, each in its own process and folder."""

    name = "compare"
    keys = CompareKeys
    trains = True
    several = True
    reads_strategy = False
    reads_rows = True
    one_run = False

    def check(self, order: Order) -> Order:
        if order.settings.started is not None:
            raise UserError("job=compare starts its own runs: remove torchrun, srun or mpirun")
        return order

    def start(self, order: Order) -> Result:
        from gnnkit_sweep.schemes import compare

        return compare(self.check(order))
