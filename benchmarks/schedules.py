"""What each approximate scheme costs and saves on its schedule, beside exact training.

    uv run python benchmarks/schedules.py cora.npz citeseer.npz folder_of_a_graph
    uv run python benchmarks/schedules.py cora.npz --seeds 10 --schemes exact quantized
    uv run python benchmarks/schedules.py --table   # only prints what was measured

A graph is an .npz file, as `dataset=npz` reads it, or a folder, as `dataset=edges`
reads it. Every run is the default one with four workers: GCN, 100 epochs, the model of
the best validation. Prints for each scheme, graph and kind of parts, against exact
training with the same seed:

- points of the task's main test figure, mean over seeds with its standard error
- approximate epochs, of all
- bytes of rows that the busiest rank sends, as a share of exact training's
- seconds an epoch in which the busiest worker did not compute

Seeds are the outer loop, so a table of a part of the runs is balanced. Each run is a
line of `--store` when done, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnkit_sweep.scheme_table import exposed_seconds

import gnnkit
from gnnkit import plugins
from gnnkit.graph import Graph

FULL = "vertex_centric"
EXACT: dict[str, Any] = {"strategy": FULL}
SSP = {"name": "parameter_server", "mode": "ssp"}
SCHEMES: dict[str, dict[str, Any]] = {
    "exact": EXACT,
    "quantized": EXACT | {"exchange": "quantized"},
    "local_iterations=4": {"strategy": {"name": FULL, "local_iterations": 4}},
    "local_iterations=2": {"strategy": {"name": FULL, "local_iterations": 2}},
    "pipelined": EXACT | {"exchange": "pipelined"},
    "sampled": EXACT | {"exchange": "sampled"},
    "ssp, staleness 1": EXACT | {"sync": SSP | {"staleness": 1}},
    "ssp, staleness 7": EXACT | {"sync": SSP | {"staleness": 7}},
}
WARM = {"trainer": {"warmup_epochs": 10}}
TRIED: dict[str, dict[str, Any]] = {
    "local_iterations=4, quantized": SCHEMES["local_iterations=4"] | {"exchange": "quantized"},
    "local_iterations=2, quantized": SCHEMES["local_iterations=2"] | {"exchange": "quantized"},
    "exact, warm-up": EXACT | WARM,
    "local_iterations=4, warm-up": SCHEMES["local_iterations=4"] | WARM,
    "local_iterations=4, finish 40": SCHEMES["local_iterations=4"] | {"trainer": {"exact_shares": [0.1, 0.4]}},
}  # on request
PARTS = ("metis", "random")
Key = tuple[str, str, str, int]  # graph, parts, scheme, seed


def load(path: Path) -> Graph:
    """Loads a graph. A folder has directed edges and no split."""
    if path.is_dir():
        dataset = plugins.load("dataset", "edges")(root=str(path), symmetrize=True, split=[0.5, 0.25, 0.25])
    else:
        dataset = plugins.load("dataset", "npz")(root=str(path))
    graph: Graph = dataset.load()
    return graph


def run(graph: Graph, options: argparse.Namespace, parts: str, scheme: str, seed: int) -> dict[str, Any]:
    """Trains once. Returns the figures of the table."""
    quiet = {"checkpoint": False, "progress_bar": False}
    keys: dict[str, Any] = {"workers": options.workers, "threads": 1, "comm": "threads", "model": "gcn"}
    scheme_keys = (SCHEMES | TRIED)[scheme]
    silence = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    with tempfile.TemporaryDirectory() as parent, silence[0], silence[1]:
        result = gnnkit.train(
            graph,
            **keys,
            **scheme_keys | {"trainer": {"max_epochs": options.epochs, **quiet} | scheme_keys.get("trainer", {})},
            partition=parts,
            seed=seed,
            report=False,
            logger="none",
            folder=Path(parent) / "run",
        )
        lines = (Path(parent) / "run/epochs.jsonl").read_text().splitlines()
    name = result["main_figure"]["name"].replace("val_", "test_", 1)
    schedule = result["schedule"] or {"approximate": result["epochs"] if result["approximate"] else 0}
    return {
        "test": 100 * result[name],
        "bytes": result["bytes_sent"],
        "approximate": schedule["approximate"],
        "exposed": exposed_seconds(json.loads(line) for line in lines),
    }


def read(store: Path) -> dict[Key, dict[str, Any]]:
    """Reads the runs that are done."""
    done: dict[Key, dict[str, Any]] = {}
    for line in store.read_text().splitlines() if store.exists() else ():
        *key, figures = json.loads(line)
        done[tuple(key)] = figures  # type: ignore[index]
    return done


def rows(done: Mapping[Key, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, list[tuple[Any, Any]]]]:
    """Yields scheme, parts and graph, with each seed's figures and exact training's."""
    pairs = defaultdict(list)
    for (graph, parts, scheme, seed), figures in done.items():
        if scheme != "exact" and (exact := done.get((graph, parts, "exact", seed))):
            pairs[scheme, parts, graph].append((figures, exact))
    for (scheme, parts, graph), runs in sorted(pairs.items()):
        yield scheme, parts, graph, runs


def table(done: Mapping[Key, Mapping[str, Any]], epochs: int) -> str:
    """Formats the measurements in Markdown."""
    head = "| scheme | parts | graph | seeds | points | exact | approximate | bytes | exposed |\n|---|---|---|---|---|---|---|---|---|"
    lines, means = [head], defaultdict(list)
    for scheme, parts, graph, runs in rows(done):
        points = [figures["test"] - exact["test"] for figures, exact in runs]
        error = f" ± {statistics.stdev(points) / len(points) ** 0.5:.2f}" if len(points) > 1 else ""
        share = statistics.fmean(figures["bytes"] / max(exact["bytes"], 1) for figures, exact in runs)
        exposure = statistics.fmean(figures["exposed"] / exact["exposed"] for figures, exact in runs)
        approximate = statistics.fmean(figures["approximate"] for figures, _ in runs)
        means[scheme, parts].append((statistics.fmean(points), share, approximate))
        lines.append(
            f"| {scheme} | {parts} | {graph} | {len(points)} | {statistics.fmean(points):+.2f}{error} | "
            f"{statistics.fmean(exact['test'] for _, exact in runs):.1f} | {approximate:.0f} of {epochs} | {share:.2f} | {exposure:.2f} |"
        )
    lines += ["", "| scheme | parts | graphs | mean points | worst graph | bytes |", "|---|---|---|---|---|---|"]
    for (scheme, parts), values in sorted(means.items()):
        points, shares, _ = zip(*values, strict=True)
        lines.append(
            f"| {scheme} | {parts} | {len(values)} | {statistics.fmean(points):+.2f} | {min(points):+.2f} | "
            f"{statistics.fmean(shares):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", type=Path, help=".npz files and folders of graphs, small ones first")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES | TRIED, default=list(SCHEMES))
    parser.add_argument("--parts", nargs="+", default=PARTS)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--store", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    print("graphs:", ", ".join(path.stem for path in options.graphs), flush=True)
    done = read(options.store)
    options.store.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(0 if options.table else options.seeds):
        for path in options.graphs:
            keys = [(path.stem, parts, scheme, seed) for parts in options.parts for scheme in options.schemes]
            missing = [key for key in keys if key not in done]
            graph = load(path) if missing else None
            for key in missing:
                done[key] = run(graph, options, *key[1:])  # type: ignore[arg-type]
                with options.store.open("a") as lines:
                    lines.write(json.dumps([*key, done[key]]) + "\n")
    print(table(done, options.epochs))


if __name__ == "__main__":
    main()
