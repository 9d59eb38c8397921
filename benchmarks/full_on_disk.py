"""Full-graph training whose rows stay on disk, beside rows in memory.

    uv run python benchmarks/full_on_disk.py --folder DISK --nodes 5e5 --limit 1.5

Draws a graph, writes a store, and trains by turns with features.place=memory, and with
`disk` and a cache of nothing, and of a fifth of the rows. The runs on disk live within
a control group of `--limit` GiB, which counts the cache of files too (Linux, as
root; without that, `ulimit -d` bounds the memory of each process alone). Prints the
seconds of an epoch of the slowest worker, the first one included, the largest anonymous
memory of a process and of all together, in MiB, and the bytes of an epoch. "bound s" is
the time in which the disk alone brings the rows of the two passes of an epoch, with
reads of 1 MiB. The losses of the last epoch are printed, to be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from billion import group
from features_on_disk import command, epochs, forget
from gnnkit_import.npy_writer import NpyWriter
from store import Memory

from gnnkit.graph import CSC, Graph

ROWS = 1 << 14  # that are drawn at once
READ = 1 << 20


def draw(nodes: int, edges: int, width: int, folder: Path) -> None:
    """Saves a graph with random edges and rows, in little memory."""
    rng = np.random.default_rng(0)
    src, dst = (rng.integers(0, nodes, edges, np.int32) for _ in range(2))
    labels, split = rng.integers(0, 16, nodes), (1 + np.arange(nodes) % 3).astype(np.int8)
    Graph(CSC.from_edges(src, dst, nodes), np.zeros((nodes, 0), np.float32), labels, split).save(folder)
    rows = NpyWriter(folder / "features.npy", np.float32, (width,))
    for first in range(0, nodes, ROWS):
        rows.append(rng.standard_normal((min(ROWS, nodes - first), width), np.float32))
    rows.finish()


def seconds_of_pass(store: Path) -> float:
    """Reads the rows of all parts once, past the system's cache of files."""
    forget(store)
    start = time.perf_counter()
    for path in store.glob("parts/*/features.npy"):
        with path.open("rb", buffering=0) as file:
            while file.read(READ):
                os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
    return time.perf_counter() - start


def run(store: Path, folder: Path, keys: list[str], limit: float) -> dict[str, Any]:
    """Trains one way from cold files."""
    forget(store)
    command = [sys.executable, "-m", "gnnkit", "dataset=store", f"dataset.root={store}", *keys, f"output={folder}"]
    log = folder.with_suffix(".txt")
    with (
        group(int(limit * 2**30)) as prefix,
        log.open("w") as out,
        subprocess.Popen([*prefix, *command], stdout=out, stderr=out) as process,
    ):
        memory = Memory(process.pid, "RssAnon")
        code = memory.watched(process)
    if code:
        raise SystemExit(log.read_text())
    return json.loads((folder / "result.json").read_text()) | {
        "epochs": epochs(folder),
        "peaks": sorted(memory.peaks.values(), reverse=True),
    }


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on a disk with room for twice the features")
    parser.add_argument("--nodes", type=float, default=5e5)
    parser.add_argument("--degree", type=float, default=10)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1.5, help="GiB of the control group of runs on disk")
    parser.add_argument("--ways", nargs="*", default=["memory", "disk", "disk, 20 %"])
    options = parser.parse_args()
    root: Path = options.folder
    store, nodes = root / "store", int(options.nodes)
    if not (store / "store.json").exists():
        draw(nodes, int(nodes * options.degree), options.width, root / "graph")
        data = ["dataset=saved", f"dataset.root={root / 'graph'}", f"workers={options.workers}", "features.scale=none"]
        shape = ["strategy=vertex_centric", "partition=1d", "input_rows=dense", "cache=false", "report=false"]
        command("job=partition", *data, *shape, f"output={store}", "on_exists=replace")
    size = nodes * options.width * 4
    keys = ["strategy=vertex_centric", f"model={options.model}", f"model.hidden={options.hidden}", "report=false"]
    keys += [f"trainer.max_epochs={options.epochs}", f"trainer.check_val_every_n_epoch={options.epochs}", "write=[]"]
    ways = {"memory": ["features.place=memory"]}
    for name, share in (("disk", 0.0), ("disk, 20 %", 0.2)):
        ways[name] = ["features.place=disk", f"features.cache={int(share * size / options.workers)}"]
    print(f"{nodes:,} rows of {options.width * 4} bytes, {size / 1e9:.3g} GB, {options.workers} workers")
    print(f"{'way':<12}{'s an epoch':>11}{'first':>7}{'ratio':>7}{'process MiB':>13}{'all MiB':>9}{'GB an epoch':>13}")
    base, losses = 0.0, []
    for name in options.ways:
        way, limit = ways[name], 1024.0 if name == "memory" else options.limit
        figures = run(
            store, root / name.replace(", ", "-").replace(" %", ""), [*keys, *way, "on_exists=replace"], limit
        )
        seconds = statistics.mean(figures["epochs"])
        base = base or seconds
        read = figures.get("features_read", {"bytes_by_epoch": [0]})["bytes_by_epoch"][-1] / 1e9
        peaks = [peak / 1024 for peak in figures["peaks"]]
        line = f"{name:<12}{seconds:>11.2f}{figures['epochs'][0]:>7.2f}{seconds / base:>7.2f}"
        print(line + f"{peaks[0]:>13,.0f}{sum(peaks):>9,.0f}{read:>13.2f}", flush=True)
        losses.append(figures["train_loss"])
    print(f"bound s {2 * seconds_of_pass(store):.2f}, losses {losses}")


if __name__ == "__main__":
    main()
