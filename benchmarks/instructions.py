"""Instructions of the core's kernels in a training epoch, counted by Valgrind.

    uv run python benchmarks/instructions.py

`compare.py` compares the counts with `baseline.json`. A count hardly differs between
CPUs of one architecture, because Valgrind shows none of them AVX-512, and not at all
under load. Counts do not tell how long memory is waited for: ratios do. A count is the
difference of two processes, one without the kernels.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

NUM_NODES, NUM_EDGES, WIDTH, HEADS, NUM_CLASSES = 2_000, 40_000, 128, 8, 16
TOLERANCE = 1.15
VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
EPOCHS = {"gcn": 24, "gat": 4}  # counted of each model, so that imports differ by less than a hundredth


def epochs() -> Mapping[str, Callable[[], None]]:
    """Makes the sums of an epoch of each model with 3 layers, forward and backward."""
    import numpy as np

    from gnnkit import _core

    rng = np.random.default_rng(0)
    dst = np.sort(rng.integers(0, NUM_NODES, NUM_EDGES))
    indptr = np.append(0, np.cumsum(np.bincount(dst, minlength=NUM_NODES)))
    into = _core.Aggregator(indptr, rng.integers(0, NUM_NODES, NUM_EDGES), NUM_NODES)
    out_of = into.transpose()
    wide, narrow = (rng.standard_normal((NUM_NODES, width), dtype=np.float32) for width in (WIDTH, NUM_CLASSES))
    factors = rng.random(NUM_NODES, dtype=np.float32)
    attention = {heads: rng.random((NUM_EDGES, heads), dtype=np.float32) for heads in (1, HEADS)}

    def gcn() -> None:
        for kernels, rows in ((into, wide), (into, wide), (into, narrow), (out_of, narrow), (out_of, wide)):
            kernels.sum(rows, np.empty_like(rows), source=factors, destination=factors)

    def gat() -> None:
        for heads, rows in ((HEADS, wide), (HEADS, wide), (1, narrow)):
            into.sum(rows, np.empty_like(rows), weight=attention[heads])
            out_of.sum(rows, np.empty_like(rows), weight=attention[heads])
            into.edge_dot(rows, rows, np.empty_like(attention[heads]))

    return {"gcn": gcn, "gat": gat}


def count(repeat: int = 1) -> dict[str, int]:
    """Counts the instructions of an epoch by model. Empty without Valgrind.

    Args:
        repeat: Does the kernels so many times: a planted slowdown. Default: 1.
    """
    if shutil.which(VALGRIND[0]) is None:
        return {}
    processes = {name: _start(name, repeat * num_epochs) for name, num_epochs in EPOCHS.items()}
    without = _refs(_start("gcn", 0))
    return {name: (_refs(process) - without) // EPOCHS[name] for name, process in processes.items()}


def _start(model: str, num_epochs: int) -> subprocess.Popen[str]:
    """Starts the epochs of a model under Valgrind."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [*VALGRIND, sys.executable, __file__, "--run", model, str(num_epochs)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _refs(process: subprocess.Popen[str]) -> int:
    """Reads the count of a process that Valgrind runs."""
    _, text = process.communicate(timeout=600)
    line = re.search(r"I\s+refs:\s+([\d,]+)", text)
    if process.returncode or line is None:
        raise SystemExit(text)
    return int(line[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs=2, metavar=("MODEL", "EPOCHS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:  # under Valgrind
        epoch = epochs()[options.run[0]]
        for _ in range(int(options.run[1])):
            epoch()
        return
    for name, instructions in count().items():
        print(f"{name:4} {instructions / 1e6:9.3f} million instructions in the kernels of an epoch")


if __name__ == "__main__":
    main()
