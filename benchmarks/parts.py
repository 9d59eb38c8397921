"""Seconds of an epoch when 1 to 8 processes hold 8 parts, and equal bits.

    uv run python benchmarks/parts.py --nodes 100000 --degree 10 --epochs 10

By turns: `parts=8` in each number of processes, and beside these `workers=8`, whose
rows go through shared memory. Prints a row for each, and ends with 1 where weights of
`parts=8` differ. `--resume` also goes on from each number of processes with each other.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import gnnkit

PARTS, PROCESSES = 8, (1, 2, 3, 4, 8)
WAYS: dict[str, dict[str, Any]] = {
    "vertex_centric 1d": {"strategy": "vertex_centric"},
    "vertex_centric 2d": {"strategy": "vertex_centric", "partition": "2d"},
    "vertex_centric 3d leader": {"strategy": "vertex_centric", "partition": "3d", "sync": "leader"},
    "individual_sample": {"strategy": "individual_sample"},
    "joint_sample": {"strategy": "joint_sample"},
    "preset_workload": {"strategy": "preset_workload"},
    "parameter_server": {"strategy": "preset_workload", "sync": {"name": "parameter_server", "servers": 1}},
}


def main() -> int:
    """Prints the table of all ways. Returns 1 where bits differ, else 0."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=100_000)
    options.add_argument("--degree", type=int, default=10)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--turns", type=int, default=1)
    options.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    options.add_argument("--resume", action="store_true")
    arguments = options.parse_args()
    data = {"name": "synthetic", "num_nodes": arguments.nodes, "num_edges": arguments.nodes * arguments.degree // 2}
    differing = 0
    print(f"{'way':<26}{'processes':>10}{'s an epoch':>12}  weights")
    for way in arguments.ways:
        keys = {**WAYS[way], "dataset": data, "threads": 1, "report": False, "logger": "none"}
        with tempfile.TemporaryDirectory() as name:
            differing += compare(way, keys, arguments.epochs, arguments.turns, Path(name))
            if arguments.resume:
                differing += resume(way, keys, Path(name))
    return int(differing > 0)


def compare(way: str, keys: dict[str, Any], epochs: int, turns: int, folder: Path) -> int:
    """Prints seconds and weights by number of processes. Returns how many differ."""
    seconds: dict[str, list[float]] = {}
    weights: dict[str, str] = {}
    for turn in range(turns):
        for number in (*PROCESSES, None):
            place = {"workers": PARTS} if number is None else {"workers": number, "parts": PARTS}
            result, digest = run(folder / f"{turn}-{number}", epochs, **keys, **place)
            label = "no parts" if number is None else str(number)
            seconds.setdefault(label, []).append(result["seconds_per_epoch"])
            weights[label] = digest
    for label, times in seconds.items():
        print(f"{way:<26}{label:>10}{statistics.median(times):>12.3f}  {weights[label]}", flush=True)
    return len({weights[str(number)] for number in PROCESSES}) - 1


def resume(way: str, keys: dict[str, Any], folder: Path) -> int:
    """Goes on from each number of processes with each. Returns how many differ."""
    _, reference = run(folder / "whole", 4, **keys, parts=PARTS, workers=2)
    differing = 0
    for first in PROCESSES:
        for then in PROCESSES:
            place = folder / f"{first}-to-{then}"
            run(place, 2, **keys, parts=PARTS, workers=first)
            _, digest = run(place, 4, **keys, parts=PARTS, workers=then, on_exists="resume")
            differing += digest != reference
    print(f"{way:<26}resumed: {differing} of {len(PROCESSES) ** 2} differ", flush=True)
    return differing


def run(folder: Path, epochs: int, **keys: Any) -> tuple[Any, str]:
    """Returns the result of a run, and a digest of the weights."""
    result = gnnkit.train(folder=folder, trainer={"max_epochs": epochs}, **keys)
    return result, hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
