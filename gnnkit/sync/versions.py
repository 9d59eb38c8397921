"""The rules of a parameter server, without communication."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.sync.aggregation import Aggregation, Weighted, aggregation
from gnnkit.sync.base import OnLost
from gnnkit.utils.ranges import one_of, whole

Mode = Literal["sync", "async", "ssp"]
Damping = Literal["none", "staleness"]
STALENESS = 3  # default number of steps in ssp
MAX_STALENESS = 2**31


@dataclass(frozen=True, slots=True)
class Rules:
    """When a gradient is applied, and when a worker may continue.

    - sync: one step for all workers' gradients.
    - async: one step per gradient, on arrival, scaled by the worker's share of the
    rows. No worker waits.
    - ssp: like async, but a worker that has pushed c gradients waits while another has
    pushed fewer than c - `staleness`. `staleness=0` is equivalent to sync.
    """

    mode: Mode = "sync"
    staleness: int = 0  # number of steps that a worker may be ahead of the slowest one, in ssp
    damping: Damping = "none"  # staleness: divides the rate of a gradient that is tau versions stale by 1 + tau
    aggregation: Aggregation = field(default_factory=Weighted)  # in sync
    on_lost: OnLost = "stop"  # reaction to a lost worker

    @property
    def together(self) -> bool:
        """Whether all workers take one common step."""
        return self.mode == "sync" or (self.mode == "ssp" and self.staleness == 0)

    @property
    def exact(self) -> bool:
        """Whether each step equals one process's step."""
        return self.together and self.aggregation.exact

    @property
    def bound(self) -> float:
        """Number of steps that a worker may be ahead of the slowest one."""
        return self.staleness if self.mode == "ssp" else math.inf

    def combined(self, gradients: Tensor, shares: Tensor, num_workers: int) -> Tensor:  # [n]
        """Returns the gradient of one step from the remaining workers.

        If workers were lost, the shares of the others are rescaled to add up to 1.

        Args:
            gradients: [num_left, n] contributions to the sum.
            shares: [num_left] shares of the rows that the loss reads.
            num_workers: Number of workers at the start of the run.
        """
        total = float(shares.sum())
        if len(shares) < num_workers and total > 0:
            gradients, shares = gradients / total, shares / total
        return self.aggregation.combine(gradients, shares)

    def check_average(self) -> None:
        """Raises `UserError` if the mode does not support averaging models."""
        if not self.together:
            raise UserError(f"sync.mode={self.mode}: this strategy averages models, which needs sync.mode=sync")

    def rate(self, delay: int) -> float:
        """Returns the learning rate's factor for a delay in versions."""
        return 1 / (1 + delay) if self.damping == "staleness" else 1.0


def make_rules(
    mode: Mode, staleness: int | None, damping: Damping | None, average: str, trim: float | None, on_lost: OnLost
) -> Rules:
    """Checks the keys of `sync` and creates the rules.

    Raises `UserError` for keys that the mode does not use.

    Args:
        mode: sync, async or ssp.
        staleness: Number of steps that a worker may be ahead of the slowest one, in
            ssp. None: 3.
        damping: none or staleness. None: staleness in async and ssp, none in sync.
        average: Name of the aggregation. async and ssp support `weighted` only.
        trim: Argument of the aggregation. None: the aggregation's default.
        on_lost: stop or continue.
    """
    one_of("sync.on_lost", on_lost, ("stop", "continue"))
    one_of("sync.mode", mode, ("sync", "async", "ssp"))
    if damping is not None:
        one_of("sync.damping", damping, ("none", "staleness"))
    if staleness is not None and mode != "ssp":
        raise UserError(f"sync.staleness={staleness} applies to sync.mode=ssp only: remove the key")
    bound = whole("sync.staleness", STALENESS if staleness is None else staleness, 0, MAX_STALENESS)
    rules = Rules(mode, bound if mode == "ssp" else 0, damping or "none", aggregation(average, trim), on_lost)
    if rules.together and damping == "staleness":
        raise UserError(f"sync.damping={damping}: gradients are never stale with sync.mode=sync: remove the key")
    if not rules.together and average != "weighted":
        raise UserError(f"sync.average={average}: sync.mode={mode} applies each gradient separately: remove the key")
    return rules if rules.together or damping is not None else replace(rules, damping="staleness")


