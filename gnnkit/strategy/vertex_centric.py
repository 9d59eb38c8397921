"""Vertex-centric workload partition: every rank computes its nodes in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

from gnnkit.engine import ForwardPass, ShardAdjacency
from gnnkit.engine.dropout import derive
from gnnkit.errors import UserError
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Worker
from gnnkit.strategy.row_exchange import RowExchange
from gnnkit.strategy.supersteps import Supersteps
from gnnkit.strategy.supervised import Supervision

_DRAWS = 2**32  # tells the key of the exchange from the keys of layers


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

    full_graph = True
    reads_sparse = True
    refuses_relief = (
        "keeps rows of the nodes that a worker has now: choose strategy.exchange=exact or quantized with "
        "strategy.local_iterations=1"
    )

    def __init__(
        self,
        local_iterations: int | Literal["auto"] = 1,
        max_drift: float | None = None,
        max_iterations: int | None = None,
        exchange: str = "exact",
        bits: int | None = None,
        staleness: int | None = None,
        smoothing: float | None = None,
        keep: float | None = None,
        variation: float | None = None,
        max_age: int | None = None,
    ) -> None:
        """Keeps the choices. Refuses an option that no chosen value reads.

        Args:
            local_iterations: Epochs of a superstep, or auto. Default: 1.
            max_drift: Relative drift that shortens supersteps under auto. None: 0.05.
            max_iterations: Epochs of a superstep at most under auto. None: 16.
            exchange: One of `row_exchange.EXCHANGES`.
            bits: Bits of a number under quantized: 32, 16, 8, 4 or 2. None: 8.
            staleness: Epochs from sending to reading under pipelined. None: 1.
            smoothing: Share of the earlier average under pipelined, in [0, 1). None: 0.
            keep: Share of the boundary rows under sampled, in [0, 1]. None: 0.1.
            variation: Relative change of a block that adaptive does not send. None:
                0.05.
            max_age: Epochs after which adaptive sends a block anyway. None: 10.
        """
        self.supersteps = Supersteps(local_iterations, max_drift, max_iterations)
        self.drifts = self.supersteps.drifts
        options = {
            "bits": bits,
            "staleness": staleness,
            "smoothing": smoothing,
            "keep": keep,
            "variation": variation,
            "max_age": max_age,
        }
        self.exchange = RowExchange(exchange, options, drifts=self.drifts)
        self.keeps_state = self.exchange.keeps_state
        self.keeps_sums = self.exchange.exact and not self.drifts
        self.relief = None if self.drifts or self.keeps_state else "nodes"
        self.repeatable = local_iterations != "auto"
        self.refuses_learned = (
            "with strategy.local_iterations other than 1 lets workers step alone, while a learned row has one owner, who "
            "steps with the gradients of all workers"
            if self.drifts
            else None
        )
        later = self.drifts or self.exchange.needs_in_edges
        self.refuses_relations = "with these options reads rows that are not of now" if later else None
        self.only_synchronises = not self.drifts
        self.predicts_edges = "share" if self.keeps_sums else None
        kept = f"strategy.exchange={exchange}" if self.exchange.name != "exact" else "strategy.local_iterations above 1"
        self.nodes_only = (
            f"{kept}: rows that are not of now and exact are of other edges than those of the epoch, choose "
            "strategy.exchange=exact with strategy.local_iterations=1"
        )

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return self if self.keeps_sums else None

    def setup(self, worker: Worker, model: nn.Module) -> None:
        shard, self.comm = worker.shard, worker.comm
        self.engine = worker.engine(model)
        if self.exchange.needs_in_edges and not self.engine.holds_in_edges:
            raise UserError(
                f"partition.grid={self.engine.grid} spreads the in-edges of a node over ranks, and "
                f"strategy.exchange={self.exchange.name} needs every in-edge with the owner of its node: "
                "use partition.grid=1d, one column and one slice"
            )
        self.schedule, self.codec = self.exchange.schedule(), self.exchange.codec()
        self.tally = self.engine.tally
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed, self.weight = worker.seed, worker.weight
        self.nodes, self.x = shard.owned, worker.features.input_rows(shard.owned, model)
        self.engine.fix(self.x)
        self.supervision = Supervision.of(worker, self.engine, self.num_layers)

    def num_batches(self, epoch: int) -> int:
        return 1

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if first == 0:
            yield self._batch(epoch)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        self.supersteps.end_epoch(epoch, measured, self.comm)

    def figures(self) -> dict[str, Any]:
        return {"supersteps": self.supersteps.lengths}

    def state_dict(self) -> dict[str, Any]:
        schedule = {} if self.schedule is None else self.schedule.state_dict()
        return {"schedule": schedule, "supersteps": self.supersteps.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.supersteps.load_state_dict(state["supersteps"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"], self.x.device)

    def close(self) -> None:
        self.engine.close()

    def _batch(self, epoch: int) -> Batch:
        exchanges, given = self.supersteps.exchanges(epoch), self.supervision.epoch(epoch)
        key = derive(self.seed, epoch)
        forward = ForwardPass(self.schedule, self.codec, derive(key, _DRAWS), exchanges)
        adjacencies = ShardAdjacency.layers(given.engine, self.num_layers, key, forward)
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
