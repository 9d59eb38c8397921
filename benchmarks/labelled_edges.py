"""Classes and numbers of edges: two commands beside gradient boosting and PyG.

Each folder has `edges.csv`, with a column of labels and perhaps times, and perhaps
`nodes.csv`. Edges with times are split by time, others at random, 70 / 15 / 15. Prints
the test figure of

- what `job=init` and the printed command give, or one run with `--keys`
- gradient boosting on the edge's columns and those of both ends
- the same with counts and labels of the ends' earlier edges (`inputs_of_head`)
- a GraphSAGE of 30 lines in PyG, which scores the ends' rows and the edge's columns
- the mean of the last 10 labels of the same two ends before the edge, or else of the
  destination, if edges have times.
  Unlike the models, it reads those of validation and test edges, too

Boosting and PyG read the columns that gnnkit has read. The figure is the average
precision of a rare class, the accuracy of other classes, and the mean absolute error of
numbers.

    uv run python benchmarks/labelled_edges.py FOLDER --label fraud --seeds 3
    uv run python benchmarks/labelled_edges.py FOLDER --label fraud --keys model=sage
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_init import baselines
from gnnkit_plan import init
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from tables import by_commands
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit.graph import Split
from gnnkit.task.labelled_edges import NUM_COUNTS, LabelledEdges, edge_targets, inputs_of_head, outputs_of_labels
from gnnkit.task.node_classification import EdgeClassification
from gnnkit.task.regression import EdgeRegression

SHARES, EPOCHS, WIDTH = [0.7, 0.15, 0.15], 200, 64
NAMES = ("gnnkit", "boosting", "boosting with counts and labels", "30 lines of PyG", "last labels")


class Edges:
    """The labelled edges of a folder, and their columns."""

    def __init__(self, folder: Path, label: str, numbers: bool, seed: int) -> None:
        graph = EdgeFolder(str(folder), edge_label=label, symmetrize=False).load()
        timed = graph.edge_time is not None
        self.split = f"{{by: time, shares: {SHARES}}}" if timed else str(SHARES)
        self.graph = graph.split_by_time(SHARES) if timed else graph.draw_edge_split(SHARES, seed)
        self.task: LabelledEdges = EdgeRegression(scale="none") if numbers else EdgeClassification()
        self.rows, targets = self.task.read_rows(self.graph), edge_targets(self.graph, None)
        self.ends, self.features = targets.rows, inputs_of_head(targets)[:, :-NUM_COUNTS]
        inputs = inputs_of_head(targets, label_delay=0 if timed else None)
        self.columns = np.hstack([inputs, *(np.asarray(graph.features)[end] for end in targets.rows.T)])
        self.earlier = np.arange(self.features.shape[1], inputs.shape[1])  # columns that other edges give
        chosen = init._figure(self.rows, "edge_classification") or "val_accuracy"
        self.figure = "mae" if numbers else chosen.removeprefix("val_")

    def of(self, split: Split) -> np.ndarray:
        return np.flatnonzero(self.rows.labelled & (self.rows.split == split))

    def measure(self, outputs: Tensor, split: str) -> float:
        figure = baselines.measure(self.rows, self.task, outputs, f"{split}_{self.figure}")
        assert figure is not None
        return figure


def by_one_run(edges: Edges, keys: list[str], seed: int) -> float:
    task = "edge_regression" if edges.figure == "mae" else "edge_classification"
    keys = [f"task={task}", f"seed={seed}", f"trainer.monitor=val_{edges.figure}", *keys]
    rest = {"workers": 1, "launcher": "inline", "cache": False, "report": False, "logger": "none"}
    with TemporaryDirectory() as name:
        run = gnnkit.train(edges.graph.symmetrize(), overrides=keys, folder=Path(name, "run"), **rest)
    return float(run[f"test_{edges.figure}"])


def by_boosting(edges: Edges, columns: np.ndarray, seed: int) -> float:
    y, train = edges.rows.labels, edges.of(Split.TRAIN)
    columns = columns[~np.isnan(edges.columns[np.ix_(train, columns)]).all(0)]  # sklearn needs a number in each
    x = edges.columns[:, columns] if len(columns) else np.zeros((len(edges.columns), 1))
    if edges.figure == "mae":
        numbers = HistGradientBoostingRegressor(loss="absolute_error", random_state=seed).fit(x[train], y[train])
        return edges.measure(torch.from_numpy(numbers.predict(x))[:, None], "test")
    classes = HistGradientBoostingClassifier(random_state=seed).fit(x[train], y[train])
    shares = np.full((len(x), edges.rows.num_classes), 1e-9)
    shares[:, classes.classes_] = classes.predict_proba(x)
    return edges.measure(torch.from_numpy(shares).clamp(min=1e-9).log(), "test")


def by_last_labels(edges: Edges) -> float:
    """Scores each edge by earlier labels of its destination, or NaN without times."""
    numbers = edges.figure == "mae"
    targets = replace(edge_targets(edges.graph, None), label=np.asarray(edges.rows.labels))
    outputs = outputs_of_labels(targets, targets.ids, 1 if numbers else edges.rows.num_classes)
    return float("nan") if outputs is None else edges.measure(outputs, "test")


def by_pyg(edges: Edges, seed: int) -> float:
    """Trains on the edges that training sees, and scores by the best epoch."""
    torch.manual_seed(seed)
    graph, train, numbers = edges.graph, edges.of(Split.TRAIN), edges.figure == "mae"
    passed = train if graph.edge_time is not None else slice(None)
    ends = torch.from_numpy(edges.ends)
    index = torch.cat([ends[passed], ends[passed].flip(1)]).t()
    learned = torch.nn.Parameter(torch.randn(graph.num_nodes, 16) / 4)
    features, columns = (_standard(np.asarray(part)) for part in (graph.features, edges.features))
    first, last = SAGEConv(features.shape[1] + 16, WIDTH), SAGEConv(WIDTH, WIDTH)
    outputs = 1 if numbers else edges.rows.num_classes
    head = torch.nn.Sequential(
        torch.nn.Linear(2 * WIDTH + columns.shape[1], WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, outputs)
    )
    layers = torch.nn.ModuleList([first, last, head])
    optimizer = torch.optim.Adam([learned, *layers.parameters()], lr=0.01, weight_decay=5e-4)
    y = torch.from_numpy(edges.rows.labels)
    mean, deviation = (float(y[train].mean()), float(y[train].std())) if numbers else (0.0, 1.0)

    def score(dropout: float) -> Tensor:
        hidden = F.dropout(first(torch.cat([features, learned], 1), index).relu(), dropout)
        scored: Tensor = head(torch.cat([last(hidden, index)[ends].flatten(1), columns], 1)) * deviation + mean
        return scored

    best = []
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        out = score(0.5)[train]
        (F.l1_loss(out[:, 0], y[train]) if numbers else F.cross_entropy(out, y[train])).backward()
        optimizer.step()
        if epoch % 5 == 4:
            with torch.no_grad():
                out = score(0.0)
            best.append([edges.measure(out, split) for split in ("val", "test")])
    return (min if numbers else max)(best)[1]


def _standard(rows: np.ndarray) -> Tensor:
    spread = rows.std(0)
    return torch.from_numpy((rows - rows.mean(0)) / np.where(spread > 0, spread, 1)).float()


def row(folder: Path, seed: int, options: argparse.Namespace) -> tuple[str, list[float]]:
    label, numbers = options.label, options.numbers
    edges = Edges(folder, label, numbers, seed)
    keys = [f"dataset.edge_label={label}", f"dataset.split={edges.split}", f"dataset.seed={seed}", f"seed={seed}"]
    keys += ["task=edge_regression"] * numbers
    with TemporaryDirectory() as name:
        for file in ("edges.csv", "nodes.csv"):
            if (folder / file).exists():
                (Path(name) / file).symlink_to((folder / file).absolute())
        if options.keys:
            ours, verdict = by_one_run(edges, options.keys, seed), " ".join(options.keys)
        else:
            ours, verdict = by_commands(Path(name), keys, edges.figure, options.minutes)
    every = np.arange(edges.columns.shape[1])
    boosted = [by_boosting(edges, columns, seed) for columns in (np.delete(every, edges.earlier), every)]
    figures = [ours, *boosted, by_pyg(edges, seed), by_last_labels(edges)]
    print(f"{folder.name}, seed {seed}: {edges.figure} {[round(one, 4) for one in figures]} {verdict}", flush=True)
    return edges.figure, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--label", required=True, help="column of edges.csv")
    parser.add_argument("--numbers", action="store_true", help="labels are numbers, also if they are whole")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the trials of job=init")
    parser.add_argument("--keys", nargs="+", default=[], help="of one run, instead of the two commands")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="seed, so that a later call continues")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.folders:
        runs = [row(folder, seed, options) for seed in range(options.first, options.first + options.seeds)]
        spreads = [
            (statistics.mean(one), statistics.pstdev(one)) for one in zip(*(run[1] for run in runs), strict=True)
        ]
        print(f"| {folder.name}, {runs[0][0]} | {' | '.join(NAMES)} |\n|{'---|' * (len(NAMES) + 1)}")
        print(f"| {options.seeds} seeds | {' | '.join(f'{mean:.4f} ± {spread:.4f}' for mean, spread in spreads)} |")


if __name__ == "__main__":
    main()
