"""Joint-sample mini-batches: ranks make batches together."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from gnnkit.engine import Tally
from gnnkit.engine.remote.frontier import COOPERATIVE, PARTITIONED, check_sampler
from gnnkit.engine.remote.row_cache import CACHES
from gnnkit.sampler import Sampler
from gnnkit.strategy.abilities import (
    Ability,
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
from gnnkit.strategy.places import check_joint
from gnnkit.strategy.push_pull import PushPullBatches, PushPullShards
from gnnkit.strategy.sampled import READS_BATCHES, whole_steps
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole

_BATCHES: dict[tuple[str, str], type[CooperativeBatches | PushPullBatches | PushPullShards]] = {
    ("cooperative", "partitioned"): CooperativeBatches,
    ("push_pull", "shared"): PushPullBatches,
    ("push_pull", "partitioned"): PushPullShards,
}
_MODES = {"cooperative": ("partitioned", COOPERATIVE), "push_pull": ("shared", PARTITIONED)}

_COLUMNS_OF_RELATIONS = (
    "with strategy.mode=push_pull splits input rows by columns, which a relational layer does not: use "
    "strategy.mode=cooperative"
)
_BY_COLUMNS = (  # for learned rows
    "with strategy.mode=push_pull splits input rows by columns, but learned rows are stored at the node's owner: use "
    "strategy.mode=cooperative"
)


class JointSample(ExecutionStrategy):
    """Sampled mini-batch training without exchange of features.

    This is joint-sample-based execution in Lin et al., Proc. IEEE 2023. Choose this
    strategy if features are wide, or if no host can hold the graph. A step is the same
    as one rank's step with the seeds of all ranks.
    """

    steps = Steps(exchange=True)
    finishes = "asked"
    has_whole_steps = False

    def __init__(
        self,
        mode: str = "cooperative",
        batch_size: int = 1024,
        prefetch: int = 2,
        topology: str | None = None,
        features: str | None = None,
        cache: str = "none",
        cache_rows: int | None = None,
    ) -> None:
        """Checks the options.

        Args:
            mode: "cooperative": owners draw and compute one joint batch. "push_pull":
                each rank draws a batch, and all ranks compute layer 1 by feature
                columns.
            batch_size: Seeds per worker and step, or edges for link prediction.
            prefetch: Batches drawn in advance.
            topology: "partitioned", or "shared" with push_pull. None: partitioned with
                cooperative, shared with push_pull.
            features: "partitioned", by node or by column. None: the same.
            cache: "none", because features are not exchanged.
            cache_rows: None.
        """
        self.mode = one_of("strategy.mode", mode, tuple(_MODES))
        self.batch_size = whole("strategy.batch_size", batch_size, 1, MAX_COUNT)
        self.prefetch = whole("strategy.prefetch", prefetch, 1, MAX_COUNT)
        one_of("strategy.cache", cache, CACHES)
        check_joint(mode, {"topology": topology, "features": features}, cache, cache_rows)
        self.topology = _MODES[mode][0] if topology is None else topology
        cooperative, owned = mode == "cooperative", self.topology == "partitioned"
        self.reads = Reads(sampler=True, graph=not owned, one_column=owned, from_owners=owned and not cooperative)
        learned = LearnedInputs(but=None if cooperative else _BY_COLUMNS)
        relations = Relations(but=None if cooperative else _COLUMNS_OF_RELATIONS)
        self.supports: tuple[Ability, ...] = (EdgeTask("all"), SparseRows(), learned, relations)
        if cooperative:
            self.supports += (GatheredRows(), RowsOnDisk(), JoinedLayers(by_owners=True))

    def costs(self) -> str:
        return approximate("strategy=joint_sample", READS_BATCHES)

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        if self.mode == "push_pull" and (sampler is None or not sampler.rank_invariant):
            return None  # each rank draws for its own seeds
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        super().check(sampler, num_layers)
        if self.reads.one_column and sampler is not None:
            check_sampler(sampler, _MODES[self.mode][1])

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.tally, self._model = Tally(), model
        self._reads = None if worker.disk is None else DiskReads(worker.disk, worker.comm)
        self.sampled = _BATCHES[self.mode, self.topology](worker, model, self.batch_size, self.tally, self.prefetch)

    def make_exact(self, epoch: int) -> None:
        self.sampled.close()
        worker, batch_size = whole_steps(self.sampled.worker, self._model)
        self.sampled = _BATCHES[self.mode, self.topology](worker, self._model, batch_size, self.tally, 1)

    def num_batches(self, epoch: int) -> int:
        return len(self.sampled)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return self.sampled.epoch(epoch, first)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        if self._reads is not None:
            assert isinstance(self.sampled, CooperativeBatches)
            self._reads.end_epoch(self.sampled.window)

    def foresee_reads(self, epochs: int) -> dict[str, Any]:
        assert self._reads is not None
        assert isinstance(self.sampled, CooperativeBatches)
        for epoch in range(epochs):
            self.sampled.count_reads(epoch)
            self._reads.end_epoch(self.sampled.window)
        return self._reads.figures()

    def figures(self) -> dict[str, Any]:
        return {} if self._reads is None else {"features_read": self._reads.figures()}

    def close(self) -> None:
        self.sampled.close()
