"""Runs a vertex-centric program on the ranks, step by step, while the leader watches."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import Engine, ShardAdjacency, Tally
from gnnkit.model.program import Nodes, Program
from gnnkit.strategy.base import ExecutionStrategy, Worker
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.training.leader import STATUS_SECONDS, peak_memory


@dataclass(frozen=True, slots=True)
class StepState:
    """What one rank did in one step."""

    change: float  # sum of |change| over its nodes
    magnitude: float  # sum of |value| over its nodes
    seconds_compute: float
    seconds_exchange: float
    rows_per_second: float
    memory: float  # peak so far, bytes


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Where a program came to. `values` and `traffic` are this rank's; the rest is equal on all ranks."""

    values: Tensor  # [num_owned, width]
    traffic: Tally  # of all steps
    iterations: int
    residual: float  # of the last step
    seconds: float  # this rank's, of all steps


Watch = Callable[[int, float, Sequence[StepState]], None]  # (iteration, residual, states by rank), after every step


def check_strategy(strategy: ExecutionStrategy, name: str, model: str) -> None:
    """Raises `ValueError` for a strategy whose ranks do not read all edges in every step."""
    if not (isinstance(strategy, VertexCentric) and strategy.equals_one_process):
        raise ValueError(
            f"strategy={name}: model={model} is a program over all edges, which needs strategy=vertex_centric and "
            "strategy.local_iterations=1"
        )


@torch.no_grad()
def iterate(program: Program, worker: Worker, watch: Watch) -> Outcome:
    """Steps until the program has converged, or may step no more. Collective.

    Raises `ValueError` on all ranks when values are no longer finite.
    """
    shard = worker.shard.with_self_loops() if program.self_loops else worker.shard
    engine = Engine(shard, worker.comm, worker.dtype)
    nodes = _nodes(engine, worker)
    x, residual, iteration, seconds = program.start(nodes), math.inf, 0, 0.0
    engine.traffic.reset()
    while residual > program.tolerance and iteration < program.max_iterations:
        iteration += 1
        before, start, exchanged = x, time.perf_counter(), engine.traffic.seconds
        x = program.step(before, nodes)
        own = _state(before, x, time.perf_counter() - start, engine.traffic.seconds - exchanged)
        states = _everyones(own, worker)
        seconds += own.seconds_compute + own.seconds_exchange
        residual = sum(state.change for state in states) / (sum(state.magnitude for state in states) or 1.0)
        if not math.isfinite(residual):
            raise ValueError(f"model={type(program).__name__} diverges: residual={residual} in iteration {iteration}")
        watch(iteration, residual, states)
    return Outcome(x, engine.traffic, iteration, residual, seconds)


def _nodes(engine: Engine, worker: Worker) -> Nodes:
    shard, device = worker.shard, worker.device
    (adjacency,) = ShardAdjacency.layers(engine, 1, worker.seed)
    return Nodes(
        adjacency,
        worker.comm,
        shard.num_nodes,
        shard.num_classes,
        features=torch.tensor(np.asarray(shard.features), dtype=worker.dtype, device=device),
        labels=torch.tensor(np.asarray(shard.labels, np.int64), device=device),
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


def _everyones(state: StepState, worker: Worker) -> list[StepState]:
    """Every rank's state, by rank, to the same bits on all ranks. Collective."""
    table = torch.zeros(worker.comm.world_size, len(fields(state)), dtype=torch.float64)
    table[worker.comm.rank] = torch.tensor(astuple(state), dtype=torch.float64)
    return [StepState(*row) for row in worker.comm.all_reduce(table.to(worker.device)).tolist()]


class StepLog:
    """The leader's report on a program: a line for each rank and step in `workers.jsonl`, and now and then one for people."""

    def __init__(self, folder: Path) -> None:
        self._lines = (folder / "workers.jsonl").open("a", buffering=1, encoding="utf-8")
        self._last_status = time.monotonic()

    def __call__(self, iteration: int, residual: float, states: Sequence[StepState]) -> None:
        for rank, state in enumerate(states):
            line = {"time": time.time(), "step": iteration, "rank": rank, "residual": residual} | asdict(state)
            self._lines.write(json.dumps(line) + "\n")
        if time.monotonic() - self._last_status > STATUS_SECONDS:
            self._last_status = time.monotonic()
            print(f"iteration {iteration}  residual {residual:.3g}", file=sys.stderr)
