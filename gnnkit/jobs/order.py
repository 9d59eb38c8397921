"""The request for a job, from the command line or from Python."""

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
    """A request for a job. Each step passes a modified copy to the next."""

    settings: Settings
    graph: Graph | None = None  # replaces the data set
    model: Given = None  # replaces the configured model
    folder: str | Path | None = None  # the run folder. None: the key `output`, or a new folder
    overrides: Sequence[str] = ()  # as typed, and recorded in the run folder
    program: str = "gnnkit"  # the invoked program, for messages
    settle: Callable[[Sequence[str]], Settings] | None = None  # resolves other overrides in the same way
    options: Sequence[str] = ()  # command-line options such as --config-dir=DIR

    @property
    def source(self) -> ModelSource:
        """The source of the model. Imports torch."""
        from gnnkit.jobs.models import ModelSource

        return ModelSource(self.settings.model, self.model)

    def command(self, overrides: Sequence[str]) -> str:
        """Returns the command line with these overrides, without secrets."""
        return command(overrides, self.program, self.options)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader's, or starts the ranks."""
        started = self.settings.started
        return started is None or started.rank == 0

    @property
    def named_folder(self) -> str | Path | None:
        """The requested run folder."""
        return self.settings.output if self.folder is None else self.folder

    @property
    def run_folder(self) -> Path:
        """The run folder, after its creation."""
        assert isinstance(self.folder, Path)
        return self.folder
