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
from tests.graphs import random_graph
from tests.runs import BARE


def run(folder: Path, **keys: Any) -> Any:
    given = {
        "strategy": "vertex_centric",
        "workers": 2,
        "comm": "threads",
        "threads": 1,
        "partition": "1d",
        **BARE,
        **keys,
    }
    return gnnkit.train(random_graph(), folder=folder, trainer={"max_epochs": 1}, **given)


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
@pytest.mark.parametrize(
    "keys",
    [{"model": attention, "workers": 1}, {"model": "gcn"}, {"sync": "leader"}],
    ids=["one worker", "gcn", "leader"],
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
    assert result["inexact"] == ["strategy=vertex_centric: its steps depend on the number of workers"]


PRESET = "preset_workload"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "begin"),
    [
        (
            {"exchange": "pipelined"},
            "exchange=pipelined: rows are late. In 100 epochs with 4 workers this lost on 5 graphs 0 to 5",
        ),
        ({"exchange": "quantized+sampled"}, "exchange=sampled: some rows are left out. In 100 epochs"),
        ({"exchange": {"name": "pipelined", "staleness": 0}}, None),
        ({"exchange": "pipelined", "workers": 1}, None),
        ({"exchange": "quantized"}, None),
        ({"strategy": {"name": PRESET, "correction": "coverage"}}, None),
        ({"strategy": {"name": PRESET, "halo": "cluster"}}, "strategy.halo=cluster: a step lacks the edges to other"),
        ({"strategy": PRESET}, None),
        ({"strategy": {"name": PRESET, "average": "parameters"}}, "strategy.average=parameters: workers step alone"),
        ({"strategy": {"name": "vertex_centric", "local_iterations": 8}}, "strategy.local_iterations=8: workers step"),
        ({"sync": {"name": "neighbour", "exchange": "parameters"}}, "sync.exchange=parameters: workers step apart"),
        ({"sync": {"name": "leader", "mode": "async"}}, "sync.mode=async: a step is of one worker's gradient"),
    ],
    ids=str,
)
def test_a_run_begins_with_what_its_steps_have_lost_in_measurements(
    tmp_path: Path, keys: dict[str, Any], begin: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", model="gcn", **keys)
    said = [line for line in capfd.readouterr().err.splitlines() if "points of accuracy" in line]
    assert [line[: len(begin or "")] for line in said] == ([] if begin is None else [begin])
