"""The program with which the leader repartitions the graph during training.

It imports neither torch nor plugins, and its memory is freed when it ends. Requests and
responses are JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from gnnkit.graph import Floats
from gnnkit.launch.program import answer
from gnnkit.prepare.run_partition import open_run, replace_shards
from gnnkit_rebalancing.shift import shifted, work_of

WORTH = 0.85  # maximum ratio of the predicted to the measured step time
PAYS = 2.0  # minimum ratio of the saved seconds to the cost
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """The program's input."""

    folder: str  # the run folder
    name: str  # folder name of the new shards
    seconds: list[float]  # [world_size] compute time of each rank per step
    steps: int  # number of remaining steps
    cost: float  # duration of the change in seconds


@dataclass(frozen=True, slots=True)
class Change:
    """New shares of the work, which all workers adopt."""

    speeds: list[float]  # [world_size] work per second, measured
    before: float  # seconds per step of the slowest rank
    after: float  # predicted value of `before`
    shares: list[float] | None = None  # [world_size] shares of the seeds, if seeds move
    shard: str | None = None  # folder of the new shards, if nodes move
    moved: int = 0  # number of nodes with a new owner
    balance: dict[str, float] = field(default_factory=dict)  # max/mean of the new shards


def pays(before: float, after: float, steps: int, cost: float) -> bool:
    """Returns whether a change saves enough time to justify its cost.

    Args:
        before: Seconds per step.
        after: Seconds per step after the change.
        steps: Number of remaining steps.
        cost: Duration of the change in seconds.
    """
    return after <= WORTH * before and (before - after) * steps > PAYS * cost


def recut(request: Request) -> Change:
    """Distributes the work by speed, and writes new shards if this pays off."""
    folder = Path(request.folder)
    graph, partition = open_run(folder)
    seconds = np.maximum(request.seconds, _LEAST_SECONDS)
    work = work_of(graph, partition)
    speeds = _speeds(work, seconds)
    new_partition = shifted(graph, partition, speeds)
    before, after = float(seconds.max()), float((work_of(graph, new_partition) / speeds).max())
    change = Change(speeds.tolist(), before, after)
    num_moved = int(np.count_nonzero(new_partition.node_rank != partition.node_rank))
    moves = num_moved or partition.edge_cell is not None
    if not moves or not pays(before, after, request.steps, request.cost):
        return change
    balance = replace_shards(folder, request.name, graph, new_partition)
    return replace(change, shard=request.name, moved=num_moved, balance=balance)


def _speeds(work: Floats, seconds: Floats) -> Floats:  # [world_size]
    """Returns work per second. Ranks without work get the median speed."""
    busy = work > 0
    speeds: Floats = np.where(busy, work / seconds, np.median(work[busy] / seconds[busy]))
    return speeds


if __name__ == "__main__":
    answer(lambda request: asdict(recut(Request(**request))))
