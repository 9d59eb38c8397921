"""Seconds of an epoch with features in memory and on disk, and the bytes that are read.

    uv run python benchmarks/features_on_disk.py --nodes 1e6 --width 256 --workers 2

Draws a graph with skewed degrees, writes a store, and runs its ways by turns: features
in memory, and on disk with a cache of 20 % and of 5 % of the rows. The files of the
store leave the system's cache of files before each run. Seconds are means over
all epochs, the first one included, of the slowest worker. "bound s" is the time in
which the disk alone brings the missing rows of an epoch: as many random rows of as many
batches are read after the run. So no run on disk is faster than "bound s" and the time
of memory are. Models of all ways must be equal to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import _core
from gnnkit.graph import Graph
from gnnkit.utils.storage import npy_header

LOOKS = 10  # batches that are read to measure the disk
WAYS = {"memory": None, "disk, 20 %": 0.2, "disk, 5 %": 0.05}


def draw(nodes: int, edges: int, width: int, train: float, folder: Path) -> None:
    """Saves a graph in which few nodes have most of the out-edges."""
    rng = np.random.default_rng(0)
    names = rng.permutation(nodes)
    src = names[(nodes * rng.random(edges) ** 3).astype(np.int64)]
    split = np.where(rng.random(nodes) < train, 1, 2 + np.arange(nodes) % 2)
    features = rng.standard_normal((nodes, width), np.float32)
    labels = rng.integers(0, 16, nodes)
    Graph.from_edges(src, rng.integers(0, nodes, edges), nodes, features=features, labels=labels, split=split).save(
        folder
    )


def command(*overrides: str) -> str:
    """Runs gnnkit. Ends with its error where it fails."""
    done = subprocess.run([sys.executable, "-m", "gnnkit", *overrides], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def forget(folder: Path) -> None:
    """Lets the files of a folder leave the system's cache."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def features_of(store: Path) -> tuple[Path, int, int, int]:
    """Returns the file of all features, its first byte, rows, and bytes of a row."""
    path = store / "parts/graph/features.npy"
    (rows, width), _, dtype, begin = npy_header(path)
    return path, begin, rows, width * dtype.itemsize


def seconds_of_reads(store: Path, rows: int, batches: int) -> float:
    """Reads random rows batch by batch, and returns the seconds.

    Args:
        store: The store.
        rows: Rows of all batches.
        batches: Number of batches, of which a few are read.
    """
    path, begin, num_rows, row_bytes = features_of(store)
    file = _core.RowFile(str(path), begin, num_rows, row_bytes, "static", 0, True, False)
    rng, size, num_samples = np.random.default_rng(1), min(rows // batches, num_rows), min(batches, LOOKS)
    id_batches = [rng.choice(num_rows, size, replace=False) for _ in range(num_samples)]
    out = np.empty(size * row_bytes, np.uint8)
    start = time.perf_counter()
    for ids in id_batches:
        file.read(ids, out)
    return (time.perf_counter() - start) * batches / num_samples


def steps_of(folder: Path) -> int:
    """Returns the steps of an epoch."""
    return next(line["steps"] for line in lines_of(folder) if "steps" in line)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Reads `epochs.jsonl`."""
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


def epochs(folder: Path) -> list[float]:
    """Returns the seconds of each epoch of the slowest worker."""
    lines = lines_of(folder)
    names = ("seconds_wait", "seconds_compute", "seconds_exchange", "seconds_sync")
    return [max(map(sum, zip(*(line[name] for name in names), strict=True))) for line in lines if "train_loss" in line]


def run(store: Path, share: float | None, keys: list[str], folder: Path) -> dict[str, Any]:
    """Trains one way from cold files."""
    _, _, num_rows, row_bytes = features_of(store)
    ways = ["features.place=memory"]
    if share is not None:
        cache = int(share * num_rows * row_bytes)
        ways = ["features.place=disk", f"features.cache={cache}"]
    arguments = ["dataset=store", f"dataset.root={store}", *keys, *ways, "report=false"]
    forget(store)
    command(*arguments, f"output={folder}")
    result = json.loads((folder / "result.json").read_text())
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    figures = {"epochs": epochs(folder), "digest": digest, "read": result.get("features_read")}
    if share is not None:
        num_missed = figures["read"]["rows"] / len(figures["epochs"])
        figures["bound"] = seconds_of_reads(store, int(num_missed), steps_of(folder) * result["world_size"])
    return figures


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=float, default=1e6)
    parser.add_argument("--degree", type=float, default=15)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--train", type=float, default=0.05, help="share of the nodes that train")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--fanouts", default="[10,10]")
    parser.add_argument("--keys", nargs="*", default=[], help="further keys of all runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        draw(int(options.nodes), int(options.nodes * options.degree), options.width, options.train, root / "graph")
        sampling_keys = ["strategy=individual_sample", f"sampler.fanouts={options.fanouts}"]
        data = ["dataset=saved", f"dataset.root={root / 'graph'}", f"workers={options.workers}", "features.scale=none"]
        command("job=partition", *data, *sampling_keys, f"output={root / 'store'}", "cache=false")
        keys = [*sampling_keys, "model=sage", f"trainer.max_epochs={options.epochs}", *options.keys]
        keys += [f"trainer.check_val_every_n_epoch={options.epochs}"]
        runs_by_way: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
        for turn in range(options.turns):
            for name, share in WAYS.items():
                runs_by_way[name].append(run(root / "store", share, keys, root / f"{turn}-{share}"))
        _, _, num_rows, row_bytes = features_of(root / "store")
    print(f"{num_rows:,} rows of {row_bytes} bytes, {num_rows * row_bytes / 1e9:.3g} GB, {options.workers} workers")
    print(f"{'way':<12}{'s an epoch':>12}{'first':>8}{'ratio':>8}{'hits':>7}{'GB read':>9}{'bound s':>9}")
    base = statistics.mean(second for figures in runs_by_way["memory"] for second in figures["epochs"])
    for name, runs in runs_by_way.items():
        seconds = statistics.mean(second for figures in runs for second in figures["epochs"])
        first = statistics.mean(figures["epochs"][0] for figures in runs)
        line = f"{name:<12}{seconds:>12.2f}{first:>8.2f}{seconds / base:>8.2f}"
        if runs[0]["read"] is not None:
            read = runs[0]["read"]
            disk_bound = statistics.mean(figures["bound"] for figures in runs)
            line += f"{read['hit_rate']:>7.0%}{sum(read['bytes_by_epoch'][:2]) / 1e9:>9.3f}"
            line += f"{disk_bound:>9.2f}  {read['window']} batches ahead"
        print(line)
    digests = {figures["digest"] for runs in runs_by_way.values() for figures in runs}
    print("models are equal to the bit" if len(digests) == 1 else "MODELS DIFFER")


if __name__ == "__main__":
    main()
