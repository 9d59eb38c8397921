"""Models called on plain tensors or graphs, in one process."""

from __future__ import annotations

import copy
import functools
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import models as pyg

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model import base
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GINE
from gnnkit.model.label_propagation import LabelPropagation
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.task import LabelFacts
from tests.cases import few
from tests.runs import train_on_threads

NODES, WIDTH = 30, 6


def edges() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, NODES, (2, 90)))


def graph() -> Graph:
    rng = np.random.default_rng(1)
    return Graph.from_edges(
        *edges().numpy(),
        NODES,
        features=rng.normal(size=(NODES, WIDTH)).astype(np.float32),
        labels=rng.integers(0, 3, NODES),
        split=1 + np.arange(NODES) % 3,
    )


class Own(nn.Module):
    """A model of a user."""

    num_layers = 1

    def __init__(self, in_features: int = WIDTH, num_classes: int = 3) -> None:
        super().__init__()
        self.product = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        return adjacencies[0].aggregate(self.product(x), reduce="mean")


def train(folder: Path, model: Any) -> None:
    """Trains, and writes logits of features as these are."""
    train_on_threads(graph(), model, folder, 1, workers=2, write=["logits"], features={"scale": "none"})


@pytest.mark.slow
@few("model", ["gcn", "gat", "own"], ["own"])
def test_a_loaded_model_computes_what_the_run_has_written(tmp_path: Path, model: str) -> None:
    train(tmp_path / "run", Own if model == "own" else {"name": model, "hidden": 8})
    reference = torch.from_numpy(np.load(tmp_path / "run/logits.npy"))
    trained_model = gnnkit.load(tmp_path / "run", Own() if model == "own" else None)
    x = torch.from_numpy(np.asarray(graph().features))
    for found in (
        trained_model(x, edges()),
        trained_model(graph()),
        trained_model(x, graph()),
        copy.deepcopy(trained_model)(x, edge_index=edges()),
    ):
        torch.testing.assert_close(found, reference.to(found.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("features", [{"scale": "standard"}, {"scale": "none", "degree": True}], ids=str)
def test_rows_of_another_width_than_in_training_are_refused(tmp_path: Path, features: dict[str, Any]) -> None:
    degree = "degree" in features
    make = functools.partial(pyg.GCN, WIDTH + degree, 8, 2, 3)
    train_on_threads(graph(), make(), tmp_path / "run", 1, workers=1, features=features, write=["logits"])
    trained_model = gnnkit.load(tmp_path / "run", make())
    x = torch.from_numpy(np.asarray(graph().features))
    with pytest.raises(UserError, match=rf"training read {WIDTH + degree} columns" + ", the last .*log" * degree):
        trained_model(x if degree else x[:, 1:], edges())
    if degree:
        column = torch.bincount(edges()[1], minlength=NODES).log1p().to(x.dtype)
        x = torch.cat([x, column[:, None]], 1)
    actual = trained_model(x, edges())
    torch.testing.assert_close(actual, torch.from_numpy(np.load(tmp_path / "run/logits.npy")), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_loaded_class_of_pyg_stays_as_it_is(tmp_path: Path) -> None:
    """PyG's own models have `num_layers` too."""
    make = functools.partial(pyg.GCN, WIDTH, 8, 2, 3)
    train(tmp_path / "run", make())
    trained_model = gnnkit.load(tmp_path / "run", make())
    actual = trained_model(torch.from_numpy(np.asarray(graph().features)), edges())
    torch.testing.assert_close(actual, torch.from_numpy(np.load(tmp_path / "run/logits.npy")), rtol=1e-4, atol=1e-5)


def test_weights_features_and_types_of_edges_are_read() -> None:
    x, index, weight = torch.randn(NODES, WIDTH), edges(), torch.rand(90)
    gcn = GCN(WIDTH, 3).eval()
    torch.testing.assert_close(gcn(x, index, edge_weight=torch.ones(90)), gcn(x, index))
    assert not torch.allclose(gcn(x, index, edge_weight=weight), gcn(x, index))
    gine = GINE(WIDTH, 3, edge_width=2).eval()
    assert gine(x, index, edge_attr=torch.randn(90, 2)).shape == (NODES, 3)
    rgcn = RGCN(WIDTH, 3, num_relations=2).eval()
    assert rgcn(x, index, edge_type=torch.arange(90) % 2).shape == (NODES, 3)


@pytest.mark.slow
def test_a_model_learns_from_plain_tensors_alone() -> None:
    torch.manual_seed(0)
    model, x, labels = (
        pickle.loads(pickle.dumps(GraphSAGE(WIDTH, 3))),
        torch.randn(NODES, WIDTH),
        torch.arange(NODES) % 3,
    )
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, edges()), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.equal(model(x, edges()), model(x, edges())), "noise is drawn anew"
    model.eval()
    assert torch.equal(model(x, edges()), model(x, edges()))


@pytest.mark.slow
def test_torch_export_of_a_call_on_edges_is_refused_with_the_function_that_writes_a_file() -> None:
    if not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("torch does not say that it exports")
    with pytest.raises(UserError, match=r"gnnkit.export\(run, 'model.pt2'\) writes the file"):
        torch.export.export(GCN(WIDTH, 3).eval(), (torch.randn(NODES, WIDTH), edges()))


@pytest.mark.parametrize(
    ("given", "keys", "told"),
    [
        (
            (torch.zeros(NODES, WIDTH), torch.zeros(3, 4, dtype=torch.int64)),
            {},
            r"shape \[2, num_edges\], found \[3, 4\]",
        ),
        ((torch.zeros(5, WIDTH), edges()), {}, "out of range"),
        ((torch.zeros(5, WIDTH), graph()), {}, "x has 5 rows, and the graph 30 nodes"),
        ((torch.zeros(NODES, WIDTH), edges()), {"edge_wieght": None}, "not edge_wieght"),
    ],
)
def test_what_is_no_graph_of_the_rows_is_refused(given: Any, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        GAT(WIDTH, 3)(*given, **keys)


def test_models_tell_what_their_sizes_do_not_allow() -> None:
    with pytest.raises(UserError, match="model=gine needs a graph with edge features"):
        GINE(WIDTH, 3, edge_width=0)
    with pytest.raises(ValueError, match="0 adjacencies for num_layers=2"):
        GCN(WIDTH, 3)(torch.zeros(NODES, WIDTH), [])
    numbers = SimpleNamespace(labels=torch.zeros(3))
    with pytest.raises(UserError, match="model=label_propagation needs one class of each node, dataset has other"):
        LabelPropagation().start(numbers)  # type: ignore[arg-type]


def test_rows_of_another_device_are_refused() -> None:
    with pytest.raises(UserError, match=r"a model is called on edges on the CPU, and x is on meta: use model\.cpu\(\)"):
        base.on_plain(GCN(WIDTH, 3), torch.zeros(NODES, WIDTH, device="meta"), graph())


def test_hooks_of_the_user_stay_beside_ours() -> None:
    model, values = GCN(WIDTH, 3), []
    model.register_forward_pre_hook(lambda *_: values.append("before"))
    model.register_forward_hook(lambda *_: values.append("after"))
    base.in_unit(model, LabelFacts(mean=(5.0, 6.0, 7.0), deviation=(0.0, 0.0, 0.0)).in_unit)
    base.takes_edges(model, lambda given: given)
    assert model(graph())[0].tolist() == [5, 6, 7]
    base.as_trained(model)
    assert model(graph())[0].tolist() != [5, 6, 7]
    assert values == ["before", "after"] * 2
