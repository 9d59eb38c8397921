"""Joint-sample mini-batches: ranks make the batches together."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn

from gnnkit.engine import Tally
from gnnkit.ranges import MAX_COUNT, one_of, whole
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.cooperative import CooperativeBatches, check_draws
from gnnkit.strategy.push_pull import PushPullBatches


class JointSample(ExecutionStrategy):
    """Sampled mini-batch training in which ranks share the work of a batch
    (joint-sample-based in Lin et al., Proc. IEEE 2023).
    """

    samples = True
    exchanges = True

    def __init__(self, mode: str = "cooperative", batch_size: int = 1024) -> None:
        self.mode = one_of("strategy.mode", mode, ("cooperative", "push_pull"))
        self.reads_graph, self.one_column = mode == "push_pull", mode == "cooperative"
        self.batch_size = whole("strategy.batch_size", batch_size, 1, MAX_COUNT)

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        if self.mode == "push_pull" and (sampler is None or not sampler.rank_invariant):
            return None  # each rank draws for its own seeds
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        super().check(sampler, num_layers)
        if self.mode == "cooperative" and sampler is not None:
            check_draws(sampler)

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.tally = Tally()
        make = CooperativeBatches if self.mode == "cooperative" else PushPullBatches
        self.sampled: CooperativeBatches | PushPullBatches = make(worker, model, self.batch_size, self.tally)

    def num_batches(self, epoch: int) -> int:
        return len(self.sampled)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return self.sampled.epoch(epoch, first)
