"""Cuts the graph again while the ranks train: the program that the leader runs.

The program imports neither torch nor plugins, and ends with its memory. Requests and
answers are JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gnnkit.graph import Floats
from gnnkit.launch.program import answer
from gnnkit.prepare.run_partition import open_run, replace_shards
from gnnkit_rebalancing.shift import shifted, work_of

WORTH = 0.85  # predicted over measured seconds of a step, at most
PAYS = 2.0  # times that the seconds saved must exceed the cost, at least
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """The facts that the program needs."""

    folder: str  # the run folder
    name: str  # of the folder of the new shards, in the folder of the shards
    seconds: list[float]  # [world_size] that each rank computes in a step
    steps: int  # that are left
    cost: float  # seconds that the change takes


@dataclass(frozen=True, slots=True)
class Recut:
    """The answer: the work of each rank, and how the graph was cut anew."""

    speeds: list[float]  # [world_size] work in a second, in sums of an edge
    before: float  # seconds of the slowest rank in a step
    after: float  # the same, predicted
    moved: int  # nodes that have another owner. 0: the graph was not cut
    balance: dict[str, float]  # max/mean of the new shards


def pays(before: float, after: float, steps: int, cost: float) -> bool:
    """Returns whether a change of the work is worth its cost.

    Args:
        before: Seconds of a step.
        after: Seconds of a step after the change.
        steps: Steps that are left.
        cost: Seconds that the change takes.
    """
    return after <= WORTH * before and (before - after) * steps > PAYS * cost


def recut(request: Request) -> Recut:
    """Distributes the work by speeds, and writes new shards if this pays."""
    folder = Path(request.folder)
    graph, partition = open_run(folder)
    seconds = np.maximum(request.seconds, _LEAST_SECONDS)
    work = work_of(graph, partition)
    speeds = _speeds(work, seconds)
    changed = shifted(graph, partition, speeds)
    before, after = float(seconds.max()), float((work_of(graph, changed) / speeds).max())
    moved = int(np.count_nonzero(changed.node_rank != partition.node_rank))
    moves = moved or partition.edge_cell is not None
    if not moves or not pays(before, after, request.steps, request.cost):
        return Recut(speeds.tolist(), before, after, 0, {})
    balance = replace_shards(folder, request.name, graph, changed)
    return Recut(speeds.tolist(), before, after, max(moved, 1), balance)


def _speeds(work: Floats, seconds: Floats) -> Floats:  # [world_size]
    """Returns work in a second. A rank without work is as fast as the median rank."""
    busy = work > 0
    speeds: Floats = np.where(busy, work / seconds, np.median(work[busy] / seconds[busy]))
    return speeds


if __name__ == "__main__":
    answer(lambda request: asdict(recut(Request(**request))))
