"""The interface of loggers."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown

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
