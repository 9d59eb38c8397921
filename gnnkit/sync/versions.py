"""The rules of a parameter server, without communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.sync.aggregation import Aggregation, Weighted, aggregation
from gnnkit.sync.base import OnLost
from gnnkit.sync.optimised import Optimised
from gnnkit.utils.ranges import one_of, whole

Mode = Literal["sync", "async", "ssp"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When gradients are applied, and when a worker may continue.

    - sync: step c applies the gradients c of all workers.
    - async: a step waits for all workers but a quarter, at least one (K-async; Dutta
    et al., AISTATS 2018), and a gradient that misses it is part of the next step. No
    worker waits with a late gradient, and workers that keep up compute with the newest
    parameters.
    - ssp: like async, but a step waits for a worker that would otherwise fall back by
    more than `staleness` gradients, or push one that is more than `staleness` versions
    stale. `staleness=0` is equivalent to sync.
    """

    mode: Mode = "sync"
    staleness: int = 0  # maximum staleness of a gradient in versions, in ssp
    aggregation: Aggregation = field(default_factory=Weighted)  # in sync
    on_lost: OnLost = "stop"  # reaction to a lost worker
    row_bound: int | None = None  # maximum staleness of rows in epochs, if configured

    @property
    def together(self) -> bool:
        """Whether all workers take one common step."""
        return self.mode == "sync" or (self.mode == "ssp" and self.staleness == 0)

    @property
    def synchronous(self) -> Rules:
        """The rules with synchronous steps."""
        return replace(self, mode="sync", staleness=0)

    @property
    def exact(self) -> bool:
        """Whether each step equals one process's step."""
        return self.together and self.aggregation.exact

    def combine(self, gradients: Tensor, shares: Tensor, num_workers: int) -> Tensor:  # [n]
        """Returns one step's gradient from the remaining workers.

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


def make_rules(mode: Mode, staleness: int | None, average: str, on_lost: OnLost) -> Rules:
    """Checks the keys of `sync` and creates the rules.

    Raises `UserError` for keys that the mode does not use.

    Args:
        mode: sync, async or ssp.
        staleness: Maximum staleness of a gradient in versions, in ssp. If None, 3.
        average: Name of the aggregation. async and ssp support `weighted` only.
        on_lost: stop or continue.
    """
    one_of("sync.on_lost", on_lost, ("stop", "continue"))
    one_of("sync.mode", mode, ("sync", "async", "ssp"))
    if staleness is not None and mode != "ssp":
        raise UserError(f"sync.staleness={staleness} applies to sync.mode=ssp only: remove the key")
    bound = whole("sync.staleness", 3 if staleness is None else staleness, 0, 2**31)
    limit = bound if mode == "ssp" else 0
    rules = Rules(mode, limit, aggregation(average), on_lost, staleness)
    if not rules.together and average != "weighted":
        raise UserError(f"sync.average={average}: sync.mode={mode} applies stale gradients: remove the key")
    return rules


@dataclass(frozen=True, slots=True, eq=False)
class _Push:
    """A worker's gradient that no step has applied yet."""

    rank: int
    gradient: Tensor  # [n]
    share: float  # of the rows
    version: int  # that the worker read


class VersionedParameters:
    """Parameters with a version number, and a clock per worker.

    A worker's clock is the number of gradients that it has pushed. The version is the
    number of steps. Every gradient is applied exactly once, and its staleness is the
    version then minus the version that the worker has read.
    """

    def __init__(self, model: Optimised, num_workers: int, rules: Rules) -> None:
        """Starts with version 0 and all clocks at 0.

        Args:
            model: The parameters with their optimiser.
        """
        self.model, self.rules = model, rules
        self.version = 0
        self.clocks = [0] * num_workers
        self.live = set(range(num_workers))  # workers that have neither finished nor been lost
        self.absent = set[int]()  # workers that compute no gradient until all meet
        self.delays: Counter[int] = Counter()  # number of gradients by staleness
        self._read = [0] * num_workers  # version last read by each worker
        self._met = [0] * num_workers  # clocks when all workers last met
        self._pending: list[_Push] = []  # in arrival order
        self._late: list[_Push] = []  # that missed their step, and are part of the next one

    def push(self, rank: int, gradient: Tensor, share: float) -> None:
        """Accepts a worker's gradient.

        Args:
            rank: The worker.
            gradient: [n] the worker's contribution to the sum over all rows.
            share: The worker's share of the rows.
        """
        assert rank in self.live, f"rank {rank} has ended"
        assert self.may_start(rank), f"rank {rank} has not waited for the others"
        self.clocks[rank] += 1
        push = _Push(rank, gradient, share, self._read[rank])
        is_late = not self.rules.together and push.version < self.version
        (self._late if is_late else self._pending).append(push)
        self.step_if_complete()

    def may_start(self, rank: int) -> bool:
        """Returns whether a worker may read the parameters for its next step."""
        return all(push.rank != rank for push in self._pending)

    def read(self, rank: int) -> tuple[int, Tensor]:
        """Returns the version and a copy of the parameters, [n]."""
        self._read[rank] = self.version
        return self.version, self.model.values()

    def meet(self) -> None:
        """Applies all gradients that have arrived, after all workers have met.

        A worker that skipped steps is then up to date.
        """
        if self._pending or self._late:
            self._step(self._late + self._pending)
            self._pending, self._late = [], []
            self.version += 1
        self._met = list(self.clocks)

    def leave(self, rank: int) -> None:
        """Removes a finished or lost worker, so that no other worker waits for it.

        A gradient that has already arrived still counts.
        """
        self.live.discard(rank)
        self.step_if_complete()
        if not self.live:
            self.meet()

    def step_if_complete(self) -> None:
        """Takes each step for which the gradients have arrived."""
        while pushes := self._next():
            self._pending, self._late = [], []
            self._step(pushes)
            self.version += 1

    def _next(self) -> list[_Push]:
        """Returns the next step's gradients, or [] if the step waits."""
        if self.rules.together:
            missing = self.live - {push.rank for push in self._pending}
            return [] if missing else sorted(self._pending, key=lambda push: push.rank)
        return [] if self._waits() else self._late + self._pending

    def _waits(self) -> bool:
        """Returns whether the next step waits for further workers."""
        ready_ranks = {push.rank for push in self._pending}
        missing = self.live - self.absent - ready_ranks
        if not missing or not ready_ranks:
            return not ready_ranks
        if len(missing) > max(1, len(self.clocks) // 4):
            return True
        versions = max(self.version - self._read[rank] for rank in missing)
        since = [clock - meeting_clock for clock, meeting_clock in zip(self.clocks, self._met, strict=True)]
        behind = max(since[rank] for rank in ready_ranks) - min(since[rank] for rank in missing)
        return self.rules.mode == "ssp" and (versions >= self.rules.staleness or behind > self.rules.staleness)

    def _step(self, pushes: Sequence[_Push]) -> None:
        """Takes one step with several gradients."""
        gradients = torch.stack([push.gradient for push in pushes])
        shares = [push.share for push in pushes]
        if self.rules.together:
            gradient = self.rules.combine(gradients, torch.tensor(shares, dtype=gradients.dtype), len(self.clocks))
            self.model.step(gradient, 1.0)
        else:
            self.delays.update(self.version - push.version for push in pushes)
            # The optimiser gets the mean gradient: Adam ignores a gradient's scale.
            if (total := sum(shares)) > 0:
                self.model.step(gradients.sum(0) / total, total)
