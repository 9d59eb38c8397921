"""Six tables with flaws: the two commands of job=init beside a tuned script of PyG.

Each folder has `edges.csv` and `nodes.csv` of the same kind of graph, with one flaw:
columns of scales from 3e-3 to 5e6, edges of one direction, 15 % empty cells, classes as
text, a class of 10 %, ids as UUIDs. Three models are measured on the nodes that test,
by accuracy, or by macro F1 for the uneven classes:

- what `gnnkit job=init` and then the command that it prints give
- what `gnnkit model=sage` gives without any other key
- the best of 24 configurations of plain PyG on the nodes that validate, or of 48 with
  class weights. The script knows each flaw: it scales, fills, makes edges undirected

    uv run python benchmarks/tables.py --minutes 1
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import json
import subprocess
import sys
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import to_undirected

FLAWS = ("scales", "one-way", "missing", "text labels", "uneven", "UUIDs")
NODES, WIDTH = 1500, 8
SCALES = np.array([3e-3, 5e6, 1, 40, 0.1, 1e4, 1, 300])
EPOCHS, PATIENCE = 300, 50
GRID = (("sage", "gcn"), (2, 3), (64,), (0.2, 0.5, 0.8), (0.0, 5e-4))


class Table:
    """A graph as its owner has it, and as somebody who knows all flaws reads it."""

    def __init__(self, flaw: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        classes = 2 if flaw == "uneven" else 4
        self.flaw, self.classes = flaw, classes
        self.labels = rng.choice(classes, NODES, p=[0.9, 0.1] if flaw == "uneven" else None)
        src, same = rng.integers(0, NODES, 3 * NODES), rng.random(3 * NODES) < 0.6
        members = [np.flatnonzero(self.labels == label) for label in range(classes)]
        dst = np.array(
            [rng.choice(members[self.labels[u]]) if s else rng.integers(NODES) for u, s in zip(src, same, strict=True)]
        )
        self.edges = np.stack([src, dst])[:, src != dst]
        centres = 0.6 * rng.normal(size=(classes, WIDTH))
        self.x = rng.normal(size=(NODES, WIDTH)) + centres[self.labels]
        self.empty = rng.random((NODES, WIDTH)) < (0.15 if flaw == "missing" else 0.0)
        self.split = rng.permutation(np.repeat(["train", "val", "test"], [900, 300, 300]))

    def write(self, folder: Path) -> None:
        scales = SCALES if self.flaw == "scales" else np.ones(WIDTH)
        cells = np.array([[f"{x:.6g}" for x in row] for row in (self.x + 3) * scales], dtype=object)
        cells[self.empty] = ""
        ids = [str(uuid.UUID(int=i + 10**20)) if self.flaw == "UUIDs" else str(i) for i in range(NODES)]
        names = ["ash", "birch", "cedar", "elm"] if self.flaw == "text labels" else ["0", "1", "2", "3"]
        rows = [[ids[i], names[self.labels[i]], self.split[i], *cells[i]] for i in range(NODES)]
        with (folder / "nodes.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "label", "split", *"abcdefgh"], *rows])
        pairs = [(ids[u], ids[v]) for u, v in self.edges.T]
        both = [] if self.flaw == "one-way" else [(v, u) for u, v in pairs]
        with (folder / "edges.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["src", "dst"], *pairs, *both])

    @property
    def figure(self) -> str:
        return "macro_f1" if self.flaw == "uneven" else "accuracy"

    def score(self, logits: Tensor, name: str) -> float:
        nodes = self.split == name
        actual, found = self.labels[nodes], logits.argmax(1).numpy()[nodes]
        if self.figure == "accuracy":
            return float((actual == found).mean())
        hits, either = (
            np.bincount(each, minlength=self.classes) for each in (actual[actual == found], [*actual, *found])
        )
        return float((2 * hits / either).mean())


class Net(nn.Module):
    def __init__(self, kind: str, layers: int, hidden: int, dropout: float, classes: int) -> None:
        super().__init__()
        widths, conv = [WIDTH, *[hidden] * (layers - 1), classes], {"sage": SAGEConv, "gcn": GCNConv}[kind]
        self.convs = nn.ModuleList(conv(*pair) for pair in itertools.pairwise(widths))
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = F.dropout(x.relu(), self.dropout, self.training) if i else x
            x = conv(x, edge_index)
        return x


def tuned(table: Table) -> float:
    """Returns the figure of the best of `GRID`, by the nodes that validate."""
    train = table.split == "train"
    x = np.where(table.empty, np.nan, table.x)
    x = (x - np.nanmean(x[train], 0)) / np.nanstd(x[train], 0)
    rows, edges = torch.from_numpy(np.nan_to_num(x)).float(), to_undirected(torch.from_numpy(table.edges))
    weights = [None, torch.from_numpy(len(train) / np.bincount(table.labels[train])).float()]
    found: list[tuple[float, float]] = []
    for keys in itertools.product(*GRID, weights if table.figure == "macro_f1" else [None]):
        found.append(trained(table, rows, edges, *keys))
    return max(found)[1]


def trained(
    table: Table,
    x: Tensor,
    edges: Tensor,
    kind: str,
    layers: int,
    hidden: int,
    dropout: float,
    decay: float,
    weight: Tensor | None,
) -> tuple[float, float]:
    """Trains until validation loss has not fallen for `PATIENCE` epochs."""
    torch.manual_seed(0)
    model, labels = Net(kind, layers, hidden, dropout, table.classes), torch.from_numpy(table.labels)
    train, val = (torch.from_numpy(table.split == name) for name in ("train", "val"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay)
    best, since, kept = float("inf"), 0, copy.deepcopy(model.state_dict())
    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x, edges)[train], labels[train], weight).backward()
        optimizer.step()
        with torch.no_grad():
            loss = float(F.cross_entropy(model.eval()(x, edges)[val], labels[val], weight))
        best, since, kept = (loss, 0, copy.deepcopy(model.state_dict())) if loss < best else (best, since + 1, kept)
        if since == PATIENCE:
            break
    model.load_state_dict(kept)
    with torch.no_grad():
        logits = model.eval()(x, edges)
    return table.score(logits, "val"), table.score(logits, "test")


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "gnnkit", *arguments], check=True, capture_output=True)


def test_figure(run: Path, table: Table) -> float:
    figures: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return float(figures[f"test_{table.figure}"])


def row(flaw: str, minutes: float, seed: int) -> list[str]:
    table = Table(flaw, seed)
    with TemporaryDirectory() as name:
        folder = Path(name)
        table.write(folder)
        data = ["dataset=edges", f"dataset.root={folder}"]
        rest = ["cache=false", "report=false", "logger=none"]
        command("job=init", *data, f"output={folder}/new", f"init.minutes={minutes}")
        command("--config-dir", f"{folder}/new", "+experiment=mine", *rest, f"output={folder}/run")
        fill = ["features.fill=zero"] if flaw == "missing" else []  # refused without
        command("strategy=vertex_centric", "model=sage", "workers=1", *data, *fill, *rest, f"output={folder}/plain")
        ours = [test_figure(folder / run, table) for run in ("run", "plain")]
    return [flaw, table.figure, *(f"{100 * value:.1f}" for value in (*ours, tuned(table)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flaws", nargs="+", choices=FLAWS, default=FLAWS)
    parser.add_argument("--minutes", type=float, default=2.0, help="of the trials of job=init")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    columns = ["flaw", "figure", "two commands", "model=sage alone", "tuned PyG"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for flaw in options.flaws:
        print(f"| {' | '.join(row(flaw, options.minutes, options.seed))} |", flush=True)


if __name__ == "__main__":
    main()
