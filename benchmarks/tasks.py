"""Tasks beside PyG's own modules and training loop, as means over seeds.

Both sides have the same layers, optimiser, epochs, labels, split, held-out edges and
pairs that evaluate. Losses, loop and sampling of the other side are PyG's and torch's.

- node_classification: classes and split of the file, the GCN of Kipf and Welling
- multilabel: which of the most frequent features (words) a node has. These features are
  taken out of the input, and nodes are split at random
- regression: the mean class of a node's in-neighbours
- link_prediction: held-out edges. PyG's loop predicts all edges while reading them, as
  its example does, or (disjoint) a share that is not read in the epoch
- leak: link prediction from sampled blocks, as it is, and with the edges to predict
  left in the blocks

    uv run python benchmarks/tasks.py --data path/to/cora.npz --seeds 10
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from gnnkit_formats.npz import Npz
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import negative_sampling, to_undirected

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.graph import CSC, Graph, Split, random_split
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler.links import pairs_of
from gnnkit.sampler.targets import TaskRows
from gnnkit.strategy import Worker
from gnnkit.task import Task
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression

WIDTH, LR = 32, 0.01  # of hidden layers
WORDS = 30  # classes of multilabel
KIPF = {"hidden": 16, "dropout": 0.5}
SHARE = 0.3  # of the edges that an epoch predicts without reading
TASKS: dict[str, tuple[Callable[[], Task], str]] = {  # task, and the figure that is compared
    "node_classification": (NodeClassification, "test_accuracy"),
    "multilabel": (Multilabel, "test_roc_auc"),
    "regression": (Regression, "test_mae"),
    "link_prediction": (LinkPrediction, "test_mrr"),
}
LEAK = "gnnkit.strategy.seeds.without_pairs"  # takes edges to predict out of blocks


@dataclass(frozen=True)
class Problem:
    """One task on one graph."""

    name: str
    task: Task
    given: Graph  # what gnnkit reads
    graph: Graph  # what trains
    links: TaskRows

    @classmethod
    def of(cls, name: str, graph: Graph) -> Problem:
        """Makes labels and held-out edges."""
        task = TASKS[name][0]()
        new_graph = relabelled(graph, name)
        return cls(name, task, new_graph, *task.prepare(new_graph))

    def measure(self, outputs: Tensor) -> dict[str, float]:
        """The figures of outputs [num_nodes, width], as gnnkit measures."""
        owner = Partition(np.zeros(self.graph.num_nodes, np.int32), None, Grid(1, 1, 1))
        (shard,) = cut_all(self.graph, owner)

        def work(comm: Threads) -> dict[str, float]:
            return self.task.measure(outputs, Worker(comm, shard, torch.float32, 0, rows=self.links))

        return Threads.run(work, 1, timeout=60.0)[0]


def relabelled(graph: Graph, name: str) -> Graph:
    """Returns the graph with the labels of a task, and for most a random split."""
    if name == "node_classification":
        return graph
    split = random_split(np.ones(graph.num_nodes, np.bool_), (0.2, 0.1, 0.7), 0)
    if name == "multilabel":
        has = graph.features > 0
        words = np.argsort(-has.sum(0), kind="stable")[:WORDS]
        return replace(graph, labels=has[:, words], features=np.delete(graph.features, words, 1), split=split)
    if name == "regression":
        return replace(graph, labels=mean_class(graph.csc, graph.labels), split=split)
    return replace(graph, split=split)


def mean_class(csc: CSC, classes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:  # [num_nodes] float32
    """The mean class of the in-neighbours that have a class. NaN without any."""
    near, dst = classes[csc.indices], np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    count, total = (np.bincount(dst[near >= 0], values, csc.num_nodes) for values in (None, near[near >= 0]))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def layers(width: int, num_outputs: int) -> list[nn.Module]:
    """The layers of both sides, but for node_classification."""
    return [SAGEConv(width, WIDTH), nn.ReLU(), SAGEConv(WIDTH, num_outputs)]


class Published(nn.Module):
    """The GCN of PyG's example."""

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.last = GCNConv(width, KIPF["hidden"]), GCNConv(KIPF["hidden"], num_outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = F.dropout(x, KIPF["dropout"], self.training)
        h = F.dropout(self.first(h, edges).relu(), KIPF["dropout"], self.training)
        out: Tensor = self.last(h, edges)
        return out


class Layers(nn.Module):
    """`layers` over one list of edges."""

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers(width, num_outputs))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index) if isinstance(layer, SAGEConv) else layer(x)
        return x


def ours(problem: Problem, keys: dict[str, Any], epochs: int, seed: int) -> dict[str, float]:
    """The result of one run of gnnkit, on ranks that are threads."""
    trainer: dict[str, Any] = {"max_epochs": epochs, "lr": LR, "check_val_every_n_epoch": epochs}
    model: Any = Layers
    if problem.name == "node_classification":
        trainer, model = trainer | {"weight_decay": 5e-4}, {"name": "gcn", **KIPF}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = gnnkit.train(
            problem.given,
            task=problem.name,
            model=model,
            trainer={**trainer, "checkpoint": False, "progress_bar": False},
            comm="threads",
            threads=1,
            seed=seed,
            folder=Path(folder) / "run",
            **keys,
        )
    return dict(result)


