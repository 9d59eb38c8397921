"""Exchanges of rows in some epochs only, between steps with current parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnnkit.strategy.phases import Phases
from gnnkit.utils.approximate import approximate

HIGH_CUT = 0.25  # share of edges from other workers' nodes above which rows may be stale by `NEAR` epochs only
NEAR, FAR = 1, 7  # epochs, by default


@dataclass(slots=True)
class LateRows:
    """The epochs in which rows are exchanged, so that none is older than a bound."""

    key: str  # the configuration key that makes rows late, with its value
    bound: int | None  # epochs. None: by the share of edges from other workers' nodes

    def begin(self, remote_edges: float) -> None:
        """Sets the bound, unless it is configured."""
        if self.bound is None:
            self.bound = NEAR if remote_edges > HIGH_CUT else FAR

    def costs(self) -> str:
        """Returns the notice about stale rows."""
        epochs = "some" if self.bound is None else f"up to {self.bound}"
        return approximate(self.key, f"rows of other workers are stale by {epochs} epochs, with current parameters")

    def exchanges(self, epoch: int, phases: Phases) -> bool:
        """Returns whether rows are exchanged in an approximate epoch."""
        return (epoch - phases.first) % ((self.bound or 0) + 1) == 0

    def figures(self) -> dict[str, Any]:
        """Returns the maximum staleness of rows in epochs."""
        return {"row_staleness": self.bound}
