"""A run on several workers names all inexact parts before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch_geometric import nn as pyg

import gnnkit
from gnnkit.model.pyg import PyG
from tests.cases import exhaustive, few
from tests.graphs import random_graph
from tests.runs import BARE


def run(folder: Path, **keys: Any) -> Any:
    given = {
        "strategy": "vertex_centric",
        "workers": 2,
        "comm": "threads",
        "threads": 1,
        "partition": "1d",
        "trainer": {"max_epochs": 1},
        **BARE,
        **keys,
    }
    return gnnkit.train(random_graph(), folder=folder, **given)


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
