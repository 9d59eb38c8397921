"""Joint-sample mini-batches: ranks make batches together."""

from __future__ import annotations

import copy

from torch import nn

from gnnkit.engine.remote.frontier import COOPERATIVE
from gnnkit.errors import UserError
from gnnkit.sampler import Sampler
from gnnkit.strategy.abilities import (
    ByTime,
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
from gnnkit.strategy.base import ExecutionStrategy, Worker
from gnnkit.strategy.cooperative import CooperativeBatches
from gnnkit.strategy.sampled_strategy import SampledStrategy, check_owners_draw
from gnnkit.utils.ranges import MAX_COUNT, whole


class JointSample(SampledStrategy):
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
        ByTime(),
    )

    def __init__(self, batch_size: int = 1024, prefetch: int = 2) -> None:
        """Checks the options.

        Args:
            batch_size: Seeds per worker and step, or edges for link prediction.
            prefetch: Batches drawn in advance.
        """
        self.batch_size = whole("strategy.batch_size", batch_size, 1, MAX_COUNT)
        self.prefetch = whole("strategy.prefetch", prefetch, 1, MAX_COUNT)

    def costs(self) -> str:
        return self.describe_batches("strategy=joint_sample")

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        super().check(sampler, num_layers)
        if sampler is not None:
            check_owners_draw(sampler, COOPERATIVE, "strategy=individual_sample")
            if sampler.time_bound == "path":
                raise UserError(
                    f"{COOPERATIVE} with sampler.time_bound=path: ranks agree on the times of a batch before it is drawn: use "
                    "sampler.time_bound=seed, or strategy=individual_sample"
                )

    def make_batches(self, worker: Worker, model: nn.Module, batch_size: int, *, exact: bool) -> CooperativeBatches:
        return CooperativeBatches(worker, model, batch_size, self.tally, self.prefetch)
