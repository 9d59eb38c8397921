"""What of a run grows with the number of ranks, to 64 threads of one process.

    uv run python benchmarks/scaling.py --nodes 20000 --ranks 4 16 64

The ranks that a rank hears of, and what the leader holds (result.json,
a step in workers.jsonl, the manifest of a store, a checkpoint), and seconds to start.
Each column is fitted by `a + b P^c` on the measured numbers, and extrapolated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gnnkit
from gnnkit.__main__ import main as command

POWERS = (0.0, 0.5, 1.0, 2.0)  # of the number of ranks


def main() -> None:
    """Prints a row for each number of ranks, and the fits."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=20_000)
    options.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64])
    options.add_argument("--partitions", nargs="+", default=["1d", "2d"])
    options.add_argument("--to", type=int, default=1024)
    arguments = options.parse_args()
    for partition in arguments.partitions:
        rows = {ranks: measured(ranks, partition, arguments.nodes) for ranks in arguments.ranks}
        names = list(rows[arguments.ranks[0]])
        print(f"\npartition={partition}\n{'ranks':>8}" + "".join(f"{name:>24}" for name in names))
        for ranks, row in rows.items():
            print(f"{ranks:>8}" + "".join(f"{row[name]:>24,.4g}" for name in names), flush=True)
        fits = [fitted(np.array(arguments.ranks), np.array([row[name] for row in rows.values()])) for name in names]
        print(f"{arguments.to:>8}" + "".join(f"{a + b * arguments.to**c:>24,.4g}" for a, b, c in fits))
        print(f"{'fit':>8}" + "".join(f"{f'{a:.3g} + {b:.3g} P^{c:g}':>24}" for a, b, c in fits))


def measured(ranks: int, partition: str, num_nodes: int) -> dict[str, float]:
    """Trains two epochs and cuts a store, with this number of ranks."""
    data = {"name": "synthetic", "num_nodes": num_nodes}
    keys: dict[str, Any] = {"strategy": "vertex_centric", "partition": partition, "dataset": data, "workers": ranks}
    with tempfile.TemporaryDirectory() as name:
        run, store = Path(name) / "run", Path(name) / "store"
        start = time.monotonic()
        result = gnnkit.train(
            **keys, comm="threads", threads=1, folder=run, report=False, logger="none", trainer={"max_epochs": 2}
        )
        seconds = time.monotonic() - start
        cut = ["strategy=vertex_centric", f"partition={partition}", f"workers={ranks}", f"output={store}"]
        command(["job=partition", *cut, "dataset=synthetic", f"dataset.num_nodes={num_nodes}"])
        return {
            "senders, busiest": max(np.count_nonzero(result["words_between"], axis=0)),
            "start seconds": seconds - result["phases"]["training"] - result["phases"]["evaluation"],
            "result.json KB": (run / "result.json").stat().st_size / 1e3,
            "step's lines KB": (run / "workers.jsonl").stat().st_size / 2e3,
            "manifest KB": (store / "store.json").stat().st_size / 1e3,
            "checkpoint KB": sum(file.stat().st_size for file in (run / "checkpoints").iterdir()) / 1e3,
        }


def fitted(ranks: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Returns a, b and c of the best `a + b P^c` with c one of `POWERS`."""
    fits = []
    for power in POWERS:
        columns = np.stack([np.ones(len(ranks)), ranks**power * (power > 0)], 1)
        (a, b), *_ = np.linalg.lstsq(columns, values, rcond=None)
        fits.append((float(np.abs(columns @ [a, b] - values).sum()), float(a), float(b), power))
    _, a, b, power = min(fits)
    return a, b, power


if __name__ == "__main__":
    main()
