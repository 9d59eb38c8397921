"""The rules of a parameter server, without communication."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.ranges import one_of, whole
from gnnkit.sync.aggregation import Aggregation, Weighted, aggregation
from gnnkit.sync.base import OnLost

Mode = Literal["sync", "async", "ssp"]
Damping = Literal["none", "staleness"]
STALENESS = 3  # steps, the default of ssp
MAX_STALENESS = 2**31


@dataclass(frozen=True, slots=True)
class Rules:
    """When a gradient is applied, and when a worker may go on.

    - sync: one step for the gradients of all workers.
    - async: one step for each gradient, on arrival, as large as the worker's part of
      the rows. Nobody waits.
    - ssp: as async, but a worker that has pushed c gradients waits while another has
      pushed fewer than c - `staleness`. With `staleness=0`, the rule is sync.
    """

    mode: Mode = "sync"
    staleness: int = 0  # steps ahead of the slowest worker, in ssp
    damping: Damping = "none"  # staleness: a gradient that is tau versions late has its rate divided by 1 + tau
    aggregation: Aggregation = field(default_factory=Weighted)  # of sync
    on_lost: OnLost = "stop"  # what follows the loss of a worker

    @property
    def together(self) -> bool:
        """Whether all workers make one step."""
        return self.mode == "sync" or (self.mode == "ssp" and self.staleness == 0)

    @property
    def exact(self) -> bool:
        """Whether each step is the step of one process."""
        return self.together and self.aggregation.exact

    @property
    def bound(self) -> float:
        """Number of steps that a worker may start ahead of the slowest one."""
        return self.staleness if self.mode == "ssp" else math.inf

    def combined(self, gradients: Tensor, shares: Tensor, num_workers: int) -> Tensor:  # [n]
        """Returns the gradient of one step, of the workers that are left.

        If workers are missing, the rows of the others count as all rows.

        Args:
            gradients: Parts of the sum, [num_left, n].
            shares: Parts of the rows that the loss reads, [num_left].
            num_workers: Number of workers at the start of the run.
        """
        total = float(shares.sum())
        if len(shares) < num_workers and total > 0:
            gradients, shares = gradients / total, shares / total
        return self.aggregation.combine(gradients, shares)

    def check_average(self) -> None:
        """Raises `UserError` where workers cannot average models."""
        if not self.together:
            raise UserError(f"sync.mode={self.mode}: this strategy averages models, which needs sync.mode=sync")

    def rate(self, delay: int) -> float:
        """Returns the factor of the learning rate for a delay in versions."""
        return 1 / (1 + delay) if self.damping == "staleness" else 1.0


def make_rules(
    mode: Mode, staleness: int | None, damping: Damping | None, average: str, trim: float | None, on_lost: OnLost
) -> Rules:
    """Checks the keys of `sync`, and makes the rules.

    Raises `UserError` for keys that the mode does not read.

    Args:
        mode: sync, async or ssp.
        staleness: Steps that a worker may start ahead of the slowest, in ssp. None: 3.
        damping: none, or staleness. None: staleness in async and ssp, none in sync.
        average: Name of the aggregation. Only `weighted` fits async and ssp.
        trim: Argument of the aggregation. None: the default of the aggregation.
        on_lost: stop or continue.
    """
    one_of("sync.on_lost", on_lost, ("stop", "continue"))
    one_of("sync.mode", mode, ("sync", "async", "ssp"))
    if damping is not None:
        one_of("sync.damping", damping, ("none", "staleness"))
    if staleness is not None and mode != "ssp":
        raise UserError(f"sync.staleness={staleness}: only sync.mode=ssp has a bound, leave the key out")
    bound = whole("sync.staleness", STALENESS if staleness is None else staleness, 0, MAX_STALENESS)
    rules = Rules(mode, bound if mode == "ssp" else 0, damping or "none", aggregation(average, trim), on_lost)
    if rules.together and damping == "staleness":
        raise UserError(f"sync.damping={damping}: no gradient is late where workers step together, leave the key out")
    if not rules.together and average != "weighted":
        raise UserError(f"sync.average={average}: sync.mode={mode} applies each gradient alone, leave the key out")
    return rules if rules.together or damping is not None else replace(rules, damping="staleness")


class Steps(Protocol):
    """Parameters with their optimiser."""

    def step(self, gradient: Tensor, rate: float) -> None:
        """Makes one step with a gradient [n], at `rate` times the learning rate."""

    def values(self) -> Tensor:
        """Returns a copy of the parameters, [n]."""


class VersionedParameters:
    """Parameters, the number of steps made on them, and the clock of each worker.

    A clock is the number of gradients that the worker has pushed. A version is the
    number of steps. Every gradient takes part in exactly one step.
    """

    def __init__(self, model: Steps, num_workers: int, rules: Rules) -> None:
        """Begins with version 0 and all clocks at 0.

        Args:
            model: The parameters with their optimiser.
            num_workers: Number of workers.
            rules: The rules.
        """
        self.model, self.rules = model, rules
        self.version = 0
        self.clocks = [0] * num_workers
        self.live = set(range(num_workers))  # workers that have neither ended nor been lost
        self.delays: Counter[int] = Counter()  # number of gradients by versions that they were late
        self._read = [0] * num_workers  # version that each worker last read
        self._round: dict[int, tuple[Tensor, float]] = {}  # gradient and share by worker, of a step to come

    def push(self, rank: int, gradient: Tensor, share: float) -> None:
        """Takes in the gradient of one worker.

        Args:
            rank: The worker.
            gradient: The worker's part of the sum over all rows, [n].
            share: The worker's part of the rows.
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
        """Says whether a worker may read the parameters of its next step."""
        if self.rules.together:
            return rank not in self._round
        return self.clocks[rank] - min((self.clocks[other] for other in self.live), default=0) <= self.rules.bound

    def read(self, rank: int) -> tuple[int, Tensor]:
        """Returns the version and a copy of the parameters, [n]."""
        self._read[rank] = self.version
        return self.version, self.model.values()

    def meet(self) -> None:
        """Notes that all workers stand at one place. Their clocks become equal.

        A worker that left out steps is no longer behind.
        """
        latest = max((self.clocks[rank] for rank in self.live), default=0)
        for rank in self.live:
            self.clocks[rank] = latest

    def leave(self, rank: int) -> None:
        """Lets go of a worker that has ended or is lost. Others no longer wait for it.

        A gradient that has arrived still counts.
        """
        self.live.discard(rank)
        self._end_round()

    def _end_round(self) -> None:
        """Makes the step of a round, once no live worker's gradient is missing."""
        if self._round and self.live <= self._round.keys():
            pushed = [self._round[rank] for rank in sorted(self._round)]
            gradients = torch.stack([gradient for gradient, _ in pushed])
            shares = torch.tensor([share for _, share in pushed], dtype=gradients.dtype)
            self._round.clear()
            self._step(self.rules.combined(gradients, shares, len(self.clocks)), 1.0)

    def _step_alone(self, gradient: Tensor, share: float, rate: float) -> None:
        """Makes a step as large as the worker's part of the rows.

        The optimiser gets the mean gradient of these rows, at `share` times the rate.
        Adam would make a whole step of each part, and so one for each worker. To plain
        SGD both are the same. A worker without rows moves nothing.
        """
        if share > 0:
            self._step(gradient / share, share * rate)
        else:
            self.version += 1

    def _step(self, gradient: Tensor, rate: float) -> None:
        self.model.step(gradient, rate)
        self.version += 1
