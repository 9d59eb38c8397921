"""Classes of PyG that read edge types, on several ranks, against PyG by itself."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lazyedges import EdgeSet
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.edge_index import edge_set_of
from gnnkit.model.exactness import inexact
from gnnkit.model.unchanged import adapted
from gnnkit.partition import Grid, Partition, Shard, cut_all
from tests.graphs import pyg_data
from tests.runs import train_on_threads, within_process

NODES, WIDTH, HIDDEN, CLASSES, RELATIONS = 23, 6, 8, 4, 3
Conv = Callable[[int, int], nn.Module]


class Typed(nn.Module):
    """Two relational layers, as in PyG's example of R-GCN."""

    def __init__(self, make: Conv, in_features: int = WIDTH, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.conv2 = make(in_features, HIDDEN), make(HIDDEN, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index, edge_type).relu(), edge_index, edge_type)
        return out


class OfData(Typed):
    """The same model of a `Data`, which declares that it reads types."""

    reads_relations = True

    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return super().forward(data.x, data.edge_index, data.edge_type)


CONVS: dict[str, Conv] = {
    "RGCNConv": functools.partial(pyg.RGCNConv, num_relations=RELATIONS),
    "bases": functools.partial(pyg.RGCNConv, num_relations=RELATIONS, num_bases=2),
    "blocks": functools.partial(pyg.RGCNConv, num_relations=RELATIONS, num_blocks=2),
    "FastRGCNConv": functools.partial(pyg.FastRGCNConv, num_relations=RELATIONS),
    "RGATConv": lambda a, b: pyg.RGATConv(a, b // 2, RELATIONS, heads=2),
    "RGATConv within": lambda a, b: pyg.RGATConv(
        a, b, RELATIONS, attention_mechanism="within-relation", mod="f-scaled"
    ),
    "FiLMConv": functools.partial(pyg.FiLMConv, num_relations=RELATIONS),
}


@functools.cache
def typed_graph() -> Graph:
    """With a loop, parallel edges of two relations, and nodes without in-edges."""
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, NODES - 2, 80), rng.integers(0, NODES - 5, 80)
    src, dst = np.append(src, [0, 3, 3]), np.append(dst, [0, 5, 5])
    return Graph.from_edges(
        src,
        dst,
        NODES,
        features=rng.standard_normal((NODES, WIDTH)),
        labels=rng.integers(0, CLASSES, NODES),
        edge_types=np.append(rng.integers(0, RELATIONS, 80), [0, 1, 2]),
        edge_type_names=[str(relation) for relation in range(RELATIONS)],
    )


