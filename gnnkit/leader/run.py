"""The interface of a `gnnkit.train` run for the leader's hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.comm import Mailbox
from gnnkit.utils.documents import Json


class LeaderRun(ABC):
    """A `LeaderHook`'s run on one rank. It is None in a user's `Trainer`.

    A hook uses it to do what only gnnkit's own runs support: move nodes to other
    workers, run a program during training, and record values in the run folder.
    """

    folder: Path  # the run folder
    timeout: float  # seconds, `comm.timeout`
    checkpoint_every: int  # epochs, `trainer.checkpoint_every`
    world_size: int  # number of workers
    mailbox: Mailbox  # connects the workers, and the servers, which are numbered after them

    @abstractmethod
    def progress(self, activity: str) -> None:
        """Reports this rank's activity, for the messages of the launcher's watchdog.

        Call it before long work between two steps. Otherwise, the watchdog may consider
        the rank hung.

        Args:
            activity: A few words, such as `cutting new shards`.
        """

    @abstractmethod
    def take_shard(self, module: Any, name: str, balance: Mapping[str, float]) -> None:
        """Continues with another shard of the graph, between two epochs. Collective.

        Args:
            name: The shards written by `replace_shards` of `prepare/run_partition.py`.
            balance: Their max/mean over workers, for `result.json`.
        """

    @abstractmethod
    def note(self, fields: Mapping[str, Any]) -> None:
        """Adds plain values to `coordination.json`, where they survive a restart.

        Only rank 0 may call it.

        Args:
            fields: JSON values by name, which replace those of the same name.
        """

    @abstractmethod
    def run_program(self, name: str, request: Mapping[str, Any], meanwhile: Callable[[], None]) -> Json:
        """Runs a module as a program in a new process, and returns its response.

        The process imports neither torch nor plugins, and ends with this one. Raises
        `RuntimeError` with the reason if the process fails or hangs.

        Args:
            name: The module, which calls `gnnkit.launch.program.answer`.
            request: Plain values for the program.
            meanwhile: Called a few times a second.
        """
