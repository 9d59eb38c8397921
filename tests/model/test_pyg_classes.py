"""Classes of PyG as they are in `gnnkit.train`, against one step of plain PyG."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.base import on_plain
from gnnkit.model.exactness import inexact
from gnnkit.model.unchanged import adapted
from gnnkit.partition import Grid, Partition, cut_all
from tests.cases import few
from tests.models import PyG
from tests.runs import BARE, within_process


@pytest.fixture(scope="module")
def table() -> Any:
    """The program that draws the table of all classes."""
    path = Path(__file__).parents[2] / "benchmarks" / "pyg_classes.py"
    spec = importlib.util.spec_from_file_location("pyg_classes", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("pyg_classes", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@few(
    ("group", "name", "on_two"),
    [
        ("convolutions", "GATConv", "exact"),
        ("convolutions", "ChebConv", "refused"),
        ("convolutions", "DirGNNConv", "refused"),
        ("aggregations", "LSTMAggregation", "exact"),
        ("aggregations", "PatchTransformerAggregation", "exact"),
        ("norms", "LayerNorm, batch", "exact"),
        ("norms", "GraphNorm, two graphs", "refused"),
        ("models and blocks", "GraphUNet", "refused"),
        ("models and blocks", "GroupAddRev", "refused"),
        ("poolings", "EdgePooling", "refused"),
        ("functions of edges", "sparse product", "refused"),
        ("functions of edges", "edges changed in place", "refused"),
        ("typed", "to_hetero_with_bases", "exact"),
        ("typed", "HeteroConv LSTM", "exact"),
    ],
    default=5,
)
def test_one_worker_trains_each_class_like_pyg(table: Any, group: str, name: str, on_two: str) -> None:
    with within_process():
        one, two = table.outcomes(table.GROUPS[group]()[name], [1, 2]).values()
    assert one == ("exact", "")
    assert two.kind == on_two


class First(nn.Module):
    """The features of each node's first in-neighbour, by a loop over the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows, destinations = x[edge_index[0]] * self.scale, edge_index[1].tolist()
        firsts = {node: place for place, node in reversed(list(enumerate(destinations)))}
        return torch.stack([rows[firsts[node]] if node in firsts else x[node] for node in range(len(x))])


def outputs(model: nn.Module, graph: Graph, ranks: int) -> Tensor:
    owners = (np.arange(graph.num_nodes) % ranks).astype(np.int32)
    shards = list(cut_all(graph, Partition(owners, None, Grid(ranks, 1, 1))))

    def part(comm: Communicator) -> Tensor:
        shard = shards[comm.rank]
        layers = ShardAdjacency.layers(Engine(shard, comm, torch.float64), 1, 0)
        with torch.no_grad():
            return adapted(copy.deepcopy(model)).eval()(torch.tensor(np.asarray(shard.features)), layers)

    order = torch.argsort(torch.cat([torch.from_numpy(shard.owned.astype(np.int64)) for shard in shards]))
    return torch.cat(Threads.run(part, ranks))[order]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.SimpleConv(pyg.LSTMAggregation(4, 4)),
        lambda: pyg.SimpleConv(pyg.GRUAggregation(4, 4)),
        lambda: pyg.SimpleConv(pyg.LCMAggregation(4, 4)),
        lambda: pyg.SimpleConv(pyg.MLPAggregation(4, 4, 9, num_layers=1)),
        lambda: pyg.SimpleConv(pyg.SortAggregation(3)),
        lambda: pyg.SimpleConv(pyg.PatchTransformerAggregation(4, 4, 2, 8, 1, heads=2)),
        First,
        lambda: PyG([pyg.SAGEConv(4, 4, aggr=pyg.GRUAggregation(4, 4))]),
    ],
)
def test_aggregations_in_order_equal_pyg_on_several_ranks(make: Callable[[], nn.Module], ranks: int) -> None:
    from gnnkit.graph.edge_order import in_listed_order

    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 11, 40), np.sort(rng.integers(0, 11, 40))
    graph = in_listed_order(Graph.from_edges(src, dst, 11, features=rng.normal(size=(11, 4))))
    torch.manual_seed(0)
    model = make().double().eval()
    edges = torch.from_numpy(np.stack([src, dst]))
    with torch.no_grad():
        plain = model.layers[0] if isinstance(model, PyG) else model
        reference = plain(torch.tensor(np.asarray(graph.features)), edges)
    torch.testing.assert_close(outputs(model, graph, ranks), reference, rtol=1e-10, atol=1e-10)
    assert not any("order" in line for line in inexact(adapted(model), 4))


def test_a_store_refuses_layers_that_read_edges_in_order(table: Any, tmp_path: Path) -> None:
    data = table.graph()
    with within_process():
        gnnkit.train(data, job="partition", strategy="auto", workers=1, folder=tmp_path / "store")
        keys: dict[str, Any] = {
            "dataset": {"name": "store", "root": str(tmp_path / "store")},
            "strategy": "vertex_centric",
        }
        make = lambda width, classes: pyg.SAGEConv(width, classes, aggr="lstm")  # noqa: E731
        with pytest.raises(UserError, match="LSTMAggregation reads a node's in-edges in the order of the edge list"):
            gnnkit.train(model=make, folder=tmp_path / "run", **keys, **BARE)


class Penalty(nn.Module):
    """Outputs that hold the gradient of a function of edges."""

    def __init__(self, aggr: str) -> None:
        super().__init__()
        self.first, self.second, self.aggr = nn.Linear(8, 4), nn.Linear(4, 1), aggr

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        y = x * 1 if x.requires_grad else x.clone().requires_grad_()
        source, destination = edge_index
        rows = self.second(self.first(torch.cat([x[source], y[destination]], 1)).tanh())
        out = x.new_zeros(len(x), 1).index_reduce_(0, destination, rows, self.aggr) if self.aggr == "amax" else None
        out = x.new_zeros(len(x), 1).index_add_(0, destination, rows) if out is None else out
        return torch.autograd.grad(out.square().sum(), y, create_graph=True)[0]


def test_gradients_of_gradients_equal_those_of_pyg() -> None:
    torch.manual_seed(0)
    model, x = Penalty("sum").double(), torch.randn(9, 4, dtype=torch.float64)
    edges = torch.randint(0, 9, (2, 30))
    gradients = []
    for call in (lambda: model(x, edges), lambda: adapted(model)(*on_plain(adapted(model), x, edges))):
        model.zero_grad()
        call().square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*gradients)


def test_gradients_of_gradients_that_kernels_do_not_record_are_refused() -> None:
    model, x = pyg.GATConv(4, 4).double(), torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    out = adapted(model)(*on_plain(adapted(model), x, torch.randint(0, 9, (2, 30))))
    with pytest.raises(UserError, match="the gradient of a gradient"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
