"""Three tasks beside PyG's own full-batch training, as means over seeds.

Both sides have the same layers of PyG, optimiser, epochs, labels, split, held-out edges
and pairs that evaluate. Labels of the first two tasks are made from the classes: the
set of classes that a third of the in-neighbours have, and the mean class of these.

    uv run python benchmarks/tasks.py path/to/cora.npz --seeds 5
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import negative_sampling

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.dataset.base import random_split
from gnnkit.dataset.npz import Npz
from gnnkit.graph import Graph, Split
from gnnkit.model.pyg import PyG
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler.links import Links, pairs_of
from gnnkit.strategy import Worker
from gnnkit.task import Task
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.regression import Regression

HIDDEN, LR = 32, 0.01
TASKS: dict[str, tuple[Callable[[], Task], str]] = {  # task, and the figure that is compared
    "multilabel": (Multilabel, "test_micro_f1"),
    "regression": (Regression, "test_mae"),
    "link_prediction": (LinkPrediction, "test_mrr"),
}


@dataclass(frozen=True)
class Problem:
    """One task on one graph."""

    name: str
    task: Task
    given: Graph  # what gnnkit reads
    graph: Graph  # what trains
    links: Links | None

    @classmethod
    def of(cls, name: str, graph: Graph) -> Problem:
        """Makes labels and held-out edges."""
        task = TASKS[name][0]()
        given = relabelled(graph, name)
        return cls(name, task, given, *task.prepare(given))

    def measure(self, outputs: Tensor) -> float:
        """The figure of outputs [num_nodes, width], as gnnkit measures."""
        owner = Partition(np.zeros(self.graph.num_nodes, np.int32), None, Grid(1, 1, 1))
        (shard,) = cut_all(self.graph, owner)

        def work(comm: Threads) -> dict[str, float]:
            return self.task.measure(outputs, Worker(comm, shard, torch.float32, 0, links=self.links))

        return Threads.run(work, 1, timeout=60.0)[0][TASKS[self.name][1]]


def relabelled(graph: Graph, name: str) -> Graph:
    """Returns the graph with labels for a task, and a random split of all nodes."""
    csc, classes, count = graph.csc, graph.labels, graph.num_classes
    split = random_split(classes, 0.2, 0.1, 0)
    degree, dst = np.diff(csc.indptr), np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    near = np.bincount(dst * count + classes[csc.indices], minlength=csc.num_nodes * count).reshape(-1, count)
    if name == "multilabel":
        return replace(graph, labels=3 * near >= np.maximum(degree, 1)[:, None], split=split)
    if name == "regression":
        mean = near @ np.arange(count) / np.maximum(degree, 1)
        return replace(graph, labels=mean.astype(np.float32), split=split)
    return replace(graph, split=split)


def layers(width: int, num_outputs: int) -> list[nn.Module]:
    """The layers of both sides."""
    return [SAGEConv(width, HIDDEN), nn.ReLU(), SAGEConv(HIDDEN, num_outputs)]


def ours(problem: Problem, strategy: str, workers: int, epochs: int, seed: int) -> float:
    """The figure of one run of gnnkit."""
    quiet = {"check_val_every_n_epoch": epochs, "checkpoint": False, "progress_bar": False}
    sampled = {"sampler": {"name": "neighbor", "fanouts": [10, 10]}} if strategy == "individual_sample" else {}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = gnnkit.train(
            problem.given,
            strategy=strategy,
            task=problem.name,
            model=lambda width, num_outputs: PyG(layers(width, num_outputs)),
            trainer={"max_epochs": epochs, "lr": LR, **quiet},
            workers=workers,
            threads=1,
            seed=seed,
            folder=Path(folder) / "run",
            **sampled,
        )
    return float(result[TASKS[problem.name][1]])


def theirs(problem: Problem, epochs: int, seed: int) -> float:
    """The figure of PyG's layers, trained full-batch on one process."""
    torch.manual_seed(seed)
    graph, task, n = problem.graph, problem.task, problem.graph.num_nodes
    x, edges = torch.tensor(graph.features), torch.from_numpy(pairs_of(graph.csc).T.copy())
    model = nn.ModuleList(layers(x.shape[1], task.num_outputs(graph.num_classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    rows, labels = torch.from_numpy(graph.split == Split.TRAIN), torch.from_numpy(np.array(graph.labels))

    def out() -> Tensor:
        h = x
        for layer in model:
            h = layer(h, edges) if isinstance(layer, SAGEConv) else layer(h)
        return h

    for _ in range(epochs):
        optimizer.zero_grad()
        if problem.links is None:
            loss = task.losses(out()[rows], labels[rows]).mean()
        else:
            pairs = torch.cat([edges, negative_sampling(edges, n, edges.shape[1])], 1)
            wanted = (torch.arange(pairs.shape[1]) < edges.shape[1]).float()
            loss = task.losses(out()[pairs.T], wanted).mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return problem.measure(out())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="an .npz file as dataset=npz reads it")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--strategy", choices=("vertex_centric", "individual_sample"), default="vertex_centric")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    graph = Npz(root=str(options.data.absolute()), row_normalize=True).load()
    for name in options.tasks:
        problem, found, pyg = Problem.of(name, graph), [], []
        for seed in range(options.seeds):
            found.append(ours(problem, options.strategy, options.workers, options.epochs, seed))
            pyg.append(theirs(problem, options.epochs, seed))
        shown = [f"{statistics.mean(each):.4f} +- {statistics.pstdev(each):.4f}" for each in (found, pyg)]
        print(f"{name:<16} {TASKS[name][1]:<14} gnnkit {shown[0]}   PyG {shown[1]}", flush=True)


if __name__ == "__main__":
    main()
