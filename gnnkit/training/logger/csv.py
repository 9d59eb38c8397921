"""CSV files."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.training.logger.base import RunLogger
from gnnkit.utils.storage import naming

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

FILE = "metrics.csv"


class Csv(RunLogger):
    """Writes curves to `csv/metrics.csv` in the run folder.

    Choose this logger to process curves in a program. It needs no further package.
    """

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import CSVLogger

        class Named(CSVLogger):
            """A CSV logger whose disk errors name the file."""

            def save(self) -> None:
                with naming(Path(self.log_dir) / FILE):
                    super().save()

        return Named(folder, "", "csv")

    def mark(self, logger: Logger) -> int:
        logger.save()
        return len(_rows(Path(logger.log_dir or "") / FILE))

    def go_on(self, folder: Path, steps: int, mark: int | None) -> Logger:
        rows = _rows(folder / "csv" / FILE)[: mark or 0]
        logger: Any = self.make(folder)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Experiment logs directory .* exists")
            writer = logger.experiment  # deletes the file
        writer.metrics += rows
        return logger  # type: ignore[no-any-return]


def _rows(path: Path) -> list[dict[str, str]]:
    """Reads a table's rows, without empty cells."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]
