"""What longer supersteps cost and save: accuracy, seconds, bytes and drift.

Prints a table over `strategy.local_iterations` for each synchronisation, and under the
table the longest superstep that loses less than half a point of test accuracy.

    uv run python benchmarks/supersteps.py path/to/pubmed.npz
    uv run python benchmarks/supersteps.py path/to/cora.npz --seeds 10 --workers 8
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gnnkit
from gnnkit import plugins

LENGTHS = (1, 2, 4, 8, 16)
SYNCS = ("all_reduce", "leader", "parameter_server")
LOSS = 0.005  # of accuracy, which advice accepts


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run."""

    accuracy: float
    seconds: float  # of an epoch, mean without the first
    num_bytes: float  # that the busiest rank sends in an epoch
    drift: float  # largest difference of a parameter at the end, 0 where a superstep ends there
    length: float  # epochs of a superstep, mean


@dataclass(frozen=True, slots=True)
class Row:
    """The runs of all seeds with one synchronisation and length."""

    sync: str
    length: int | str
    runs: Sequence[Run]

    def mean(self, name: str) -> float:
        """Returns the mean of a figure over the seeds."""
        return statistics.fmean(getattr(run, name) for run in self.runs)

    def __str__(self) -> str:
        spread = statistics.pstdev(run.accuracy for run in self.runs)
        return (
            f"{self.sync:<17} {self.length!s:>6} {self.mean('length'):>6.1f}  {self.mean('accuracy'):.4f} +- {spread:.4f}"
            f"  {1000 * self.mean('seconds'):>8.2f}  {self.mean('num_bytes'):>11,.0f}  {self.mean('drift'):>8.2g}"
        )


HEADER = (
    f"{'sync':<17} {'length':>6} {'mean':>6}  {'test accuracy':<16}  {'ms/epoch':>8}  {'bytes/epoch':>11}  {'drift':>8}"
)


def run(options: argparse.Namespace, sync: str, length: int | str, seed: int) -> Run:
    """Trains once."""
    trainer = {"max_epochs": options.epochs, "lr": 0.01, "weight_decay": 5e-4}
    quiet = {"check_val_every_n_epoch": options.epochs, "checkpoint": False, "progress_bar": False}
    quieter = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    with TemporaryDirectory() as parent, quieter[0], quieter[1]:
        folder = Path(parent) / "run"
        result = gnnkit.train(
            strategy={"name": "vertex_centric", "local_iterations": length},
            sync=sync,
            partition=options.partition,
            dataset={"name": "npz", "root": str(options.data), "row_normalize": True},
            model={"name": "gcn", "hidden": 16, "dropout": 0.5},
            trainer=trainer | quiet,
            workers=options.workers,
            threads=1,
            seed=seed,
            folder=folder,
        )
        seconds = seconds_per_epoch((folder / "workers.jsonl").read_text().splitlines())
    return Run(
        result["test_accuracy"],
        seconds,
        result["bytes_sent"],
        result["drift"],
        mean_length(result["supersteps"], options.epochs),
    )


def seconds_per_epoch(lines: Sequence[str]) -> float:
    """Returns the mean over the epochs but the first, each as long as its slowest rank.

    `result.json` has the median, which is a local epoch where supersteps are long.
    """
    slowest: dict[int, float] = defaultdict(float)
    for state in map(json.loads, lines):
        seconds = sum(state[f"seconds_{part}"] for part in ("wait", "compute", "exchange", "sync"))
        slowest[state["epoch"]] = max(slowest[state["epoch"]], seconds)
    return statistics.fmean(list(slowest.values())[1:] or [0.0])


def mean_length(lengths: Sequence[Sequence[int]], epochs: int) -> float:
    """Returns the epochs for each synchronisation, from the changes of the length."""
    ends = [first for first, _ in lengths[1:]] + [epochs]
    return epochs / sum((end - first) / length for (first, length), end in zip(lengths, ends, strict=True))


def advice(rows: Sequence[Row]) -> list[str]:
    """Names the longest superstep of each synchronisation that loses little."""
    exact = next(row for row in rows if row.length == 1)
    lines = []
    for sync in dict.fromkeys(row.sync for row in rows):
        good = [row for row in rows if row.sync == sync and row.mean("accuracy") > exact.mean("accuracy") - LOSS]
        best = max(good, key=lambda row: row.mean("length"), default=None)
        if best is None:
            lines.append(f"sync={sync}: every length loses {100 * LOSS:g} points or more")
            continue
        saving = 1 - best.mean("num_bytes") / exact.mean("num_bytes")
        faster = exact.mean("seconds") / max(best.mean("seconds"), 1e-9)
        lines.append(
            f"sync={sync}: strategy.local_iterations={best.length} loses "
            f"{100 * (exact.mean('accuracy') - best.mean('accuracy')):.2f} points against exact training, sends "
            f"{saving:.0%} fewer bytes, and an epoch is {faster:.2f} times as fast"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="an .npz file as dataset=npz reads it")
    parser.add_argument("--lengths", nargs="+", default=LENGTHS, help="epochs of a superstep")
    parser.add_argument("--syncs", nargs="+", default=[name for name in SYNCS if name in plugins.names("sync")])
    parser.add_argument("--partition", default="1d")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.data = options.data.absolute()
    lengths: list[Any] = [int(length) if str(length).isdigit() else length for length in options.lengths]
    print(HEADER)
    rows = []
    for sync in options.syncs:
        for length in lengths:
            rows.append(Row(sync, length, [run(options, sync, length, seed) for seed in range(options.seeds)]))
            print(rows[-1], flush=True)
    if any(row.length == 1 for row in rows):
        print("\n".join(["", *advice(rows)]))


if __name__ == "__main__":
    main()
