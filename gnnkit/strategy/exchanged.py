"""A workload over shards, whose ranks exchange rows in some epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.engine import ShardAdjacency
from gnnkit.exchange import ForwardPass, ForwardPasses, RowExchange
from gnnkit.graph import Split
from gnnkit.strategy.base import Worker
from gnnkit.strategy.share import StepInputs
from gnnkit.strategy.workload import Workload


class Exchanged(Workload):
    """All in-edges of the owned nodes, with rows exchanged every few epochs.

    In other epochs, the rows last received are constants.
    """

    def __init__(self, worker: Worker, model: nn.Module, every: int, exchange: RowExchange) -> None:
        """Sets up the exchange. Collective.

        Args:
            worker: This rank.
            model: The model, with `num_layers` and `self_loops`.
            every: Number of epochs between exchanges.
            exchange: How rows are exchanged.
        """
        self._engine, self._every, self._device = worker.engine(model), every, worker.device
        self._passes = ForwardPasses(exchange, self._engine.topology, pauses=every > 1)
        self.tally = self._engine.tally
        self._num_layers: int = model.num_layers  # type: ignore[assignment]
        shard, device = self._engine.shard, worker.device
        self._x = worker.lasting_rows(shard.owned, model, self.tally)
        self._rows = torch.from_numpy(np.flatnonzero(shard.split == Split.TRAIN)).to(device)
        self._labels = torch.from_numpy(np.array(shard.labels)).to(device)[self._rows]
        self.num_own = len(self._rows)
        self.num_train = int(worker.comm.all_reduce(torch.tensor([self.num_own], device=device)).item())

    def state_dict(self) -> dict[str, Any]:
        """Returns the schedule's stored rows."""
        return self._passes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the schedule's rows."""
        self._passes.load_state_dict(state, self._device)

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        return self._over(key, self._passes.step(key, exchanges=epoch % self._every == 0))

    def exact_inputs(self, key: int) -> StepInputs:
        """Returns the rows and edges of a step with current rows of all nodes."""
        return self._over(key, ForwardPass())

    def _over(self, key: int, forward: ForwardPass) -> StepInputs:
        adjacencies = ShardAdjacency.layers(self._engine, self._num_layers, key, forward)
        return StepInputs(self._x, adjacencies, self._rows, self._labels)
