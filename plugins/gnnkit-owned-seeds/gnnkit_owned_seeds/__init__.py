"""Mini-batches whose seeds are the worker's own nodes."""

import numpy as np

from gnnkit.graph import Ids, Split
from gnnkit.strategy import Worker
from gnnkit.strategy.individual_sample import IndividualSample


class OwnedSeeds(IndividualSample):
    """Draws seeds from the worker's own nodes, as in DistDGL (Zheng et al., 2020).

    Suited to partitions that follow the graph, such as `metis`. The neighbourhoods of a
    worker's seeds then overlap, so a batch reads fewer rows.
    """

    def seeds(self, worker: Worker, epoch: int) -> Ids:
        nodes = worker.owned[worker.shard.split == Split.TRAIN]
        return np.random.default_rng([worker.seed, epoch]).permutation(nodes)
