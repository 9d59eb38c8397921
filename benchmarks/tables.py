"""Tables with flaws: the two commands of job=init beside boosting and 20 lines of PyG.

Each folder has `edges.csv` and `nodes.csv` of the same kind of graph, with one flaw:

- rare: 1 % of the nodes are in the second class, and the average precision is measured
- missing: 15 % of the cells are empty
- dates: two columns are dates
- duplicates: some edges are listed up to ten times, and some nodes twice
- edge categories: a text column of the edges tells informative edges from others

The test figure is that of what `gnnkit job=init` and the printed command give, of
gradient boosting on the columns, and with the means over the neighbours, and of a
GraphSAGE of 20 lines in PyG. Boosting and PyG read the graph that gnnkit has read, so
cells are numbers, and stop by the nodes that validate. `benchmarks/recommend.py`
measures users and items.

    uv run python benchmarks/tables.py --minutes 1 --seeds 5

`--folders` measures folders of your own instead, of classes or numbers, each with a
split drawn for each seed, beside what is trained without `job=init`, too.

    uv run python benchmarks/tables.py --folders DATA/* --seeds 3
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_init import baselines
from gnnkit_plan import init
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit.graph import Graph, Split
from gnnkit.task import NodeTask
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression

FLAWS = ("rare", "missing", "dates", "duplicates", "edge categories")
COLUMNS = ("two commands", "plain default", "boosting", "boosting with means", "20 lines of PyG")
WIDTH, EPOCHS = 8, 200
DAY = datetime.date(2020, 1, 1)


def write(folder: Path, flaw: str, seed: int) -> None:
    """Writes both tables. Of the edges, 60 % join nodes of one class."""
    rng, rare = np.random.default_rng(seed), flaw == "rare"
    n, classes = 4000 if rare else 1500, 2 if rare else 4
    labels = rng.choice(classes, n, p=[0.99, 0.01] if rare else None)
    src, in_class = rng.integers(0, n, 3 * n), rng.random(3 * n) < 0.6
    members = [np.flatnonzero(labels == label) for label in range(classes)]
    dst = np.where(in_class, [rng.choice(members[label]) for label in labels[src]], rng.integers(0, n, 3 * n))
    x = rng.normal(size=(n, WIDTH)) + 0.6 * rng.normal(size=(classes, WIDTH))[labels]
    split = np.empty(n, object)
    for nodes in members:
        split[rng.permutation(nodes)] = np.repeat(["train", "val", "test"], _parts(len(nodes)))
    cells = np.array([[f"{value:.6g}" for value in row] for row in x], object)
    if flaw == "missing":
        cells[rng.random(cells.shape) < 0.15] = ""
    if flaw == "dates":
        days = np.round(365 * x[:, :2]).astype(int)
        cells[:, :2] = [[(DAY + datetime.timedelta(int(day))).isoformat() for day in row] for row in days]
    nodes = np.arange(n) if flaw != "duplicates" else np.append(np.arange(n), rng.integers(0, n, n // 20))
    kinds = np.where(in_class ^ (rng.random(3 * n) < 0.1), "colleague", "advert")
    times = rng.choice([1, 2, 10], 3 * n, p=[0.8, 0.1, 0.1]) if flaw == "duplicates" else np.ones(3 * n, int)
    edges = np.repeat(np.flatnonzero(src != dst), times[src != dst])
    kind = ["kind"] if flaw == "edge categories" else []
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = ([i, f"class {labels[i]}", split[i], *cells[i]] for i in nodes)
        csv.writer(file).writerows([["id", "label", "split", *"abcdefgh"], *rows])
    with (folder / "edges.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["src", "dst", *kind], *([src[e], dst[e], *([kinds[e]] if kind else [])] for e in edges)]
        )


def _parts(count: int) -> list[int]:
    """Returns 60, 20 and 20 % of a number."""
    held_out = count // 5
    return [count - 2 * held_out, held_out, held_out]


def by_commands(folder: Path, keys: list[str], figure: str, minutes: float) -> tuple[float, str]:
    """Returns the written experiment's test figure, and the verdict of job=init."""
    data = ["dataset=edges", f"dataset.root={folder}", *keys]
    _command("job=init", *data, f"output={folder}/new", f"init.minutes={minutes}", "cache=false")
    run_keys = ["cache=false", "report=false", "logger=none", f"output={folder}/run"]
    _command("--config-dir", f"{folder}/new", "+experiment=mine", *run_keys)
    figures = json.loads((folder / "run/result.json").read_text(encoding="utf-8"))
    lines = (folder / "new/experiment/mine.yaml").read_text(encoding="utf-8").splitlines()
    head = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    model = next(line for line in lines if "/model: " in line).split("  #")[0]
    labels = " with label_inputs" * any(line.startswith("label_inputs") for line in lines)
    return figures[f"test_{figure}"], f"{head[-1]};{model}{labels}; {head[-2]}"


