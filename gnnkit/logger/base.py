"""The interface of loggers."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit.errors import UserError
from gnnkit.ranges import shown

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class RunLogger(ABC):
    """Makes a logger of Lightning, which writes the scalars and settings of a run.

    The leader alone makes and uses the logger. So a logger must not wait for other
    ranks. Arguments of the constructor are the keys of `logger.NAME`. The constructor
    runs before the run starts, and imports nothing heavy.
    """

    module: ClassVar[str | None] = None  # that must be installed
    package: ClassVar[str | None] = None  # to install for the module

    def check(self) -> None:
        """Raises `UserError` with the package to install where one is missing."""
        if self.module is not None and importlib.util.find_spec(self.module) is None:
            raise UserError(
                f"logger={self.package}: the package {self.package} is not installed: pip install {self.package}"
            )

    @abstractmethod
    def make(self, folder: Path) -> Logger:
        """Makes the logger, on the leader.

        Args:
            folder: The run folder.
        """

    def mark(self, logger: Logger) -> Any:
        """Writes all scalars so far, at a checkpoint. Returns their end, for `go_on`.

        The value is for JSON. Default: nothing.
        """
        logger.save()

    def go_on(self, folder: Path, steps: int, mark: Any) -> Logger:
        """Makes the logger of ranks that were started again, on the leader.

        Scalars after the mark come again. Default: `make`.

        Args:
            folder: The run folder, with what the logger before has written.
            steps: Steps before the mark.
            mark: From `mark`. None: all scalars come again.
        """
        return self.make(folder)

    def close(self, logger: Logger) -> None:  # noqa: B027 - most end with training
        """Ends the logger after the last scalar. The process ends without `atexit`."""


class Given(RunLogger):
    """A logger of Lightning that comes from Python."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def check(self) -> None:
        if not callable(getattr(self._logger, "log_metrics", None)):
            raise UserError(
                f"logger={shown(repr(self._logger))}: expected a logger of lightning.pytorch, or the name of an installed one"
            )

    def make(self, folder: Path) -> Logger:
        return self._logger

    def close(self, logger: Logger) -> None:
        finish: Any = getattr(getattr(logger, "experiment", None), "finish", None)
        if callable(finish):  # of Weights & Biases
            finish()
