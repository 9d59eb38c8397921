"""What connects a `Leader` to training: the workers' messages, the loop and the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.comm import LEADER, DeadlineExceeded, Mailbox, Message, PeerLost
from gnnkit.leader.best import BestModel
from gnnkit.leader.watch import Watch, WorkerState

if TYPE_CHECKING:
    import lightning as L

_STATE = "state"  # tag. A message without fields ends a rank's states


class StateChannel:
    """One rank's end of the channel. The leader's end passes states to its watch."""

    def __init__(
        self, mailbox: Mailbox | None, rank: int, world_size: int, watch: Watch | None, *, goes_on: bool = False
    ) -> None:
        """Stores the arguments.

        Args:
            mailbox: Connects the ranks. If None, there is one rank.
            watch: The leader's watch, None on other ranks.
            goes_on: Whether the run continues without lost ranks.
        """
        self._mailbox, self._rank, self._world_size, self._watch = mailbox, rank, world_size, watch
        self._goes_on = goes_on
        self._finished_ranks = {LEADER}  # on the leader: ranks that have sent their last state

    def post(self, state: WorkerState) -> None:
        """Sends a state. The leader also processes the states that have arrived."""
        if self._watch is None:
            assert self._mailbox is not None
            self._mailbox.put(LEADER, _STATE, vars(state))
        else:
            self._watch.take(state)
            if self._mailbox is not None:
                self._take_arrived(self._mailbox, self._watch)

    def measured(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Passes an evaluation's figures to the watch, on the leader.

        Args:
            epoch: Number of the epoch, from 0.
            figures: The task's figures by name.
        """
        if self._watch is not None:
            self._watch.measured(epoch, figures)

    def catch_up(self, step: int, timeout: float) -> None:
        """Waits on the leader for all workers' states up to a step.

        Returns after `timeout` seconds without a state, because only figures are
        incomplete then.
        """
        while self._watch is not None and self._mailbox is not None and self._watch.awaits(step):
            try:
                self._take(self._mailbox.take(_STATE, timeout=timeout), self._watch)
            except DeadlineExceeded:
                return

    def finish(self, timeout: float) -> None:
        """Ends this rank's states. The leader waits for the other ranks' last states.

        Each state renews a rank's deadline, so slow workers are supported. Lost ranks
        are skipped if the run continues without them. Otherwise, raises `PeerLost` on
        the leader for a lost rank. Raises `DeadlineExceeded` for a rank that sends
        nothing within `timeout` seconds.
        """
        if self._watch is None:
            assert self._mailbox is not None
            self._mailbox.put(LEADER, _STATE)
            return
        for rank in range(self._world_size):
            while rank not in self._finished_ranks:
                self._wait_for(rank, timeout, self._watch)
        self._watch.finish()

    def _wait_for(self, rank: int, timeout: float, watch: Watch) -> None:
        """Processes a rank's next state, or marks the rank as lost."""
        assert self._mailbox is not None
        try:
            self._take(self._mailbox.take(_STATE, src=rank, timeout=timeout), watch)
        except PeerLost:
            if not self._goes_on:
                raise
            self._finished_ranks.add(rank)
            watch.lose(rank)

    def _take_arrived(self, mailbox: Mailbox, watch: Watch) -> None:
        lost_ranks = mailbox.gone() if self._goes_on else frozenset()
        while (message := mailbox.poll(_STATE)) is not None:
            self._take(message, watch)
        for rank in lost_ranks & set(range(self._world_size)):
            watch.lose(rank)

    def _take(self, message: Message, watch: Watch) -> None:
        if message.fields:
            watch.take(WorkerState(**message.fields))
        else:
            self._finished_ranks.add(message.src)


class LeaderSite(ABC):
    """Measures one rank's training for a `Leader`.

    There are two implementations: for a run of `gnnkit.train`, and for a user's
    `Trainer`. All methods except `end_step` and `batch_arrived` may be collective.
    """

    channel: StateChannel
    watch: Watch | None  # None on ranks other than 0
    rule: BestModel | None  # None if no best model is stored

    @abstractmethod
    def begin(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Called when training starts."""

    @abstractmethod
    def begin_epoch(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Called when an epoch starts. Also starts the clock of its first step."""

    @abstractmethod
    def restart_clock(self, module: L.LightningModule) -> None:
        """Starts the clock of the next step."""

    def batch_arrived(self) -> None:  # noqa: B027 - a run's loader measures waits itself
        """Called when the next step's batch has arrived."""

    @abstractmethod
    def end_step(self, trainer: L.Trainer, module: L.LightningModule, outputs: object, batch: Any) -> WorkerState:
        """Called when a step ends. Returns the rank's state in that step."""

    def begin_evaluation(self, trainer: L.Trainer) -> None:  # noqa: B027 - most look at the end only
        """Called when an evaluation starts."""

    @abstractmethod
    def end_evaluation(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Called when an evaluation ends. Records its figures."""

    @abstractmethod
    def end_epoch(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Called when an epoch ends."""

    @abstractmethod
    def end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Called when training ends. Rank 0 waits for the other ranks' last states."""

    def close(self, *, failed: bool = False) -> None:  # noqa: B027 - a run closes what it has opened
        """Closes connections and files. `failed` is true after an error in training."""

    def state_dict(self) -> dict[str, object]:
        """Returns the state to be saved in a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:  # noqa: B027 - most keep none
        """Restores the state from a checkpoint."""


class LeaderRun(ABC):
    """A `LeaderHook`'s run on one rank. It is None in a user's `Trainer`.

    A hook uses it to do what only gnnkit's own runs support: move nodes to other
    workers, and record values in the run folder.
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
    def take_shard(self, module: L.LightningModule, name: str, balance: Mapping[str, float]) -> None:
        """Continues with another shard of the graph, between two epochs. Collective.

        Args:
            name: The shards written by `replace_shards` of `prepare/run_partition.py`.
            balance: Their max/mean over workers, for `result.json`.
        """

    @abstractmethod
    def note(self, fields: Mapping[str, object]) -> None:
        """Adds plain values to `coordination.json`, where they survive a restart.

        Only rank 0 may call it.

        Args:
            fields: JSON values by name, which replace those of the same name.
        """
