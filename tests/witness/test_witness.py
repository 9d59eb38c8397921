"""Awkward models and every way to train exactly, beside plain torch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import CLASSES, EDGE_WIDTH, RELATIONS, check_graph
from gnnkit_witness import Plan, check_plan, serial
from safetensors.torch import load_file
from torch import Tensor, nn
from torch_geometric import nn as pyg

import gnnkit
from gnnkit import plugins
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.exchange.pipelined import Pipelined
from gnnkit.exchange.quantized import Quantized
from gnnkit.graph import Graph, Split
from gnnkit.model.gcn import GCN
from gnnkit.model.rgcn import RGCN
from gnnkit.nn import BatchNorm, Dropout
from gnnkit.partition import Grid, Partition
from gnnkit.sampler import FullSampler, NeighborSampler
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.leader import LeaderSync
from gnnkit.sync.neighbour import Neighbour
from gnnkit.sync.parameter_server import ParameterServer
from gnnkit.testing import check_witness
from tests.cases import exhaustive, few
from tests.models import MODELS, PyG
from tests.runs import BARE
from tests.witness.models import HIDDEN, READS, Recipe, RecipeModel

GRAPH = replace(check_graph(14), features=check_graph(14).features[:, :HIDDEN])
TWO, THREE, ACROSS = Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1)
PARTIAL = functools.partial


def make_awkward_model(*reads: str, write: str = "none", **keys: Any) -> Callable[..., nn.Module]:
    return PARTIAL(RecipeModel, Recipe(reads, (write,) * len(reads), ("nothing",) * len(reads), **keys))


def check(make: Callable[..., nn.Module], grid: Grid = TWO, **keys: Any) -> None:
    check_witness(make, [grid], GRAPH, **{"epochs": 2, **keys})


@pytest.mark.slow
@pytest.mark.parametrize("read", READS)
def test_layers_read_rows_as_matrices_do(read: str) -> None:
    check(make_awkward_model(read, read), ACROSS)


IN_PLACE = [*(("add", read) for read in ("sum", "mean", "normalized", "beside all")), ("one column", "mean")]


@pytest.mark.slow
@pytest.mark.parametrize(("write", "read"), IN_PLACE)
def test_a_layer_may_write_into_what_it_was_given(write: str, read: str) -> None:
    """Sums over input rows are kept from epoch to epoch."""
    check(make_awkward_model(read, "sum", write=write))


@pytest.mark.slow
@few("name", MODELS, ["sage-max", "gat", "gin", "gine"])
def test_models_train_as_matrices_do(name: str) -> None:
    check(PARTIAL(MODELS[name], hidden=4, norm="batch"), ACROSS)


class TiedWeights(RecipeModel):
    """Two layers share a weight, not the module."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(Recipe(("mean", "mean"), ("none",) * 2, ("nothing",) * 2), in_features, num_classes)
        self.layers[1].first.weight = self.layers[0].first.weight  # type: ignore[union-attr]


class UsedInSomeRanks(RecipeModel):
    """A parameter that rows alone reach: a rank without rows has no gradient."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(Recipe(("mean",), ("none",), ("nothing",)), in_features, num_classes)
        self.shift = nn.Parameter(torch.ones(HIDDEN).double())

    def hidden(self, index: int, x: Tensor, adjacency: Any) -> Tensor:
        out = super().hidden(index, x, adjacency)
        return out + self.shift if len(out) else out


class Decayed(RecipeModel):
    """Weight decay on all parameters, of which one layer has unused ones."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(Recipe(("mean",), ("none",), ("nothing",)), in_features, num_classes)

    def decayed_parameters(self) -> Any:
        return self.parameters()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        make_awkward_model("mean", "mean", tied=True),
        exhaustive(TiedWeights),
        UsedInSomeRanks,
        make_awkward_model("sum", "attend", jumps=True),
        make_awkward_model("mean", "max", norm=True, tied=True),
        make_awkward_model("two", "two", self_loops=True),
    ],
    ids=["one module", "tied", "used in some ranks", "jumps", "normed", "two sums"],
)
def test_awkward_models_train_as_matrices_do(make: Callable[..., nn.Module]) -> None:
    check(make, THREE)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [Grid(1, 1, 1), TWO], ids=str)
