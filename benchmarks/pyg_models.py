"""Ten models of PyG as they are, beside plain PyG on the same split.

Each class is written as PyG's examples write theirs, and trains by a plain loop over
the whole graph, then by `gnnkit.train(data, model=Net)`. First parameters, optimiser,
rate, decay and epochs are equal. Figures are those of the model after the last epoch.

- accuracy on the test nodes, in percent: mean over seeds and standard deviation
- logits: the largest difference between the logits of all nodes as gnnkit has written
  them, and those that the loaded class computes on plain tensors, over their largest

    uv run python benchmarks/pyg_models.py --data path/to/cora.npz --models GCN GAT
    uv run python benchmarks/pyg_models.py --data path/to/cora.npz --sampled
    uv run python benchmarks/pyg_models.py --data path/to/cora.npz --models SAGE --ours

With `--ours` gnnkit trains its own model of that name, from first parameters of its
own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gnnkit_formats.npz import Npz
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    DeepGCNLayer,
    GATConv,
    GCN2Conv,
    GCNConv,
    GENConv,
    GINConv,
    JumpingKnowledge,
    PNAConv,
    SAGEConv,
    TransformerConv,
)
from torch_geometric.utils import degree

import gnnkit

HIDDEN, LR, DECAY = 32, 0.01, 5e-4
OURS = {"GCN": "gcn", "SAGE": "sage"}  # gnnkit's models of the same layers


class Two(nn.Module):
    """Two convolutions with dropout before each."""

    def __init__(self, first: nn.Module, second: nn.Module, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.conv1, self.conv2, self.activation = first, second, activation

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.activation(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


class GIN(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GINConv(mlp(width, HIDDEN)) for width in (inputs, HIDDEN))
        self.out = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.out(F.dropout(x, p=0.5, training=self.training))


class Propagated(nn.Module):
    """APPNP: a network of nodes alone, then ten rounds of personalised PageRank."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, classes)
        self.prop = APPNP(10, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, p=0.5, training=self.training)
        x = F.dropout(self.lin1(x).relu(), p=0.5, training=self.training)
        return self.prop(self.lin2(x), edge_index)


