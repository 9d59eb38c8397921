"""A run on several workers names all inexact parts before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

import gnnkit
from gnnkit.errors import UserError
from tests.cases import exhaustive, few
from tests.graphs import random_graph
from tests.models import PyG
from tests.runs import BARE


def run(folder: Path, **keys: Any) -> Any:
    run_keys = {
        "strategy": "vertex_centric",
        "workers": 2,
        "comm": "threads",
        "threads": 1,
        "partition": "1d",
        "trainer": {"max_epochs": 1},
        **BARE,
        **keys,
    }
    return gnnkit.train(random_graph(), folder=folder, **run_keys)


def attention(in_features: int, num_classes: int) -> nn.Module:
    return PyG([pyg.GATConv(in_features, num_classes, dropout=0.5)])


@pytest.mark.slow
def test_what_is_not_exact_is_said_before_training_and_in_the_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "run", model=attention)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "not exact" in line]
    assert line.startswith("not exact on 2 workers: model layers.0: GATConv drops by torch's own Dropout, ")
    assert result["exact"] is False
    assert result["inexact"] == [line.removeprefix("not exact on 2 workers: ")]
    assert json.loads((tmp_path / "run/result.json").read_text())["exact"] is False


@pytest.mark.slow
@few(
    "keys",
    [
        pytest.param({"model": attention, "workers": 1}, id="one worker"),
        pytest.param({"model": "gcn"}, id="gcn"),
        pytest.param({"sync": "leader"}, id="leader"),
    ],
    default=["one worker"],
)
def test_nothing_is_said_of_an_exact_run(
    tmp_path: Path, keys: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "run", **keys)
    assert (result["exact"], result["inexact"]) == (True, [])
    assert "not exact" not in capfd.readouterr().err


class Centred(nn.Module):
    """Subtracts the rows' mean, and makes a tensor of torch's default type."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(in_features, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.conv(x @ torch.eye(x.size(1)), edge_index)
        return rows - rows.mean(0)


class Identity(Centred):
    """Computes no mean."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.conv(x @ torch.eye(x.size(1)), edge_index)
        return rows


class Unchecked(Centred):
    """Fails on the few nodes of a trial."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if len(x) < 20:
            raise RuntimeError("too few nodes")
        rows: Tensor = self.conv(x, edge_index)
        return rows


@few("comm", ["threads", "gloo"], default=["threads"])
def test_a_model_that_cannot_be_exact_is_refused_with_the_ways_out(tmp_path: Path, comm: str) -> None:
    with pytest.raises(UserError) as raised:
        run(tmp_path / "run", model=Centred, comm=comm)
    message = str(raised.value)
    assert message.startswith("workers=2: model Centred: outputs on several ranks differ from those on one")
    assert all(way in message for way in ("use nn.BatchNorm1d", "use workers=1", "set inexact=allow"))


@pytest.mark.parametrize("keys", [{"inexact": "allow"}, {"workers": 1}], ids=str)
def test_a_model_that_cannot_be_exact_runs_if_this_is_allowed_or_on_one_worker(
    tmp_path: Path, keys: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "run", model=Centred, **keys)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("not exact")]
    assert (result["exact"], len(result["inexact"]), len(lines)) == (
        ("workers" in keys),
        *[1 - ("workers" in keys)] * 2,
    )


def test_what_could_not_be_checked_is_not_called_exact(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "run", model=Unchecked)
    assert (result["exact"], result["inexact"]) == (None, [])
    assert result["not_checked"] == "it failed on a few nodes with RuntimeError: too few nodes"
    assert "not checked whether the model is exact on 2 workers: it failed on a few nodes" in capfd.readouterr().err
    assert json.loads((tmp_path / "run/result.json").read_text())["exact"] is None


@pytest.mark.parametrize("job", ["train", "verify"])
def test_a_class_that_makes_tensors_of_the_default_type_runs_in_float64(tmp_path: Path, job: str) -> None:
    result = run(tmp_path / "run", model=Identity, trainer={"max_epochs": 1, "precision": 64}, job=job)
    assert result["exact" if job == "train" else "verified"] is True
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
def test_a_strategy_that_drifts_is_not_exact(tmp_path: Path) -> None:
    result = run(tmp_path / "run", strategy={"name": "vertex_centric", "local_iterations": 2})
    assert result["exact"] is False
    assert result["inexact"] == [
        "strategy.local_iterations=2: training is approximate",
        "strategy=vertex_centric: its steps depend on the number of workers",
    ]


PRESET = "preset_workload"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "beginnings"),
    [
        exhaustive(({"exchange": "pipelined"}, ["exchange=pipelined: training is approximate"])),
        ({"exchange": {"name": "pipelined", "staleness": 0}}, []),
        ({"exchange": "pipelined", "workers": 1}, []),
        (
            {"strategy": {"name": "vertex_centric", "local_iterations": 8}},
            ["strategy.local_iterations=8: training is approximate"],
        ),
        ({"sync": {"name": "leader", "mode": "async"}}, ["sync.mode=async: training is approximate"]),
        exhaustive(({"strategy": PRESET}, ["strategy.halo=one_hop: training is approximate"])),
        exhaustive(({}, [])),
    ],
    ids=str,
)
def test_an_approximate_run_says_so_and_reports_the_model_that_is_saved(
    tmp_path: Path, keys: dict[str, Any], beginnings: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = {"max_epochs": 6, "check_val_every_n_epoch": 2, "monitor": None}
    result = run(tmp_path / "run", model="gcn", trainer=trainer, **keys)
    lines = capfd.readouterr().err.splitlines()
    said = [line for line in lines if "training is approximate" in line]
    assert [line[: len(begin)] for line, begin in zip(said, beginnings, strict=True)] == beginnings
    assert result["approximate"] == said
    closing = [line for line in lines if line.startswith("approximate training: ")]
    assert len(closing) == min(len(beginnings), 1)
    assert result["saved_epoch"] == 6
    best = result["best_evaluation"]
    assert best["epoch"] in (2, 4, 6)
    for line in closing:
        assert f"the saved model, of epoch 6, has val_accuracy={result['val_accuracy']:.4g}; " in line
        assert f"the best evaluation was val_accuracy={best['value']:.4g} in epoch {best['epoch']}" in line
        is_best = best["value"] == pytest.approx(result["val_accuracy"])
        assert ("trainer.monitor=val_accuracy saves the best model" in line) == (not is_best)


@pytest.mark.slow
def test_the_best_model_is_reported_where_it_is_saved(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = {"max_epochs": 6, "check_val_every_n_epoch": 2}
    result = run(tmp_path / "run", model="gcn", trainer=trainer, strategy=PRESET)
    assert result["saved_epoch"] == result["best_epoch"] == result["best_evaluation"]["epoch"]
    assert result["best_evaluation"]["value"] == pytest.approx(result["val_accuracy"])
    assert "saves the best model" not in capfd.readouterr().err


@pytest.mark.slow
def test_the_monitored_figure_is_named_where_another_one_has_a_better_epoch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = {"max_epochs": 8, "check_val_every_n_epoch": 2, "monitor": "val_loss", "lr": 1.0}
    result = run(tmp_path / "run", model="gcn", trainer=trainer, strategy=PRESET)
    (line,) = (text for text in capfd.readouterr().err.splitlines() if text.startswith("approximate training: "))
    assert result["best_evaluation"]["value"] > result["val_accuracy"]
    saved, loss = result["saved_epoch"], f"val_loss={result['val_loss']:.4g}"
    assert f"of epoch {saved}, has {loss}; the best evaluation was {loss} in epoch {saved}" in line
    assert "val_accuracy" not in line
