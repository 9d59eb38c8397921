"""Exchanges of rows in some epochs only, between steps with current parameters."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gnnkit.strategy.phases import Phases
from gnnkit.utils.approximate import approximate

HIGH_CUT = 0.25  # share of edges from other workers' nodes above which rows may be stale by `NEAR` epochs only
NEAR, FAR = 1, 7  # epochs, by default


@dataclass(slots=True)
class LateRows:
    """The epochs in which rows are exchanged, so that none is older than a bound."""

    key: str  # the configuration key that makes rows late, with its value
    bound: int | None  # epochs. None: by the share of edges from other workers' nodes
    largest: int = 0  # age of the oldest rows that a step has read, in epochs

    def begin(self, remote_edges: float, *, prints: bool) -> None:
        """Sets the bound, unless it is configured.

        Args:
            remote_edges: Share of edges from other workers' nodes.
            prints: Whether this rank prints a warning about a bound above the default.
        """
        default = NEAR if remote_edges > HIGH_CUT else FAR
        if prints and (self.bound or 0) > default:
            reason = f"{remote_edges:.0%} of the edges cross workers, and {default} is the default"
            print(f"sync.staleness={self.bound} may cost accuracy: {reason}", file=sys.stderr, flush=True)
        self.bound = default if self.bound is None else self.bound

    def costs(self) -> str:
        """Returns the notice about stale rows."""
        epochs = "some" if self.bound is None else f"up to {self.bound}"
        return approximate(self.key, f"rows of other workers are stale by {epochs} epochs, with current parameters")

    def exchanges(self, epoch: int, phases: Phases) -> bool:
        """Returns whether rows are exchanged in an approximate epoch."""
        age = (epoch - phases.first) % ((self.bound or 0) + 1)
        self.largest = max(self.largest, age)
        return age == 0
