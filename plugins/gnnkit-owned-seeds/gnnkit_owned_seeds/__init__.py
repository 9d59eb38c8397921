"""Mini-batches whose seeds are the worker's own nodes."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from gnnkit.engine import BlockLayers, Pool, Tally, derive
from gnnkit.graph import Split
from gnnkit.strategy import Batch, ExecutionStrategy, Reads, Worker, weighing_sums
from gnnkit.utils.ranges import MAX_COUNT, whole


class OwnedSeeds(ExecutionStrategy):
    """Draws seeds from the worker's own nodes, as in DistDGL (Zheng et al., 2020).

    Suited to partitions that follow the graph, such as `metis`. The neighbourhoods of a
    worker's seeds then overlap, so a batch reads fewer rows.
    """

    reads = Reads(sampler=True, graph=True)

    def __init__(self, batch_size: int = 1024) -> None:
        self.batch_size = whole("strategy.batch_size", batch_size, 1, MAX_COUNT)

    def setup(self, worker: Worker, model: nn.Module) -> None:
        assert worker.graph is not None
        assert worker.sampler is not None
        self.worker, self.graph, self.tally = worker, worker.graph, Tally()
        self.sampler = weighing_sums(worker.sampler)
        pool = Pool(worker.comm, self.tally)
        self.layers = BlockLayers(self.graph, model, worker.dtype, worker.device, pool)
        self.seeds = worker.owned[worker.shard.split == Split.TRAIN]
        counts = torch.zeros(worker.comm.world_size, dtype=torch.int64, device=worker.device)
        counts[worker.comm.rank] = len(self.seeds)
        self.counts: list[int] = worker.comm.all_reduce(counts).tolist()

    def num_batches(self, epoch: int) -> int:
        return max(-(-max(self.counts) // self.batch_size), 1)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        num_steps, device = self.num_batches(epoch), self.worker.device
        order = np.random.default_rng([self.worker.seed, epoch]).permutation(self.seeds)
        for step in range(first, num_steps):
            key = derive(self.worker.seed, epoch, step)
            drawn = self.sampler.sample(self.graph.csc, order[step::num_steps], key=key)
            x = self.worker.features.rows(drawn.input_nodes)
            rows = torch.arange(len(drawn.seeds), device=device)
            labels = torch.tensor(self.graph.labels[drawn.seeds], device=device)
            total = sum(len(range(step, count, num_steps)) for count in self.counts)
            yield Batch(x, self.layers.layers(drawn.blocks, key), rows, labels, total)
