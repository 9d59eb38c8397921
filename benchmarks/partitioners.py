"""Words, balance, seconds and memory of each partitioner on one machine.

    uv run python benchmarks/partitioners.py
    uv run python benchmarks/partitioners.py --edges 1e8 --kinds rmat --partitions ldg
    uv run python benchmarks/partitioners.py --kinds --data GRAPH.npz ...
    uv run python benchmarks/partitioners.py --partitions tiles metis+2d --matrix

Each partitioner cuts each graph in a process of its own. `moved` is the words of one
aggregation over all ranks, as a share of the words when every rank reads all rows.
`busiest` is the words of the busiest rank over the same mean. Words of a training epoch
are these times the columns that are aggregated. `copies` is the replication factor.
`nodes`, `edges` and `train` (training nodes) are largest over mean. `MB` is the memory
that the cut adds to the mapped graph, at its peak. A name with `+min_words` or `+cover`
is a partitioner with this `partition.border`, and one with `+2d` has this grid.

`far` is the share of the words that come from ranks that are not next to the receiver
on a grid as square as possible, numbered row by row. `forwarded` is the words when rows
travel along this grid and take each link once, first along columns, over the words of
the direct exchange. Both are for grids of one column without `+cover`. `--matrix`
prints the rows that each rank (row) receives from each other rank (column).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_formats.npz import Npz
from gnnkit_formats.synthetic import Synthetic

from gnnkit import plugins
from gnnkit.config import as_overrides, compose
from gnnkit.config.settings import Choice
from gnnkit.graph import CSC, Graph
from gnnkit.partition import Partition, improve_border, make_grid, measure
from gnnkit.partition.border import NAMES

PARTITIONS = [
    "contiguous",
    "hash",
    "balanced",
    "ldg",
    "fennel",
    "buffered",
    "hdrf",
    "2psl",
    "metis",
    "kaminpar",
    "contiguous+cover",
    "ldg+min_words",
    "ldg+cover",
    "ldg+min_words+cover",
    "fennel+min_words+cover",
    "metis+cover",
]
KINDS = ("rmat", "sbm", "grid2d")
COLUMNS = ("words", "moved", "busiest", "far", "forwarded", "cut", "copies", "nodes", "edges", "train", "seconds", "MB")
DIGITS = {"words": 0, "MB": 0}  # after the decimal point, 3 for the other columns


def synthetic(kind: str, num_nodes: int, num_edges: int) -> Graph:
    """Makes a graph of `num_edges` edges in both directions, ids shuffled."""
    graph = Synthetic(kind, num_nodes, num_edges // 2, num_classes=16, width=1).load()
    if kind == "rmat":  # has shuffled its ids
        return graph
    place = np.random.default_rng(0).permutation(num_nodes)
    dst = np.repeat(np.arange(num_nodes), np.diff(graph.csc.indptr))
    csc = CSC.from_edges(place[graph.csc.indices], place[dst], num_nodes)
    return Graph(csc, graph.features, graph.labels, graph.split)


def cut(folder: Path, name: str, workers: int, options: list[str]) -> dict[str, Any]:
    """Cuts the stored graph, and measures. Runs in a process of its own."""
    nodes, *suffixes = name.split("+")
    border = "+".join(suffix for suffix in suffixes if suffix in NAMES)
    spec = next((suffix for suffix in suffixes if suffix not in NAMES), "1d")
    config = compose([*as_overrides({"strategy": "vertex_centric", "partition": nodes}), *options])
    partitioner = Choice("partition", nodes, plugins.arguments_of("partition", config["partition"])).create()
    graph, grid = Graph.load(folder), make_grid(spec, workers)
    int(graph.csc.indices.sum())  # reads the file
    before, begin = peak_memory(), time.perf_counter()
    partition = improve_border(graph, partitioner.assign(graph, grid), border or None)
    seconds, memory = time.perf_counter() - begin, peak_memory() - before
    quality = measure(graph, partition)
    everything = graph.num_nodes * (workers - 1)
    rows = quality.traffic.gather_rows
    is_plane = grid.rows == workers and partition.edge_cell is None
    position = places(workers)
    distance = np.abs(position[:, None] - position).sum(axis=2)
    return {
        "words": quality.words.sum(),
        "far": rows[distance > 1].sum() / max(rows.sum(), 1) if is_plane else float("nan"),
        "forwarded": forwarded(graph, partition) / max(rows.sum(), 1) if is_plane else float("nan"),
        "matrix": rows.tolist(),
        "moved": quality.words.sum() / everything,
        "busiest": quality.words.max() * workers / everything,
        "cut": quality.edge_cut / max(graph.num_edges, 1),
        "copies": quality.replication_factor,
        "nodes": quality.balance()["nodes"],
        "edges": quality.balance()["edges"],
        "train": quality.balance()["train_nodes"],
        "seconds": seconds,
        "MB": memory / 2**20,
    }


def places(workers: int) -> np.ndarray:  # [workers, 2] row and column
    """Returns each rank's place on the squarest grid, row by row."""
    rows = next(divisor for divisor in range(math.isqrt(workers), 0, -1) if workers % divisor == 0)
    return np.stack(np.divmod(np.arange(workers), max(rows, workers // rows)), axis=1)


def forwarded(graph: Graph, partition: Partition) -> int:
    """Counts the rows that all links carry when rows travel along the grid."""
    position, owner = places(partition.grid.world_size), partition.node_rank
    num_columns = position[:, 1].max() + 1
    source, rank = graph.csc.indices, np.repeat(owner, np.diff(graph.csc.indptr))
    place, target = position[owner[source]], position[rank]
    arrivals = [np.empty(0, np.int64)]  # of a row at a rank
    while (place != target).any():
        step = np.sign(target - place)
        step[:, 1] *= step[:, 0] == 0
        place = place + step
        arrival = source.astype(np.int64) * partition.grid.world_size + place[:, 0] * num_columns + place[:, 1]
        arrivals.append(np.unique(arrival[step.any(axis=1)]))
    return len(np.unique(np.concatenate(arrivals)))


def peak_memory() -> int:
    """Bytes of memory that were resident at most."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def compare(graph: Graph, title: str, options: argparse.Namespace) -> None:
    """Prints a row for each partitioner."""
    print(f"\n{title}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {options.workers} workers", flush=True)
    print(f"{'partition':24}" + "".join(f"{column:>10}" for column in COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        graph.save(Path(folder) / "graph")
        for name in options.partitions:
            command = [sys.executable, __file__, "--cut", f"{folder}/graph", name, "--workers", str(options.workers)]
            done = subprocess.run([*command, "--set", *options.set], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name:24} {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{name:24}" + "".join(f"{row[column]:10.{DIGITS.get(column, 3)}f}" for column in COLUMNS), flush=True
            )
            if options.matrix:
                print("\n".join("".join(f"{number:8}" for number in line) for line in row["matrix"]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="synthetic graphs")
    parser.add_argument("--edges", type=float, default=4e6, help="edges of synthetic graphs, both directions")
    parser.add_argument("--degree", type=float, default=20, help="mean degree of rmat and sbm")
    parser.add_argument("--data", nargs="*", type=Path, default=[], help="further graphs, as .npz files")
    parser.add_argument("--partitions", nargs="*", default=PARTITIONS, help="names, with +min_words, +cover, +2d")
    parser.add_argument("--set", nargs="*", default=[], help="options of all of them, as partition.options.KEY=VALUE")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--matrix", action="store_true", help="print the rows between all ranks")
    parser.add_argument("--cut", nargs=2, metavar=("FOLDER", "PARTITION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cut:
        print(json.dumps(cut(Path(options.cut[0]), options.cut[1], options.workers, options.set)))
        return
    for kind in options.kinds:
        degree = 4 if kind == "grid2d" else options.degree
        compare(synthetic(kind, int(options.edges / degree), int(options.edges)), kind, options)
    for path in options.data:
        compare(Npz(str(path)).load(), path.stem, options)


if __name__ == "__main__":
    main()
