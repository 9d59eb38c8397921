"""TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.training.logger.base import RunLogger
from gnnkit.utils.storage import naming

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class TensorBoard(RunLogger):
    """Writes curves for TensorBoard, a default logger.

    Choose this logger to view curves: `tensorboard --logdir outputs`.
    """

    def make(self, folder: Path) -> Logger:
        return _logger(folder)

    def go_on(self, folder: Path, steps: int, mark: None) -> Logger:
        return _logger(folder, purge_step=steps)


def _logger(folder: Path, **keys: Any) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    class Named(TensorBoardLogger):
        """A TensorBoard logger that names the folder in disk errors."""

        def log_metrics(self, *arguments: Any, **keys: Any) -> None:
            with naming(Path(self.log_dir)):
                try:
                    super().log_metrics(*arguments, **keys)
                except ValueError as error:
                    raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from error

    return Named(folder, "", "tensorboard", default_hp_metric=False, **keys)
