"""Cluster-GCN, PSGD-PA and LLCG as loops of plain PyG, beside ours, on the same split.

Each loop is short, shares no code with gnnkit but the reading of the data and the parts
of METIS, and follows the paper:

- Cluster-GCN (Chiang et al., KDD 2019): METIS cuts the nodes into 128 clusters. A step
  is on 16 clusters at random, with all edges among them, normalised in the batch.
- PSGD-PA (Ramezani et al., ICLR 2022): each of four workers makes 4 steps on its part
  of METIS, without cut edges. Then the parameters become their mean.
- LLCG (same paper): a step of the server on the whole graph follows each mean.

Ours has the same model (two GCN layers of 64), optimiser, rates and numbers of steps.
Four workers of Cluster-GCN have 4 of their own clusters each in a step of all, without
the edges to those of other workers. Our own default of the other two has control
variates, which the paper has not. All keep the model with the best validation of every
fourth epoch. Test accuracy in percent, mean over seeds and standard error:

    uv run python benchmarks/published.py --data path/to/cora.npz --seeds 10
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gnnkit_metis import Metis
from pyg_models import Two, accuracy, read
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import subgraph

import gnnkit
from gnnkit.graph import Graph

HIDDEN, LR, DECAY = 64, 0.01, 5e-4
WORKERS, STEPS = 4, 4  # workers, and steps of a worker from one mean to the next
CLUSTERS, TAKEN = 128, 16  # of the graph, and of a batch
AS_PUBLISHED = {"options": {"control_variates": False, "degrees": "local"}}
AVERAGED = {"name": "preset_workload", "halo": "none", "average": "parameters", "sync_every": STEPS}
LLCG = {"name": "llcg", "halo": "none", "sync_every": STEPS}


def clustered(workers: int) -> tuple[int, dict[str, Any]]:
    numbers = {"clusters": CLUSTERS // workers, "clusters_per_batch": TAKEN // workers}
    return workers, {
        "name": "cluster",
        "clusters_by": "metis",
        "options": {"degrees": "local"},
        **numbers,
    }


OURS: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {  # workers and strategies by published way and row
    "Cluster-GCN": {"gnnkit, 1 worker": clustered(1), "gnnkit, 4 workers": clustered(4)},
    "PSGD-PA": {
        "gnnkit": (WORKERS, {**AVERAGED, **AS_PUBLISHED}),
        "gnnkit with control variates": (WORKERS, AVERAGED),
    },
    "LLCG": {
        "gnnkit": (WORKERS, {**LLCG, **AS_PUBLISHED, "correction_steps": 1}),
        "gnnkit with control variates": (WORKERS, LLCG),
    },
}
Epochs = Iterator[nn.Module]  # the model after each epoch


def net(data: Data) -> nn.Module:
    return Two(GCNConv(data.num_features, HIDDEN), GCNConv(HIDDEN, int(data.y.max()) + 1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)


def part(data: Data, nodes: Tensor) -> Data:
    """Returns the graph of some nodes and the edges among them."""
    edges, _ = subgraph(nodes, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes)
    return Data(data.x[nodes], edges, y=data.y[nodes], train_mask=data.train_mask[nodes])


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data) -> None:
    if not data.train_mask.any():
        return
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()


def metis(data: Data, number: int) -> list[Tensor]:
    """Returns the nodes of each part, the parts that our own run has."""
    membership = torch.from_numpy(Metis().assign_nodes(Graph.from_pyg(data), number))
    return [(membership == cluster).nonzero().flatten() for cluster in range(number)]


def clusters(data: Data, model: nn.Module, epochs: int) -> Epochs:
    optimizer, parts = adam(model), metis(data, CLUSTERS)
    for _ in range(epochs):
        for batch in torch.randperm(CLUSTERS).split(TAKEN):
            step(model, optimizer, part(data, torch.cat([parts[cluster] for cluster in batch])))
        yield model


def averaged(data: Data, model: nn.Module, epochs: int, corrects: bool = False) -> Epochs:
    shares = [part(data, nodes) for nodes in metis(data, WORKERS)]
    weights = torch.tensor([float(share.train_mask.sum()) for share in shares])
    workers = [copy.deepcopy(model) for _ in shares]
    optimizers, server = [adam(worker) for worker in workers], adam(model)
    for epoch in range(epochs):
        for worker, optimizer, share in zip(workers, optimizers, shares, strict=True):
            step(worker, optimizer, share)
        mean(workers, weights / weights.sum(), model)
        if (epoch + 1) % STEPS == 0:
            if corrects:
                step(model, server, data)
            for worker in workers:
                worker.load_state_dict(model.state_dict())
        yield model


@torch.no_grad()
def mean(workers: list[nn.Module], weights: Tensor, model: nn.Module) -> None:
    """Writes the weighted mean of the workers' parameters into the model."""
    for parameter, *replicas in zip(model.parameters(), *(worker.parameters() for worker in workers), strict=True):
        parameter.copy_(torch.einsum("w,w...->...", weights, torch.stack(replicas)))


PLAIN: dict[str, Callable[[Data, nn.Module, int], Epochs]] = {
    "Cluster-GCN": clusters,
    "PSGD-PA": averaged,
    "LLCG": lambda data, model, epochs: averaged(data, model, epochs, corrects=True),
}


def plain(data: Data, way: str, seed: int, epochs: int) -> float:
    """Returns the test accuracy of the epoch with the best validation."""
    torch.manual_seed(seed)
    validation = Data(data.x, data.edge_index, y=data.y, test_mask=data.val_mask)
    results = [
        (accuracy(validation, model), accuracy(data, model))
        for epoch, model in enumerate(PLAIN[way](data, net(data), epochs))
        if (epoch + 1) % STEPS == 0
    ]
    return max(results, key=lambda each: each[0])[1]


def ours(data: Data, workers: int, strategy: dict[str, Any], seed: int, epochs: int) -> float:
    torch.manual_seed(seed)
    trainer = {"max_epochs": epochs, "lr": LR, "weight_decay": DECAY, "monitor": "val_accuracy"}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = gnnkit.train(
            data,
            model=net(data),
            strategy=strategy,
            partition="metis",
            workers=workers,
            threads=1,
            comm="threads",
            seed=seed,
            report=False,
            logger="none",
            trainer={**trainer, "check_val_every_n_epoch": STEPS, "checkpoint": False, "progress_bar": False},
            folder=Path(folder) / "run",
        )
    return 100 * float(result["test_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="an .npz of a graph")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--ways", nargs="+", choices=PLAIN, default=list(PLAIN))
    options = parser.parse_args()
    data, seeds = read(options.data), range(options.seeds)
    print("| way | program | test accuracy, % |\n|---|---|---|", flush=True)
    for way in options.ways:
        rows = {"plain PyG": [plain(data, way, seed, options.epochs) for seed in seeds]}
        for name, (workers, strategy) in OURS[way].items():
            rows[name] = [ours(data, workers, strategy, seed, options.epochs) for seed in seeds]
        for name, figures in rows.items():
            error = statistics.stdev(figures) / len(figures) ** 0.5 if len(figures) > 1 else 0.0
            print(f"| {way} | {name} | {statistics.mean(figures):.1f} ± {error:.1f} |", flush=True)


if __name__ == "__main__":
    main()
