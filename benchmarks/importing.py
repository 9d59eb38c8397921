"""The import of many edges in one process or several, with numbers or text as ids.

    uv run python benchmarks/importing.py --folder DISK --edges 1e8 --workers 1 2

Draws edges by R-MAT into a folder of Parquet parts, a few columns of features, and
labels. With `--ids text` nodes are named in a table, and edges by these names. Runs
job=import for `--parts` parts with each number of processes, and prints the seconds of
the command, those of 100 million edges, the anonymous memory of the largest process,
and the bound: the time to read the tables and write the store once, by the
disk's own speeds in the same run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from billion import CHUNK, disk_seconds, size
from store import Memory

from gnnkit import _core


def names(ids: np.ndarray) -> pa.Array:  # type: ignore[type-arg]
    """Spells ids as text."""
    return pc.binary_join_element_wise("user-", pa.array(ids).cast(pa.string()), "")


def draw(folder: Path, nodes: int, edges: int, text: bool) -> None:
    """Writes tables of edges and nodes, unless they are there."""
    if (folder / "drawn").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "edges.parquet").mkdir(parents=True)
    for number, first in enumerate(range(0, edges, CHUNK)):
        count = min(CHUNK, edges - first)
        indptr, src, _ = _core.generate_rmat(nodes, count, number)
        dst = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(indptr))
        order = np.random.default_rng(number).permutation(count)
        ends = {"src": src[order], "dst": dst[order]}
        part = pa.table({name: names(ids) if text else ids for name, ids in ends.items()})
        path = folder / "edges.parquet" / f"part-{number:05d}.parquet"
        pq.write_table(part, path, use_dictionary=False, row_group_size=1 << 20)
    rng = np.random.default_rng(0)
    labels, rows = rng.integers(0, 16, nodes), rng.standard_normal((nodes, 8), np.float32)
    if text:
        columns = {f"f{number}": rows[:, number] for number in range(rows.shape[1])}
        pq.write_table(pa.table({"id": names(np.arange(nodes)), "label": labels, **columns}), folder / "nodes.parquet")
    else:
        np.save(folder / "labels.npy", labels)
        np.save(folder / "features.npy", rows)
    (folder / "drawn").touch()


def main() -> None:
    """Prints a line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on a disk with room for 80 bytes an edge")
    parser.add_argument("--edges", type=float, default=1e8)
    parser.add_argument("--degree", type=float, default=20)
    parser.add_argument("--ids", choices=["numbers", "text"], default="numbers")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    tables, store, edges = options.folder / options.ids, options.folder / "store", int(options.edges)
    draw(tables, int(edges / options.degree), edges, options.ids == "text")
    print(f"{edges:,} edges, ids are {options.ids}, {size(tables) / 1e9:.1f} GB of tables", flush=True)
    print(f"{'processes':<12}{'seconds':>9}{'of 100 M':>10}{'bound':>8}{'MiB':>8}{'GB of store':>13}", flush=True)
    for workers in options.workers:
        shutil.rmtree(store, ignore_errors=True)
        command = [sys.executable, "-m", "gnnkit", "job=import", "dataset=edges", f"dataset.root={tables}"]
        command += [f"memory={options.memory}", f"parts={options.parts}", f"workers={workers}", f"output={store}"]
        command += ["dataset.symmetrize=false", "dataset.split=[0.6,0.2,0.2]", "features.scale=none"]
        command += ["strategy=individual_sample", "cache=false"]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            memory = Memory(process.pid, "RssAnon")
            code = memory.watched(process)
        seconds = time.perf_counter() - start
        if code:
            sys.exit(code)
        disk_bound = disk_seconds(options.folder, size(tables), size(store))
        print(
            f"{workers:<12}{seconds:>9.1f}{seconds / edges * 1e8:>10.1f}{disk_bound:>8.1f}"
            f"{max(memory.peaks.values()) / 1024:>8,.0f}{size(store) / 1e9:>13.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
