"""Loggers for the scalars of a run."""

from __future__ import annotations

import csv
import importlib.util
import os
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown
from gnnkit.utils.storage import naming

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class RunLogger(ABC):
    """Creates a Lightning logger, which writes a run's scalars and settings.

    Only the leader creates and uses the logger, so a logger must not wait for other
    ranks. The constructor's arguments are the keys of `logger.NAME`. It runs before
    the ranks start, and must be cheap to import.

    Derive from it to send curves to another service. Implement `make`; `mark` and
    `go_on` let a resumed run continue the same curves without repeating values.

    Examples:
        >>> from gnnkit.training.logger import RunLogger
        >>> class Text(RunLogger):
        ...     '''Writes scalars to a CSV file.'''
        ...     def make(self, folder):
        ...         from lightning.pytorch.loggers import CSVLogger
        ...         return CSVLogger(folder, name="text")
    """

    module: ClassVar[str | None] = None  # required module
    package: ClassVar[str | None] = None  # package that provides the module

    def check(self) -> None:
        """Raises `UserError`, which names the package to install, if it is missing."""
        if self.module is not None and importlib.util.find_spec(self.module) is None:
            raise UserError(
                f"logger={self.package}: the package {self.package} is not installed: pip install {self.package}"
            )

    @abstractmethod
    def make(self, folder: Path) -> Logger:
        """Creates the logger, on the leader, when training starts.

        Args:
            folder: The run folder. A logger that writes files writes them below it.
        """

    def mark(self, logger: Logger) -> Any:
        """Flushes all scalars at a checkpoint. Returns their position, for `go_on`.

        The position is a JSON value. The default implementation returns None.
        """
        logger.save()

    def go_on(self, folder: Path, steps: int, mark: Any) -> Logger:
        """Creates the logger after a restart, on the leader.

        Scalars after the mark will be written again. Default: calls `make`.

        Args:
            folder: The run folder, with the previous logger's files.
            steps: Number of steps before the mark.
            mark: From `mark`. If None, all scalars will be written again.
        """
        return self.make(folder)

    def close(self, logger: Logger) -> None:  # noqa: B027 - most need no closing
        """Closes the logger after the last scalar. `atexit` handlers do not run."""


class ExistingLogger(RunLogger):
    """A Lightning logger passed from Python."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def check(self) -> None:
        if not callable(getattr(self._logger, "log_metrics", None)):
            raise UserError(
                f"logger={shown(repr(self._logger))}: expected a lightning.pytorch logger, or the name of an installed one"
            )

    def make(self, folder: Path) -> Logger:
        return self._logger

    def close(self, logger: Logger) -> None:
        finish: Any = getattr(getattr(logger, "experiment", None), "finish", None)
        if callable(finish):  # of Weights & Biases
            finish()


@dataclass(frozen=True, slots=True)
class Loggers:
    """The leader's loggers. Other ranks have none."""

    pairs: tuple[tuple[RunLogger, Logger], ...] = ()

    @property
    def lightning(self) -> list[Logger]:
        """The Lightning loggers."""
        return [logger for _, logger in self.pairs]

    def mark(self) -> list[Any]:
        """Flushes all scalars, and returns each logger's position."""
        return [maker.mark(logger) for maker, logger in self.pairs]

    def close(self) -> None:
        """Closes the loggers after the last scalar."""
        for maker, logger in self.pairs:
            maker.close(logger)


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


_folders: set[str] = set()  # run folders of this process. MLflow stores the last one in the environment


class MLflow(RunLogger):
    """Writes curves and settings to MLflow.

    Choose this logger to compare runs in MLflow, on a server or in a folder.
    """

    module, package = "mlflow", "mlflow"

    def __init__(self, experiment: str = "gnnkit", run_name: str | None = None) -> None:
        """Stores the keys. MLFLOW_TRACKING_URI names a server or folder.

        Args:
            experiment: Name of the experiment.
            run_name: Name of the run. If None, the run folder's name.
        """
        self.experiment, self.run_name = experiment, run_name

    def make(self, folder: Path) -> Logger:
        from lightning.pytorch.loggers import MLFlowLogger

        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        uri = "" if tracking_uri in _folders else tracking_uri
        if not uri:
            uri = (folder / "mlflow").as_uri()
            _folders.add(uri)
        if uri.startswith("file:"):  # must be allowed explicitly since version 3.7
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        return MLFlowLogger(self.experiment, self.run_name or folder.name, uri)


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
