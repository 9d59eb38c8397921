"""The bar of a notebook, from the lines that a leader writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gnnkit_report.notebook import Bar

from gnnkit import config
from gnnkit.config import settings
from gnnkit.jobs.job import shows_bar
from gnnkit.jobs.order import Order
from gnnkit.launch import progress

SMALL = ["strategy=vertex_centric", "dataset=synthetic", "workers=2", "trainer.max_epochs=20"]


class Cell:
    """Stands for IPython: keeps what is shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[dict[str, str]] = []
        handle = SimpleNamespace(update=lambda data, raw: self.shown.append(data))

        def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
            assert raw
            assert display_id
            self.shown.append(data)
            return handle

        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=SimpleNamespace(display=display)))


def settled(*keys: str) -> settings.Settings:
    return settings.settle(config.compose([*SMALL, *keys]))


def lines(folder: Path, *found: dict[str, Any], mode: str = "a") -> None:
    with (folder / "epochs.jsonl").open(mode) as file:
        file.write("".join(json.dumps(line) + "\n" for line in found))


def test_a_bar_shows_losses_and_the_best_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(monkeypatch)
    bar = Bar(settled(), tmp_path)
    assert cell.shown[0]["text/plain"] == "epoch 0/20  preparing the graph and the workers"
    bar.show()
    assert len(cell.shown) == 1  # nothing is new
    lines(tmp_path, {"epoch": 0, "train_loss": 2.0}, {"epoch": 1, "figures": {"val_accuracy": 0.5, "val_loss": 1.5}})
    lines(tmp_path, {"epoch": 1, "train_loss": 1.0})
    bar.show()
    text = "epoch 2/20  train_loss 1.0000  val_loss 1.5000  val_accuracy 0.5000  best 0.5000 in epoch 2"
    assert cell.shown[-1]["text/plain"] == text
    assert 'value="2" max="20"' in cell.shown[-1]["text/html"]
    lines(tmp_path, {"epoch": 2, "figures": {"val_accuracy": 0.4}}, {"epoch": 2, "train_loss": None})
    with (tmp_path / "epochs.jsonl").open("a") as file:
        file.write('{"epoch": 3, "trai')  # of which the rest is still to come
    bar.show()
    assert cell.shown[-1]["text/plain"].startswith(
        "epoch 3/20  train_loss 1.0000  val_loss 1.5000  val_accuracy 0.4000  best 0.5000 in epoch 2"
    )
    assert " left" in bar.text
    lines(tmp_path, {"epoch": 1, "train_loss": 7.0}, mode="w")  # the ranks start again
    bar.show()
    assert cell.shown[-1]["text/plain"].startswith("epoch 2/20  train_loss 7.0000")


@pytest.mark.slow
def test_the_least_error_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cell(monkeypatch)
    bar = Bar(settled("task=regression"), tmp_path)
    for epoch, value in enumerate((3.0, 1.0, 2.0)):
        lines(tmp_path, {"epoch": epoch, "figures": {bar.main: value}}, {"epoch": epoch, "train_loss": 1.0})
    bar.show()
    assert "best 1.0000 in epoch 2" in bar.text


@pytest.mark.slow
def test_only_training_in_a_notebook_has_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shows_bar(Order(settled("trainer.progress_bar=true")))
    monkeypatch.setattr("gnnkit.jobs.job.in_notebook", lambda: True)
    assert shows_bar(Order(settled("trainer.progress_bar=true")))
    assert not shows_bar(Order(settled("trainer.progress_bar=false")))
    assert not shows_bar(Order(settled("trainer.progress_bar=true", "job=verify")))
    assert not shows_bar(Order(settled("trainer.progress_bar=true", "model=pagerank")))
    progress.begin(silent=True)
    progress.phase("cutting")
    progress.begin()
    progress.phase("training")
    assert capsys.readouterr().out.endswith("training\n")
