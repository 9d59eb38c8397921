"""A user's script, which `test_typed_script.py` checks and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import Tensor, nn

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.graph import Graph, Split
from gnnkit.model import GraphModel, Nodes, Program
from gnnkit.nn import BatchNorm, Dropout, JumpingKnowledge
from gnnkit.sampler import LoadedBatch, Loader, NeighborSampler
from gnnkit.training.data import GraphDataModule
from gnnkit.training.logger import RunLogger


def draw(num_nodes: int = 60) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, num_nodes, (2, 5 * num_nodes))
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        features=rng.normal(size=(num_nodes, 5)),
        labels=rng.integers(0, 3, num_nodes),
        split=1 + np.arange(num_nodes) % 3,
    )


class Net(GraphModel):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_layers = 2
        widths = [in_features, 8, 8]
        self.linears = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.norm, self.drop = BatchNorm(8), Dropout(0.5)
        self.knowledge, self.out = JumpingKnowledge("cat"), nn.Linear(16, num_classes)

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        x = adjacency.aggregate(self.drop(x, adjacency), reduce="mean") + x[: adjacency.num_dst]
        out: Tensor = self.linears[index](x)
        return self.norm(out, adjacency).relu()


class Jumping(nn.Module):
    num_layers = 1

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.jump = nn.Linear(in_features, 8), JumpingKnowledge("max")
        self.out = nn.Linear(8, num_classes)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        (a,) = adjacencies
        x = self.first(x)
        out: Tensor = self.out(self.jump([x[: a.num_dst], a.aggregate(x, reduce="sum")]))
        return out


class Reach(Program):
    def start(self, nodes: Nodes) -> Tensor:
        return nodes.features.abs().sum(1, keepdim=True).sign()

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        return nodes.adjacency.aggregate(x, reduce="max").maximum(x)


class Patient(L.Callback):
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = bool(trainer.callback_metrics["val_loss"] < 0.1)


class Rows(RunLogger):
    def make(self, folder: Path) -> Logger:
        return CSVLogger(folder, name="rows")


def accuracy(result: gnnkit.Result, split: str = "test") -> float:
    return float(result[f"{split}_accuracy"])


graph = draw()
keys: dict[str, Any] = {"comm": "threads", "trainer": {"max_epochs": 2}, "report": False}
result = gnnkit.train(
    graph, strategy="vertex_centric", model=Net, workers=2, callbacks=[Patient()], logger="csv", **keys
)
value: float = accuracy(result)
folder: Path = result.folder
module: nn.Module = gnnkit.load(folder, Net(5, 3))
again = gnnkit.predict(folder, graph, model=Net, job="test", write=["logits"])
print(value, accuracy(again), sum(each.numel() for each in module.parameters()))
gnnkit.train(graph, strategy={"name": "vertex_centric"}, model=Jumping(5, 3), workers=2, **{**keys, "comm": "gloo"})
gnnkit.train(graph, strategy="vertex_centric", model=Reach(tolerance=0.0), comm="threads")
try:
    gnnkit.train(graph, strategy="vertex_centric", trainer={"lr": -1})
except gnnkit.UserError as error:
    print(error)

sampler = NeighborSampler(fanouts=[3, 2])
loader = Loader(graph, sampler, graph.split == Split.TRAIN, batch_size=16)
batches: list[LoadedBatch] = list(loader)
nodes: int = sum(len(batch.seeds) for batch in batches)
for data in Loader(graph, sampler, transform=LoadedBatch.to_pyg):
    print(data.x.shape)
module_of_data: L.LightningDataModule = GraphDataModule(graph, sampler, batch_size=16)
print(nodes, type(module_of_data).__name__)
