"""A class of 1.6 % of 4,000 customers: two commands beside gradient boosting and PyG.

Customers churn by a risk that depends on their columns, on those of the customers
whom they call, and on chance. Columns have very different scales, one is text, and a
tenth of the bills are missing. Each model is measured on the customers that test, by
average precision, F1 of the class, and the expected calibration error:

- what `gnnkit job=init` and then the command that it prints give
- what `gnnkit model=sage` gives without any other key
- scikit-learn's `HistGradientBoostingClassifier` on the columns, and on the columns
  and the means over neighbours, with the threshold that is best in validation
- GraphSAGE of PyG in 20 lines, which predicts the more probable class

    uv run --with scikit-learn python benchmarks/rare_class.py --seeds 5
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import to_undirected

from gnnkit.task.classes import HALF, best_threshold, calibration_error, calibration_sums
from gnnkit.task.ranking import areas

CUSTOMERS, RARE, CALLS = 4000, 64, 12_000
TARIFFS = ("basic", "family", "business")
NAMES = ("average precision", "F1", "calibration error")
Scores = tuple[float, float, float]  # in the order of NAMES


class Customers:
    """The table of customers, and who called whom."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        place = rng.random(CUSTOMERS)
        src = rng.integers(0, CUSTOMERS, CALLS)
        near = np.argsort(place)[
            np.clip(np.argsort(np.argsort(place))[src] + rng.integers(-25, 26, CALLS), 0, CUSTOMERS - 1)
        ]
        dst = np.where(rng.random(CALLS) < 0.8, near, rng.integers(0, CUSTOMERS, CALLS))
        self.edges = np.stack([src, dst])[:, src != dst]
        months, support = rng.exponential(30, CUSTOMERS), rng.poisson(0.4 + 0.8 * (np.sin(20 * place) > 0.6))
        bill, tariff = rng.lognormal(3, 0.6, CUSTOMERS), rng.integers(0, 3, CUSTOMERS)
        usage = rng.normal(2e6, 5e5, CUSTOMERS)
        own_risk = 1.2 * np.log1p(support) - 0.04 * np.minimum(months, 36) + 0.8 * (tariff == 0) * (bill > 25)
        risk = own_risk + 2.5 * self.means(own_risk[:, None])[:, 0] + rng.gumbel(size=CUSTOMERS) * 0.5
        self.labels = np.zeros(CUSTOMERS, np.int64)
        self.labels[np.argsort(-risk)[:RARE]] = 1
        self.cells = np.stack([months, support, np.where(rng.random(CUSTOMERS) < 0.1, np.nan, bill), usage, tariff], 1)
        self.split = np.empty(CUSTOMERS, "<U5")
        for label in (0, 1):  # stratified
            members = rng.permutation(np.flatnonzero(self.labels == label))
            for name, part in zip(
                ("train", "val", "test"),
                np.split(members, [len(members) * 6 // 10, len(members) * 8 // 10]),
                strict=True,
            ):
                self.split[part] = name

    def means(self, rows: np.ndarray) -> np.ndarray:
        """Returns the means of known values over neighbours in both directions."""
        src, dst = np.concatenate([self.edges, self.edges[::-1]], 1)
        sums, counts = np.zeros_like(rows), np.zeros_like(rows)
        np.add.at(sums, dst, np.nan_to_num(rows)[src])
        np.add.at(counts, dst, ~np.isnan(rows)[src])
        return sums / np.maximum(counts, 1)

    def write(self, folder: Path) -> None:
        with (folder / "nodes.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "label", "split", "months", "support", "bill", "used", "tariff"])
            for i, (label, split, cells) in enumerate(zip(self.labels, self.split, self.cells, strict=True)):
                numbers = ["" if np.isnan(cell) else f"{cell:.6g}" for cell in cells[:4]]
                writer.writerow([f"c{i}", ("stays", "churns")[label], split, *numbers, TARIFFS[int(cells[4])]])
        with (folder / "edges.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["src", "dst"], *((f"c{u}", f"c{v}") for u, v in self.edges.T)])

    def scores(self, probabilities: np.ndarray, threshold: float | None = None) -> Scores:
        """Measures probabilities, with the best threshold in validation by default."""
        rows = {name: torch.from_numpy(self.split == name) for name in ("val", "test")}
        scores, labels = torch.from_numpy(np.asarray(probabilities, np.float64)), torch.from_numpy(self.labels)
        if threshold is None:
            threshold = best_threshold(scores[rows["val"]], labels[rows["val"]])
        scores, labels = scores[rows["test"]], labels[rows["test"]]
        is_predicted = scores >= threshold
        f1 = 2 * float(labels[is_predicted].sum()) / max(float(is_predicted.sum() + labels.sum()), 1.0)
        sums = calibration_sums(torch.maximum(scores, 1 - scores), (scores >= HALF) == (labels == 1))
        return areas(scores, labels)[1], f1, calibration_error(sums, len(labels))


def boosted(table: Customers, *, neighbours: bool) -> Scores:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = np.concatenate([table.cells[:, :4], np.eye(3)[table.cells[:, 4].astype(int)]], 1)
    rows = np.concatenate([rows, table.means(rows)], 1) if neighbours else rows
    train = table.split == "train"
    model = HistGradientBoostingClassifier(random_state=0).fit(rows[train], table.labels[train])
    return table.scores(model.predict_proba(rows)[:, 1])


class Sage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = SAGEConv(width, 64), SAGEConv(64, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.one(x, edge_index).relu(), 0.5, self.training)
        return self.two(x, edge_index)


def plain_pyg(table: Customers) -> Scores:
    """Trains as PyG's examples do. The reader of the table has scaled and filled it."""
    train = torch.from_numpy(table.split == "train")
    rows = np.concatenate([table.cells[:, :4], np.eye(3)[table.cells[:, 4].astype(int)]], 1)
    rows = (rows - np.nanmean(rows[train], 0)) / np.nanstd(rows[train], 0)
    x, edges = torch.from_numpy(np.nan_to_num(rows)).float(), to_undirected(torch.from_numpy(table.edges))
    labels = torch.from_numpy(table.labels)
    torch.manual_seed(0)
    model = Sage(x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(x, edges)[train], labels[train]).backward()
        optimizer.step()
    with torch.no_grad():
        return table.scores(model.eval()(x, edges).softmax(1)[:, 1].numpy(), HALF)


def commands(table: Customers, minutes: float) -> tuple[Scores, Scores]:
    """Returns the scores of the two commands, and of `model=sage` alone."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        table.write(folder)
        data, run_keys = ["dataset=edges", f"dataset.root={folder}"], ["cache=false", "report=false", "logger=none"]
        run(["job=init", *data, f"init.minutes={minutes}", f"output={folder}/new"])
        run(["--config-dir", f"{folder}/new", "+experiment=mine", *run_keys, f"output={folder}/run"])
        sage = ["strategy=vertex_centric", "model=sage", "workers=1", "features.fill=mean", "dataset.symmetrize=true"]
        run([*sage, *data, *run_keys, f"output={folder}/plain"])
        return measured(folder / "run"), measured(folder / "plain")


def measured(folder: Path) -> Scores:
    """Reads the figures of a run, as its user sees them."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    f1, error = result["per_class"]["test"]["churns"]["f1"], result["calibration"]["test_error"]
    return float(result["test_average_precision"]), float(f1), float(error)


def run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "gnnkit", *arguments], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of the trials of job=init")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    scores: dict[str, list[Scores]] = {}
    for seed in range(options.seeds):
        table = Customers(seed)
        ours, sage = commands(table, options.minutes)
        scores_by_method = {"two commands": ours, "model=sage alone": sage, "PyG's GraphSAGE": plain_pyg(table)}
        scores_by_method |= {"boosting, columns": boosted(table, neighbours=False)}
        scores_by_method |= {"boosting, columns and neighbours' means": boosted(table, neighbours=True)}
        for name, values in scores_by_method.items():
            scores.setdefault(name, []).append(values)
            print(f"seed {seed}: {name}: {', '.join(f'{value:.3f}' for value in values)}", file=sys.stderr, flush=True)
    print(f"| model | {' | '.join(NAMES)} |\n|{'---|' * (1 + len(NAMES))}")
    for name, rows in scores.items():
        columns = (
            f"{statistics.fmean(column):.3f} +- {statistics.pstdev(column):.3f}" for column in zip(*rows, strict=True)
        )
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
