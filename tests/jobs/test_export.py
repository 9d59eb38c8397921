"""Trained models as files of torch and of ONNX, called without gnnkit."""

from __future__ import annotations

import itertools
import shutil
import subprocess
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
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import export, weights
from gnnkit.jobs.models import Widths
from gnnkit.launch.processes import run_in_child
from gnnkit.model.exported import PlainLayers
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.prepare.scale import Scale
from gnnkit.prepare.trained import Inputs
from tests.runs import BARE, within_process

NODES, WIDTH, CLASSES = 40, 5, 3
CALLS = itertools.count(1)  # of a model


class Net(nn.Module):
    """A class of PyG."""

    def __init__(self, in_features: int = WIDTH, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GATConv(in_features, 4, heads=2), pyg.GCNConv(8, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out


class Counting(nn.Module):
    """A class whose result depends on what torch takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * next(CALLS)
        return out


class Peeking(Net):
    """A class that torch cannot look into."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) if float(x.sum()) > 0 else x


def draw(num_nodes: int = NODES, edge_width: int = 0) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    rng = np.random.default_rng(num_nodes)
    x, edges = rng.normal(size=(num_nodes, WIDTH)), rng.integers(0, num_nodes, (2, 4 * num_nodes))
    values = torch.from_numpy(rng.normal(size=(4 * num_nodes, edge_width)))
    return torch.from_numpy(x), torch.from_numpy(edges), {"edge_attr": values} if edge_width else {}


def saved(folder: Path, model: nn.Module, edge_width: int = 0) -> Path:
    """Writes a folder as a run leaves it, without training."""
    folder.mkdir(parents=True)
    weights.save(model, Widths(WIDTH, CLASSES, edge_width), folder)
    return folder


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: GCN(WIDTH, CLASSES, norm="batch"),
    "sage": lambda: GraphSAGE(WIDTH, CLASSES),
    "sage max": lambda: GraphSAGE(WIDTH, CLASSES, aggregator="max"),
    "gat": lambda: GAT(WIDTH, CLASSES),
    "gin": lambda: GIN(WIDTH, CLASSES, norm="layer"),
    "PyG": Net,
}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "PyG"])
@pytest.mark.parametrize("weighted", [False, True])
def test_plain_operations_compute_what_the_engine_computes(name: str, weighted: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    x, edges, _ = draw()
    edges = torch.cat([edges, edges[:, :5], torch.tensor([[0, 1, 1], [0, 1, 1]])], 1)  # repeated edges, loops
    of_edges = {"edge_weight": torch.rand(edges.shape[1]).double()} if weighted else {}
    found = PlainLayers(model, lambda x: x)(
        x, edges[:, edges[1] != 7], **{k: v[edges[1] != 7] for k, v in of_edges.items()}
    )
    expected = model(x, edges[:, edges[1] != 7], **{k: v[edges[1] != 7] for k, v in of_edges.items()})
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_features_of_edges_are_read_and_added_loops_get_their_mean() -> None:
    torch.manual_seed(0)
    x, edges, of_edges = draw(edge_width=2)
    for made in (GINE(WIDTH, CLASSES, 2), GAT(WIDTH, CLASSES, edge_width=2)):
        model = made.double().eval()
        found = PlainLayers(model, lambda x: x)(x, edges, **of_edges)
        torch.testing.assert_close(found, model(x, edges, **of_edges), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "suffix"), [("gcn", "pt2"), ("gat", "onnx"), ("PyG", "pt2"), ("PyG", "onnx")])
