"""PyG's layers on several ranks, against PyG itself on the whole graph."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.graph import Graph
from gnnkit.model.pyg import PyG
from gnnkit.partition import Grid, Partition, Shard, cut_all

NODES, WIDTH, EDGE_WIDTH, HIDDEN, CLASSES = 40, 6, 3, 8, 4
EDGES = {"edge_dim": EDGE_WIDTH}


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, out))


# (in, out) -> layer here, and the arguments that PyG itself gets on the whole graph
LAYERS: dict[str, tuple[Callable[[int, int], nn.Module], str]] = {
    "SAGEConv": (pyg.SAGEConv, ""),
    "GATConv": (lambda a, b: pyg.GATConv(a, b // 2, heads=2, **EDGES), "edge_attr"),
    "GATv2Conv": (lambda a, b: pyg.GATv2Conv(a, b // 2, heads=2, **EDGES), "edge_attr"),
    "GINConv": (lambda a, b: pyg.GINConv(mlp(a, b), train_eps=True), ""),
    "GINEConv": (lambda a, b: pyg.GINEConv(mlp(a, b), edge_dim=EDGE_WIDTH), "edge_attr"),
    "GraphConv": (pyg.GraphConv, "edge_weight"),
    "TransformerConv": (lambda a, b: pyg.TransformerConv(a, b // 2, heads=2, beta=True, **EDGES), "edge_attr"),
    "ResGatedGraphConv": (lambda a, b: pyg.ResGatedGraphConv(a, b, **EDGES), "edge_attr"),
    "GCNConv": (lambda a, b: pyg.GCNConv(a, b, normalize=False), "edge_weight"),
    "TAGConv": (lambda a, b: pyg.TAGConv(a, b, K=3, normalize=False), "edge_weight"),
}


def make_graph() -> Graph:
    """Directed, weighted, with loops, parallel edges and nodes without in-edges."""
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, NODES, 150), rng.integers(0, NODES - 4, 150)
    src, dst = np.append(src, [0, 3, 3]), np.append(dst, [0, 5, 5])
    loops, first = src == dst, {}
    keep = [not loop or first.setdefault(v, i) == i for i, (loop, v) in enumerate(zip(loops, dst, strict=True))]
    src, dst = src[keep], dst[keep]
    return Graph.from_edges(
        src,
        dst,
        NODES,
        features=rng.standard_normal((NODES, WIDTH)),
        labels=rng.integers(0, CLASSES, NODES),
        weight=rng.uniform(0.5, 2, len(src)),
        edge_features=rng.standard_normal((len(src), EDGE_WIDTH)),
    )


def make_model(name: str) -> PyG:
    torch.manual_seed(0)
    make = LAYERS[name][0]
    return PyG([make(WIDTH, HIDDEN), nn.ELU(), make(HIDDEN, CLASSES)]).double()


def answer(logits: Tensor, labels: Tensor, model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """The share of the mean loss, and the gradients of the parameters."""
    loss = F.cross_entropy(logits, labels, reduction="sum") / NODES
    loss.backward()
    return loss.detach(), [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def whole(name: str, graph: Graph) -> tuple[Tensor, list[Tensor]]:
    """PyG by itself; its own normalisation where the layer has one."""
    model = make_model(name)
    dst = np.repeat(np.arange(NODES), np.diff(graph.csc.indptr))
    edge_index = torch.from_numpy(np.stack([graph.csc.indices.astype(np.int64), dst]))
    edges = {"edge_attr": graph.edge_features, "edge_weight": graph.csc.weight}
    options = {key: torch.from_numpy(value) for key, value in edges.items() if key == LAYERS[name][1]}
    x = torch.from_numpy(graph.features)
    for layer in model.layers:
        if isinstance(layer, pyg.GCNConv | pyg.TAGConv):
            layer.normalize = True
            layer.add_self_loops = True
        x = layer(x, edge_index, **options) if isinstance(layer, pyg.MessagePassing) else layer(x)
    return answer(x, torch.from_numpy(graph.labels), model)


def on_rank(shards: list[Shard], model: PyG, comm: Communicator) -> tuple[Tensor, list[Tensor]]:
    model, shard = copy.deepcopy(model), shards[comm.rank]  # ranks are threads
    engine = Engine(shard, comm, torch.float64)
    x = torch.tensor(np.asarray(shard.features))
    logits = model(x, ShardAdjacency.layers(engine, model.num_layers, 0))
    loss, gradients = answer(logits, torch.from_numpy(shard.labels), model)
    return comm.all_reduce(loss), [comm.all_reduce(g.clone()) for g in gradients]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_pyg_gives_what_pyg_gives(name: str, ranks: int, record_property: Callable[..., None]) -> None:
    graph = make_graph()
    owners = np.random.default_rng(1).integers(0, ranks, NODES).astype(np.int32)
    shards = list(cut_all(graph, Partition(owners, None, Grid(ranks, 1, 1))))
    parts = Threads.run(functools.partial(on_rank, shards, make_model(name)), ranks)
    loss, gradients = whole(name, graph)
    difference = max(abs(float(part[0] - loss)) for part in parts)
    print(f"{name} P={ranks}: loss {float(loss):.6f}, difference {difference:.1e}")
    record_property("difference", difference)
    assert difference <= 1e-12
    for mine, theirs in zip(parts[0][1], gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("grid", [(2, 2, 1), (1, 4, 1), (2, 1, 2)])
def test_several_columns_or_slices_are_refused_with_the_key(grid: tuple[int, int, int]) -> None:
    owners = (np.arange(NODES) % 4).astype(np.int32)
    shards = list(cut_all(make_graph(), Partition(owners, None, Grid(*grid))))
    with pytest.raises(ValueError, match=r"partition\.grid="):
        Threads.run(functools.partial(on_rank, shards, make_model("SAGEConv")), 4)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda: pyg.GCNConv(2, 2), r"GCNConv\(normalize=True\).*whole graph"),
        (lambda: pyg.TAGConv(2, 2), r"TAGConv\(normalize=True\).*whole graph"),
        (lambda: nn.BatchNorm1d(2), "BatchNorm1d needs statistics of the whole graph"),
        (lambda: pyg.BatchNorm(2), "BatchNorm needs statistics of the whole graph"),
        (pyg.PairNorm, "PairNorm needs statistics of the whole graph"),
        (lambda: pyg.GraphNorm(2), "GraphNorm needs statistics of the whole graph"),
        (lambda: pyg.LayerNorm(2), "LayerNorm needs statistics of the whole graph"),
        (lambda: pyg.GINConv(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))), "BatchNorm1d needs statistics"),
        (lambda: pyg.ChebConv(2, 2, 2), "ChebConv is not one of the layers of PyG that work: SAGEConv"),
        (lambda: pyg.SAGEConv(2, 2, flow="target_to_source"), "reads against the edges"),
        (lambda: pyg.JumpingKnowledge("cat"), "JumpingKnowledge reads the rows of all layers.*use gnnkit.nn.JumpingKn"),
        (lambda: pyg.GraphSAGE(2, 2, 2), "GraphSAGE has convolutions inside.*list its layers"),
    ],
)
def test_layers_that_need_the_whole_graph_are_refused_by_name(layer: Callable[[], nn.Module], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        PyG([layer()])


def test_row_norms_are_taken_and_dropout_is_keyed() -> None:
    model = PyG([pyg.LayerNorm(WIDTH, mode="node"), nn.Dropout(0.5), pyg.SAGEConv(WIDTH, CLASSES)])
    assert model.num_layers == 1