def _command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "gnnkit", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)


def by_default(folder: Path, keys: list[str], figure: str) -> float:
    """Returns the test figure of training without job=init."""
    run_keys = ["cache=false", "report=false", "logger=none", f"output={folder}/plain"]
    _command("dataset=edges", f"dataset.root={folder}", *keys, "workers=1", *run_keys)
    return float(json.loads((folder / "plain/result.json").read_text(encoding="utf-8"))[f"test_{figure}"])


def by_boosting(graph: Graph, figure: str, seed: int, folder: Path) -> list[float]:
    """Returns the test figures on the columns, and on means and labels."""
    task = "regression" if figure == "mae" else "node_classification"
    keys = {"task": {"name": task, **({"loss": "absolute"} if figure == "mae" else {})}, "features": {"fill": "mean"}}
    trainer = {"monitor": f"val_{figure}", "check_val_every_n_epoch": 1}
    figures = []
    for neighbours in (False, True) if graph.features.shape[1] else ():
        model = {"name": "boosting", "neighbours": neighbours}
        labels = {"label_inputs": 0.5} if neighbours and figure != "mae" else {}
        run_keys = {"cache": False, "report": False, "logger": "none", "folder": folder / f"boosting-{neighbours}"}
        run = gnnkit.train(
            graph,
            model=model,
            strategy="vertex_centric",
            workers=1,
            trainer=trainer,
            seed=seed,
            **keys,
            **labels,
            **run_keys,
        )
        figures.append(float(run[f"test_{figure}"]))
    return figures or [0.0, 0.0]


def columns(graph: Graph) -> np.ndarray:
    """Returns the features, with NaN in empty cells."""
    rows = np.array(graph.features, dtype=np.float32)
    if graph.missing is not None:
        rows[graph.missing[:, 0], graph.missing[:, 1]] = np.nan
    return rows


def _task(graph: Graph) -> NodeTask:
    return Regression(scale="none") if graph.labels.dtype.kind == "f" else NodeClassification()


def by_pyg(graph: Graph, figure: str, seed: int) -> float:
    """Trains a GraphSAGE, and returns the test figure of the best epoch."""
    torch.manual_seed(seed)
    rows, train = columns(graph), graph.split == Split.TRAIN
    spread = np.nanstd(rows[train], 0)
    x = torch.from_numpy(np.nan_to_num((rows - np.nanmean(rows[train], 0)) / np.where(spread > 0, spread, 1))).float()
    x = x if x.shape[1] else torch.nn.Parameter(torch.randn(graph.num_nodes, 64) / 8)  # learned rows
    task, mean, deviation = _task(graph), 0.0, 1.0
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    edges, y = torch.from_numpy(np.stack([graph.csc.indices, targets])).long(), torch.from_numpy(graph.labels)
    if y.is_floating_point():
        mean, deviation = float(y[train].mean()), float(y[train].std())
    first, last = SAGEConv(x.shape[1], 64), SAGEConv(64, graph.num_classes)
    parameters = [*first.parameters(), *last.parameters(), *([x] if x.requires_grad else [])]
    optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)
    best, sign = list[tuple[float, float]](), -1 if y.is_floating_point() else 1
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        hidden = F.dropout(first(x, edges).relu(), 0.5)
        out = last(hidden, edges)[train]
        wrong = F.l1_loss(out[:, 0], (y[train].float() - mean) / deviation) if sign < 0 else None
        (F.cross_entropy(out, y[train]) if wrong is None else wrong).backward()
        optimizer.step()
        with torch.no_grad():
            out = last(first(x, edges).relu(), edges) * deviation + mean
        scores = [baselines.measure(graph, task, out, f"{split}_{figure}") for split in ("val", "test")]
        best.append((scores[0] or 0.0, scores[1] or 0.0))
    return max(best, key=lambda pair: sign * pair[0])[1]


