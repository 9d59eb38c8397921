"""TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.logger.base import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class TensorBoard(RunLogger):
    """Choose this logger to look at curves: `tensorboard --logdir outputs`."""

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import TensorBoardLogger

        return TensorBoardLogger(folder, "", "tensorboard", default_hp_metric=False)

    def go_on(self, folder: Path, steps: int, mark: None) -> Logger:
        from lightning.pytorch.loggers import TensorBoardLogger

        return TensorBoardLogger(folder, "", "tensorboard", default_hp_metric=False, purge_step=steps)
