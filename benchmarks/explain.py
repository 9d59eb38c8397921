"""Fidelity of job=explain beside random rankings, on several graphs and seeds.

Trains a gcn on each graph with the split of its file, and explains test nodes. Prints
Markdown rows: means over seeds, and the lowest gain of a seed over its random rankings.

    uv run python benchmarks/explain.py cora.npz citeseer.npz pubmed.npz --seeds 3
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import gnnkit

KINDS = ("features", "neighbours")
MEASURES = ("plus", "minus", "characterisation")
USUAL: dict[str, Any] = {"comm": "threads", "workers": 1, "report": False}


def explained(path: Path, seed: int, num_nodes: int, epochs: int) -> gnnkit.Result:
    """Trains on a graph, and explains test nodes drawn by the seed."""
    dataset, trainer = {"name": "npz", "root": str(path)}, {"max_epochs": epochs}
    test = np.flatnonzero(np.load(path)["test_mask"])
    nodes = np.random.default_rng(seed).permutation(test)[:num_nodes].tolist()
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        keys: dict[str, Any] = {"dataset": dataset, "seed": seed, "trainer": trainer, "logger": "none", **USUAL}
        run = gnnkit.train(strategy="vertex_centric", model="gcn", folder=Path(folder) / "run", **keys)
        return gnnkit.explain(run.folder, nodes, folder=Path(folder) / "explained", **USUAL)


def rows(name: str, results: Sequence[gnnkit.Result]) -> Iterator[str]:
    """Yields a row for each kind of input."""
    for kind in KINDS:
        figures = [result[f"fidelity_{kind}"] for result in results]
        cells = [
            f"{statistics.fmean(values[prefix + measure] for values in figures):.3f}"
            for measure in MEASURES
            for prefix in ("", "random_")
        ]
        gain = min(values["characterisation"] - values["random_characterisation"] for values in figures)
        seconds = statistics.fmean(result["seconds_per_node"] for result in results)
        gap = max(result["completeness_gap"] for result in results)
        yield f"| {name} | {kind} | {' | '.join(cells)} | {gain:+.3f} | {gap:.1e} | {seconds:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", type=Path, nargs="+", help="npz files with a test_mask")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=50, help="explained nodes per seed")
    parser.add_argument("--epochs", type=int, default=50)
    options = parser.parse_args()
    titles = [title for measure in MEASURES for title in (measure, f"{measure}, random")]
    heads = ["graph", "inputs", *titles, "lowest gain", "gap", "s per node"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for path in options.graphs:
        results = [explained(path, seed, options.nodes, options.epochs) for seed in range(options.seeds)]
        print("\n".join(rows(path.stem, results)), flush=True)


if __name__ == "__main__":
    main()