def theirs(problem: Problem, epochs: int, seed: int, *, disjoint: bool) -> dict[str, float]:
    """The figures of PyG's layers, trained full-batch on one process."""
    torch.manual_seed(seed)
    graph, is_classification = problem.graph, problem.name == "node_classification"
    x, edges = torch.tensor(graph.features), torch.from_numpy(pairs_of(graph.csc).T.copy())
    model = (Published if is_classification else Layers)(x.shape[1], problem.task.num_outputs(graph.num_classes))
    decay_parameters = model.first.parameters() if is_classification else []
    other_parameters = model.last.parameters() if is_classification else model.parameters()
    groups = [{"params": list(decay_parameters), "weight_decay": 5e-4}, {"params": list(other_parameters)}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=LR)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = edge_loss(model, x, edges, disjoint) if problem.links.drawn else node_loss(problem, model(x, edges))
        torch.autograd.backward(loss)
        optimizer.step()
    with torch.no_grad():
        return problem.measure(model.eval()(x, edges))


def node_loss(problem: Problem, out: Tensor) -> Tensor:
    """The mean loss of the labelled training nodes."""
    labels = torch.from_numpy(np.array(problem.graph.labels))
    rows = torch.from_numpy((problem.graph.split == Split.TRAIN) & problem.graph.labelled)
    if problem.name == "node_classification":
        return F.cross_entropy(out[rows], labels[rows])
    if problem.name == "multilabel":
        return F.binary_cross_entropy_with_logits(out[rows], labels[rows].float())
    return F.mse_loss(out[rows, 0], labels[rows])


def edge_loss(model: nn.Module, x: Tensor, edges: Tensor, disjoint: bool) -> Tensor:
    """The mean loss of edges and of as many drawn pairs.

    Args:
        model: Embeds nodes.
        x: [num_nodes, width] features.
        edges: [2, num_edges] edges in both directions.
        disjoint: Whether a share is predicted that is not read, instead of all edges.
    """
    read = targets = edges
    if disjoint:
        once = edges[:, edges[0] < edges[1]]
        is_target = torch.rand(once.shape[1]) < SHARE
        read, targets = to_undirected(once[:, ~is_target], num_nodes=len(x)), to_undirected(once[:, is_target])
    pairs = torch.cat([targets, negative_sampling(edges, len(x), targets.shape[1])], 1)
    labels = (torch.arange(pairs.shape[1]) < targets.shape[1]).float()
    ends = model(x, read)[pairs]
    return F.binary_cross_entropy_with_logits((ends[0] * ends[1]).sum(-1), labels)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.4f} +- {statistics.pstdev(values):.4f}"


def compare(name: str, graph: Graph, options: argparse.Namespace) -> None:
    """Prints the figure of both sides."""
    problem, figure = Problem.of(name, graph), TASKS[name][1]
    keys = {"strategy": "vertex_centric", "workers": options.workers}
    rows: dict[str, list[float]] = {"gnnkit": [], "PyG": []}
    if problem.links.drawn:
        rows |= {"PyG, disjoint": []}
    for seed in range(options.seeds):
        rows["gnnkit"].append(ours(problem, keys, options.epochs, seed)[figure])
        for row in list(rows)[1:]:
            rows[row].append(theirs(problem, options.epochs, seed, disjoint="disjoint" in row)[figure])
        newest = ", ".join(f"{row} {values[-1]:.4f}" for row, values in rows.items())
        print(f"{name}, seed {seed}: {newest}", file=sys.stderr, flush=True)
    for row, values in rows.items():
        print(f"{name:<20} {figure:<14} {row:<14} {spread(values)}", flush=True)


def plant(graph: Graph, options: argparse.Namespace) -> None:
    """Prints training loss and test figure of honest and of leaking batches."""
    problem = Problem.of("link_prediction", graph)
    sampler = {"name": "neighbor", "fanouts": [10, 10]}
    keys = {"strategy": {"name": "individual_sample", "batch_size": 512}, "sampler": sampler}
    for row in ("honest", "leaking"):
        patch = mock.patch(LEAK, lambda block, *_: block) if row == "leaking" else contextlib.nullcontext()
        with patch:
            results = [
                ours(problem, {**keys, "workers": options.workers}, options.leak_epochs, seed)
                for seed in range(options.seeds)
            ]
        for figure in ("train_loss", "test_roc_auc", "test_mrr"):
            print(f"{'leak':<20} {figure:<14} {row:<14} {spread([result[figure] for result in results])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="an .npz file as dataset=npz reads it")
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, "leak"], default=[*TASKS, "leak"])
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    parser.add_argument("--epochs", type=int, default=200, help="default: 200")
    parser.add_argument("--leak-epochs", type=int, default=20, help="of the sampled runs (default: 20)")
    parser.add_argument("--seeds", type=int, default=10, help="default: 10")
    options = parser.parse_args()
    torch.set_num_threads(1)
    graph = Npz(root=str(options.data.absolute()), row_normalize=True).load()
    for name in options.tasks:
        if name == "leak":
            plant(graph, options)
        else:
            compare(name, graph, options)


if __name__ == "__main__":
    main()
