"""Accuracy of preset workloads where only cut edges tell the labels.

    uv run python benchmarks/preset.py [--epochs N] [--layers N]

Trains GraphSAGE on the graph of `gnnkit_testing.graphs.cut_signal_graph` with four
workers. `closed` is the share of the gap between plain averaging of parameters and
full-graph training that a correction closes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from gnnkit_testing.graphs import cut_signal_graph

import gnnkit

WORKERS = 4
AVERAGING = {"name": "preset_workload", "halo": "none", "average": "parameters"}
LLCG = {"name": "llcg", "halo": "none", "correction_batch_size": 128}
COVERAGE = "coverage"


def accuracy(strategy: Any, epochs: int, layers: int, **keys: Any) -> float:
    """Returns the exact accuracy on the test nodes after training."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = gnnkit.train(
            cut_signal_graph(num_parts=WORKERS),
            strategy=strategy,
            model={"name": "sage", "hidden": 16, "num_layers": layers, "dropout": 0.0},
            partition="1d",
            workers=WORKERS,
            comm="threads",
            trainer={"max_epochs": epochs, "lr": 0.02, "checkpoint": False, "check_val_every_n_epoch": epochs},
            folder=Path(folder) / "run",
            **keys,
        )
    return float(result["test_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--layers", type=int, default=1)
    options = parser.parse_args()
    sampler = {"sampler": {"name": "neighbor", "fanouts": [-1] * options.layers}}
    full = accuracy("vertex_centric", options.epochs, options.layers)
    plain = accuracy(AVERAGING, options.epochs, options.layers)
    print(f"{'strategy':24} {'accuracy':>8} {'closed':>7}")
    print(f"{'full graph':24} {full:8.3f}\n{'averaging':24} {plain:8.3f}")
    for name, strategy, keys in (("llcg", LLCG, sampler), ("coverage", COVERAGE, {})):
        figure = accuracy(strategy, options.epochs, options.layers, **keys)
        print(f"{name:24} {figure:8.3f} {(figure - plain) / (full - plain):7.0%}")


if __name__ == "__main__":
    main()
