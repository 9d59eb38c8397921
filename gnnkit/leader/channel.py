"""Messages with the workers' states, sent to the leader without blocking a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gnnkit.comm import LEADER, DeadlineExceeded, Mailbox, Message, PeerLost
from gnnkit.leader.watch import Watch, WorkerState

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
            self._mailbox.put(LEADER, _STATE, asdict(state))
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