class GCN2(nn.Module):
    def __init__(self, inputs: int, classes: int, layers: int = 8) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, classes)
        self.convs = nn.ModuleList(GCN2Conv(HIDDEN, 0.1, 0.5, layer + 1) for layer in range(layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, p=0.5, training=self.training)
        x = x_0 = self.lin1(x).relu()
        for conv in self.convs:
            x = F.dropout(x, p=0.5, training=self.training)
            x = conv(x, x_0, edge_index).relu()
        return self.lin2(F.dropout(x, p=0.5, training=self.training))


class JKNet(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(width, HIDDEN) for width in (inputs, HIDDEN, HIDDEN))
        self.jump, self.out = JumpingKnowledge("cat"), nn.Linear(3 * HIDDEN, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = F.dropout(conv(x, edge_index).relu(), p=0.5, training=self.training)
            xs.append(x)
        return self.out(self.jump(xs))


class DeepGCN(nn.Module):
    def __init__(self, inputs: int, classes: int, layers: int = 6) -> None:
        super().__init__()
        self.encoder, self.out = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, classes)
        self.layers = nn.ModuleList(self.layer() for _ in range(layers))

    @staticmethod
    def layer() -> nn.Module:
        conv = GENConv(HIDDEN, HIDDEN, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer")
        return DeepGCNLayer(conv, nn.LayerNorm(HIDDEN), nn.ReLU(inplace=True), block="res+", dropout=0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.layers[0].conv(self.encoder(x), edge_index)
        for layer in self.layers[1:]:
            x = layer(x, edge_index)
        x = self.layers[0].act(self.layers[0].norm(x))
        return self.out(F.dropout(x, p=0.1, training=self.training))


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU(), nn.Linear(out, out))


def pna(inputs: int, classes: int, degrees: Tensor) -> nn.Module:
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    first, second = (PNAConv(*widths, aggregators, scalers, degrees) for widths in ((inputs, 16), (16, classes)))
    return Two(first, second)


def models(degrees: Tensor) -> dict[str, Callable[[int, int], nn.Module]]:
    """Returns a maker for each model. `degrees` counts the nodes by in-degree."""
    return {
        "GCN": lambda a, b: Two(GCNConv(a, HIDDEN), GCNConv(HIDDEN, b)),
        "SAGE": lambda a, b: Two(SAGEConv(a, HIDDEN), SAGEConv(HIDDEN, b)),
        "GAT": lambda a, b: Two(GATConv(a, 8, heads=4), GATConv(HIDDEN, b, concat=False), F.elu),
        "GIN": GIN,
        "PNA": lambda a, b: pna(a, b, degrees),
        "APPNP": Propagated,
        "GCN2": GCN2,
        "JKNet": JKNet,
        "DeepGCN": DeepGCN,
        "Transformer": lambda a, b: Two(TransformerConv(a, 8, heads=4), TransformerConv(HIDDEN, b, concat=False)),
    }


def read(path: str) -> Data:
    """Reads a graph as a user of PyG has it."""
    graph = Npz(path).load()
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    edges = torch.from_numpy(np.stack([graph.csc.indices.astype(np.int64), ends]))
    x = torch.from_numpy(np.array(graph.features, np.float32))
    split, y = torch.from_numpy(np.array(graph.split)), torch.from_numpy(np.array(graph.labels)).long()
    masks = {f"{name}_mask": split == value for value, name in enumerate(("train", "val", "test"), 1)}
    return Data(x, edges, y=y, **masks)


def plain(data: Data, model: nn.Module, epochs: int) -> float:
    """Trains by a loop of plain PyG. Returns the accuracy on the test nodes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    return accuracy(data, model)


@torch.no_grad()
def accuracy(data: Data, model: nn.Module) -> float:
    predictions = model.eval()(data.x, data.edge_index)[data.test_mask].argmax(1)
    return 100 * float((predictions == data.y[data.test_mask]).float().mean())


def trained(
    data: Data, model: nn.Module | dict[str, Any], workers: int, seed: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Trains by gnnkit. Returns the accuracy, and the difference of logits.

    `model` is a module, or the keys of a model of gnnkit.
    """
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": workers, "comm": "threads", "seed": seed}
    if options.sampled:
        keys["strategy"] = {"name": "individual_sample", "batch_size": max(64 // workers, 1)}
        keys["sampler"] = {"name": "neighbor", "fanouts": [10] * 4}
    keys["trainer"] = {"max_epochs": options.epochs, "lr": LR, "weight_decay": DECAY, "check_val_every_n_epoch": 1000}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = Path(folder) / "run"
        result = gnnkit.train(data, model=model, folder=run, write=["logits"], report=False, logger="none", **keys)
        trained_model = gnnkit.load(run, model) if isinstance(model, nn.Module) else gnnkit.load(run)
        logits = np.load(run / "logits.npy")
        with torch.no_grad():
            reference = trained_model.eval()(data.x, data.edge_index).numpy()
    difference = float(np.abs(logits - reference).max() / np.abs(reference).max())
    return 100 * result["test_accuracy"], difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="an .npz of a graph")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    names = list(models(torch.ones(1)))
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--sampled", action="store_true", help="train gnnkit in sampled batches")
    parser.add_argument("--ours", action="store_true", help=f"gnnkit trains its own model: {', '.join(OURS)}")
    options = parser.parse_args()
    if options.ours:
        options.models = [name for name in options.models if name in OURS]
    data = read(options.data)
    makers = models(torch.bincount(degree(data.edge_index[1], data.num_nodes, dtype=torch.int64)))
    columns = ["model", "PyG", *(f"gnnkit, {n} workers" for n in options.workers), "logits"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in options.models:
        ours = {"name": OURS[name], "hidden": HIDDEN, "dropout": 0.5} if options.ours else None
        print(f"| {name} | {' | '.join(row(data, makers[name], options, ours))} |", flush=True)


def row(
    data: Data, make: Callable[[int, int], nn.Module], options: argparse.Namespace, ours: dict[str, Any] | None
) -> list[str]:
    """Measures one model with all seeds. `ours` are the keys of gnnkit's own one."""
    figures: dict[int, list[float]] = {workers: [] for workers in (0, *options.workers)}
    largest = 0.0
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        model = make(data.num_features, int(data.y.max()) + 1)
        start = {name: value.clone() for name, value in model.state_dict().items()}
        figures[0].append(plain(data, model, options.epochs))
        for workers in options.workers:
            model.load_state_dict(start)
            figure, difference = trained(data, ours or model, workers, seed, options)
            figures[workers].append(figure)
            largest = max(largest, difference)
    cells = [f"{statistics.mean(values):.1f} ± {statistics.pstdev(values):.1f}" for values in figures.values()]
    return [*cells, f"{largest:.0e}"]


if __name__ == "__main__":
    main()
