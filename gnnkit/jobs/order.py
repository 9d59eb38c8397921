"""What was asked, on the command line or from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.jobs.configuration import command

if TYPE_CHECKING:
    from gnnkit.config.settings import Settings
    from gnnkit.graph import Graph
    from gnnkit.jobs.models import Given, ModelSource


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked of a job. A step of the job gives the next step a changed copy."""

    settings: Settings
    graph: Graph | None = None  # instead of the data set
    model: Given = None  # instead of the configured model
    folder: str | Path | None = None  # the run folder. None: the key `output`, or else a new one
    overrides: Sequence[str] = ()  # as on the command line, to be kept in the run folder
    program: str = "gnnkit"  # what was called, for people
    settle: Callable[[Sequence[str]], Settings] | None = None  # makes the settings of other overrides, in the same way
    options: Sequence[str] = ()  # beside the overrides, such as --config-dir=DIR

    @property
    def source(self) -> ModelSource:
        """The maker of the model. Imports torch."""
        from gnnkit.jobs.models import ModelSource

        return ModelSource(self.settings.model, self.model)

    def command(self, overrides: Sequence[str]) -> str:
        """Spells overrides as a command like that of the order, without secrets."""
        return command(overrides, self.program, self.options)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader's, or starts the ranks."""
        started = self.settings.started
        return started is None or started.rank == 0

    @property
    def named_folder(self) -> str | Path | None:
        """The run folder that was asked for."""
        return self.settings.output if self.folder is None else self.folder

    @property
    def run_folder(self) -> Path:
        """The run folder, once it is made."""
        assert isinstance(self.folder, Path)
        return self.folder
