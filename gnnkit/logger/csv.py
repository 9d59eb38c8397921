"""Tables of comma-separated values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.logger.base import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Csv(RunLogger):
    """Choose this logger to read curves in a program: `csv/metrics.csv`."""

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import CSVLogger

        return CSVLogger(folder, "", "csv")
