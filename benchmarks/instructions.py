"""Instructions of the core's kernels in a training epoch, counted by Valgrind.

    uv run python benchmarks/instructions.py

`compare.py` compares the counts with `baseline.json`. A count hardly differs between
CPUs of one architecture, because Valgrind shows none of them AVX-512, and not at all
under load. Counts do not tell how long memory is waited for: ratios do. A count is the
difference of two processes, one without the kernels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

NUM_NODES, NUM_EDGES, WIDTH, HEADS, NUM_CLASSES, REPEAT = 2_000, 40_000, 128, 8, 16, 4
TOLERANCE = 1.15
VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
MODELS = ("gcn", "gat")


def epochs(repeat: int = REPEAT) -> Mapping[str, Callable[[], None]]:
    """Makes the sums of `repeat` epochs of each model with 3 layers, forward and back."""
    import numpy as np

    from gnnkit import _core

    rng = np.random.default_rng(0)
    dst = np.sort(rng.integers(0, NUM_NODES, NUM_EDGES))
    indptr = np.append(0, np.cumsum(np.bincount(dst, minlength=NUM_NODES)))
    into = _core.Aggregator(indptr, rng.integers(0, NUM_NODES, NUM_EDGES), NUM_NODES)
    out_of = into.transpose()
    wide, narrow = (rng.standard_normal((NUM_NODES, width), dtype=np.float32) for width in (WIDTH, NUM_CLASSES))
    attention = {heads: rng.random((NUM_EDGES, heads), dtype=np.float32) for heads in (1, HEADS)}

    def gcn() -> None:
        for kernels, rows in ((into, wide), (into, wide), (into, narrow), (out_of, narrow), (out_of, wide)):
            kernels.sum(rows, np.empty_like(rows))

    def gat() -> None:
        for heads, rows in ((HEADS, wide), (HEADS, wide), (1, narrow)):
            into.weighted_sum(attention[heads], rows, np.empty_like(rows))
            out_of.weighted_sum(attention[heads], rows, np.empty_like(rows))
            into.edge_dot(rows, rows, np.empty_like(attention[heads]))

    def times(epoch: Callable[[], None]) -> Callable[[], None]:
        return lambda: [epoch() for _ in range(repeat)] and None

    return {"gcn": times(gcn), "gat": times(gat)}


def count(repeat: int = 1) -> dict[str, int]:
    """Counts the instructions of an epoch by model. Empty without Valgrind.

    Args:
        repeat: Does the kernels so many times: a planted slowdown. Default: 1.
    """
    if shutil.which(VALGRIND[0]) is None:
        return {}
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = {
        name: subprocess.Popen(
            [*VALGRIND, sys.executable, __file__, name, str(repeat * REPEAT)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("none", *MODELS)
    }
    found = {name: _refs(process) for name, process in started.items()}
    return {name: (found[name] - found["none"]) // REPEAT for name in MODELS}


def _refs(process: subprocess.Popen[str]) -> int:
    """Reads the count of a process that Valgrind runs."""
    _, text = process.communicate(timeout=600)
    line = re.search(r"I\s+refs:\s+([\d,]+)", text)
    if process.returncode or line is None:
        raise SystemExit(text)
    return int(line[1].replace(",", ""))


def main() -> None:
    if len(sys.argv) == 3:  # under Valgrind
        made = epochs(int(sys.argv[2]))
        made.get(sys.argv[1], lambda: None)()
        return
    for name, instructions in count().items():
        print(f"{name:4} {instructions / 1e6:9.3f} million instructions in the kernels of an epoch")


if __name__ == "__main__":
    main()
