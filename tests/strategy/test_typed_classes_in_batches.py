"""PyG's typed classes in mini-batches, against the full graph and PyG by itself."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from gnnkit.comm.threads import Threads
from gnnkit.engine import BlockLayers, Pool, SparseRows, Tally
from gnnkit.errors import UserError
from gnnkit.graph import Graph, RelationGroups
from gnnkit.model.unchanged import adapted
from gnnkit.sampler import NeighborSampler
from tests.cases import few, in_turn
from tests.model import test_hetero as hetero
from tests.model import test_relational_classes as relational
from tests.runs import train_on_threads

HOPS = 3
STRATEGIES: dict[str, Any] = {
    "shared": {"name": "individual_sample", "batch_size": 1000},
    "features": {"name": "individual_sample", "batch_size": 1000, "features": "partitioned"},
    "partitioned": {"name": "individual_sample", "batch_size": 1000, "topology": "partitioned"},
    "joint": {"name": "joint_sample", "batch_size": 1000},
    "share": "preset_workload",
}


class SageAndGat(nn.Module):
    """HeteroConv without normalisation, whose statistics would be those of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            pyg.HeteroConv({key: hetero.sage_or_gat(key) for key in hetero.ENDS}) for _ in range(2)
        )
        self.lin = pyg.Linear(hetero.HIDDEN, hetero.CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        for conv in self.convs:
            x_dict = {name: x.relu() for name, x in conv(x_dict, edge_index_dict).items()}
        return {"paper": self.lin(x_dict["paper"])}


MODELS: dict[str, Any] = {
    "HGT": hetero.HGT,
    "HeteroConv": SageAndGat,
    "to_hetero": hetero.convert_names,
    "edge_attr_dict": hetero.Attributes,
    "RGCN": lambda: relational.Typed(relational.CONVS["RGCNConv"]),
    "RGAT": lambda: relational.Typed(relational.CONVS["RGATConv"]),
}


def data_of(name: str) -> Any:
    return relational.typed_data() if name in ("RGCN", "RGAT") else hetero.hetero_data()


def train(folder: Path, name: str, **keys: Any) -> Any:
    """Trains three ranks that are threads in float64."""
    trainer = {"max_epochs": 3, "precision": 64, "lr": 0.1}
    torch.manual_seed(0)
    return train_on_threads(data_of(name), MODELS[name](), folder, 3, **{"trainer": trainer, **keys})


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Trains on the full graph, once for each model."""
    return functools.cache(lambda name: train(tmp_path_factory.mktemp("full"), name, write=["logits"]))


@pytest.mark.slow
@few(
    "name,strategy",
    [*in_turn(MODELS, [*STRATEGIES][:4]), ("HeteroConv", "joint"), ("RGCN", "features")],
    default=[("HeteroConv", "features"), ("RGAT", "features")],
)
def test_batches_of_all_neighbours_train_as_the_full_graph(
    tmp_path: Path, name: str, strategy: str, full_run: Callable[[str], Any]
) -> None:
    everything = {"name": "neighbor", "fanouts": [-1] * HOPS}
    keys = {"strategy": STRATEGIES[strategy], "sampler": everything}
    sampled_run, full = train(tmp_path, name, write=["logits"], **keys), full_run(name)
    assert sampled_run["train_loss"] == pytest.approx(full["train_loss"], rel=1e-10)
    assert sampled_run["test_accuracy"] == full["test_accuracy"]
    logits = [np.load(result.folder / "logits.npy") for result in (sampled_run, full)]
    assert_allclose(*logits, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@few(
    "name,strategy",
    [*in_turn(MODELS, STRATEGIES), *(("RGAT", strategy) for strategy in [*STRATEGIES][1:])],
    default=[("RGAT", "joint"), ("HGT", "shared")],
)
def test_ranks_train_as_one_process(tmp_path: Path, name: str, strategy: str) -> None:
    keys: dict[str, Any] = {"strategy": STRATEGIES[strategy]}
    if strategy != "share":
        keys["strategy"] = {**keys["strategy"], "batch_size": 2}
        keys["sampler"] = {"name": "neighbor", "fanouts": [2, 1]}
    result = train(tmp_path, name, job="verify", **keys)
    assert result["verified"], result["largest_difference"]
    assert result["reference"].startswith("one rank" if strategy == "joint" else "3 ranks as threads")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_joint_batch_is_that_of_one_worker(tmp_path: Path) -> None:
    sampler = {"name": "neighbor", "fanouts": {"default": [2, 2], "paper-cites-paper": [0, 1]}}
    joint = train(tmp_path / "joint", "HGT", strategy={"name": "joint_sample", "batch_size": 2}, sampler=sampler)
    one = {"name": "individual_sample", "batch_size": 6}
    alone = train(tmp_path / "alone", "HGT", strategy=one, sampler=sampler, workers=1)
    assert joint["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-10)


@pytest.mark.slow
@few("strategy", ["shared", "joint"], default=["joint"])
def test_dropout_and_statistics_of_each_type_are_those_of_all_ranks(tmp_path: Path, strategy: str) -> None:
    model = hetero.Dropped()
    keys = {"strategy": {**STRATEGIES[strategy], "batch_size": 2}, "sampler": {"name": "neighbor", "fanouts": [2, 1]}}
    result = train_on_threads(hetero.hetero_data(), model, tmp_path, 2, job="verify", **keys)
    assert result["verified"], result["largest_difference"]


def test_a_batch_has_every_type_and_relation_of_the_graph() -> None:
    """A draw without authors and venues gives the gradient that PyG computes."""
    data = hetero.hetero_data(torch.float64)
    graph = Graph.of(data)
    model = hetero.make_model("HGT", graph.schema)
    none = {f"{source}-{name}-{end}": [0, 0] for source, name, end in hetero.ENDS if source != "paper"}
    sampler = NeighborSampler({"default": [-1, -1], **none})
    blocks = sampler.sample(RelationGroups.of_graph(graph), seeds=np.arange(5), key=0).blocks
    layers = BlockLayers(graph, model, torch.float64, torch.device("cpu")).layers(blocks, 0)
    x = SparseRows.of(graph.features[blocks[0].src_nodes], torch.float64)
    logits = model(x, layers)
    logits.square().sum().backward()
    plain = copy.deepcopy(model.module)
    plain.zero_grad()
    rows, edges, _ = hetero.dictionaries(data, torch.float64)
    empty = torch.zeros(2, 0, dtype=torch.int64)
    edges = {key: edges[key] if key[0] == "paper" and key[2] == "paper" else empty for key in edges}
    reference = plain(rows, edges)[:5]
    reference.square().sum().backward()
    assert_allclose(logits.detach(), reference.detach(), rtol=1e-10)
    assert {name for name, _ in graph.schema.node_types} == {"paper", "author", "venue"}
    for (name, mine), (_, theirs) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-12)


def test_an_empty_batch_has_zero_gradients() -> None:
    graph = Graph.of(hetero.hetero_data(torch.float64))
    model = hetero.make_model("HGT", graph.schema)
    blocks = NeighborSampler([2, 2]).sample(RelationGroups.of_graph(graph), seeds=np.arange(0), key=0).blocks
    layers = BlockLayers(graph, model, torch.float64, torch.device("cpu")).layers(blocks, 0)
    logits = model(torch.zeros(0, graph.features.shape[1], dtype=torch.float64), layers)
    assert logits.shape == (0, hetero.CLASSES)
    logits.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


class Joined(nn.Module):
    """Normalises the rows of two types together."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({name: pyg.Linear(-1, hetero.CLASSES) for name in ("paper", "author")})
        self.norm = nn.BatchNorm1d(hetero.CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        rows = torch.cat([F.relu(lin(x_dict[name])) for name, lin in self.lins.items()])
        return self.norm(rows)[: len(x_dict["paper"])]


def test_statistics_of_two_types_at_once_are_refused() -> None:
    graph = Graph.of(hetero.hetero_data(torch.float64))
    model = adapted(Joined())
    model.fit_types(graph.schema, graph.features.shape[1], 2)
    blocks = NeighborSampler([2]).sample(RelationGroups.of_graph(graph), seeds=np.arange(4), key=0).blocks
    x = SparseRows.of(graph.features[blocks[0].src_nodes], torch.float64)

    def run(comm: Any) -> None:
        layers = BlockLayers(graph, model, torch.float64, comm.device, Pool(comm, Tally())).layers(blocks, 0)
        model.double()(x, layers)

    with pytest.raises(UserError, match="normalises rows that are not those of one node type"):
        Threads.run(run, 1)


def test_convolutions_of_one_layer_count_as_one_hop() -> None:
    assert adapted(SageAndGat()).num_convolutions == 2
    assert adapted(hetero.HGT(3)).num_convolutions == 3
    assert adapted(hetero.convert_names()).num_convolutions == 2
