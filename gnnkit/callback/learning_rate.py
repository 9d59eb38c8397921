"""Logging of the learning rate."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback


class LearningRate(Callback):
    """Logs the learning rate of each epoch as the curve `lr`.

    Parameter groups with different rates have the curves `lr/0`, `lr/1` and so on.
    """

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        curves = {"lr": rates[0]} if len(set(rates)) == 1 else {f"lr/{i}": rate for i, rate in enumerate(rates)}
        for logger in trainer.loggers:
            logger.log_metrics(curves, step=trainer.global_step)
