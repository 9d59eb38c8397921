"""The interface between a `Leader` and its training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gnnkit.leader.best import BestModel
from gnnkit.leader.channel import StateChannel
from gnnkit.leader.watch import Watch, WorkerState

if TYPE_CHECKING:
    import lightning as L


class LeaderSite(ABC):
    """Measures one rank's training for a `Leader`.

    There are two implementations: for a run of `gnnkit.train`, and for a user's
    `Trainer`. All methods except `end_step` and `batch_arrived` may be collective.
    """

    channel: StateChannel
    watch: Watch | None  # None on ranks other than 0
    rule: BestModel | None  # None if no best model is stored

    @abstractmethod
    def begin(self, trainer: L.Trainer, module: Any) -> None:
        """Called when training starts."""

    @abstractmethod
    def begin_epoch(self, trainer: L.Trainer, module: Any) -> None:
        """Called when an epoch starts. Also starts the clock of its first step."""

    @abstractmethod
    def restart_clock(self, module: Any) -> None:
        """Starts the clock of the next step."""

    def batch_arrived(self) -> None:  # noqa: B027 - a run's loader measures waits itself
        """Called when the next step's batch has arrived."""

    @abstractmethod
    def end_step(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any) -> WorkerState:
        """Called when a step ends. Returns the rank's state in that step."""

    def begin_evaluation(self, trainer: L.Trainer) -> None:  # noqa: B027 - most look at the end only
        """Called when an evaluation starts."""

    @abstractmethod
    def end_evaluation(self, trainer: L.Trainer, module: Any) -> None:
        """Called when an evaluation ends. Records its figures."""

    @abstractmethod
    def end_epoch(self, trainer: L.Trainer, module: Any) -> None:
        """Called when an epoch ends."""

    @abstractmethod
    def end(self, trainer: L.Trainer, module: Any) -> None:
        """Called when training ends. Rank 0 waits for the other ranks' last states."""

    def close(self, *, failed: bool = False) -> None:  # noqa: B027 - a run closes what it has opened
        """Closes connections and files. `failed` is true after an error in training."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state to be saved in a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most keep none
        """Restores the state from a checkpoint."""
