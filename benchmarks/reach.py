"""Seconds to 99 % of exact training's best validation, with a slow worker or link.

    uv run python benchmarks/reach.py amazon_photo.npz --gigabits 0.1
    uv run python benchmarks/reach.py amazon_photo.npz --slowdown 2
    uv run python benchmarks/reach.py amazon_photo.npz --slowdown 2 --batches 8

Trains each scheme on four workers, in turn for each seed. With `--batches`, workers
train on mini-batches, and the schemes are modes of a parameter server. A step with an
equal share of the rows sleeps for `--base` seconds, other steps in proportion to their
rows, and those of the last worker `--slowdown` times as long, so cores do not count
where `--base` is far above the cost of a step. The link is that of `comm=slow_link`.

Prints for each scheme, as means over seeds: seconds of steps, those of the slowest
worker, and steps until the validation figure first reaches 99 % of the best one of the
first scheme with the same seed; the seconds of an epoch; and how many seeds reached it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedules import SCHEMES, load
from torch import Tensor, nn

import gnnkit
from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE

PARTS = ("wait", "compute", "exchange", "sync")
SHARE = 0.99
FULL = ("exact", "quantized", "local_iterations=4", "pipelined", "sampled", "ssp, staleness 7")
REBALANCED = {"leader": {"rebalance": True}}
Run = list[tuple[float, int, float]]  # for each evaluation: seconds and steps before it, validation accuracy


def slept(kind: type[nn.Module], seconds: Sequence[float]) -> type[nn.Module]:
    """Returns a model whose training steps sleep for each row of its output.

    Args:
        kind: A model.
        seconds: [num_workers] of a row.
    """

    class Slept(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor, adjacencies: Sequence[Any]) -> Tensor:
            if self.training:
                time.sleep(seconds[int(os.environ.get("RANK", "0"))] * adjacencies[-1].num_dst)
            rows: Tensor = super().forward(x, adjacencies)
            return rows

    return Slept


def schemes(batch_size: int | None) -> dict[str, dict[str, Any]]:
    """Returns the keys of each scheme. The first is synchronous."""
    if batch_size is None:
        return {name: SCHEMES[name] for name in FULL} | {"exact, rebalanced": SCHEMES["exact"] | REBALANCED}
    batches = {"strategy": {"name": "individual_sample", "batch_size": batch_size}}
    server = {"name": "parameter_server"}
    modes = {mode: batches | {"sync": server | {"mode": mode}} for mode in ("sync", "async", "ssp")}
    return modes | {"sync, rebalanced": modes["sync"] | REBALANCED}


def run(graph: Graph, options: argparse.Namespace, keys: Mapping[str, Any], seed: int) -> Run:
    """Trains once."""
    base = options.base / (options.batches or graph.num_nodes / options.workers)
    seconds = [base] * (options.workers - 1) + [base * options.slowdown]
    kind = GCN if options.batches is None else GraphSAGE

    def model(in_features: int, num_classes: int) -> nn.Module:
        return slept(kind, seconds)(in_features, num_classes)

    comm = {"name": "slow_link", "gigabits": options.gigabits} if options.gigabits else "gloo"
    saving = {"checkpoint_every": 2} if "leader" in keys else {"checkpoint": False}  # rebalancing needs checkpoints
    silence = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    with tempfile.TemporaryDirectory() as parent, silence[0], silence[1]:
        folder = Path(parent) / "run"
        gnnkit.train(
            graph,
            **keys,
            model=model,
            comm=comm,
            workers=options.workers,
            threads=1,
            partition=options.partition,
            trainer={"max_epochs": options.epochs, "check_val_every_n_epoch": 1, "lr": options.lr} | saving,
            seed=seed,
            report=False,
            logger="none",
            folder=folder,
        )
        lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    total_seconds, steps, evaluations = 0.0, 0, []
    for line in lines:
        if "figures" in line:
            evaluations.append((total_seconds, steps, line["figures"]["val_accuracy"]))
        else:
            total_seconds += max(map(sum, zip(*(line[f"seconds_{part}"] for part in PARTS), strict=True)))
            steps += line["steps"]
    return evaluations


def reached(evaluations: Run, figure: float) -> tuple[float, int] | None:
    """Returns seconds and steps until the validation reaches a figure."""
    return next(((seconds, steps) for seconds, steps, value in evaluations if value >= figure), None)


def table(runs: Mapping[str, Sequence[Run]]) -> str:
    """Formats the runs in Markdown."""
    first = next(iter(runs.values()))
    goals = [SHARE * max(value for *_, value in run_evaluations) for run_evaluations in first]
    lines = ["| scheme | seconds | steps | seconds an epoch | reached |", "|---|---|---|---|---|"]
    for name, run_evaluations in runs.items():
        points = [
            at for evaluations, goal in zip(run_evaluations, goals, strict=False) if (at := reached(evaluations, goal))
        ]
        seconds, steps = (f"{statistics.fmean(column):.1f}" for column in zip(*points, strict=True)) if points else "--"
        epoch = statistics.fmean(evaluations[-1][0] / len(evaluations) for evaluations in run_evaluations)
        lines.append(f"| {name} | {seconds} | {steps} | {epoch:.3f} | {len(points)} of {len(run_evaluations)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help=".npz file or folder")
    parser.add_argument("--gigabits", type=float, help="of each worker's link, per second (default: no limit)")
    parser.add_argument("--slowdown", type=float, default=1.0, help="of the last worker (default: 1)")
    parser.add_argument("--base", type=float, default=0.0, help="seconds that each step sleeps (default: 0)")
    parser.add_argument("--batches", type=int, help="nodes in a mini-batch (default: full graphs)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--partition", default="metis")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    graph, runs = load(options.graph), {}
    for seed in range(options.seeds):
        for name, keys in schemes(options.batches).items():
            runs.setdefault(name, []).append(run(graph, options, keys, seed))
        print(table(runs), flush=True)


if __name__ == "__main__":
    main()
