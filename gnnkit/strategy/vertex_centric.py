"""Vertex-centric workload partition: every rank computes its nodes in each layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from gnnkit.engine import ShardAdjacency
from gnnkit.exchange import Exact, ForwardPass, ForwardPasses, RowExchange
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
from gnnkit.strategy.phases import Phases
from gnnkit.strategy.supersteps import Supersteps
from gnnkit.strategy.supervised import Supervised, Supervision
from gnnkit.utils.approximate import approximate

HIGH_CUT = 0.25  # share of edges from other workers' nodes above which rows may be stale by `NEAR` epochs only
NEAR, FAR = 1, 7  # epochs, by default


@dataclass(slots=True)
class LateRows:
    """The epochs in which rows are exchanged, so that none is older than a bound."""

    key: str  # the configuration key that makes rows late, with its value
    bound: int | None  # epochs. None: by the share of edges from other workers' nodes
    largest: int = 0  # age of the oldest rows that a step has read, in epochs

    def begin(self, remote_edges: float, *, prints: bool) -> None:
        """Sets the bound, unless it is configured.

        Args:
            remote_edges: Share of edges from other workers' nodes.
            prints: Whether this rank prints a warning about a bound above the default.
        """
        default = NEAR if remote_edges > HIGH_CUT else FAR
        if prints and (self.bound or 0) > default:
            reason = f"{remote_edges:.0%} of the edges cross workers, and {default} is the default"
            print(f"sync.staleness={self.bound} may cost accuracy: {reason}", file=sys.stderr, flush=True)
        if self.bound is None:
            self.bound = default

    def costs(self) -> str:
        """Returns the notice about stale rows."""
        epochs = "some" if self.bound is None else f"up to {self.bound}"
        return approximate(self.key, f"rows of other workers are stale by {epochs} epochs, with current parameters")

    def exchanges(self, epoch: int, phases: Phases) -> bool:
        """Returns whether rows are exchanged in an approximate epoch."""
        age = (epoch - phases.first) % ((self.bound or 0) + 1)
        self.largest = max(self.largest, age)
        return age == 0


_ALONE = (  # for learned rows
    "with strategy.local_iterations other than 1 lets workers step alone, while a learned row has one owner, who "
    "steps with the gradients of all workers"
)
_STALE = (
    "with these options reads stale rows: use exchange=exact or quantized with strategy.local_iterations=1, or "
    "strategy=individual_sample"
)
_NOT_OF_NOW = (  # for link tasks
    "rows that are not of now and exact are of other edges than those of the epoch, choose exchange=exact with "
    "strategy.local_iterations=1"
)
_KEPT = (  # for moving nodes
    "keeps rows of the nodes that a worker has now: use exchange=exact, strategy.local_iterations=1 and sync.mode=sync"
)


class VertexCentric(ExecutionStrategy):
    """Full-graph training with one step per epoch, equal to one process.

    Choose this strategy if the graph and its activations fit into the workers' memory
    (dispatch-workload in Lin et al., Proc. IEEE 2023).

    With `local_iterations` = K, a superstep has K epochs. In the first K - 1 epochs,
    ranks do not communicate: each updates its own parameters with its own mean
    gradient, and the rows last received are constants. Then parameters are averaged
    (local SGD; Stich, ICLR 2019). The last epoch exchanges rows and takes one step from
    the average with the gradient over all ranks, using an optimiser whose state is
    equal on all ranks. A superstep therefore ends with one model. Later local steps add
    the difference between that gradient and the rank's own (SCAFFOLD; Karimireddy et
    al., ICML 2020), since parts with other classes would drift apart. A run's first
    forward pass always exchanges rows.

    `exchange` determines how rows are exchanged in training. Evaluation is always
    exact.
    """

    reads = Reads(all_edges=True)

    def __init__(self, local_iterations: int | Literal["auto"] = 1, exchange: RowExchange | None = None) -> None:
        """Stores the keys.

        Args:
            local_iterations: Number of epochs per superstep, or auto, which is 4.
                Default: 1.
            exchange: How rows are exchanged. If None, exactly.
        """
        self.supersteps = Supersteps(local_iterations)
        self._late: LateRows | None = None  # set by `delay_rows`
        self._reads: DiskReads | None = None  # if rows stay on disk
        self.exchange = exchange or Exact()
        if self.supersteps.drifts:
            self.exchange.check_pauses("strategy.local_iterations above 1")
        self._declare()

    def _declare(self) -> None:
        """Sets the declarations: steps and abilities."""
        drift, late = self.supersteps.drifts, self._late is not None
        later = drift or late or self.exchange.schedule() is not None
        self.steps = Steps(
            only_synchronise=not drift,
            drift=drift,
            keep_state=drift or late or self.exchange.keeps_state,
            keep_sums=self.exchange.exact and not later,
        )
        self.finishes = "always" if later else "asked"  # a codec alone is nearly exact
        reason = "strategy.local_iterations above 1" if drift else f"exchange={self.exchange.name}"
        self.supports = (
            SparseRows(),
            LastingRows(),
            LearnedInputs(but=_ALONE if drift else None),
            Relations(but=_STALE if later else None),
            EdgeTask("share", but=None if self.steps.keep_sums else f"{reason}: {_NOT_OF_NOW}"),
            MovableNodes(but=_KEPT if self.steps.keep_state else None),
        )

    def costs(self) -> str:
        late = self._late.costs() if self._late else None
        return "\n".join(filter(None, (self.supersteps.costs(), late, self.exchange.costs())))

    def delay_rows(self, key: str, bound: int | None) -> bool:
        if self.supersteps.drifts:
            return False
        self.exchange.check_pauses(key)
        self._late = LateRows(key, bound)
        self._declare()
        return True

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return self if self.exchange.exact and not self.steps.drift and self._late is None else None

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.comm, self.engine = worker.comm, worker.engine(model)
        self.supersteps.begin(worker.remote_edges, prints=self.comm.rank == 0)
        if self._late is not None:
            self._late.begin(worker.remote_edges, prints=self.comm.rank == 0 and self.comm.world_size > 1)
        pauses = self.steps.drift or self._late is not None
        self.passes = ForwardPasses(self.exchange, self.engine.topology, pauses=pauses)
        self.tally, self.nodes = self.engine.tally, self.engine.shard.owned
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed, self.weight = worker.seed, worker.weight
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
        if self._reads is not None:
            self._reads.end_epoch(None)

    def figures(self) -> dict[str, Any]:
        alone = self.comm.world_size == 1
        figures: dict[str, Any] = {"supersteps": [[0, 1]] if alone else self.supersteps.lengths(self.phases)}
        figures |= {} if alone or self._late is None else {"row_staleness": self._late.largest}
        return figures if self._reads is None else figures | {"features_read": self._reads.figures()}

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.passes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["schedule"], self.x.device)

    def close(self) -> None:
        self.engine.close()

    def exact_batch(self, epoch: int) -> Batch:
        supervision, key = self.supervision.epoch(epoch), derive(self.seed, epoch)
        return _over(self, supervision, key, ForwardPass())

    def _batch(self, epoch: int) -> Batch:
        exchanges, supervision = self.supersteps.exchanges(epoch, self.phases), self.supervision.epoch(epoch)
        key = derive(self.seed, epoch)
        late, exact = self._late, self.phases.is_exact(epoch)
        sends = exchanges and (exact or late is None or late.exchanges(epoch, self.phases))
        forward = ForwardPass() if exact else self.passes.step(key, exchanges=sends)
        update = self.supersteps.update(epoch, self.phases) if self.comm.world_size > 1 else "synchronise"
        return replace(
            _over(self, supervision, key, forward),
            total=supervision.total if exchanges else len(supervision.rows),
            update=update,
            weight=float(self.weight),
            leads=update == "conclude",
        )


def _over(strategy: VertexCentric, supervision: Supervised, key: int, forward: ForwardPass) -> Batch:
    """Returns a step over a rank's rows, with the rows of `forward`."""
    adjacencies = ShardAdjacency.layers(supervision.engine, strategy.num_layers, key, forward)
    rows = (supervision.rows, supervision.labels, supervision.total)
    pair_inputs = {"reach": supervision.reach, "pair_features": supervision.pair_features}
    return Batch(strategy.x, adjacencies, *rows, **pair_inputs, nodes=strategy.nodes)  # type: ignore[arg-type]
