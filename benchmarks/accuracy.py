"""Test accuracy at the last epoch: a mean over seeds, as the papers give.

Prints every seed beside one process in float64.

    # GCN of Kipf and Welling, GAT of Velickovic et al., supersteps, samples
    uv run python benchmarks/accuracy.py path/to/cora.npz --partition 2d
    uv run python benchmarks/accuracy.py path/to/cora.npz --partition 2d --model gat
    uv run python benchmarks/accuracy.py path/to/pubmed.npz --local-iterations 4
    uv run python benchmarks/accuracy.py path/to/pubmed.npz --fanouts 10 10

Widths, dropout and learning rates are the papers'. With `--fanouts` the strategy is
individual_sample.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gnnkit

MODELS: dict[str, tuple[dict[str, Any], float]] = {  # options and learning rate
    "gcn": ({"name": "gcn", "hidden": 16, "dropout": 0.5}, 0.01),
    "sage": ({"name": "sage", "hidden": 16, "dropout": 0.5}, 0.01),
    "gat": ({"name": "gat", "hidden": 8, "heads": 8, "dropout": 0.6}, 0.005),
}


def accuracy(options: argparse.Namespace, seed: int, *, workers: int, precision: int) -> dict[str, Any]:
    """The result of one run on those workers."""
    model, lr = MODELS[options.model]
    model = model | ({"hidden": options.hidden} if options.hidden else {})
    trainer = {"max_epochs": options.epochs, "lr": lr, "weight_decay": 5e-4, "precision": precision}
    quiet = {"check_val_every_n_epoch": options.epochs, "checkpoint": False, "progress_bar": False}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return dict(
            gnnkit.train(
                **strategy(options, workers),
                dataset={"name": "npz", "root": str(options.data), "row_normalize": not options.raw},
                model=model,
                trainer=trainer | quiet,
                workers=workers,
                threads=1,
                seed=seed,
                folder=Path(folder) / "run",
            )
        )


def strategy(options: argparse.Namespace, workers: int) -> dict[str, Any]:
    """The sections of the strategy."""
    if options.fanouts:
        sampler = {"name": options.sampler, "fanouts": options.fanouts}
        return {"strategy": {"name": "individual_sample", "batch_size": options.batch_size}, "sampler": sampler}
    local = options.local_iterations if workers > 1 else 1
    strategy_keys = {"name": "vertex_centric", "local_iterations": local}
    return {"strategy": strategy_keys, "partition": options.partition if workers > 1 else "1d"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="an .npz file as dataset=npz reads it")
    parser.add_argument("--model", choices=MODELS, default="gcn")
    parser.add_argument("--partition", default="1d")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--local-iterations", type=int, default=1)
    parser.add_argument("--fanouts", type=int, nargs="+", help="neighbours per hop: samples mini-batches")
    parser.add_argument("--sampler", default="neighbor")
    parser.add_argument("--batch-size", type=int, default=32, help="seeds per worker and step")
    parser.add_argument("--hidden", type=int, help="instead of the paper's width")
    parser.add_argument("--raw", action="store_true", help="features as they are, not divided by the sum of their row")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--one-process", action="store_true", help="also train on one process, in float64")
    options = parser.parse_args()
    options.data = options.data.absolute()
    accuracies, reference_accuracies = [], []
    for seed in range(options.seeds):
        accuracies.append(accuracy(options, seed, workers=options.workers, precision=32)["test_accuracy"])
        line = f"seed {seed}: {accuracies[-1]:.4f}, mean {statistics.mean(accuracies):.4f}"
        if options.one_process:
            reference_accuracies.append(accuracy(options, seed, workers=1, precision=64)["test_accuracy"])
            line += f"; one process, float64: {reference_accuracies[-1]:.4f}, mean {statistics.mean(reference_accuracies):.4f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
