"""Vertex-centric workload partition: every rank computes its nodes, over all their edges, in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Engine, ForwardPass, ShardAdjacency
from gnnkit.engine.dropout import derive
from gnnkit.graph import Split
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker


class VertexCentric(ExecutionStrategy):
    """Full-graph training (dispatch-workload in Lin et al., Proc. IEEE 2023): one step an epoch, equal to one process. Choose it
    when the graph and its activations fit the workers together.

    With `local_iterations` = K, K epochs are a superstep. In its first K - 1 a rank exchanges nothing: it steps its own parameters
    with its own mean gradient, rows last received being constants. The last exchanges rows and synchronises gradients. The first
    forward pass of a run exchanges rows in any case, since none were received before.
    """

    def __init__(self, local_iterations: int = 1, final_average: bool = True) -> None:
        if local_iterations < 1:
            raise ValueError(f"local_iterations={local_iterations} must be at least 1")
        self.local_iterations, self.final_average = local_iterations, final_average
        self.equals_one_process = local_iterations == 1

    def setup(self, worker: Worker, model: nn.Module) -> None:
        shard = worker.shard.with_self_loops() if getattr(model, "self_loops", False) else worker.shard
        self.engine = Engine(shard, worker.comm, worker.dtype)
        self.traffic = self.engine.traffic
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed = worker.seed
        self.x = torch.tensor(np.asarray(shard.features), dtype=worker.dtype, device=worker.device)
        self.labels = torch.tensor(np.asarray(shard.labels, np.int64), device=worker.device)
        self.train_rows, self.num_train = _rows(shard.split == Split.TRAIN, worker)
        self.labelled_rows, self.num_labelled = _rows(shard.labels >= 0, worker)

    def batches(self, epoch: int) -> Iterator[Batch]:
        local = (epoch + 1) % self.local_iterations != 0
        total = len(self.train_rows) if local else self.num_train
        forward = ForwardPass(local, remember=self.local_iterations > 1)
        yield self._batch(derive(self.seed, epoch), self.train_rows, total, forward)

    def evaluation(self) -> Batch:
        return self._batch(0, self.labelled_rows, self.num_labelled, ForwardPass())

    def state_dict(self) -> dict[str, Any]:
        return {"received": self.engine.halo.received}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.halo.received = [rows.to(self.x.device) for rows in state["received"]]

    def _batch(self, key: int, rows: Tensor, total: int, forward: ForwardPass) -> Batch:
        adjacencies = ShardAdjacency.layers(self.engine, self.num_layers, key, forward)
        return Batch(self.x, adjacencies, rows, self.labels[rows], total, synchronise=not forward.local)


def _rows(chosen: np.ndarray, worker: Worker) -> tuple[Tensor, int]:
    """The positions of the chosen owned nodes, and how many are chosen on all ranks."""
    rows = torch.from_numpy(np.flatnonzero(chosen)).to(worker.device)
    count = worker.comm.all_reduce(torch.tensor([len(rows)], device=worker.device))
    return rows, int(count.item())
