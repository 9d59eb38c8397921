"""Individual-sample mini-batches: every rank draws seeds and neighbourhoods."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn

from gnnkit.engine import Tally
from gnnkit.ranges import MAX_COUNT, one_of, whole
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.link_batches import LinkBatches
from gnnkit.strategy.sampled import SampledBatches


class IndividualSample(ExecutionStrategy):
    """Sampled mini-batch training (individual-sample-based in Lin et al., Proc. IEEE
    2023).

    Choose this strategy where activations of all nodes do not fit, or where many steps
    an epoch reach an accuracy sooner. The batches of an epoch cover the training nodes
    once. Native threads sample and gather ahead while the batch before is computed. A
    rank without seeds joins a step with an empty batch.
    """

    samples = True
    reads_graph = True

    def __init__(
        self,
        batch_size: int = 1024,
        batching: str = "plain",
        window: int = 8,
        prefetch: int = 2,
        topology: str = "shared",
    ) -> None:
        """Keeps the sizes.

        Args:
            batch_size: Seeds per worker and step. Groups of seeds, where the sampler
                has groups. Edges, where the task predicts edges.
            batching: "plain", or "balanced" to even out the expected work of the
                workers.
            window: Steps over which balanced batching evens out.
            prefetch: Batches made ahead.
            topology: "shared": one mapped copy of the graph for all workers of a host.
        """
        for name, value in (("batch_size", batch_size), ("window", window), ("prefetch", prefetch)):
            whole(f"strategy.{name}", value, 1, MAX_COUNT)
        one_of("strategy.batching", batching, ("plain", "balanced"))
        one_of("strategy.topology", topology, ("shared",))
        self.batch_size, self.batching, self.window, self.prefetch = batch_size, batching, window, prefetch
        self.predicts_edges = "all" if batching == "plain" else None

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        if sampler is None or not sampler.rank_invariant or self.batching != "plain":
            return None
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.tally = Tally()
        if worker.links is not None:
            self.sampled: SampledBatches | LinkBatches = LinkBatches(
                worker, model, batch_size=self.batch_size, prefetch=self.prefetch
            )
            return
        self.sampled = SampledBatches(
            worker,
            model,
            batch_size=self.batch_size,
            batching=self.batching,
            window=self.window,
            prefetch=self.prefetch,
        )

    def num_batches(self, epoch: int) -> int:
        return len(self.sampled)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return self.sampled.epoch(epoch, first)
