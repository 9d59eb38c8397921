"""Sends states from the workers to the leader. No step waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gnnkit.comm import DeadlineExceeded, Letter, Mailbox, PeerLost
from gnnkit.leader.watch import Watch, WorkerState

LEADER = 0
_STATE = "state"  # without fields: no more states follow


class StateChannel:
    """One end of the channel: every rank posts, the leader feeds its watch."""

    def __init__(
        self, mailbox: Mailbox | None, rank: int, world_size: int, watch: Watch | None, *, goes_on: bool = False
    ) -> None:
        """Keeps the ends.

        Args:
            mailbox: Between the ranks. None: there is one rank.
            rank: This rank.
            world_size: Number of ranks.
            watch: Of the leader. None on other ranks.
            goes_on: Whether the run goes on without ranks that are gone. Default: no.
        """
        self._mailbox, self._rank, self._world_size, self._watch = mailbox, rank, world_size, watch
        self._goes_on = goes_on
        self._ended = {LEADER}  # ranks that post no more, on the leader

    def post(self, state: WorkerState) -> None:
        """Sends a state. The leader also takes in the states that have arrived."""
        if self._watch is None:
            assert self._mailbox is not None
            self._mailbox.put(LEADER, _STATE, asdict(state))
        else:
            self._watch.take(state)
            if self._mailbox is not None:
                self._take_arrived(self._mailbox, self._watch)

    def measured(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Takes in the figures of an evaluation, on the leader.

        Args:
            epoch: Number of the epoch, from 0.
            figures: The figures of the task by name.
        """
        if self._watch is not None:
            self._watch.measured(epoch, figures)

    def catch_up(self, step: int, timeout: float) -> None:
        """Waits on the leader until the states of all workers up to a step are there.

        Gives up after `timeout` seconds without a state, as only figures lack then.
        """
        while self._watch is not None and self._mailbox is not None and self._watch.lacks(step):
            try:
                self._take(self._mailbox.take(_STATE, timeout=timeout), self._watch)
            except DeadlineExceeded:
                return

    def finish(self, timeout: float) -> None:
        """Ends the states of this rank.

        The leader waits for the last state of every rank, and finishes its watch. A
        slow worker may take its time: each of its states renews the deadline. Ranks
        that the run goes on without are not waited for. Raises `PeerLost` on the leader
        for another rank that is lost, and `DeadlineExceeded` for a rank that sends
        nothing in `timeout` seconds.
        """
        if self._watch is None:
            assert self._mailbox is not None
            self._mailbox.put(LEADER, _STATE)
            return
        for rank in range(self._world_size):
            while rank not in self._ended:
                self._wait_for(rank, timeout, self._watch)
        self._watch.finish()

    def _wait_for(self, rank: int, timeout: float, watch: Watch) -> None:
        """Takes in one state of a rank, or goes on without the rank."""
        assert self._mailbox is not None
        try:
            self._take(self._mailbox.take(_STATE, src=rank, timeout=timeout), watch)
        except PeerLost:
            if not self._goes_on:
                raise
            self._ended.add(rank)
            watch.lose(rank)

    def _take_arrived(self, mailbox: Mailbox, watch: Watch) -> None:
        gone = mailbox.gone() if self._goes_on else frozenset()
        while (letter := mailbox.poll(_STATE)) is not None:
            self._take(letter, watch)
        for rank in gone & set(range(self._world_size)):
            watch.lose(rank)

    def _take(self, letter: Letter, watch: Watch) -> None:
        if letter.fields:
            watch.take(WorkerState(**letter.fields))
        else:
            self._ended.add(letter.src)
