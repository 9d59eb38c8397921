"""The length of supersteps, in epochs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.strategy.base import Measured, Update
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, real, whole

LEADER = 0
MAX_DRIFT, MAX_ITERATIONS = 0.05, 4  # defaults. Stale rows cost more with each epoch, and drift does not measure this
MAX_REMOTE = 0.25  # share of edges from other workers' nodes. At 0.58, K=4 lost 2 points, at 0.75 32
_STATE = ("first", "length", "lengths", "wait", "last_wait", "drift", "seconds")
WORTH = 0.1  # minimum share of the time spent in exchanges for which longer supersteps pay


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that lengthens and shortens supersteps."""

    max_drift: float  # relative to the parameters' change
    max_iterations: int

    def next(self, length: int, drift: float, exchange: float, wait: int = 0) -> int:
        """Returns the length of the next superstep.

        Halves the length if the drift exceeds the bound. Doubles it if the drift is
        expected to stay below the bound, and enough time is saved.

        Args:
            length: Number of epochs of the last superstep.
            drift: Relative drift of the local iterations.
            exchange: Share of the time spent in exchange and synchronisation.
            wait: Number of supersteps before the next lengthening.
        """
        if drift > self.max_drift:
            return max(length // 2, 1)
        if wait == 0 and 2 * drift <= self.max_drift and exchange > WORTH:
            length *= 2
        return min(length, self.max_iterations)


class Supersteps:
    """The current superstep, of fixed or adaptive length."""

    def __init__(
        self, local_iterations: int | Literal["auto"], max_drift: float | None, max_iterations: int | None
    ) -> None:
        """Raises `UserError` for bounds that a fixed length does not use.

        Args:
            local_iterations: Number of epochs per superstep, or auto, which starts with
                1.
            max_drift: Relative drift that shortens supersteps. None: 0.05.
            max_iterations: Maximum number of epochs per superstep. None: 4.
        """
        self.rule: Rule | None = None
        bounds = (
            real("strategy.max_drift", MAX_DRIFT if max_drift is None else max_drift, above=0),
            whole(
                "strategy.max_iterations", MAX_ITERATIONS if max_iterations is None else max_iterations, 1, MAX_COUNT
            ),
        )
        if local_iterations == "auto":
            self.rule, self.length = Rule(*bounds), 1
        else:
            what = "auto or a whole number"
            self.length = whole("strategy.local_iterations", local_iterations, 1, MAX_COUNT, what=what)
            for name, value in {"max_drift": max_drift, "max_iterations": max_iterations}.items():
                if value is not None:
                    raise UserError(
                        f"strategy.{name}={value} must be null: only strategy.local_iterations=auto reads the key"
                    )
        self.first = 0  # the superstep's first epoch
        self._over = False  # whether `end` was called
        self.lengths = [[0, self.length]]  # first epoch and length, at each change
        self.wait, self.last_wait = 0, 1  # supersteps to wait before lengthening, now and after the last shortening
        self.drift = 0.0  # this rank's drift in the superstep
        self.seconds = torch.zeros(2, dtype=torch.float64)  # this rank's: exchange and synchronisation, total

    @property
    def drifts(self) -> bool:
        """Whether workers may hold different parameters."""
        return self.rule is not None or self.length > 1

    def costs(self) -> str:
        """Returns the notice about supersteps of several epochs."""
        if not self.drifts:
            return ""
        asked = "auto" if self.rule is not None else self.length
        why = "workers step alone, with stale rows of the last exchange"
        return approximate(f"strategy.local_iterations={asked}", why)

    def begin(self, remote_edges: float, *, tells: bool) -> None:
        """Limits supersteps of auto to one epoch if many rows would be stale.

        Drift does not measure the cost of stale rows.

        Args:
            remote_edges: Share of edges from other workers' nodes.
            tells: Whether this rank prints a notice.
        """
        if self.rule is None or remote_edges <= MAX_REMOTE or self.rule.max_iterations == 1:
            return
        self.rule = replace(self.rule, max_iterations=1)
        if tells:
            print(
                f"strategy.local_iterations=auto stays at 1: the sources of {remote_edges:.0%} of the edges belong to "
                "other workers, and stale rows would reduce accuracy: use a partition that cuts fewer edges",
                file=sys.stderr,
                flush=True,
            )

    def exchanges(self, epoch: int) -> bool:
        """Returns whether an epoch is the last of its superstep."""
        if self._over:
            return True
        return (epoch + 1) % self.length == 0 if self.rule is None else epoch >= self.first + self.length - 1

    def end(self, epoch: int) -> None:
        """Makes each epoch a superstep, from `epoch` on."""
        self._over = True
        if self.drifts:
            self.lengths.append([epoch, 1])

    def update(self, epoch: int) -> Update:
        """Returns what follows an epoch's backward pass."""
        if not self.drifts:
            return "synchronise"
        if self.exchanges(epoch):
            return "conclude"
        return "average" if self.exchanges(epoch + 1) else "own"

    def end_epoch(self, epoch: int, measured: Measured, comm: Communicator) -> None:
        """Adapts the length at the end of a superstep. Collective.

        Args:
            epoch: Number of the epoch.
            measured: This rank's measurements of that epoch.
            comm: Connects the workers.
        """
        if self.rule is None or self._over:
            return
        meeting = measured.seconds_exchange + measured.seconds_sync
        self.seconds += torch.tensor([meeting, meeting + measured.seconds_compute])
        self.drift = max(self.drift, measured.drift)
        if self.exchanges(epoch):
            self._decide(epoch, self.rule, comm)

    def _decide(self, epoch: int, rule: Rule, comm: Communicator) -> None:
        """Starts the next superstep, whose length the leader decides."""
        meeting, seconds = comm.all_reduce(self.seconds.to(comm.device)).tolist()
        share = meeting / max(seconds, 1e-9)
        drift = self._largest_drift(comm)
        length = comm.share(rule.next(self.length, drift, share, self.wait), src=LEADER)
        self.wait = max(self.wait - 1, 0)
        if length < self.length:  # waits twice as long before lengthening again
            self.wait = self.last_wait = 2 * self.last_wait
        if length != self.length:
            self.lengths.append([epoch + 1, length])
            if comm.rank == LEADER:
                print(
                    f"strategy.local_iterations=auto: {length} instead of {self.length} from epoch {epoch + 2} on, "
                    f"drift {drift:.2g}, exchange and synchronisation {share:.0%} of the time",
                    file=sys.stderr,
                    flush=True,
                )
        self.first, self.length, self.drift = epoch + 1, length, 0.0
        self.seconds.zero_()

    def _largest_drift(self, comm: Communicator) -> float:
        """Returns the largest drift of all ranks. Collective."""
        drifts = torch.zeros(comm.world_size, dtype=torch.float64, device=comm.device)
        drifts[comm.rank] = self.drift
        return float(comm.all_reduce(drifts).max())

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state between two steps."""
        if self.rule is None:
            return {}
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state."""
        for name, value in state.items():
            setattr(self, name, value)
