"""Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.training.logger.base import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Wandb(RunLogger):
    """Choose this logger to compare runs in Weights & Biases, online or offline."""

    module = package = "wandb"

    def __init__(
        self, project: str = "gnnkit", run_name: str | None = None, group: str | None = None, offline: bool = False
    ) -> None:
        """Stores the keys.

        Args:
            project: The run's project.
            run_name: Name of the run. None: the run folder's name.
            group: The run's group. None: no group.
            offline: Whether to write to `wandb/`, for a later `wandb sync`.
        """
        self.project, self.run_name, self.group, self.offline = project, run_name, group, offline

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import WandbLogger

        name = self.run_name or folder.name
        return WandbLogger(name, folder, offline=self.offline, project=self.project, group=self.group)

    def close(self, logger: Any) -> None:
        logger.experiment.finish()
