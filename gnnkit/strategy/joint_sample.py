"""Joint-sample mini-batches: ranks make batches together."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from gnnkit.engine import Tally
from gnnkit.engine.remote.frontier import COOPERATIVE, check_sampler
from gnnkit.sampler import Sampler
from gnnkit.strategy.abilities import (
    EdgeTask,
    GatheredRows,
    JoinedLayers,
    LearnedInputs,
    Reads,
    Relations,
    RowsOnDisk,
    SparseRows,
    Steps,
)
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Worker
from gnnkit.strategy.cooperative import CooperativeBatches
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.strategy.sampled import READS_BATCHES, whole_steps
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, whole


class JointSample(ExecutionStrategy):
    """Sampled mini-batch training without exchange of features.

    This is joint-sample-based execution in Lin et al., Proc. IEEE 2023. Choose this
    strategy if features are wide, or if no host can hold the graph. A step is the same
    as one rank's step with the seeds of all ranks.
    """

    reads = Reads(sampler=True, one_column=True)
    steps = Steps(exchange=True)
    supports = (
        EdgeTask("all"),
        SparseRows(),
        LearnedInputs(),
        Relations(),
        GatheredRows(),
        RowsOnDisk(),
        JoinedLayers(by_owners=True),
    )
    finishes = "asked"
    has_whole_steps = False

    def __init__(self, batch_size: int = 1024, prefetch: int = 2) -> None:
        """Checks the options.

        Args:
            batch_size: Seeds per worker and step, or edges for link prediction.
            prefetch: Batches drawn in advance.
        """
        self.batch_size = whole("strategy.batch_size", batch_size, 1, MAX_COUNT)
        self.prefetch = whole("strategy.prefetch", prefetch, 1, MAX_COUNT)

    def costs(self) -> str:
        return approximate("strategy=joint_sample", READS_BATCHES)

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        super().check(sampler, num_layers)
        if sampler is not None:
            check_sampler(sampler, COOPERATIVE)

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.tally, self._model = Tally(), model
        self._reads = None if worker.disk is None else DiskReads(worker.disk, worker.comm)
        self.sampled = CooperativeBatches(worker, model, self.batch_size, self.tally, self.prefetch)
        self._whole: CooperativeBatches | None = None  # exact steps, once needed

    def num_batches(self, epoch: int) -> int:
        return 1 if self.phases.is_exact(epoch) else len(self.sampled)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if not self.phases.is_exact(epoch):
            return self.sampled.epoch(epoch, first)
        if self._whole is None:
            worker, batch_size = whole_steps(self.sampled.worker, self._model)
            self._whole = CooperativeBatches(worker, self._model, batch_size, self.tally, 1)
        return self._whole.epoch(epoch, first)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        if self._reads is not None:
            self._reads.end_epoch(self.sampled.window)

    def foresee_reads(self, epochs: int) -> dict[str, Any]:
        assert self._reads is not None
        for epoch in range(epochs):
            self.sampled.count_reads(epoch)
            self._reads.end_epoch(self.sampled.window)
        return self._reads.figures()

    def figures(self) -> dict[str, Any]:
        return {} if self._reads is None else {"features_read": self._reads.figures()}

    def close(self) -> None:
        self.sampled.close()
        if self._whole is not None:
            self._whole.close()
