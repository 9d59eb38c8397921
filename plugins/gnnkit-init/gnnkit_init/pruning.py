"""Pruning of job=init's trials by Optuna's median rule."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import Callback

Curve = Sequence[tuple[int, float]]  # epoch and validation score
Direction = Literal["maximize", "minimize"]
PRUNED = "pruned"
STARTUP_TRIALS, WARMUP_EPOCHS = 2, 40  # complete trials, and epochs, before a trial is pruned


def is_installed() -> bool:
    return importlib.util.find_spec("optuna") is not None


class MedianStop(Callback):
    """Stops a trial whose best score is below the median of complete ones so far."""

    def __init__(self, figure: str, direction: Direction, complete: Sequence[Curve], file: Path) -> None:
        """Stores the arguments.

        Args:
            figure: The validation metric.
            direction: "maximize" or "minimize".
            complete: The curves of complete trials.
            file: Where the trial's curve is written.
        """
        self.figure, self.direction, self.complete, self.file = figure, direction, complete, file
        self.curve: list[tuple[int, float]] = []
        self.stopped: str | None = None
        self._trial: Any = None

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(STARTUP_TRIALS, WARMUP_EPOCHS)
        study = optuna.create_study(direction=self.direction, pruner=pruner)
        for curve in self.complete:
            study.add_trial(optuna.trial.create_trial(value=curve[-1][1], intermediate_values=dict(curve)))
        self._trial = study.ask()

    def on_validation_end(self, trainer: L.Trainer, module: Any) -> None:
        epoch, score = trainer.current_epoch + 1, float(trainer.callback_metrics[self.figure])
        self.curve.append((epoch, score))
        self._trial.report(score, epoch)
        if self._trial.should_prune():
            self.stopped, trainer.should_stop = f"{PRUNED} after epoch {epoch}", True

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        self.file.write_text(json.dumps(self.curve), encoding="utf-8")
