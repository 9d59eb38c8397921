"""Classes and numbers of edges: two commands beside gradient boosting and PyG.

Each folder has `edges.csv`, with a column of labels and perhaps times, and perhaps
`nodes.csv`. Edges with times are split by time, others at random, 70 / 15 / 15. Prints
the test figure of

- what `job=init` and the printed command give
- gradient boosting on the edge's columns and those of both ends
- the same with the counts of the ends' edges (`inputs_of_head`)
- a GraphSAGE of 30 lines in PyG, which scores the ends' rows and the edge's columns

Boosting and PyG read the columns that gnnkit has read. The figure is the average
precision of a rare class, the accuracy of other classes, and the mean absolute error of
numbers.

    uv run python benchmarks/labelled_edges.py FOLDER --label fraud --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
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

from gnnkit.graph import Split
from gnnkit.task.labelled_edges import NUM_COUNTS, LabelledEdges, edge_targets, inputs_of_head
from gnnkit.task.node_classification import EdgeClassification
from gnnkit.task.regression import EdgeRegression

SHARES, EPOCHS, WIDTH = [0.7, 0.15, 0.15], 200, 64
NAMES = ("two commands", "boosting", "boosting with counts", "30 lines of PyG")


class Edges:
    """The labelled edges of a folder, and their columns."""

    def __init__(self, folder: Path, label: str, numbers: bool, seed: int) -> None:
        graph = EdgeFolder(str(folder), edge_label=label, symmetrize=False).load()
        has_times = graph.edge_time is not None
        self.split = f"{{by: time, shares: {SHARES}}}" if has_times else str(SHARES)
        self.graph = graph.split_by_time(SHARES) if has_times else graph.draw_edge_split(SHARES, seed)
        self.task: LabelledEdges = EdgeRegression(scale="none") if numbers else EdgeClassification()
        self.rows, targets = self.task.read_rows(self.graph), edge_targets(self.graph, None)
        self.ends, head_inputs = targets.rows, inputs_of_head(targets)
        self.columns = np.hstack([head_inputs, *(np.asarray(graph.features)[end] for end in targets.rows.T)])
        self.counts = np.arange(head_inputs.shape[1] - NUM_COUNTS, head_inputs.shape[1])
        self.features = head_inputs[:, :-NUM_COUNTS]
        main_figure = init._figure(self.rows, "edge_classification") or "val_accuracy"
        self.figure = "mae" if numbers else main_figure.removeprefix("val_")

    def of(self, split: Split) -> np.ndarray:
        return np.flatnonzero(self.rows.labelled & (self.rows.split == split))

    def measure(self, outputs: Tensor, split: str) -> float:
        figure = baselines.measure(self.rows, self.task, outputs, f"{split}_{self.figure}")
        assert figure is not None
        return figure


def by_boosting(edges: Edges, columns: np.ndarray, seed: int) -> float:
    x = edges.columns[:, columns] if len(columns) else np.zeros((len(edges.columns), 1))
    y, train = edges.rows.labels, edges.of(Split.TRAIN)
    if edges.figure == "mae":
        numbers = HistGradientBoostingRegressor(loss="absolute_error", random_state=seed).fit(x[train], y[train])
        return edges.measure(torch.from_numpy(numbers.predict(x))[:, None], "test")
    classes = HistGradientBoostingClassifier(random_state=seed).fit(x[train], y[train])
    shares = np.full((len(x), edges.rows.num_classes), 1e-9)
    shares[:, classes.classes_] = classes.predict_proba(x)
    return edges.measure(torch.from_numpy(shares).clamp(min=1e-9).log(), "test")


def by_pyg(edges: Edges, seed: int) -> float:
    """Trains on the edges that training sees, and scores by the best epoch."""
    torch.manual_seed(seed)
    graph, train, numbers = edges.graph, edges.of(Split.TRAIN), edges.figure == "mae"
    message_edges = train if graph.edge_time is not None else slice(None)
    ends = torch.from_numpy(edges.ends)
    index = torch.cat([ends[message_edges], ends[message_edges].flip(1)]).t()
    embedding = torch.nn.Parameter(torch.randn(graph.num_nodes, 16) / 4)
    features, columns = (_standard(np.asarray(part)) for part in (graph.features, edges.features))
    first, last = SAGEConv(features.shape[1] + 16, WIDTH), SAGEConv(WIDTH, WIDTH)
    outputs = 1 if numbers else edges.rows.num_classes
    head = torch.nn.Sequential(
        torch.nn.Linear(2 * WIDTH + columns.shape[1], WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, outputs)
    )
    layers = torch.nn.ModuleList([first, last, head])
    optimizer = torch.optim.Adam([embedding, *layers.parameters()], lr=0.01, weight_decay=5e-4)
    y = torch.from_numpy(edges.rows.labels)
    mean, deviation = (float(y[train].mean()), float(y[train].std())) if numbers else (0.0, 1.0)

    def score(dropout: float) -> Tensor:
        hidden = F.dropout(first(torch.cat([features, embedding], 1), index).relu(), dropout)
        scores: Tensor = head(torch.cat([last(hidden, index)[ends].flatten(1), columns], 1)) * deviation + mean
        return scores

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


def row(folder: Path, label: str, numbers: bool, minutes: float, seed: int) -> tuple[str, list[float]]:
    edges = Edges(folder, label, numbers, seed)
    keys = [f"dataset.edge_label={label}", f"dataset.split={edges.split}", f"dataset.seed={seed}", f"seed={seed}"]
    keys += ["task=edge_regression"] * numbers
    with TemporaryDirectory() as name:
        for file in ("edges.csv", "nodes.csv"):
            if (folder / file).exists():
                (Path(name) / file).symlink_to((folder / file).absolute())
        command_score, verdict = by_commands(Path(name), keys, edges.figure, minutes)
    every = np.arange(edges.columns.shape[1])
    boosting_scores = [by_boosting(edges, columns, seed) for columns in (np.delete(every, edges.counts), every)]
    figures = [command_score, *boosting_scores, by_pyg(edges, seed)]
    print(f"{folder.name}, seed {seed}: {edges.figure} {[round(score, 4) for score in figures]} {verdict}", flush=True)
    return edges.figure, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--label", required=True, help="column of edges.csv")
    parser.add_argument("--numbers", action="store_true", help="labels are numbers, also if they are whole")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the trials of job=init")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.folders:
        arguments = options.label, options.numbers, options.minutes
        runs = [row(folder, *arguments, seed) for seed in range(options.seeds)]
        spreads = [
            (statistics.mean(scores), statistics.pstdev(scores))
            for scores in zip(*(run[1] for run in runs), strict=True)
        ]
        print(f"| {folder.name}, {runs[0][0]} | {' | '.join(NAMES)} |\n|{'---|' * (len(NAMES) + 1)}")
        print(f"| {options.seeds} seeds | {' | '.join(f'{mean:.4f} ± {spread:.4f}' for mean, spread in spreads)} |")


if __name__ == "__main__":
    main()
