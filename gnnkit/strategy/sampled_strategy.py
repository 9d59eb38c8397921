"""The base of strategies with batches sampled around seeds, and its checks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol

from torch import nn

from gnnkit import plugins
from gnnkit.engine import Tally
from gnnkit.errors import UserError
from gnnkit.sampler import NativeSampler, Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Phases, Worker
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.strategy.sampled_batches import whole_steps
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole


class StepBatches(Protocol):
    """One rank's batches, epoch by epoch."""

    window: int | None
    """Number of batches drawn in advance, once known."""

    def __len__(self) -> int:
        """Returns the number of steps per epoch, equal on every rank."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yields an epoch's batches, starting at step `first`."""

    def close(self) -> None:
        """Stops threads."""


class SampledStrategy(ExecutionStrategy):
    """Trains on sampled batches, and on exact steps in the epochs of `phases`.

    Derive from it if batches differ in more than their seeds, and write `make_batches`.
    To choose the seeds of each step, inherit from `IndividualSample` instead. Typed
    graphs, sparse and learned rows, sampling by time and resuming are inherited.
    """

    finishes = "asked"
    has_whole_steps = False
    batch_size: int

    @abstractmethod
    def make_batches(self, worker: Worker, model: nn.Module, batch_size: int, *, exact: bool) -> StepBatches:
        """Creates a worker's batches. Collective.

        Args:
            worker: This rank, with a sampler.
            model: The model.
            batch_size: Seeds, or edges to predict, per worker and step.
            exact: Whether an epoch has one step, with all training rows.
        """

    def describe_batches(self, key: str) -> str:
        """Returns the notice about batches, with a hint in runs without exact steps.

        Args:
            key: The configuration key that selects the strategy, with its value.
        """
        hint = "; trainer.exact_shares=[0.1,0.2] adds full-graph steps" if self.phases == Phases() else ""
        return approximate(key, f"a step reads a batch of training nodes and sampled edges{hint}")

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.tally, self._worker, self._model = Tally(), worker, model
        self._reads = None if worker.disk is None else DiskReads(worker.disk, worker.comm)
        self.sampled = self.make_batches(worker, model, self.batch_size, exact=False)
        self._exact_batches: StepBatches | None = None  # exact steps, once needed

    def num_batches(self, epoch: int) -> int:
        return 1 if self.phases.is_exact(epoch) else len(self.sampled)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if not self.phases.is_exact(epoch):
            return self.sampled.epoch(epoch, first)
        if self._exact_batches is None:
            worker, batch_size = whole_steps(self._worker, self._model)
            self._exact_batches = self.make_batches(worker, self._model, batch_size, exact=True)
        return self._exact_batches.epoch(epoch, first)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        if self._reads is not None:
            self._reads.end_epoch(self.sampled.window)

    def figures(self) -> dict[str, object]:
        return {} if self._reads is None else {"features_read": self._reads.figures()}

    def close(self) -> None:
        for batches in (self.sampled, self._exact_batches):
            if batches is not None:
                batches.close()


_PLACES = ("shared", "partitioned")


def place(key: str, value: object) -> str:
    """Returns the value. Raises `UserError` if it is invalid.

    Args:
        key: "topology" or "features".
        value: The configured value.
    """
    if value == "replicated":
        raise UserError(
            f"strategy.{key}=replicated is not supported: all workers of a host map one copy: use strategy.{key}=shared"
        )
    placement: str = one_of(f"strategy.{key}", value, _PLACES)
    return placement


def check_places(topology: str, features: str, batching: str) -> None:
    """Raises `UserError` for contradicting keys of `individual_sample`.

    Args:
        topology: "shared" or "partitioned".
        features: "shared" or "partitioned".
        batching: "plain" or "balanced".
    """
    if topology == "partitioned" and features == "shared":
        raise UserError(
            "strategy.features=shared with strategy.topology=partitioned: features are the larger part of most graphs, "
            "so a host that holds all features can hold the topology: use strategy.topology=shared"
        )
    if topology == "partitioned" and batching == "balanced":
        raise UserError(
            "strategy.options.batching=balanced with strategy.topology=partitioned: the cost of a seed is the size of its "
            "tree, which reaches into the in-edges of other workers: leave batching out"
        )


def check_owners_draw(sampler: Sampler, mode: str, alternative: str) -> None:
    """Raises `UserError` for a sampler with which owners cannot draw.

    Args:
        sampler: The sampler.
        mode: The option that enables sampling at owners.
        alternative: An option that reads the complete graph instead.
    """
    in_python = not isinstance(sampler, NativeSampler)
    if sampler.draws_at_owners and not (in_python and sampler.time != "none"):
        return
    reason = "samples by time in Python" if sampler.time != "none" else "does not set draws_at_owners"
    if not (sampler.by_node and getattr(sampler, "draws_edges", True)):
        reason = "draws from more than the in-edges of one node, which are all that its owner holds"
    raise UserError(
        f"{mode}: sampler={plugins.name_of('sampler', sampler)} {reason}; use sampler=neighbor, weighted, labor or full, "
        f"or {alternative}"
    )


def check_cache(features: str, cache: str, cache_rows: int | None) -> None:
    """Raises `UserError` for a cache if all features are shared.

    Args:
        features: "shared" or "partitioned".
        cache: Name of the cache, or "none".
        cache_rows: Number of cached rows, or None.
    """
    if features == "shared" and cache != "none":
        raise UserError(f"strategy.cache={cache} keeps rows of other workers: use strategy.features=partitioned")
    if cache_rows is not None:
        whole("strategy.options.cache_rows", cache_rows, 1, MAX_COUNT)
        if cache == "none":
            raise UserError(f"strategy.options.cache_rows={cache_rows} needs a strategy.cache")
