"""The length of supersteps, in epochs."""

from __future__ import annotations

import sys
from typing import Literal

from gnnkit.strategy.base import Update
from gnnkit.strategy.phases import Phases
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, whole

MAX_REMOTE = 0.6  # share of edges from other workers' nodes above which stale rows cost too much accuracy


class Supersteps:
    """Supersteps of a fixed length, between the exact epochs of a run."""

    def __init__(self, local_iterations: int | Literal["auto"]) -> None:
        """Checks the number of epochs per superstep, or auto, which is 4."""
        number = 4 if local_iterations == "auto" else local_iterations
        self.length = whole("strategy.local_iterations", number, 1, MAX_COUNT, what="auto or a whole number")
        self.drifts = self.length > 1  # whether workers may hold different parameters

    def costs(self) -> str:
        """Returns the notice about supersteps of several epochs."""
        if self.length == 1:
            return ""
        reason = "workers step alone, with stale rows of the last exchange"
        return approximate(f"strategy.local_iterations={self.length}", reason)

    def begin(self, remote_edges: float, *, prints: bool) -> None:
        """Limits supersteps to one epoch if most rows would be stale.

        Args:
            remote_edges: Share of edges from other workers' nodes.
            prints: Whether this rank prints a notice.
        """
        if remote_edges <= MAX_REMOTE or self.length == 1:
            return
        if prints:
            text = f"strategy.local_iterations={self.length} stays at 1: {remote_edges:.0%} of the edges cross workers"
            print(text, file=sys.stderr, flush=True)
        self.length = 1

    def exchanges(self, epoch: int, phases: Phases) -> bool:
        """Returns whether an epoch is the last of its superstep."""
        return phases.is_exact(epoch) or (epoch + 1 - phases.first) % self.length == 0

    def update(self, epoch: int, phases: Phases) -> Update:
        """Returns the update that follows an epoch's backward pass."""
        if not self.drifts:
            return "synchronise"
        if self.exchanges(epoch, phases):
            return "conclude"
        return "average" if self.exchanges(epoch + 1, phases) else "own"

    def lengths(self, phases: Phases) -> list[list[int]]:
        """Returns the first epoch and the length, at each change."""
        if self.length == 1:
            return [[0, 1]]
        changes = [[0, 1], [phases.first, self.length], [phases.last, 1]]
        return [change for change in changes[phases.first == 0 :] if change[0] < sys.maxsize]