def test_a_parameter_that_nothing_uses_has_a_gradient_of_zeros(grid: Grid) -> None:
    """So a parameter decays on any number of ranks, whoever uses it in a step."""
    check(Decayed, grid, weight_decay=0.1)


FULL = FullSampler(num_hops=2, threads=1)
WAYS: dict[str, dict[str, Any]] = {
    "quantized": {"strategy": PARTIAL(VertexCentric, exchange=Quantized(bits=32))},
    "pipelined": {"strategy": PARTIAL(VertexCentric, exchange=Pipelined(staleness=0))},
    "sampled": {"strategy": PARTIAL(VertexCentric, exchange=plugins.load("exchange", "sampled")(keep=1.0))},
    "adaptive": {"strategy": PARTIAL(VertexCentric, exchange=plugins.load("exchange", "adaptive")(variation=0.0))},
    "individual": {"strategy": PARTIAL(IndividualSample, batch_size=2), "sampler": FULL},
    "all neighbours": {
        "strategy": PARTIAL(IndividualSample, batch_size=2),
        "sampler": NeighborSampler([-1, -1], redraw=True, threads=1),
    },
    "features at owners": {
        "strategy": PARTIAL(IndividualSample, batch_size=2, features="partitioned"),
        "sampler": FULL,
    },
    "topology at owners": {
        "strategy": PARTIAL(IndividualSample, batch_size=2, topology="partitioned"),
        "sampler": FULL,
    },
    "cooperative": {"strategy": PARTIAL(JointSample, batch_size=2), "sampler": FULL},
    "accumulated": {"strategy": PARTIAL(IndividualSample, batch_size=1), "sampler": FULL, "accumulate": 2},
    "accumulated together": {"strategy": PARTIAL(JointSample, batch_size=1), "sampler": FULL, "accumulate": 3},
    "exchanging shares": {"strategy": PARTIAL(PresetWorkload, exchange_every=1)},
    "leader": {"sync": LeaderSync},
    "server": {"sync": ParameterServer},
    "two servers": {"sync": PARTIAL(ParameterServer, servers=2)},
    "neighbour": {"sync": Neighbour},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "decay": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "clipped": {"clip_norm": 0.1},
    "sparse": {"sparse": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_every_exact_way_trains_as_matrices_do(name: str) -> None:
    check(PARTIAL(MODELS["gcn"], hidden=3, norm="batch"), **WAYS[name])


@pytest.mark.slow
@few(
    "name, optimizer, decay",
    [
        (name, *update)
        for name in ("exact", "individual", "topology at owners", "cooperative")
        for update in (("sgd", 0.0), ("adam", 0.0), ("sgd", 0.1), ("adam", 0.1), ("adamw", 0.1))
    ],
    default=[
        ("exact", "sgd", 0.0),
        ("exact", "adam", 0.1),
        ("individual", "sgd", 0.1),
        ("individual", "adam", 0.0),
        ("topology at owners", "adam", 0.1),
        ("cooperative", "adamw", 0.1),
    ],
)
def test_learned_rows_are_an_embedding(name: str, optimizer: str, decay: float) -> None:
    keys = {"optimizer": optimizer, "lr": 0.05, "learned_decay": decay}
    check(make_awkward_model("mean", "sum"), embedding=HIDDEN, **keys, **WAYS.get(name, {}))


def parted() -> Graph:
    """A graph without edges between the two halves."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 7, (2, 30)) + 7 * (np.arange(30) % 2)
    return Graph.from_edges(
        src, dst, 14, features=GRAPH.features, labels=np.arange(14) % CLASSES, split=np.full(14, Split.TRAIN)
    )


@pytest.mark.slow
@pytest.mark.parametrize("average", ["gradients", "parameters"])
@pytest.mark.parametrize("halo", ["none", "one_hop"])
def test_shares_without_cut_edges_train_as_matrices_do(halo: str, average: str) -> None:
    graph, torch_model = parted(), make_awkward_model("mean", "sum")
    torch.manual_seed(0)
    strategy = PARTIAL(PresetWorkload, halo=halo, average=average)
    owners = (np.arange(14) >= 7).astype(np.int32)
    check_plan(Plan(graph, Partition(owners, None, TWO), torch_model(HIDDEN, CLASSES).double(), strategy, epochs=2))


CONVS: dict[str, Callable[[int, int], Any]] = {
    "sage": pyg.SAGEConv,
    "gat": lambda a, b: pyg.GATConv(a, b, edge_dim=EDGE_WIDTH, add_self_loops=False),
    "graph": pyg.GraphConv,
    "gine": lambda a, b: pyg.GINEConv(nn.Linear(a, b), edge_dim=EDGE_WIDTH),
}


@pytest.mark.slow
@few("name", CONVS, ["sage", "gat", "gine"])
def test_layers_of_pyg_train_as_on_one_graph(name: str) -> None:
    def make(in_features: int, num_classes: int) -> nn.Module:
        conv = CONVS[name]
        return PyG([conv(in_features, 4), BatchNorm(4), nn.ReLU(inplace=True), nn.Dropout(0.3), conv(4, num_classes)])

    check(make, THREE)


class InPlace(nn.Module):
    """A model of a user: forward over adjacencies, rows written in place."""

    num_layers = 2

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_features, 4), nn.Linear(4, num_classes)
        self.noise = Dropout(0.3)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        h = adjacencies[0].aggregate(x)
        h *= 0.5
        h = self.noise(torch.relu_(self.first(h)), adjacencies[1])
        return self.second(adjacencies[1].aggregate(h, reduce="mean"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_whole_run_trains_as_matrices_do(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = InPlace(HIDDEN, CLASSES).double()
    trainer = {"precision": 64, "optimizer": "sgd", "lr": 0.5, "max_epochs": 3}
    result = gnnkit.train(
        GRAPH,
        strategy="vertex_centric",
        model=copy.deepcopy(model),
        types="ignore",
        workers=3,
        comm="threads",
        trainer=trainer,
        write=["logits"],
        **BARE,
        folder=tmp_path / "run",
    )
    train = torch.from_numpy(np.flatnonzero(GRAPH.split == Split.TRAIN))
    plan = Plan(GRAPH, Partition(np.zeros(14, np.int32), None, Grid(1, 1, 1)), model, seed=0)
    last = serial.train(plan, [[train]] * 3, None)[-1]
    assert result["train_loss"] == pytest.approx(last.losses[0], rel=1e-10)
    np.testing.assert_allclose(np.load(tmp_path / "run/logits.npy"), last.logits.numpy(), rtol=1e-10, atol=1e-10)
    state = load_file(tmp_path / "run/model.safetensors")
    for name, value in last.state.items():
        torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-10)


class HalfSeeds(IndividualSample):
    """Reads every other training node."""

    def seeds(self, worker: Any, epoch: int) -> Any:
        return np.flatnonzero(np.asarray(GRAPH.split) == Split.TRAIN)[::2][worker.comm.rank :: worker.comm.world_size]


@pytest.mark.parametrize(
    ("error", "told", "model", "strategy", "sampler"),
    [
        (
            UserError,
            "sampler=neighbor does not draw all in-edges in hop 0, and check_witness reads them all: use FullSampler",
            "gcn",
            PARTIAL(IndividualSample, batch_size=2),
            NeighborSampler([2, 2], threads=1),
        ),
        (
            UserError,
            "model=RGCN reads relations, and check_witness compares these without a sampler only: use strategy=",
            "rgcn",
            PARTIAL(IndividualSample, batch_size=2),
            FULL,
        ),
        (
            AssertionError,
            r"epoch 0 reads (\d+) nodes, \1 of the \d+ training nodes: .* each of these once per epoch",
            "gcn",
            PARTIAL(HalfSeeds, batch_size=2),
            FULL,
        ),
    ],
    ids=["fanouts", "relations", "seeds"],
)
def test_what_cannot_match_is_refused(
    error: type[Exception], told: str, model: str, strategy: Callable[[], Any], sampler: Any
) -> None:
    make: Callable[..., nn.Module] = PARTIAL(GCN, hidden=4)
    if model == "rgcn":
        make = PARTIAL(RGCN, hidden=4, num_relations=RELATIONS)
    with pytest.raises(error, match=told):
        check(make, strategy=strategy, sampler=sampler)
