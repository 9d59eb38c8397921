"""Measures how long a step waits for a checkpoint, and what a checkpoint costs a run.

    uv run python benchmarks/checkpoints.py --folder /a/disk

`model` has 50 MB of parameters, `rows` learns some hundred MB of input rows on two
workers, each with the state of Adam beside. A row of the table has the median time from
one step to the next where nothing was saved, the time by which a step with a checkpoint
is longer (median and largest), and the seconds that a checkpoint adds to the run. The
last two columns tell by how much the memory of a rank was larger at its peak than in
the run without: of the leader, and of the other rank with the most. `--workers 4` cuts
the rows for as many ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor, nn

import gnnkit
from gnnkit.engine import Adjacency

WIDTH = 3520  # of the wide layer: 50 MB


class Wide(nn.Module):
    """A network with one large matrix."""

    num_layers = 1

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_features, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, num_classes)
        )

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return adjacencies[0].aggregate(self.layers(x), reduce="mean")


class Clock(L.Callback):
    """Notes when each step begins, on the leader, and which are saved after."""

    def __init__(self, path: Path, every: int | None, steps: int) -> None:
        self.path, self.every, self.steps = path, every, steps
        self.lines = list[str]()

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        has_batches = len(module.loader) > 1
        done = batch_idx + 1 if has_batches else trainer.current_epoch + 1
        saves = self.every and done % self.every == 0 and (not has_batches or done < len(module.loader))
        self.lines.append(f"{time.perf_counter()} {int(bool(saves))}")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= self.steps

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.path.with_name(f"{self.path.name}-memory-{trainer.global_rank}").write_text(str(peak))
        if trainer.is_global_zero:
            self.path.write_text("\n".join(self.lines))


def ways(megabytes: int, workers: int) -> dict[str, dict[str, Any]]:
    """Returns the keys of each run."""
    width = 128
    rows = megabytes * 2**20 // (width * 4 * 3)  # with two moments
    return {
        "model": {"dataset": data(100), "strategy": "vertex_centric", "model": Wide, "workers": 1},
        "rows": {
            "dataset": data(rows),
            "strategy": {"name": "individual_sample", "batch_size": 512},
            "sampler": {"name": "neighbor", "fanouts": [5, 5]},
            "inputs": "learned",
            "embedding": width,
            "workers": workers,
        },
    }


def data(num_nodes: int) -> dict[str, Any]:
    return {"name": "synthetic", "num_nodes": num_nodes, "num_edges": 2 * num_nodes}


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    options.add_argument("--megabytes", type=int, default=300, help="of learned rows and their moments")
    options.add_argument("--workers", type=int, default=2, help="that learn rows")
    options.add_argument("--folder", type=Path, help="where runs write. Default: the system's folder for such files")
    arguments = options.parse_args()
    heads = ("a step", 10), ("longer by", 12), ("at most", 10), ("added to the run", 18), ("checkpoint", 12)
    print("".join(f"{head:>{width}}" for head, width in (("", 8), *heads, ("leader", 11), ("others", 11))))
    for name, keys in ways(arguments.megabytes, arguments.workers).items():
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            plain, _, _ = steps(Path(folder) / "plain", arguments.steps, None, keys)
            times, saves, size = steps(Path(folder) / "saved", arguments.steps, arguments.every, keys)
            before, peaks = (memory(Path(folder), run) for run in ("plain", "saved"))
        saving = list(itertools.compress(times, saves))
        if not saving:
            options.error(f"--every={arguments.every}: no step of an epoch of {name} was saved: choose less")
        usual = statistics.median(itertools.compress(times, (not is_saved for is_saved in saves)))
        longer = [seconds - usual for seconds in saving]
        extra_seconds = (sum(times) - sum(plain)) / len(saving)
        print(
            f"{name:<8}{usual:>8.3f} s{statistics.median(longer):>10.3f} s{max(longer):>8.3f} s{extra_seconds:>16.3f} s"
            f"{size / 1e6:>9.0f} MB{peaks[0] - before[0]:>8.0f} MB"
            + (f"{max(peaks[1:]) - max(before[1:]):>8.0f} MB" if peaks[1:] else ""),
            flush=True,
        )


def memory(folder: Path, run: str) -> list[float]:
    """Returns the largest memory of each rank, in MB."""
    files = sorted(folder.glob(f"{run}-clock-memory-*"), key=lambda file: int(file.name.rpartition("-")[2]))
    return [int(file.read_text()) / 1000 for file in files]


def steps(folder: Path, count: int, every: int | None, keys: dict[str, Any]) -> tuple[list[float], list[bool], int]:
    """Returns seconds from each step to the next, which save, bytes of a checkpoint."""
    clock = folder.with_name(f"{folder.name}-clock")
    checkpoint_keys = (
        {"checkpoint": False} if every is None else {"checkpoint_every": every, "checkpoint_every_n_steps": every}
    )
    trainer = {"max_epochs": 10**6, "check_val_every_n_epoch": 10**6, "progress_bar": False, **checkpoint_keys}
    with contextlib.redirect_stdout(io.StringIO()):
        gnnkit.train(
            folder=folder,
            callbacks=[Clock(clock, every, count + 1)],
            trainer=trainer,
            **{"threads": 1, "report": False, "logger": "none", **keys},
        )
    lines = [line.split() for line in clock.read_text().splitlines()]
    times = [float(at) for at, _ in lines]
    size = sum(file.stat().st_size for file in folder.glob("checkpoints/last-*.safetensors"))
    newest = len(list(folder.glob("checkpoints/last*.json"))) or 1
    seconds = [later - sooner for sooner, later in itertools.pairwise(times)]
    return seconds, [saves == "1" for _, saves in lines[:-1]], size // newest


if __name__ == "__main__":
    main()