def test_a_file_computes_on_graphs_of_any_size(tmp_path: Path, name: str, suffix: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    run = saved(tmp_path / "run", model)
    path = gnnkit.export(run, tmp_path / f"model.{suffix}", model=Net() if name == "PyG" else model)
    for num_nodes in (3, 100):
        x, edges, _ = draw(num_nodes)
        found = called(path, x=x.float(), edge_index=edges)
        torch.testing.assert_close(found, model.eval()(x.float(), edges), rtol=1e-4, atol=1e-5)


def called(path: Path, **given: Tensor) -> Tensor:
    """Calls a file in a process of its own: one that has loaded it cannot fork."""
    return torch.tensor(run_in_child(numbers, path, given))


def numbers(path: Path, given: dict[str, Tensor]) -> Any:
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(**given).tolist()
    import onnxruntime

    arrays = {name: value.numpy() for name, value in given.items()}
    return onnxruntime.InferenceSession(path).run(None, arrays)[0].tolist()


# A machine that has one library alone: other imports fail, as does reading the run.
ALONE = """
import sys
for name in ({absent}):
    sys.modules[name] = None
import numpy as np
x, edge_index = np.load("x.npy"), np.load("edges.npy")
{call}
np.save("found.npy", found)
"""
CALLED = {
    "pt2": """import torch
module = torch.export.load("model.pt2").module()
found = module(x=torch.from_numpy(x), edge_index=torch.from_numpy(edge_index)).detach().numpy()""",
    "onnx": """import onnxruntime
(found,) = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x, "edge_index": edge_index})""",
}
ABSENT = {
    "pt2": ("gnnkit", "torch_geometric", "lightning"),
    "onnx": ("gnnkit", "torch_geometric", "lightning", "torch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", CALLED)
@pytest.mark.parametrize("model", ["gcn", Net()], ids=["ours", "PyG"])
def test_a_file_takes_raw_rows_on_a_machine_with_its_library_alone(tmp_path: Path, suffix: str, model: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, WIDTH)) * [1, 100, 0.01, 5, 1] + [0, 50, 0, 3, 0]
    ends, labels = rng.integers(0, NODES, (2, 160)), rng.integers(0, CLASSES, NODES)
    graph = Graph.from_edges(*ends, NODES, features=x, labels=labels, split=1 + np.arange(NODES) % 3)
    keys: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "workers": 2, **BARE}
    keys |= {"trainer": {"max_epochs": 2}, "features": {"scale": "standard"}, "write": ["logits", "predictions"]}
    with within_process():
        run = gnnkit.train(graph, model=model, folder=tmp_path / "run", **keys).folder
    there = tmp_path / "elsewhere"
    there.mkdir()
    gnnkit.export(run, there / f"model.{suffix}", model=None if model == "gcn" else model)
    logits, predictions = np.load(run / "logits.npy"), np.load(run / "predictions.npy")
    shutil.rmtree(run)
    np.save(there / "x.npy", x.astype(np.float32))
    np.save(there / "edges.npy", ends)
    script = ALONE.format(absent=", ".join(map(repr, ABSENT[suffix])), call=CALLED[suffix])
    subprocess.run([sys.executable, "-c", script], cwd=there, check=True, timeout=120)
    found = np.load(there / "found.npy")
    np.testing.assert_allclose(found, logits, atol=1e-5)
    assert np.array_equal(found.argmax(1), predictions)


@pytest.mark.parametrize("kind", ["none", "row", "standard"])
def test_rows_are_scaled_as_by_the_run(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(6, WIDTH))  # also below 0
    rows[2] = 0
    scale = Scale.standard(rows, np.arange(6)) if kind == "standard" else Scale(kind)
    Inputs(None, None, 1.0, False, scale=scale).save(tmp_path)
    np.testing.assert_allclose(export._scale(tmp_path)(torch.from_numpy(rows)), scale.rows(rows), rtol=1e-12)


def test_names_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", GCN(WIDTH, CLASSES))
    with pytest.raises(UserError, match=r"model\.bin must end with \.pt2 .*or \.onnx"):
        gnnkit.export(run, tmp_path / "model.bin")
    (tmp_path / "model.pt2").write_text("mine")
    with pytest.raises(UserError, match=r"model\.pt2 exists: choose another name"):
        gnnkit.export(run, tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").read_text() == "mine"
    with pytest.raises(UserError, match="there is no model"):
        gnnkit.export(tmp_path, tmp_path / "other.pt2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (RGCN(WIDTH, CLASSES, 2), r"rgcn\) cannot be exported: use gnnkit.predict"),
        (Peeking(), "model=Peeking: torch cannot look into this model: "),
        (Counting(), "model=Counting computes other numbers on a graph of another size"),
    ],
    ids=["rgcn", "by values", "by constants"],
)
def test_models_that_no_file_can_hold_are_refused(tmp_path: Path, model: nn.Module, message: str) -> None:
    run = saved(tmp_path / "run", model)
    with pytest.raises(UserError, match=message):
        gnnkit.export(run, tmp_path / "model.pt2", model=model)
    assert not (tmp_path / "model.pt2").exists()


def test_what_onnx_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved(tmp_path / "run", model := GCN(WIDTH, CLASSES))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"\.onnx needs onnxruntime: pip install gnnkit\[onnx\]"):
        gnnkit.export(run, tmp_path / "model.onnx", model=model)


class Wide(nn.Module):
    """A model of (x, adjacencies) by a user, with messages."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        (a,) = adjacencies
        z = a.aggregate_messages(x, lambda rows, _: rows.relu()) + a.aggregate(x) + a.in_degree[:, None]
        out: Tensor = self.linear(z * a.lacks_loop[:, None])
        return out


def test_a_model_of_a_user_gets_sums_degrees_and_loops() -> None:
    from gnnkit.model.plain import takes_edges

    torch.manual_seed(0)
    model = Wide().double().eval()
    x, edges, _ = draw()
    found = PlainLayers(model, lambda x: x)(x, edges)
    takes_edges(model)
    torch.testing.assert_close(found, model(x, edges), rtol=1e-10, atol=1e-10)
