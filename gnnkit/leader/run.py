"""What a run of `gnnkit.train` offers to the hooks of its leader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.comm import Mailbox


class LeaderRun(ABC):
    """The run of a `LeaderHook`, on one rank. `None` in a user's own `Trainer`."""

    folder: Path  # the run folder
    timeout: float  # seconds, `comm.timeout`
    checkpoint_every: int  # epochs, `trainer.checkpoint_every`
    world_size: int  # workers
    mailbox: Mailbox  # messages between the workers, and servers after them

    @abstractmethod
    def progress(self, activity: str) -> None:
        """Notes what this rank does, for the messages of the launcher's watchdog."""

    @abstractmethod
    def take_shard(self, module: Any, name: str, balance: Mapping[str, float]) -> None:
        """Continues with another shard of the graph, between two epochs. Collective.

        Args:
            module: The module of the trainer.
            name: The shards that `replace_shards` of `prepare/run_partition.py` wrote.
            balance: Their max/mean over workers, for `result.json`.
        """

    @abstractmethod
    def note(self, fields: Mapping[str, Any]) -> None:
        """Adds plain values to `coordination.json`. Rank 0 only."""

    @abstractmethod
    def run_program(self, name: str, request: Mapping[str, Any], meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Runs a module as a program in a fresh process, and returns its answer.

        The process has neither torch nor plugins, and ends with this one. Raises
        `RuntimeError` with the reason if the process fails or hangs.

        Args:
            name: The module, which calls `gnnkit.launch.program.answer`.
            request: Plain values for the program.
            meanwhile: Called a few times a second.
        """
