"""Wrong arguments of the public functions are refused by name, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import weights
from gnnkit.jobs.models import Widths
from gnnkit.model.gcn import GCN
from gnnkit.model.pagerank import PageRank

X, EDGES = torch.zeros(3, 5), torch.zeros(2, 4, dtype=torch.long)


class Net(nn.Module):
    def __init__(self, in_features: int = 5, num_classes: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def graph() -> Graph:
    rng = np.random.default_rng(0)
    return Graph.from_edges(*rng.integers(0, 6, (2, 12)), 6, features=rng.normal(size=(6, 5)), labels=np.arange(6) % 2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with a model, as a run leaves it."""
    folder = tmp_path / "run"
    folder.mkdir()
    weights.save(GCN(5, 2), Widths(5, 2, 0), folder)
    return folder


def train(**keys: Any) -> Callable[[Path], Any]:
    return lambda _: gnnkit.train(graph(), **{"strategy": "vertex_centric", "workers": 1, **keys})


def load(run: Path) -> nn.Module:
    return gnnkit.load(run, GCN(5, 2))


def of_program(run: Path) -> Path:
    """Makes the folder that a program leaves."""
    (run / "model.safetensors").unlink()
    (run / "config.yaml").write_text("model: {name: pagerank}\ntask: {name: node_classification}\n")
    return run


CALLS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "train, a graph": (lambda _: gnnkit.train(42), "expected a gnnkit Graph"),
    "train, a number as model": (train(model=42), r"model=42: expected a torch\.nn\.Module, a function of"),
    "train, a list as model": (train(model=["gcn"]), r"model=\['gcn'\]: expected a torch\.nn\.Module"),
    "train, a class of others": (train(model=dict), "model=<class 'dict'>: expected"),
    "train, a function of nothing": (train(model=lambda: None), "is called with .in_features, num_classes.: too many"),
    "train, a compiled model": (
        lambda run: train(model=torch.compile(Net(), backend="eager"))(run),  # noqa: PLW0108  # imports the compiler
        r"model=OptimizedModule is wrapped by torch\.compile: pass the module itself",
    ),
    "train, a model for several GPUs": (train(model=nn.DataParallel(Net())), "is wrapped by DataParallel"),
    "train, a scripted model": (
        lambda run: train(model=torch.jit.trace(nn.Linear(5, 2), X))(run),  # noqa: PLW0108  # imports the compiler
        "is wrapped by torch.jit",
    ),
    "train, a number as logger": (train(logger=42), "logger=42: expected a lightning.pytorch logger"),
    "train, a switch as logger": (train(logger=[True]), "logger=True: expected a lightning.pytorch logger"),
    "train, a number as callback": (train(callbacks=[42]), "callback=int must be a Callback"),
    "train, text as overrides": (train(overrides="seed=1"), "overrides='seed=1' must be a list of text"),
    "train, numbers as overrides": (train(overrides=[42]), r"overrides=\[42\] must be a list of text"),
    "train, no overrides": (train(overrides=None), "overrides=None must be a list of text"),
    "train, a number as folder": (train(folder=42), "folder=42 must be a path"),
    "train, a folder of no name": (train(folder="a\0b"), "folder='a.*b' must be a path"),
    "train, keys without a name": (
        train(strategy={"batch_size": 3}),
        r"strategy\.batch_size needs strategy=individual",
    ),
    "load, nothing": (lambda _: gnnkit.load(None), "checkpoint=None must be a path"),  # type: ignore[arg-type]
    "load, bytes": (lambda _: gnnkit.load(b"run"), "checkpoint=b'run' must be a path"),  # type: ignore[arg-type]
    "load, a result": (lambda _: gnnkit.load({"folder": 1}), "must be a path"),  # type: ignore[arg-type]
    "load, no folder": (lambda _: gnnkit.load("nofolder"), r"checkpoint=nofolder: there is no model\.safetensors"),
    "load, a name": (lambda run: gnnkit.load(run, "gcn"), r"model='gcn': expected a torch\.nn\.Module"),  # type: ignore[arg-type]
    "load, another class": (lambda run: gnnkit.load(run, Net), "pass an instance of the trained class, with the"),
    "load, a function of nothing": (
        lambda run: gnnkit.load(run, lambda: Net()),  # type: ignore[arg-type, misc]  # noqa: PLW0108  # takes no sizes
        r"model=<lambda> is called with \(in_features, num_classes\)",
    ),
    "load, a program": (lambda run: gnnkit.load(run, PageRank()), "expected a torch.nn.Module, got PageRank"),  # type: ignore[arg-type]
    "load, a compiled model": (
        lambda run: gnnkit.load(run, torch.compile(GCN(5, 2), backend="eager")),
        "wrapped by torch.compile",
    ),
    "a call of a number": (lambda run: load(run)(42), r"called as model\(x, edge_index\) .*, got int"),
    "a call without edges": (lambda run: load(run)(X), r"called as model\(x, edge_index\) .*, got Tensor"),
    "a call of arrays": (lambda run: load(run)(X.numpy(), EDGES.numpy()), "got ndarray, ndarray"),
    "a call of doubles": (lambda run: load(run)(X.double(), EDGES), r"x has dtype torch\.float64, and the model has"),
    "a call of whole numbers": (lambda run: load(run)(X.long(), EDGES), r"x has dtype torch\.int64.*use x\.to"),
    "export, nothing": (lambda run: gnnkit.export(run, None), "path=None must be a path"),  # type: ignore[arg-type]
    "export, another ending": (lambda run: gnnkit.export(run, "net.txt"), r"net\.txt must end with \.pt2"),
    "export, a URL": (lambda run: gnnkit.export(run, "s3://a/net.pt2"), "is a URL"),
    "export, no such folder": (lambda run: gnnkit.export(run, "no/net.pt2"), "there is no folder no: make it first"),
    "export, another class": (lambda run: gnnkit.export(run, "net.pt2", Net), "pass an instance of the trained class"),
    "export, a name": (lambda run: gnnkit.export(run, "net.pt2", "gcn"), r"model='gcn': expected a torch\.nn\.Module"),  # type: ignore[arg-type]
    "export, a word": (lambda run: gnnkit.export(run, "n.pt2", edge_weight="yes"), "edge_weight=yes must be true or"),  # type: ignore[arg-type]
    "export, a program": (
        lambda run: gnnkit.export(of_program(run), "net.pt2"),
        "model=pagerank is iterated, and has no trained parameters: its values are in the run folder",
    ),
    "predict, nothing": (lambda _: gnnkit.predict(None), "checkpoint=None must be a path"),  # type: ignore[arg-type]
    "predict, no run": (lambda _: gnnkit.predict("."), "checkpoint=. has no config.yaml: choose the folder of a run"),
    "train, an empty folder": (train(folder=""), "folder='' must be a path"),
    "predict, no folder": (lambda _: gnnkit.predict("nofolder"), "checkpoint=nofolder is not a folder: choose"),
    "predict, overrides": (lambda run: gnnkit.predict(run, overrides=42), "overrides=42 must be a list"),  # type: ignore[arg-type]
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_by_name(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    call, message = CALLS[name]
    with pytest.raises(UserError, match=message):
        call(run)


def test_a_loaded_model_takes_rows_and_edges_by_name_and_weights_as_an_array(run: Path) -> None:
    model = load(run)
    found = model(x=X, edge_index=EDGES, edge_weight=np.ones(4))
    torch.testing.assert_close(found, model(X, EDGES, edge_weight=torch.ones(4)))
