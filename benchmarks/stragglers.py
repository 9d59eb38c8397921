"""Steps per second of a parameter server's modes, where workers are slow at times.

    uv run python benchmarks/stragglers.py
    uv run python benchmarks/stragglers.py --staleness 1 --workers 8 --steps 200
    uv run python benchmarks/stragglers.py --quick
    uv run python benchmarks/stragglers.py --rebalance

Trains a model whose forward pass sleeps. A step takes `--base` seconds, and a slow step
`--slowdown` times as long. In the table's first column every step of every worker is
slow with `--probability`, drawn from a hash of worker and step, so that all modes meet
the same steps. In the second column the last worker is slow in every step.

Prints the sum over workers of their steps per second, times `--base`: 1 for each worker
that never waits. `bound` is what workers would do without each other. Sleep is most of
a step only where `--base` is far above the cost of a step, so that cores do not count.

With `--rebalance`, trains a GCN on full graphs instead, and every rank sleeps in
proportion to its edges, the last rank `--slowdown` times as long. Prints the seconds of
an epoch before and after `leader.rebalance` has moved nodes, and of all steps with the
key and without.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import gnnkit
from gnnkit.model.gcn import GCN

WARM_UP = 2  # steps of each worker that do not count


@dataclass(frozen=True)
class Delays:
    """The seconds of every step."""

    base: float  # seconds
    slowdown: float
    probability: float  # of a slow step, by chance
    always: int | None = None  # the worker that is slow in every step. None: slow steps are drawn

    def seconds(self, rank: int, step: int) -> float:
        is_slow = np.random.default_rng([rank, step]).random() < self.probability
        slow = is_slow if self.always is None else rank == self.always
        return self.base * (self.slowdown if slow else 1.0)

    def bound(self, num_workers: int, num_steps: int) -> float:
        """Returns the steps per second times `base` of workers that never wait."""
        steps = range(WARM_UP, num_steps)
        return sum(self.base * len(steps) / sum(self.seconds(rank, s) for s in steps) for rank in range(num_workers))


class Sleeper(nn.Module):
    """A linear model that sleeps in training."""

    num_layers = 1

    def __init__(self, in_features: int, num_classes: int, delays: Delays) -> None:
        super().__init__()
        self.linear, self.delays, self.step = nn.Linear(in_features, num_classes), delays, 0

    def forward(self, x: Tensor, adjacencies: Sequence[Any]) -> Tensor:
        if self.training:
            time.sleep(self.delays.seconds(int(os.environ.get("RANK", "0")), self.step))
            self.step += 1
        rows: Tensor = self.linear(x[: adjacencies[0].num_dst])
        return rows


class EdgeSleeper(GCN):
    """A GCN whose training sleeps for every edge that it aggregates over."""

    def __init__(self, in_features: int, num_classes: int, seconds: Sequence[float]) -> None:
        super().__init__(in_features, num_classes, hidden=16)
        self.seconds = seconds  # [num_workers] of an edge

    def forward(self, x: Tensor, adjacencies: Sequence[Any]) -> Tensor:
        if self.training:
            edges = sum(adjacency.num_edges for adjacency in adjacencies)
            time.sleep(self.seconds[int(os.environ["RANK"])] * edges)
        return super().forward(x, adjacencies)


@dataclass(frozen=True)
class Relieved:
    """A run on full graphs, with a worker that is always slow."""

    epochs: list[float]  # seconds of each epoch's steps, of rank 0
    total: float  # seconds of the job
    changes: list[Mapping[str, Any]]  # of `leader.rebalance`


def relieved(kind: str, options: argparse.Namespace, *, rebalance: bool) -> Relieved:
    """Trains with one slow worker.

    Args:
        kind: Graph of the data set `synthetic`.
        options: The command line.
        rebalance: Whether the leader may move nodes.
    """
    num_edges = 2 * options.nodes * 10
    even = options.base / (2 * num_edges / options.workers)  # two layers
    seconds = [even] * (options.workers - 1) + [options.slowdown * even]

    def model(in_features: int, num_classes: int) -> nn.Module:
        return EdgeSleeper(in_features, num_classes, seconds)

    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(temporary) / "run"
        result = gnnkit.train(
            strategy="vertex_centric",
            partition=options.partition,
            dataset={"name": "synthetic", "kind": kind, "num_nodes": options.nodes, "num_edges": num_edges // 2},
            model=model,
            leader={"rebalance": rebalance},
            trainer={"max_epochs": options.steps, "check_val_every_n_epoch": options.steps, "progress_bar": False},
            workers=options.workers,
            threads=1,
            cache=False,
            folder=folder,
        )
        states = [json.loads(line) for line in (folder / "workers.jsonl").read_text(encoding="utf-8").splitlines()]
    parts = ("wait", "compute", "exchange", "sync")
    epochs = [sum(state[f"seconds_{part}"] for part in parts) for state in states if state["rank"] == 0]
    return Relieved(epochs, result["seconds_total"], result.get("rebalanced", []))


def rebalance_table(options: argparse.Namespace) -> str:
    """Returns the seconds with `leader.rebalance` and without, as Markdown."""
    lines = [
        "| graph | epoch before | epoch after | predicted compute | the change | all steps | job | without: epoch | job |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in ("rmat", "sbm"):
        run, plain = (relieved(kind, options, rebalance=rebalances) for rebalances in (True, False))
        first = run.changes[0]["epoch"] if run.changes else len(run.epochs)
        last = run.changes[-1]["epoch"] if run.changes else 0
        cells = [
            statistics.median(run.epochs[1:first]),
            statistics.median(run.epochs[last + 1 :]),
            run.changes[-1]["step_predicted"] if run.changes else float("nan"),
            sum(change["seconds"] for change in run.changes),
            sum(run.epochs),
            run.total,
            statistics.median(plain.epochs[1:]),
            plain.total,
        ]
        lines.append(f"| {kind} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    return "\n".join(lines)


def modes(staleness: int) -> dict[str, dict[str, Any]]:
    """Returns the section `sync` of each row."""
    server: dict[str, Any] = {"name": "parameter_server"}
    return {
        "all_reduce": {"name": "all_reduce"},
        "sync": server | {"mode": "sync"},
        f"ssp, staleness {staleness}": server | {"mode": "ssp", "staleness": staleness},
        "async": server | {"mode": "async"},
    }


def throughput(sync: Mapping[str, Any], delays: Delays, num_workers: int, num_steps: int) -> float:
    """Returns the sum over workers of steps per second, times `base`.

    Args:
        sync: The section `sync`.
        delays: The seconds of every step.
        num_workers: Number of workers.
        num_steps: Steps of each worker, in one epoch.
    """

    def model(in_features: int, num_classes: int) -> nn.Module:
        return Sleeper(in_features, num_classes, delays)

    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(temporary) / "run"
        gnnkit.train(
            strategy={"name": "individual_sample", "batch_size": 1},
            sampler={"name": "neighbor", "fanouts": [1]},
            dataset={"name": "synthetic", "num_nodes": 10 * num_workers * num_steps, "width": 8},  # 10 % train
            model=model,
            sync=sync,
            trainer={"max_epochs": 1, "checkpoint": False, "progress_bar": False, "log_every_n_steps": 1_000_000},
            workers=num_workers,
            threads=1,
            folder=folder,
        )
        lines = (folder / "workers.jsonl").read_text(encoding="utf-8").splitlines()
    return delays.base * rate([json.loads(line) for line in lines])


def rate(states: Sequence[Mapping[str, Any]]) -> float:
    """Returns the sum over workers of steps per second.

    Args:
        states: The lines of `workers.jsonl`.
    """
    seconds: dict[int, list[float]] = defaultdict(list)
    for state in states:
        parts = (state[f"seconds_{part}"] for part in ("wait", "compute", "exchange", "sync"))
        seconds[state["rank"]].append(sum(parts))
    return sum(1 / statistics.mean(times[WARM_UP:]) for times in seconds.values())


def table(rows: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> str:
    """Returns the rows as Markdown."""
    lines = [
        f"| {'sync':16} | {' | '.join(columns)} |",
        f"| {'-' * 16} | {' | '.join('-' * len(c) for c in columns)} |",
    ]
    for name, cells in rows.items():
        lines.append(f"| {name:16} | {' | '.join(f'{cells[column]:{len(column)}.2f}' for column in columns)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="default: 4")
    parser.add_argument("--steps", type=int, default=100, help="of each worker (default: 100)")
    parser.add_argument("--base", type=float, default=0.1, help="seconds of a step (default: 0.1)")
    parser.add_argument("--slowdown", type=float, default=5.0, help="of a slow step (default: 5)")
    parser.add_argument("--probability", type=float, default=0.1, help="of a slow step (default: 0.1)")
    parser.add_argument("--staleness", type=int, default=3, help="of ssp (default: 3)")
    parser.add_argument("--only", nargs="+", metavar="SYNC", help="of: all_reduce, sync, ssp, async")
    parser.add_argument("--quick", action="store_true", help="15 steps of 0.04 s on two workers")
    parser.add_argument("--rebalance", action="store_true", help="of workers of full graphs")
    parser.add_argument("--nodes", type=int, default=50_000, help="of the full graph (default: 50000)")
    parser.add_argument("--partition", default="1d", help="of the full graph (default: 1d)")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.steps, options.base, options.nodes = 2, 15, 0.04, 2000
    if options.rebalance:
        print(rebalance_table(options))
        return 0
    delays = {
        "slow at times": Delays(options.base, options.slowdown, options.probability),
        "one always slow": Delays(options.base, options.slowdown, 0.0, always=options.workers - 1),
    }
    rows = {"bound": {name: delay.bound(options.workers, options.steps) for name, delay in delays.items()}}
    for mode, sync in modes(options.staleness).items():
        if options.only and mode.split(",")[0] not in options.only:
            continue
        try:
            rows[mode] = {
                name: throughput(sync, delay, options.workers, options.steps) for name, delay in delays.items()
            }
        except gnnkit.UserError as error:
            print(f"{mode}: {error}", file=sys.stderr)
            return 2
    print(table(rows, list(delays)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
