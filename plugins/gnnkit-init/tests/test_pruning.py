"""Trials that lag behind are pruned by Optuna, and never selected."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gnnkit_init import baselines, pruning, trials
from gnnkit_init.pruning import STARTUP_TRIALS, WARMUP_EPOCHS, MedianStop
from gnnkit_init.trials import Trial, Trials

from gnnkit import config
from gnnkit.config.settings import settle
from gnnkit.task.node_classification import NodeClassification
from tests.graphs import random_graph


def run(pruner: MedianStop, scores: list[float]) -> str | None:
    """Reports a score for each epoch until the trial is stopped."""
    trainer: Any = SimpleNamespace(should_stop=False, current_epoch=0, callback_metrics={})
    pruner.on_train_start(trainer, None)
    for trainer.current_epoch, score in enumerate(scores):
        trainer.callback_metrics = {"val_accuracy": score}
        pruner.on_validation_end(trainer, None)
        if trainer.should_stop:
            break
    pruner.on_train_end(trainer, None)
    return pruner.stopped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "level", "complete", "is_pruned"),
    [
        ("maximize", 0.5, 2, True),
        ("maximize", 0.9, 2, False),
        ("minimize", 0.5, 2, False),
        ("minimize", 0.9, 2, True),
        ("maximize", 0.5, STARTUP_TRIALS - 1, False),
    ],
)
def test_a_trial_below_the_median_of_complete_ones_is_stopped(
    direction: str, level: float, complete: int, is_pruned: bool, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    epochs = 2 * WARMUP_EPOCHS
    curves = [[(epoch, 0.7) for epoch in range(1, epochs + 1)]] * complete
    pruner = MedianStop("val_accuracy", direction, curves, tmp_path / "curve.json")
    stopped = run(pruner, [level] * epochs)
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert curve[0] == [1, level]
    assert stopped == (f"pruned after epoch {len(curve)}" if is_pruned else None)
    assert len(curve) == (WARMUP_EPOCHS if is_pruned else epochs)


def test_a_pruned_trial_is_never_best() -> None:
    pruned = Trial({"model": "gat"}, 0.9, 0.1, 0.9, 40, 1.0, "pruned after epoch 40")
    complete = Trial({"model": "gcn"}, 0.8, 0.1, 0.8, 90, 1.0)
    found = Trials(NodeClassification(), "val_accuracy", (pruned, complete), 2)
    assert found.best is complete
    assert any(line.endswith("gat pruned after epoch 40") for line in found.lines())


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
@pytest.mark.exhaustive
def test_curves_of_complete_trials_prune_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    planned: tuple[trials.Keys, ...] = ({"model": "sage"}, {"model": "sage"}, {"model": "gat", "trainer.lr": 1e-9})
    monkeypatch.setitem(trials.LISTS, "table", planned)
    monkeypatch.setitem(trials.LISTS, "skips", ())
    monkeypatch.setattr(trials, "MAX_EPOCHS", 12)
    monkeypatch.setattr(pruning, "WARMUP_EPOCHS", 3)
    monkeypatch.setattr(baselines, "is_installed", lambda: False)
    found = trials.compare(
        settle(config.compose(["dataset=saved", "dataset.root=x", "strategy=auto", "job=init", "cache=false"])),
        random_graph(),
        {"task": "node_classification"},
    )
    assert [len(trial.curve) for trial in found.tried[:4]] == [12, 0, 12, 12]  # the second has no edges
    assert found.tried[4].remark.startswith("pruned after epoch")
    assert found.best in found.tried[:4]
