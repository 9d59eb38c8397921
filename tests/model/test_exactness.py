"""What makes a model inexact on several ranks is known before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from gnnkit.engine import Adjacency
from gnnkit.model.exactness import inexact
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.pyg import PyG
from gnnkit.model.sage import GraphSAGE
from gnnkit.nn import BatchNorm, Dropout, LayerNorm

WIDTH = 6
DROP = "differs on every layout: use gnnkit.nn.Dropout, or adjacency.dropout"
DRAW = "differs on every layout: derive draws from adjacency.key and adjacency.src_nodes"
NORM = "takes its statistics over the rows of one rank: use gnnkit.nn.BatchNorm, or torch's LayerNorm"


class Own(nn.Module):
    """A model that works on rows after an aggregation."""

    num_layers = 1

    def __init__(self, part: nn.Module | None = None, function: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(WIDTH, 4), part or nn.Identity()
        self.function = function or (lambda x: x)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        x = self.linear(adjacencies[0].dropout(adjacencies[0].aggregate(x), 0.5, training=self.training))
        return self.function(self.part(x))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


class Single(nn.Module):
    """A layer that does not run in float64, as the comparison does."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Own(nn.Dropout(0.5)), f"part: torch's own Dropout {DROP}"),
        (Own(nn.AlphaDropout(0.5)), f"part: torch's own AlphaDropout {DROP}"),
        (Own(Nested()), f"part.inner.1: torch's own Dropout {DROP}"),
        (Own(None, lambda x: F.dropout(x, 0.3)), f"the model: torch's own Dropout {DROP}"),
        (Own(None, lambda x: x + torch.rand_like(x)), f"the model: a draw of torch (rand_like) {DRAW}"),
        (Own(None, lambda x: x[torch.randperm(len(x))]), f"the model: a draw of torch (randperm) {DRAW}"),
        (Own(nn.BatchNorm1d(4)), f"part: BatchNorm1d {NORM}"),
        (Own(pyg.BatchNorm(4)), f"part: BatchNorm {NORM}"),
        (Own(pyg.GraphNorm(4)), f"part: GraphNorm {NORM}"),
        (Own(pyg.PairNorm()), f"part: PairNorm {NORM}"),
        (Own(pyg.LayerNorm(4, mode="graph")), f"part: LayerNorm {NORM}"),
        (Own(None, lambda x: F.batch_norm(x, None, None, training=True)), f"the model: BatchNorm {NORM}"),
        (PyG([pyg.GATConv(WIDTH, 4, dropout=0.5)]), "layers.0: GATConv drops by torch's own Dropout, which differs on"),
        (PyG([pyg.TransformerConv(WIDTH, 4, dropout=0.5)]), "layers.0: TransformerConv drops by torch's own Dropout,"),
        (
            Own(None, lambda x: x - x.mean(0)),
            "the model: outputs on two ranks differ from those on one, as with x.mean(0)",
        ),
        (Own(None, lambda x: F.normalize(x, dim=0)), "the model: outputs on two ranks differ from those on one"),
        (Own(nn.Dropout(0.5), lambda x: x.view(7, 7)), f"part: torch's own Dropout {DROP}"),
    ],
)
def test_what_is_not_exact_is_named(model: nn.Module, expected: str) -> None:
    (reason,) = inexact(model, WIDTH)
    assert reason.startswith(expected)


@pytest.mark.parametrize(
    "model",
    [
        GCN(WIDTH, 3, dropout=0.5),
        GAT(WIDTH, 3),
        GIN(WIDTH, 3),
        GraphSAGE(WIDTH, 3),
        GINE(WIDTH, 3, edge_width=2),
        PyG([pyg.GATConv(WIDTH, 4), nn.Dropout(0.5), nn.ReLU()]),
        Own(nn.Dropout(0.0)),
        Own(nn.LayerNorm(4)),
        Own(pyg.LayerNorm(4, mode="node")),
        PyG([pyg.SAGEConv(WIDTH, 4), BatchNorm(4), Dropout(0.5), LayerNorm(4)]),
        GCN(WIDTH, 3, norm="batch"),
        PyG([pyg.SAGEConv(WIDTH, 4, aggr=pyg.Set2Set(WIDTH, 1))]),
        Own(None, lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4))),
        Own(None, lambda x: x.view(7, 7)),
        PyG([pyg.SAGEConv(WIDTH, 4), nn.Dropout(0.5), Single()]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_nothing_is_said_of_a_model_that_is_exact_or_cannot_be_tried(model: nn.Module) -> None:
    assert inexact(model, WIDTH, 2) == []


def test_the_random_generator_stays_as_it_is() -> None:
    model = Own(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4)))
    generator = torch.get_rng_state()
    assert len(inexact(model, WIDTH)) == 2
    assert torch.equal(torch.get_rng_state(), generator)
