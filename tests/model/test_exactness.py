"""What makes a model inexact on several ranks is known before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from gnnkit.engine import Adjacency
from gnnkit.model.exactness import ModelCheck, TrialRows, check_model, inexact
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.unchanged import adapted
from gnnkit.nn import BatchNorm, Dropout, LayerNorm
from tests.models import PyG

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
    """A layer that makes a tensor of torch's default type."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Own(nn.Dropout(0.5)), f"part: torch's own Dropout {DROP}"),
        (Own(nn.AlphaDropout(0.5)), f"part: torch's own AlphaDropout {DROP}"),
        (Own(Nested()), f"part.inner.1: torch's own Dropout {DROP}"),
        (Own(None, lambda x: F.dropout(x, 0.3)), f"Own: torch's own Dropout {DROP}"),
        (Own(None, lambda x: x + torch.rand_like(x)), f"Own: a draw of torch (rand_like) {DRAW}"),
        (Own(None, lambda x: x[torch.randperm(len(x))]), f"Own: a draw of torch (randperm) {DRAW}"),
        (Own(nn.BatchNorm1d(4)), f"part: BatchNorm1d {NORM}"),
        (Own(pyg.BatchNorm(4)), f"part: BatchNorm {NORM}"),
        (Own(pyg.GraphNorm(4)), f"part: GraphNorm {NORM}"),
        (Own(pyg.PairNorm()), f"part: PairNorm {NORM}"),
        (Own(pyg.LayerNorm(4, mode="graph")), f"part: LayerNorm {NORM}"),
        (Own(None, lambda x: F.batch_norm(x, None, None, training=True)), f"Own: BatchNorm {NORM}"),
        (PyG([pyg.GATConv(WIDTH, 4, dropout=0.5)]), "layers.0: GATConv drops by torch's own Dropout, which differs on"),
        (PyG([pyg.TransformerConv(WIDTH, 4, dropout=0.5)]), "layers.0: TransformerConv drops by torch's own Dropout,"),
        (
            Own(None, lambda x: x - x.mean(0)),
            "Own: outputs on several ranks differ from those on one, as with x.mean(0)",
        ),
        (Own(None, lambda x: F.normalize(x, dim=0)), "Own: outputs on several ranks differ from those on one"),
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
        PyG([pyg.SAGEConv(WIDTH, 4), nn.Dropout(0.5), Single()]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_nothing_is_said_of_a_model_that_is_exact(model: nn.Module) -> None:
    assert inexact(model, WIDTH, 2) == []


class Rows(nn.Module):
    """A PyG class that applies a function to the rows after a convolution."""

    def __init__(self, function: Callable[[Tensor], Tensor], part: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.function, self.part = pyg.GCNConv(WIDTH, 4), function, part or nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.part(self.function(self.conv(x, edge_index)))
        return rows


class Attention(nn.Module):
    """Attends over all rows."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.attend(x, x, x, need_weights=False)[0]
        return rows


class Embeds(nn.Module):
    """Embeds the integers of column 1, and passes the rest to `Rows`."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.rows = nn.Embedding(3, 1), Rows(function)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        columns = [x[:, :1], self.embed(x[:, 1].long()), x[:, 2:]]
        rows: Tensor = self.rows(torch.cat(columns, 1), edge_index)
        return rows


class GlobalAttention(nn.Module):
    """PyG's graph transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GPSConv(WIDTH, pyg.GCNConv(WIDTH, WIDTH), heads=2, norm=None)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.conv(x, edge_index)
        return rows


def top_half(x: Tensor) -> Tensor:
    best = x[:, 0].topk(len(x) // 2).indices
    return x + torch.zeros_like(x).index_copy(0, best, x[best])


MIXERS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(0),
    "largest": lambda x: x - x.amax(0),
    "softmax": lambda x: x.softmax(0),
    "norm": lambda x: F.normalize(x, dim=0),
    "quantile": lambda x: torch.where(x > x.quantile(0.7, dim=0), x, torch.zeros_like(x)),
    "top half": top_half,
    "sorted": lambda x: x.sort(0).values,
    "ranks": lambda x: x.argsort(0).argsort(0).to(x.dtype),
    "anchors": lambda x: torch.cdist(x, x[:3]),
    "first row": lambda x: x - x[0],
    "last row": lambda x: x - x[-1],
    "size": lambda x: x / len(x),
    "up to 20 rows": lambda x: x * (len(x) > 20),
    "up to 60 rows": lambda x: x * (len(x) > 60),
    "up to 1,000 rows": lambda x: x - x[:1] if x.size(0) > 1000 else x,
    "all pairs": lambda x: (x @ x.T).softmax(1) @ x,
    "identity in float32": lambda x: (x - x.mean(0)) @ torch.eye(4),
    "cumulative": lambda x: x.cumsum(0),
    "large": lambda x: 1e6 * x - x.sum(0),
    "small": lambda x: 1e-9 * x.mean(0) + 0 * x,
}
ROW_WISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "softmax": lambda x: x.softmax(1),
    "norm": lambda x: F.normalize(x, dim=1),
    "top two": lambda x: x.topk(2, 1).values,
    "identity in float32": lambda x: x @ torch.eye(4) + torch.arange(4) / 3,
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "dropout": lambda x: F.dropout(x, 0.5),
}


def categories(count: int = 50) -> TrialRows:
    rows = np.random.default_rng(0).normal(size=(count, WIDTH))
    rows[:, 1] = np.arange(count) % 3
    return TrialRows(WIDTH, features=rows)


@pytest.mark.parametrize("name", MIXERS)
def test_what_mixes_a_ranks_rows_is_systematic(name: str) -> None:
    check = check_model(adapted(Rows(MIXERS[name])), TrialRows(WIDTH))
    assert (check.random, check.unchecked, len(check.systematic)) == ((), None, 1)


@pytest.mark.parametrize("limit", [60, 1000, 5000])
def test_a_limit_on_the_number_of_edges_is_systematic(limit: int) -> None:
    class Limited(Rows):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x, edge_index) * (1 if edge_index.size(1) > limit else 2)

    assert len(check_model(adapted(Limited(lambda x: x)), TrialRows(WIDTH)).systematic) == 1


@pytest.mark.parametrize("trained", [(5, 9), (300, 600), (300, 9_000), (10**6, 10**7)])
def test_graphs_of_a_comparison_are_no_larger_than_the_graph_to_train_on(trained: tuple[int, int]) -> None:
    sizes: list[tuple[int, int]] = []

    class Sized(Rows):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            sizes.append((len(x), edge_index.size(1)))
            return super().forward(x, edge_index)

    check_model(adapted(Sized(lambda x: x)), TrialRows(WIDTH, train_size=trained))
    nodes, edges = max(sizes)
    assert nodes <= max(trained[0], sum(trained) // 4) + 30
    assert nodes >= min(trained[0], 1_600)
    assert edges >= min(trained[1], 7_000)


@pytest.mark.parametrize("name", ROW_WISE)
def test_what_reads_single_rows_is_exact(name: str) -> None:
    assert check_model(adapted(Rows(ROW_WISE[name])), TrialRows(WIDTH)) == ModelCheck()


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (Rows(lambda x: x, Attention()), "part.attend (MultiheadAttention)"),
        (GlobalAttention(), "conv (GPSConv)"),
    ],
    ids=["attention", "GPSConv"],
)
def test_attention_over_all_rows_is_named_and_not_taken_for_a_draw(model: nn.Module, layer: str) -> None:
    check = check_model(adapted(model), TrialRows(WIDTH))
    assert check.random == ()
    assert [reason.partition(":")[0] for reason in check.systematic] == [layer]


def test_attention_within_neighbourhoods_is_exact() -> None:
    aggregation = pyg.SetTransformerAggregation(WIDTH, heads=2)
    model = PyG([pyg.SAGEConv((WIDTH, WIDTH), 4, aggr=aggregation)])
    assert check_model(model, TrialRows(WIDTH)) == ModelCheck()


def test_a_draw_does_not_hide_what_mixes_rows() -> None:
    check = check_model(adapted(Rows(lambda x: F.dropout(x[:, :3], 0.5) - x[:, :3].mean(0))), TrialRows(WIDTH))
    assert (len(check.random), len(check.systematic)) == (0, 1)
    check = check_model(Own(nn.Dropout(0.5), lambda x: x - x.mean(0)), TrialRows(WIDTH))
    assert (len(check.random), len(check.systematic)) == (1, 1)


@pytest.mark.parametrize(("name", "count"), [("mean", 1), ("top half", 1), ("relu", 0)])
def test_integers_of_the_data_are_embedded_in_a_trial(name: str, count: int) -> None:
    function = (MIXERS | ROW_WISE)[name]
    check = check_model(adapted(Embeds(function)), categories())
    assert (check.unchecked, len(check.systematic)) == (None, count)


@pytest.mark.parametrize("function", [lambda x: x.view(7, 7), lambda x: x / 0], ids=["shape", "infinite"])
def test_a_trial_that_fails_is_not_a_verdict(function: Callable[[Tensor], Tensor]) -> None:
    check = check_model(Own(None, function), TrialRows(WIDTH))
    assert check.reasons == []
    assert (check.unchecked or "").startswith("it failed on a few nodes with ")


def test_a_model_that_needs_float32_is_compared_in_float32() -> None:
    for function, count in ((lambda x: x, 0), (lambda x: x - x.mean(0), 1)):
        model = adapted(Rows(lambda x, function=function: function(x) @ torch.eye(4, dtype=torch.float32)))
        assert len(check_model(model, TrialRows(WIDTH)).systematic) == count


def test_the_random_generator_stays_as_it_is() -> None:
    model = Own(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4)))
    generator = torch.get_rng_state()
    assert len(inexact(model, WIDTH)) == 2
    assert torch.equal(torch.get_rng_state(), generator)
