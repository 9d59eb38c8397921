"""Vertex-centric workload partition: every rank computes its nodes in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from gnnkit.engine import ForwardPass, ShardAdjacency
from gnnkit.engine.dropout import derive
from gnnkit.graph import Split
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Worker
from gnnkit.strategy.supersteps import Supersteps


class VertexCentric(ExecutionStrategy):
    """Full-graph training, one step an epoch, equal to one process.

    Choose this strategy where the graph and its activations fit the workers together
    (dispatch-workload in Lin et al., Proc. IEEE 2023).

    With `local_iterations` = K, K epochs are a superstep. With `auto` the leader
    chooses K anew for each superstep, by measured drift and time. In the first K - 1
    epochs a rank exchanges nothing. The rank steps its own parameters with its own mean
    gradient, and rows last received are constants. The last epoch exchanges rows and
    synchronises gradients. The first forward pass of a run always exchanges rows.
    """

    full_graph = True

    def __init__(
        self,
        local_iterations: int | Literal["auto"] = 1,
        max_drift: float | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Keeps the choices.

        Args:
            local_iterations: Epochs of a superstep, or auto. Default: 1.
            max_drift: Relative drift that shortens supersteps under auto. None: 0.05.
            max_iterations: Epochs of a superstep at most under auto. None: 16.
        """
        self.supersteps = Supersteps(local_iterations, max_drift, max_iterations)
        self.drifts = self.keeps_state = self.supersteps.drifts
        self.repeatable = local_iterations != "auto"
        self.only_synchronises = not self.drifts

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return None if self.drifts else self

    def setup(self, worker: Worker, model: nn.Module) -> None:
        shard, self.comm = worker.shard, worker.comm
        self.engine = worker.engine(model)
        self.tally = self.engine.tally
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed = worker.seed
        self.x = worker.features.rows(shard.owned)
        self.labels = torch.tensor(np.asarray(shard.labels, np.int64), device=worker.device)
        self.train_rows = torch.from_numpy(np.flatnonzero(shard.split == Split.TRAIN)).to(worker.device)
        count = worker.comm.all_reduce(torch.tensor([len(self.train_rows)], device=worker.device))
        self.num_train = int(count.item())

    def num_batches(self, epoch: int) -> int:
        return 1

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if first == 0:
            yield self._batch(epoch)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        self.supersteps.end_epoch(epoch, measured, model, self.comm)

    def figures(self) -> dict[str, Any]:
        return {"supersteps": self.supersteps.lengths}

    def state_dict(self) -> dict[str, Any]:
        return {"received": self.engine.received.rows, "supersteps": self.supersteps.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.supersteps.load_state_dict(state["supersteps"])
        self.engine.received.rows = [rows.to(self.x.device) for rows in state["received"]]

    def _batch(self, epoch: int) -> Batch:
        exchanges = self.supersteps.exchanges(epoch)
        rows, total = self.train_rows, self.num_train if exchanges else len(self.train_rows)
        forward = ForwardPass(exchanges, remember=self.drifts)
        adjacencies = ShardAdjacency.layers(self.engine, self.num_layers, derive(self.seed, epoch), forward)
        return Batch(self.x, adjacencies, rows, self.labels[rows], total, "synchronise" if exchanges else "own")
