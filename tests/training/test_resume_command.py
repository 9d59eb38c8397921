"""Resuming by a key of the command, from the checkpoint of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.training import checkpoint
from tests.graphs import random_graph
from tests.runs import BARE

FILE = "checkpoints/last.json"


def run(folder: Path, graph: Graph | None = None, trainer: dict[str, Any] | None = None, **keys: Any) -> Any:
    run_keys = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "threads": 1, **BARE, **keys}
    return gnnkit.train(
        graph or random_graph(), folder=folder, trainer={"max_epochs": 2, **(trainer or {})}, **run_keys
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two epochs."""
    folder = tmp_path_factory.mktemp("first") / "run"
    run(folder)
    return folder


@pytest.mark.slow
def test_a_run_folder_is_resumed_and_what_may_change_may_change(
    tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"max_epochs": 4, "resume": str(first), "checkpoint_every": 1, "log_every_n_steps": 2}
    run(tmp_path / "more", trainer=keys, threads=2, workers=3, partition="random")
    assert "training 4 epochs, resuming in epoch 3\n" in capsys.readouterr().out
    state = checkpoint.load(tmp_path / "more" / FILE)
    assert (state["epoch"], state["global_step"]) == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "keys", "expected"),
    [
        ({"lr": 0.5}, {}, "trainer.lr=0.5 differs from null in the checkpoint "),
        ({"weight_decay": 0.1}, {}, "trainer.weight_decay=0.1 differs from null in the checkpoint "),
        ({"optimizer": "adamw"}, {}, "trainer.optimizer=adamw differs from adam in the checkpoint "),
        ({"precision": 64}, {}, "trainer.precision=64 differs from 32 in the checkpoint "),
        ({}, {"seed": 1}, "seed=1 differs from 0 in the checkpoint "),
        ({}, {"model": {"name": "gcn", "dropout": 0.1}}, "model.dropout=0.1 differs from 0.5 in the checkpoint "),
        ({}, {"model": {"name": "gcn", "hidden": 5}}, "model.hidden=5 differs from 64 in the checkpoint "),
        ({}, {"model": "sage"}, "model=sage differs from gcn in the checkpoint "),
        ({}, {"sync": "leader"}, "sync=leader differs from all_reduce in the checkpoint "),
        ({}, {"strategy": "individual_sample"}, "strategy=individual_sample differs from vertex_centric in the"),
        ({}, {"graph": random_graph(seed=1)}, "trainer.resume: the graph is not the graph of the checkpoint "),
        ({"max_epochs": 2}, {}, "trainer.max_epochs=2: the checkpoint "),
        ({"max_epochs": 1}, {}, "trainer.max_epochs=1: the checkpoint "),
        ({"resume": "last"}, {}, "trainer.resume=last: checkpoint last is not whole: last: No such file or directory"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, first: Path, trainer: dict[str, Any], keys: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError) as error:
        run(tmp_path / "more", trainer={"max_epochs": 4, "resume": str(first / FILE), **trainer}, **keys)
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "more" / FILE).exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_is_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    full_run = run(tmp_path / "whole", trainer={"max_epochs": 4, "checkpoint_every": 1})
    (tmp_path / "whole" / FILE).write_text("{}")
    resume_keys = {"max_epochs": 4, "resume": str(tmp_path / "whole")}
    result = run(tmp_path / "more", trainer=resume_keys)
    assert result["epochs"] == 1
    assert result["train_loss"] == full_run["train_loss"]
    message = f"is not whole: 'sha256': goes on from {tmp_path}/whole/checkpoints/last-1.json"
    assert capfd.readouterr().err.count(message) == 1
    result = run(tmp_path / "whole", trainer={"max_epochs": 5}, on_exists="resume")
    assert result["epochs"] == 2
    assert "resuming from the previous checkpoint" in capfd.readouterr().out


class Net(nn.Module):
    """Takes the place of the configured model."""

    num_layers = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, adjacencies: Any) -> torch.Tensor:
        logits: torch.Tensor = self.second(self.first(adjacencies[0].aggregate(x, reduce="mean")))
        return logits


@pytest.mark.slow
def test_a_given_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "first", model=Net(4))
    resume_keys = {"max_epochs": 4, "resume": str(tmp_path / "first")}
    with pytest.raises(UserError, match=r"model: first.weight has shape \[5, 8\], but \[4, 8\] in the checkpoint"):
        run(tmp_path / "wider", model=Net(5), trainer=resume_keys)
    result = run(tmp_path / "same", model=Net(4), trainer=resume_keys)
    assert result["epochs"] == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_adamw_trains_another_model_than_adam(tmp_path: Path) -> None:
    for optimizer in ("adam", "adamw"):
        run(tmp_path / optimizer, trainer={"optimizer": optimizer, "weight_decay": 0.5})
    states = [checkpoint.load(tmp_path / name / FILE)["state_dict"] for name in ("adam", "adamw")]
    assert not torch.equal(states[0]["model.convs.0.weight"], states[1]["model.convs.0.weight"])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_says_how_long_it_took_and_when_it_was_accurate(tmp_path: Path) -> None:
    result = run(tmp_path / "run", trainer={"max_epochs": 6, "check_val_every_n_epoch": 1})
    assert 0 < result["time_to_accuracy"] < result["seconds_total"]
    assert json.loads((tmp_path / "run/result.json").read_text())["seconds_total"] == result["seconds_total"]


@pytest.mark.slow
def test_without_a_validation_no_time_to_accuracy_is_known(tmp_path: Path) -> None:
    trainer = {"max_epochs": 2, "check_val_every_n_epoch": 3}
    assert run(tmp_path / "run", trainer=trainer)["time_to_accuracy"] is None
