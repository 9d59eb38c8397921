"""The way of states from the workers to the leader. No step waits."""

from __future__ import annotations

import time
from dataclasses import asdict

from gnnkit.comm import Mailbox, PeerLost
from gnnkit.leader.watch import Watch, WorkerState

LEADER = 0
_STATE, _END = "state", "end of states"


class StateChannel:
    """One end of the channel: every rank posts, the leader feeds its watch."""

    def __init__(
        self, mailbox: Mailbox, rank: int, world_size: int, watch: Watch | None, *, goes_on: bool = False
    ) -> None:
        """Keeps the ends.

        Args:
            mailbox: Between the ranks.
            rank: This rank.
            world_size: Number of ranks.
            watch: Of the leader. None on other ranks.
            goes_on: Whether the run goes on without ranks that are gone. Default: no.
        """
        self._mailbox, self._rank, self._world_size, self._watch = mailbox, rank, world_size, watch
        self._goes_on = goes_on

    def post(self, state: WorkerState) -> None:
        """Sends a state. The leader also takes in the states that have arrived."""
        if self._watch is None:
            self._mailbox.put(LEADER, _STATE, asdict(state))
        else:
            self._watch.take(state)
            self._take_arrived(self._watch)

    def finish(self, timeout: float) -> None:
        """Ends the states of this rank.

        The leader waits for the last state of every rank, and closes its watch. Ranks
        that the run goes on without are not waited for. Raises `RuntimeError` on the
        leader for a rank that does not finish in `timeout` seconds.
        """
        if self._watch is None:
            self._mailbox.put(LEADER, _END)
            return
        deadline = time.monotonic() + timeout
        for rank in range(self._world_size):
            if rank != LEADER:
                self._wait_for_end(rank, max(deadline - time.monotonic(), 0.0))
        self._take_arrived(self._watch)
        self._watch.close()

    def _wait_for_end(self, rank: int, timeout: float) -> None:
        try:
            self._mailbox.take(_END, src=rank, timeout=timeout)
        except PeerLost:
            if not self._goes_on:
                raise

    def _take_arrived(self, watch: Watch) -> None:
        gone = self._mailbox.gone() if self._goes_on else frozenset()
        while (letter := self._mailbox.poll(_STATE)) is not None:
            watch.take(WorkerState(**letter.fields))
        for rank in gone & set(range(self._world_size)):
            watch.lose(rank)