def row(flaw: str, minutes: float, seed: int) -> list[float]:
    figure = "average_precision" if flaw == "rare" else "accuracy"
    keys = {"duplicates": "first"} if flaw == "duplicates" else {}  # as the refusal advises
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, flaw, seed)
        command_score, verdict = by_commands(folder, [f"dataset.{key}={keys[key]}" for key in keys], figure, minutes)
        graph = EdgeFolder(name, **keys).load().symmetrize()
        plain = by_default(folder, [f"dataset.{key}={keys[key]}" for key in keys], figure)
        boosting_scores = by_boosting(graph, figure, seed, folder)
    figures = [command_score, plain, *boosting_scores, by_pyg(graph, figure, seed)]
    print(f"{flaw}, seed {seed}: {[round(score, 4) for score in figures]} {verdict}", file=sys.stderr, flush=True)
    return figures


def row_of_folder(folder: Path, minutes: float, seed: int) -> list[float]:
    """Measures a folder's graph with a split drawn by the seed."""
    graph = EdgeFolder(str(folder), split=init.SPLIT, seed=seed, symmetrize=True).load()
    classes = graph.labels.dtype.kind != "f"
    figure = (init._figure(graph, "node_classification") or "val_accuracy").removeprefix("val_") if classes else "mae"
    keys = [f"dataset.split={init.SPLIT}".replace(" ", ""), f"dataset.seed={seed}", f"seed={seed}"]
    with TemporaryDirectory() as name:
        copy = Path(name)
        for file in ("edges.csv", "nodes.csv"):
            (copy / file).symlink_to(folder.absolute() / file)
        command_score, verdict = by_commands(copy, keys, figure, minutes)
        keys += ["dataset.symmetrize=true", *(["inputs=learned"] if not graph.features.shape[1] else [])]
        plain = by_default(copy, [*keys, *([] if classes else ["task=regression"])], figure)
        boosting_scores = by_boosting(graph, figure, seed, copy)
    figures = [command_score, plain, *boosting_scores, by_pyg(graph, figure, seed)]
    scores = [round(score, 4) for score in figures]
    print(f"{folder.name}, seed {seed}: {figure} {scores} {verdict}", file=sys.stderr, flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flaws", nargs="+", choices=FLAWS, default=FLAWS)
    parser.add_argument("--folders", nargs="+", type=Path, help="measure these in place of the flaws")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the trials of job=init")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed, which also draws the table (default: 0)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(['flaw', *COLUMNS])} |\n|{'---|' * (1 + len(COLUMNS))}")
    for name in options.folders or options.flaws:
        measure = row_of_folder if options.folders else row
        figures = [measure(name, options.minutes, options.first + seed) for seed in range(options.seeds)]
        columns = list(zip(*figures, strict=True))
        unit = 100 if max(map(max, columns)) <= 1 else 1  # errors are in the labels' unit
        cells = [f"{unit * statistics.mean(values):.1f} ± {unit * statistics.pstdev(values):.1f}" for values in columns]
        print(f"| {' | '.join([str(name), *cells])} |", flush=True)


if __name__ == "__main__":
    main()
