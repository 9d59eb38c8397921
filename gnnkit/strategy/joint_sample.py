"""Joint-sample mini-batches: ranks make batches together."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn

from gnnkit.engine import Tally
from gnnkit.ranges import MAX_COUNT, one_of, whole
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.cooperative import CooperativeBatches
from gnnkit.strategy.owner_draws import check_draws
from gnnkit.strategy.push_pull import PushPullBatches

_MODES: dict[str, type[CooperativeBatches | PushPullBatches]] = {
    "cooperative": CooperativeBatches,
    "push_pull": PushPullBatches,
}


class JointSample(ExecutionStrategy):
    """Sampled mini-batch training without moving features (joint-sample-based in Lin et
    al., Proc. IEEE 2023).

    Choose this strategy where features are wide, or where no host can hold the graph.
    A step is that of one rank with the seeds of all ranks.
    """

    samples = True
    exchanges = True

    def __init__(self, mode: str = "cooperative", batch_size: int = 1024) -> None:
        """Keeps the options.

        Args:
            mode: "cooperative": owners of nodes draw and compute one batch of all
                ranks. "push_pull": each rank draws a batch, and all ranks compute layer
                1 by columns of the features.
            batch_size: Seeds per worker and step.
        """
        self.mode = one_of("strategy.mode", mode, tuple(_MODES))
        self.batch_size = whole("strategy.batch_size", batch_size, 1, MAX_COUNT)
        self.reads_graph = mode == "push_pull"
        self.one_column = not self.reads_graph
        self.refuses_learned = (
            "with strategy.mode=push_pull cuts input rows by columns, while a learned row is with the owner of its node: "
            "use strategy.mode=cooperative"
            if self.reads_graph
            else None
        )

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
        self.sampled = _MODES[self.mode](worker, model, self.batch_size, self.tally)

    def num_batches(self, epoch: int) -> int:
        return len(self.sampled)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return self.sampled.epoch(epoch, first)
