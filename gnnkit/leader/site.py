"""Where a leader works: the clocks, the model and the peers of one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gnnkit.leader.best import BestModel
from gnnkit.leader.channel import StateChannel
from gnnkit.leader.watch import Watch, WorkerState

if TYPE_CHECKING:
    import lightning as L


class LeaderSite(ABC):
    """The surroundings of a `Leader` on one rank.

    There are two: a run of `gnnkit.train`, and a `Trainer` of the user. All methods
    except `end_step` and `batch_arrived` may be collective.
    """

    channel: StateChannel
    watch: Watch | None  # on rank 0
    rule: BestModel | None  # None: no model is kept

    @abstractmethod
    def begin(self, trainer: L.Trainer, module: Any) -> None:
        """Begins training."""

    @abstractmethod
    def begin_epoch(self, trainer: L.Trainer, module: Any) -> None:
        """Begins an epoch, and the time of its first step."""

    @abstractmethod
    def restart_clock(self, module: Any) -> None:
        """Lets the time of the next step begin now."""

    def batch_arrived(self) -> None:  # noqa: B027 - a run's loader measures waits itself
        """Ends the wait for the batch of the next step."""

    @abstractmethod
    def end_step(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any) -> WorkerState:
        """Returns what the rank did in the step that ends."""

    def begin_evaluation(self, trainer: L.Trainer) -> None:  # noqa: B027 - most look at the end only
        """Begins an evaluation."""

    @abstractmethod
    def end_evaluation(self, trainer: L.Trainer, module: Any) -> None:
        """Takes in the figures of an evaluation."""

    @abstractmethod
    def end_epoch(self, trainer: L.Trainer, module: Any) -> None:
        """Ends an epoch."""

    @abstractmethod
    def end(self, trainer: L.Trainer, module: Any) -> None:
        """Ends training. Rank 0 waits for the last states of the others."""

    def close(self) -> None:  # noqa: B027 - a run closes what it has opened
        """Releases connections and files."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most keep none
        """Continues from a checkpoint."""