def plain(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x, edge_index and edge_type, as PyG has them."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    ends = np.stack([np.asarray(graph.csc.indices, np.int64), dst])
    types = np.asarray(graph.edge_types, np.int64)
    return torch.from_numpy(np.asarray(graph.features)), torch.from_numpy(ends), torch.from_numpy(types)


def model_of(make: Conv, kind: type[Typed] = Typed) -> nn.Module:
    torch.manual_seed(0)
    return kind(make).double()


def differentiate(logits: Tensor, labels: Tensor, model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    loss = F.cross_entropy(logits, labels, reduction="sum") / NODES
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def on_rank(shards: list[Shard], model: nn.Module, comm: Communicator) -> tuple[Tensor, list[Tensor]]:
    model, shard = adapted(copy.deepcopy(model)), shards[comm.rank]  # ranks are threads
    layers = ShardAdjacency.layers(Engine(shard, comm, torch.float64), 1, 0)
    logits = model(torch.tensor(np.asarray(shard.features)), layers)
    loss, gradients = differentiate(logits, torch.from_numpy(shard.labels), model)
    return comm.all_reduce(loss), [comm.all_reduce(gradient.clone()) for gradient in gradients]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", [*CONVS, "data"])
def test_a_relational_class_of_pyg_gives_what_pyg_gives(name: str, ranks: int) -> None:
    graph, kind = typed_graph(), OfData if name == "data" else Typed
    make = CONVS["RGCNConv" if name == "data" else name]
    owners = np.random.default_rng(1).integers(0, ranks, NODES).astype(np.int32)
    if ranks == 3:
        owners[owners == 1] = 2  # a rank without nodes
    shards = list(cut_all(graph, Partition(owners, None, Grid(ranks, 1, 1))))
    parts = Threads.run(functools.partial(on_rank, shards, model_of(make, kind)), ranks)
    model, (x, edge_index, edge_type) = model_of(make, kind), plain(graph)
    data = Data(x, edge_index, edge_type=edge_type)
    logits = model(data) if kind is OfData else model(x, edge_index, edge_type)
    loss, gradients = differentiate(logits, torch.from_numpy(graph.labels), model)
    for part in parts:
        assert abs(float(part[0] - loss)) <= 1e-12
        for mine, theirs in zip(part[1], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["RGCNConv", "bases", "blocks"])
def test_relations_are_summed_without_a_row_per_edge(name: str) -> None:
    (shard,) = cut_all(typed_graph(), Partition(np.zeros(NODES, np.int32), None, Grid(1, 1, 1)))
    model = adapted(model_of(CONVS[name]))

    def run(comm: Communicator) -> EdgeSet:
        engine = Engine(shard, comm, torch.float64)
        for _ in range(2):
            model(torch.tensor(np.asarray(shard.features)), ShardAdjacency.layers(engine, 1, 0))
        return edge_set_of(engine.topology.rank_graph)

    edges, types = Threads.run(run, 1)[0], torch.from_numpy(np.asarray(shard.edge_types))
    assert model.fallbacks == {}
    sets = [edges.select(types == relation) for relation in range(RELATIONS)]
    assert all("_sorted" in vars(edge_set) for edge_set in sets)  # remembered from the forward passes


def test_uninitialised_memory_of_rgat_is_filled() -> None:
    model = Typed(CONVS["RGATConv"])
    l2 = next(part.l2 for part in model.modules() if isinstance(part, pyg.RGATConv))
    torch.nn.init.constant_(l2, float("nan"))
    adapted(model)
    assert torch.equal(l2, torch.full_like(l2, 1 / l2.shape[1]))


@pytest.mark.parametrize("name", CONVS)
def test_relational_layers_are_exact_on_any_number_of_workers(name: str) -> None:
    assert inexact(adapted(Typed(CONVS[name])), WIDTH) == []


def typed_data() -> Data:
    data = pyg_data(WIDTH, CLASSES)
    data.edge_type = torch.arange(data.num_edges) % RELATIONS
    return data


def rgcn(in_features: int, num_classes: int) -> nn.Module:
    return Typed(CONVS["RGCNConv"], in_features, num_classes)


def train(folder: Path, data: Data, model: Any, **keys: Any) -> gnnkit.Result:
    return train_on_threads(data, model, folder / "run", 2, **keys)


@pytest.mark.slow
@pytest.mark.parametrize("model", [rgcn, rgcn(WIDTH, CLASSES)], ids=["function", "module"])
def test_training_is_that_of_one_process(tmp_path: Path, model: Any) -> None:
    result = train(tmp_path, typed_data(), model, job="verify")
    assert result["verified"], result["largest_difference"]


@pytest.mark.slow
def test_a_run_is_loaded_and_predicts(tmp_path: Path) -> None:
    data = typed_data()
    result = train(tmp_path, data, rgcn)
    assert result["exact"]
    trained_model = gnnkit.load(result.folder, rgcn(WIDTH, CLASSES))
    logits = trained_model(data.x, data.edge_index, data.edge_type).detach()
    with within_process():
        predictions = gnnkit.predict(
            result.folder, data, model=rgcn(WIDTH, CLASSES), write=["logits"], folder=tmp_path / "new", comm="threads"
        )
    np.testing.assert_allclose(np.load(predictions.folder / "logits.npy"), logits, atol=1e-5)


def test_a_graph_of_one_relation_has_relation_0(tmp_path: Path) -> None:
    graph, values = Graph.of(pyg_data(WIDTH, CLASSES)), []

    class Notes(Typed):
        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            values.append(edge_type)
            return super().forward(x, edge_index, edge_type)

    (shard,) = cut_all(graph, Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1)))
    model = adapted(Notes(CONVS["RGCNConv"]))

    def run(comm: Communicator) -> None:
        layers = ShardAdjacency.layers(Engine(shard, comm, torch.float32), 1, 0)
        model(torch.tensor(np.asarray(shard.features), dtype=torch.float32), layers)

    Threads.run(run, 1)
    assert torch.equal(values[0], torch.zeros(graph.num_edges, dtype=torch.int64))


def test_a_class_that_ignores_types_is_refused_on_a_typed_graph(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^model=GCN reads no types, and the graph has 3 types of edges"):
        train(tmp_path, typed_data(), pyg.models.GCN(WIDTH, HIDDEN, 2, CLASSES))