class SteppedParameters(Protocol):
    """Parameters with their optimiser."""

    def step(self, gradient: Tensor, rate: float) -> None:
        """Applies one step with a gradient [n], at `rate` times the learning rate."""

    def values(self) -> Tensor:
        """Returns a copy of the parameters, [n]."""


class VersionedParameters:
    """Parameters with a version number, and a clock per worker.

    A worker's clock is the number of gradients that it has pushed. The version is the
    number of steps. Every gradient takes part in exactly one step.
    """

    def __init__(self, model: SteppedParameters, num_workers: int, rules: Rules) -> None:
        """Starts with version 0 and all clocks at 0.

        Args:
            model: The parameters with their optimiser.
        """
        self.model, self.rules = model, rules
        self.version = 0
        self.clocks = [0] * num_workers
        self.live = set(range(num_workers))  # workers that have neither finished nor been lost
        self.delays: Counter[int] = Counter()  # number of gradients by staleness
        self._read = [0] * num_workers  # version last read by each worker
        self._round: dict[int, tuple[Tensor, float]] = {}  # gradient and share by worker, for the next step

    def push(self, rank: int, gradient: Tensor, share: float) -> None:
        """Accepts a worker's gradient.

        Args:
            gradient: [n] the worker's contribution to the sum over all rows.
            share: The worker's share of the rows.
        """
        assert rank in self.live, f"rank {rank} has ended"
        self.clocks[rank] += 1
        if self.rules.together:
            assert rank not in self._round, f"rank {rank} has not waited for the others"
            self._round[rank] = (gradient, share)
            self._end_round()
        else:
            delay = self.version - self._read[rank]
            self.delays[delay] += 1
            self._step_alone(gradient, share, self.rules.rate(delay))

    def may_start(self, rank: int) -> bool:
        """Returns whether a worker may read the parameters for its next step."""
        if self.rules.together:
            return rank not in self._round
        return self.clocks[rank] - min((self.clocks[other] for other in self.live), default=0) <= self.rules.bound

    def read(self, rank: int) -> tuple[int, Tensor]:
        """Returns the version and a copy of the parameters, [n]."""
        self._read[rank] = self.version
        return self.version, self.model.values()

    def meet(self) -> None:
        """Resets all clocks to the same value, after all workers have met.

        A worker that skipped steps is then up to date.
        """
        latest = max((self.clocks[rank] for rank in self.live), default=0)
        for rank in self.live:
            self.clocks[rank] = latest

    def leave(self, rank: int) -> None:
        """Removes a finished or lost worker, so that no other worker waits for it.

        A gradient that has already arrived still counts.
        """
        self.live.discard(rank)
        self._end_round()

    def _end_round(self) -> None:
        """Applies a round's step, once every live worker's gradient has arrived."""
        if self._round and self.live <= self._round.keys():
            pushed = [self._round[rank] for rank in sorted(self._round)]
            gradients = torch.stack([gradient for gradient, _ in pushed])
            shares = torch.tensor([share for _, share in pushed], dtype=gradients.dtype)
            self._round.clear()
            self._step(self.rules.combined(gradients, shares, len(self.clocks)), 1.0)

    def _step_alone(self, gradient: Tensor, share: float, rate: float) -> None:
        """Applies a step scaled by the worker's share of the rows.

        The optimiser gets the mean gradient of these rows, at `share` times the
        learning rate. With the unscaled rate, Adam would take a complete step per
        worker. With SGD, both are equivalent. A worker without rows changes nothing.
        """
        if share > 0:
            self._step(gradient / share, share * rate)
        else:
            self.version += 1

    def _step(self, gradient: Tensor, rate: float) -> None:
        self.model.step(gradient, rate)
        self.version += 1
