"""Vertex-centric workload partition: every rank computes its nodes in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

from gnnkit.engine import ShardAdjacency
from gnnkit.exchange import Exact, ForwardPasses, RowExchange
from gnnkit.kernels.dropout import derive
from gnnkit.sampler import Sampler
from gnnkit.strategy.abilities import (
    EdgeTask,
    LastingRows,
    LearnedInputs,
    MovableNodes,
    Reads,
    Relations,
    SparseRows,
    Steps,
)
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Worker
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.strategy.supersteps import LEADER, Supersteps
from gnnkit.strategy.supervised import Supervision

_ALONE = (  # with learned rows
    "with strategy.local_iterations other than 1 lets workers step alone, while a learned row has one owner, who "
    "steps with the gradients of all workers"
)
_NOT_OF_NOW = (  # where edges are predicted
    "rows that are not of now and exact are of other edges than those of the epoch, choose exchange=exact with "
    "strategy.local_iterations=1"
)
_KEPT = (  # where nodes move
    "keeps rows of the nodes that a worker has now: choose exchange=exact or quantized with strategy.local_iterations=1"
)


class VertexCentric(ExecutionStrategy):
    """Full-graph training, one step an epoch, equal to one process.

    Choose this strategy where the graph and its activations fit the workers together
    (dispatch-workload in Lin et al., Proc. IEEE 2023).

    With `local_iterations` = K, K epochs are a superstep. With `auto` the leader
    chooses K anew for each superstep, by measured drift and time. In the first K - 1
    epochs a rank exchanges nothing. The rank steps its own parameters with its own mean
    gradient, and rows last received are constants. Then the parameters become the
    ranks' weighted mean (local SGD; Stich, ICLR 2019). The last epoch exchanges rows
    and makes one step from there with the gradient of all ranks, by an optimiser whose
    state is equal on all ranks. So a superstep ends with one model. The first forward
    pass of a run always exchanges rows.

    `exchange` says how rows travel in training. Evaluation is exact in any case.
    """

    reads = Reads(all_edges=True)

    def __init__(
        self,
        local_iterations: int | Literal["auto"] = 1,
        max_drift: float | None = None,
        max_iterations: int | None = None,
        exchange: RowExchange | None = None,
    ) -> None:
        """Keeps the choices.

        Args:
            local_iterations: Epochs of a superstep, or auto. Default: 1.
            max_drift: Relative drift that shortens supersteps under auto. None: 0.05.
            max_iterations: Epochs of a superstep at most under auto. None: 4.
            exchange: How rows travel. None: exactly.
        """
        self.supersteps = Supersteps(local_iterations, max_drift, max_iterations)
        self._reads: DiskReads | None = None  # of the rows, where these stay on disk
        self.exchange, drift = exchange or Exact(), self.supersteps.drifts
        if drift:
            self.exchange.check_pauses("strategy.local_iterations above 1")
        self.steps = Steps(
            only_synchronise=not drift,
            drift=drift,
            keep_state=drift or self.exchange.keeps_state,
            keep_sums=self.exchange.exact and not drift,
            repeatable=local_iterations != "auto",
        )
        later = drift or self.exchange.schedule() is not None
        kept = "strategy.local_iterations above 1" if self.exchange.exact else f"exchange={self.exchange.name}"
        self.supports = (
            SparseRows(),
            LastingRows(),
            LearnedInputs(but=_ALONE if drift else None),
            Relations(but="with these options reads rows that are not of now" if later else None),
            EdgeTask("share", but=None if self.steps.keep_sums else f"{kept}: {_NOT_OF_NOW}"),
            MovableNodes(but=_KEPT if self.steps.keep_state else None),
        )

    def cure(self) -> str:
        return f"strategy.local_iterations={max(self.supersteps.length // 4, 1)} or auto"

    def costs(self) -> str:
        return "\n".join(filter(None, (self.supersteps.costs(), self.exchange.costs())))

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return self if self.steps.keep_sums else None

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.comm, self.engine = worker.comm, worker.engine(model)
        self.supersteps.begin(worker.remote_edges, tells=self.comm.rank == LEADER)
        self.passes = ForwardPasses(self.exchange, self.engine, pauses=self.steps.drift)
        self.tally = self.engine.tally
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed, self.weight = worker.seed, worker.weight
        self.nodes = self.engine.shard.owned
        self.x = worker.lasting_rows(self.nodes, model, self.tally)
        self._reads = DiskReads.lasting(worker.disk, self.comm)
        self.engine.fix(self.x)
        self.supervision = Supervision.of(worker, self.engine, self.num_layers)

    def num_batches(self, epoch: int) -> int:
        return 1

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if first == 0:
            yield self._batch(epoch)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        self.supersteps.end_epoch(epoch, measured, self.comm)
        if self._reads is not None:
            self._reads.end_epoch(None)

    def figures(self) -> dict[str, Any]:
        found = {"supersteps": self.supersteps.lengths}
        return found if self._reads is None else found | {"features_read": self._reads.figures()}

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.passes.state_dict(), "supersteps": self.supersteps.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.supersteps.load_state_dict(state["supersteps"])
        self.passes.load_state_dict(state["schedule"], self.x.device)

    def close(self) -> None:
        self.engine.close()

    def _batch(self, epoch: int) -> Batch:
        exchanges, given = self.supersteps.exchanges(epoch), self.supervision.epoch(epoch)
        key = derive(self.seed, epoch)
        adjacencies = ShardAdjacency.layers(
            given.engine, self.num_layers, key, self.passes.step(key, exchanges=exchanges)
        )
        return Batch(
            self.x,
            adjacencies,
            given.rows,
            given.labels,
            given.total if exchanges else len(given.rows),
            self.supersteps.update(epoch) if self.comm.world_size > 1 else "synchronise",
            float(self.weight),
            reach=given.reach,
            nodes=self.nodes,
        )
