"""Vertex-centric workload partition: every rank computes its nodes in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from gnnkit.engine import ForwardPass, ShardAdjacency
from gnnkit.engine.dropout import derive
from gnnkit.ranges import MAX_COUNT, whole
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.supervised import Supervision


class VertexCentric(ExecutionStrategy):
    """Full-graph training, one step an epoch, equal to one process.

    Choose this strategy where the graph and its activations fit the workers together
    (dispatch-workload in Lin et al., Proc. IEEE 2023).

    With `local_iterations` = K, K epochs are a superstep. In its first K - 1 epochs a
    rank exchanges nothing. The rank steps its own parameters with its own mean
    gradient, and rows last received are constants. The last epoch exchanges rows and
    synchronises gradients. The first forward pass of a run always exchanges rows.
    """

    full_graph = True

    def __init__(self, local_iterations: int = 1) -> None:
        self.local_iterations = whole("strategy.local_iterations", local_iterations, 1, MAX_COUNT)
        self.drifts = self.keeps_state = local_iterations > 1
        self.only_synchronises = not self.drifts
        self.predicts_edges = None if self.drifts else "share"  # other edges each epoch, other rows received

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return None if self.drifts else self

    def setup(self, worker: Worker, model: nn.Module) -> None:
        shard = worker.shard
        self.engine = worker.engine(model)
        self.tally = self.engine.tally
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed = worker.seed
        self.x = worker.features.rows(shard.owned)
        self.supervision = Supervision.of(worker, self.engine, self.num_layers)

    def num_batches(self, epoch: int) -> int:
        return 1

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if first == 0:
            yield self._batch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"received": self.engine.received.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.received.rows = [rows.to(self.x.device) for rows in state["received"]]

    def _batch(self, epoch: int) -> Batch:
        exchanges = (epoch + 1) % self.local_iterations == 0
        given = self.supervision.epoch(epoch)
        forward = ForwardPass(exchanges, remember=self.drifts)
        adjacencies = ShardAdjacency.layers(given.engine, self.num_layers, derive(self.seed, epoch), forward)
        return Batch(
            self.x,
            adjacencies,
            given.rows,
            given.labels,
            given.total if exchanges else len(given.rows),
            "synchronise" if exchanges else "own",
            reach=given.reach,
        )
