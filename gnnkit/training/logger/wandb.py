"""Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.training.logger.base import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Wandb(RunLogger):
    """Writes curves and settings to Weights & Biases.

    Choose this logger to compare runs in its web application. Runs may be offline, and
    uploaded later.
    """

    module = package = "wandb"

    def __init__(self, project: str = "gnnkit", run_name: str | None = None) -> None:
        """Stores the keys. Others are wandb's environment variables.

        Args:
            project: The run's project.
            run_name: Name of the run. If None, the run folder's name.
        """
        self.project, self.run_name = project, run_name

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import WandbLogger

        return WandbLogger(self.run_name or folder.name, folder, project=self.project)

    def close(self, logger: Any) -> None:
        logger.experiment.finish()
