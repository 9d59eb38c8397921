"""Test accuracy of a plain command, with defaults only, beside the same model in PyG.

    uv run python benchmarks/defaults.py DATA --models sage --seeds 10
    uv run python benchmarks/defaults.py DATA --graphs cora --keys trainer.lr=0.003

DATA is a folder with `.npz` files that `dataset=npz` reads. Each run is

    gnnkit dataset=npz dataset.root=FILE model=NAME strategy=vertex_centric

on one rank and one thread. With `--keys`, further keys apply to gnnkit only. PyG's
model has the same layers, width, dropout, optimiser, rate and epochs on the features
that gnnkit reads, and keeps the model of the best validation of every tenth epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import statistics
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from pyg_models import Two, accuracy, read
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, SAGEConv

import gnnkit
from gnnkit.launch.processes import inline

CONVOLUTIONS = {"gcn": GCNConv, "sage": SAGEConv}
EPOCHS, EVERY, HIDDEN, LR = 100, 10, 64, 0.01


def ours(path: Path, model: str, keys: dict[str, Any], seed: int) -> float:
    fixed_keys = {"workers": 1, "threads": 1, "comm": "threads", "logger": "none", "report": False, "write": []}
    trainer = {"checkpoint": False, "progress_bar": False}
    data = {"name": "npz", "root": str(path)}
    overrides = [f"{key}={value}" for key, value in keys.items()]
    with TemporaryDirectory() as folder, inline(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        result = gnnkit.train(
            dataset=data,
            model=model,
            strategy="vertex_centric",
            trainer=trainer,
            seed=seed,
            folder=Path(folder) / "run",
            overrides=overrides,
            **fixed_keys,
        )
    return 100 * float(result["test_accuracy"])


def peer(path: Path, model: str, seed: int) -> float:
    """Trains PyG's layers in a plain loop."""
    torch.manual_seed(seed)
    data, conv = read(str(path)), CONVOLUTIONS[model]
    validation = data.clone()
    validation.test_mask = data.val_mask
    net = Two(conv(data.num_features, HIDDEN), conv(HIDDEN, int(data.y.max()) + 1))
    optimizer, best, state = torch.optim.Adam(net.parameters(), LR), -1.0, net.state_dict()
    for epoch in range(EPOCHS):
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        if (epoch + 1) % EVERY == 0 and (value := accuracy(validation, net)) >= best:
            best, state = value, copy.deepcopy(net.state_dict())
    net.load_state_dict(state)
    return accuracy(data, net)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the graphs")
    parser.add_argument("--graphs", nargs="+", default=["cora", "citeseer", "pubmed", "amazon_photo", "coauthor_cs"])
    parser.add_argument("--models", nargs="+", default=["sage"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keys", nargs="*", default=[], help="further keys of gnnkit, such as trainer.lr=0.003")
    parser.add_argument("--no-peers", action="store_true", help="only gnnkit")
    arguments = parser.parse_args()
    keys = {key: yaml.safe_load(value) for key, value in (text.split("=", 1) for text in arguments.keys)}
    print("graph         model  program   accuracy  deviation", flush=True)
    for name in arguments.graphs:
        path = (arguments.data / f"{name}.npz").absolute()
        for model in arguments.models:
            rows = {"gnnkit": [ours(path, model, keys, seed) for seed in range(arguments.seeds)]}
            if not arguments.no_peers and model in CONVOLUTIONS:
                rows["PyG"] = [peer(path, model, seed) for seed in range(arguments.seeds)]
            for program, values in rows.items():
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                print(f"{name:13} {model:6} {program:8} {statistics.mean(values):9.2f}  {spread:9.2f}", flush=True)


if __name__ == "__main__":
    main()
