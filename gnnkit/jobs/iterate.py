"""Iterates a program on one rank until it has converged."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import LEADER, Communicator
from gnnkit.engine import Engine, ShardAdjacency, Tally
from gnnkit.engine.in_place import forbid_writes
from gnnkit.errors import UserError
from gnnkit.jobs import figures
from gnnkit.jobs.outputs import write_names, write_predictions, write_targets
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import progress
from gnnkit.leader.watch import STATUS_SECONDS, peak_memory
from gnnkit.model.base import Nodes, Program
from gnnkit.result.figures import merge
from gnnkit.strategy import Worker
from gnnkit.task import name_columns
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import Lines


@dataclass(frozen=True, slots=True)
class StepState:
    """Measurements of one rank in one step."""

    change: float  # sum of |change| over owned nodes
    magnitude: float  # sum of |value| over owned nodes
    seconds_compute: float
    seconds_exchange: float
    rows_per_second: float
    memory: float  # peak bytes so far


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The final values of a program."""

    values: Tensor  # [num_owned, width] on this rank
    tally: Tally  # traffic of this rank
    iterations: int  # equal on all ranks
    residual: float  # of the last step, equal on all ranks
    seconds: float  # total of this rank


# Called with the iteration, the residual and the states by rank.
Watch = Callable[[int, float, Sequence[StepState]], None]


def run_program(job: RankJob, comm: Communicator) -> Json:
    """Iterates a program until it converges, and writes its values. Collective.

    Returns the figures. Only the leader writes.
    """
    worker, program = job.worker(comm), job.source.make_program()
    with StepLog(job.folder) if comm.rank == LEADER else nullcontext(lambda *_: None) as watch:
        outcome = iterate(program, worker, watch)
    values = outcome.values
    rows = values[:, 0] if values.shape[1] == 1 else values
    write_targets(
        job, worker, "values", rows, lambda rows, ids: {"id": ids, **name_columns("value", rows)}, of_nodes=True
    )
    scores: dict[str, float | None] = {}
    if program.classifies:
        task = job.task()
        scores = figures.by_name(task, task.measure(values, worker))
        write_predictions(job, worker, task, values, job.prepared.class_names)
        if comm.rank == LEADER:
            write_names(job, job.prepared.class_names)
    return merge(
        figures.plugins(job, worker),
        {
            "iterations": outcome.iterations,
            "residual": outcome.residual,
            "converged": outcome.residual <= program.tolerance,
        },
        scores,
        {"seconds": outcome.seconds, "seconds_per_iteration": outcome.seconds / outcome.iterations},
        figures.traffic(outcome.tally, outcome.iterations, worker),
        {"balance": job.prepared.balance, "device": figures.device_name(worker.device)},
        figures.circumstances(job),
    )


@torch.no_grad()
def iterate(program: Program, worker: Worker, watch: Watch) -> Outcome:
    """Iterates until the program has converged or reached its limit. Collective.

    Raises `UserError` on all ranks if values become non-finite.

    Args:
        program: The program.
        worker: This rank.
        watch: Called after every step.
    """
    engine = worker.engine(program)
    nodes = _nodes(engine, worker)
    x, residual, iteration, seconds = program.start(nodes), math.inf, 0, 0.0
    engine.tally.reset()
    while residual > program.tolerance and iteration < program.max_iterations:
        iteration += 1
        before, start, seconds_before = x, time.perf_counter(), engine.tally.seconds
        progress(f"iteration {iteration}")
        tensors = {"nodes.features": nodes.features, "nodes.labels": nodes.labels, "nodes.split": nodes.split}
        with forbid_writes(program, [nodes.adjacency], x=before, **tensors):
            x = program.step(before, nodes)
        rank_state = _state(before, x, time.perf_counter() - start, engine.tally.seconds - seconds_before)
        states = [StepState(*row) for row in worker.comm.all_gather(astuple(rank_state), torch.float64).tolist()]
        seconds += rank_state.seconds_compute + rank_state.seconds_exchange
        residual = sum(state.change for state in states) / (sum(state.magnitude for state in states) or 1.0)
        if not math.isfinite(residual):
            raise UserError(f"model={type(program).__name__} diverges: residual={residual} in iteration {iteration}")
        watch(iteration, residual, states)
    return Outcome(
        x if engine.topology.by_id is None else x[engine.topology.by_id], engine.tally, iteration, residual, seconds
    )


def _nodes(engine: Engine, worker: Worker) -> Nodes:
    shard, device = engine.shard, worker.device
    (adjacency,) = ShardAdjacency.layers(engine, 1, worker.seed)
    return Nodes(
        adjacency,
        worker.comm,
        shard.num_nodes,
        shard.num_classes,
        features=worker.features.rows(shard.owned),
        labels=torch.from_numpy(np.array(shard.labels)).to(device),
        split=torch.tensor(np.asarray(shard.split), device=device),
    )


def _state(before: Tensor, after: Tensor, seconds: float, seconds_exchange: float) -> StepState:
    return StepState(
        change=float((after - before).abs().sum(dtype=torch.float64)),
        magnitude=float(after.abs().sum(dtype=torch.float64)),
        seconds_compute=seconds - seconds_exchange,
        seconds_exchange=seconds_exchange,
        rows_per_second=len(after) / seconds,
        memory=peak_memory(after.device),
    )


class StepLog:
    """The leader's log of a program.

    Writes a line for each rank and step to `workers.jsonl`, and prints a line every
    `STATUS_SECONDS`.
    """

    def __init__(self, folder: Path) -> None:
        """Opens `workers.jsonl` in the run folder."""
        self._lines = Lines(folder / "workers.jsonl")
        self._last_status = time.monotonic()

    def __enter__(self) -> StepLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def __call__(self, iteration: int, residual: float, states: Sequence[StepState]) -> None:
        for rank, state in enumerate(states):
            line = {"time": time.time(), "step": iteration, "rank": rank, "residual": residual} | asdict(state)
            self._lines.add(json.dumps(line))
        if time.monotonic() - self._last_status > STATUS_SECONDS:
            self._last_status = time.monotonic()
            print(f"iteration {iteration}  residual {residual:.3g}", file=sys.stderr)
