"""A workload over the shards, whose ranks exchange rows in some epochs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import ForwardPass, ShardAdjacency
from gnnkit.graph import Split
from gnnkit.strategy.base import Worker
from gnnkit.strategy.share import Inputs
from gnnkit.strategy.workload import Workload


class Exchanged(Workload):
    """All edges into the owned nodes. Every few epochs rows of other ranks are new.

    In the other epochs these rows are constants, as last received.
    """

    def __init__(self, worker: Worker, model: nn.Module, every: int) -> None:
        """Finds out who needs which rows. Collective.

        Args:
            worker: This rank.
            model: Says `num_layers` and `self_loops`.
            every: Epochs from one exchange to the next.
        """
        self._engine, self._every = worker.engine(model), every
        self.tally = self._engine.tally
        self._num_layers: int = model.num_layers  # type: ignore[assignment]
        shard, device = worker.shard, worker.device
        self._x = worker.features.rows(shard.owned)
        self._rows = torch.from_numpy(np.flatnonzero(shard.split == Split.TRAIN)).to(device)
        self._labels = torch.from_numpy(np.array(shard.labels)).to(device)[self._rows]
        self.num_own = len(self._rows)
        self.num_train = int(worker.comm.all_reduce(torch.tensor([self.num_own], device=device)).item())

    @property
    def received(self) -> list[Tensor]:
        """The rows last received, for a checkpoint."""
        return self._engine.received.rows

    @received.setter
    def received(self, rows: list[Tensor]) -> None:
        self._engine.received.rows = [each.to(self._x.device) for each in rows]

    def inputs(self, epoch: int, step: int, key: int) -> Inputs:
        forward = ForwardPass(exchanges=epoch % self._every == 0, remember=self._every > 1)
        adjacencies = ShardAdjacency.layers(self._engine, self._num_layers, key, forward)
        return Inputs(self._x, adjacencies, self._rows, self._labels)
