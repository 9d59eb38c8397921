"""The base of strategies with batches sampled around seeds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from torch import nn

from gnnkit.engine import Tally
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Worker
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.strategy.phases import Phases
from gnnkit.strategy.sampled_batches import whole_steps
from gnnkit.utils.approximate import approximate


class StepBatches(Protocol):
    """One rank's batches, epoch by epoch."""

    window: int | None
    """Number of batches drawn in advance, once known."""

    def __len__(self) -> int:
        """Returns the number of steps per epoch, equal on every rank."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yields an epoch's batches, starting at step `first`."""

    def count_reads(self, epoch: int) -> None:
        """Counts the rows that an epoch will read from disk, without reading them."""

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

    def predict_reads(self, epochs: int) -> dict[str, Any]:
        assert self._reads is not None
        for epoch in range(epochs):
            self.sampled.count_reads(epoch)
            self._reads.end_epoch(self.sampled.window)
        return self._reads.figures()

    def figures(self) -> dict[str, Any]:
        return {} if self._reads is None else {"features_read": self._reads.figures()}

    def close(self) -> None:
        for batches in (self.sampled, self._exact_batches):
            if batches is not None:
                batches.close()
