"""Vertex-centric workload partition: every rank computes its nodes in each layer."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.engine.remote import Lookup, Reach
from gnnkit.exchange import Exact, ForwardPass, ForwardPasses, RowExchange
from gnnkit.graph import Ids, Split
from gnnkit.kernels.dropout import derive
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Sampler
from gnnkit.sampler.links import links_of, supervised_pairs
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
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Phases, Update, Worker, tensor_of
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, whole

_EDGES, _NEGATIVES = 1, 2  # purposes of random keys


@dataclass(frozen=True, slots=True, eq=False)
class Supervised:
    """The rows whose loss one rank computes in an epoch, and the epoch's graph."""

    engine: Engine
    rows: Tensor  # [k] output rows, or [k, 2] pairs
    labels: Tensor  # [k, ...]
    total: int  # sum of k over the ranks
    reach: Reach | None = None  # as in `Batch`
    pair_features: Tensor | None = None  # as in `Batch`


class Supervision(ABC):
    """Selects the rows of each epoch."""

    @staticmethod
    def of(worker: Worker, engine: Engine, num_layers: int) -> Supervision:
        """Creates a supervision by edges for link tasks, or by nodes. Collective.

        Args:
            worker: This rank.
            engine: The engine over the shards.
            num_layers: The model's number of layers.
        """
        return (KeyedEdges if worker.rows.drawn else TrainingRows)(worker, engine, num_layers)

    @abstractmethod
    def epoch(self, epoch: int) -> Supervised:
        """Returns an epoch's rows. Collective."""


class TrainingRows(Supervision):
    """This rank's training nodes or labelled pairs, in every epoch.

    The graph keeps the edges of pairs, because only their labels are predicted.
    """

    def __init__(self, worker: Worker, engine: Engine, num_layers: int) -> None:
        targets = worker.rows.of_rank(engine.shard)
        places, reach = targets.of_split(Split.TRAIN), None
        train, rows = targets.take(places), torch.from_numpy(places).to(worker.device)
        if worker.rows.pairs:
            lookup = Lookup(worker.comm, engine.shard.owned, worker.owner, engine.tally)
            reach, rows = lookup.find(train.rows, num_layers)
        labels, features = (tensor_of(values, worker.device) for values in (train.label, train.features))
        assert labels is not None
        total = int(worker.comm.all_reduce(torch.tensor([len(rows)], device=worker.device)).item())
        self._supervised = Supervised(engine, rows, labels, total, reach, features)

    def epoch(self, epoch: int) -> Supervised:
        return self._supervised


class KeyedEdges(Supervision):
    """A random share of the edges, drawn in each epoch and removed from its graph.

    An edge and its reverse edge are drawn together, so no layer reads an edge that the
    loss predicts. If one relation is predicted, edges of other relations remain, except
    those of reverse relations. Degrees are those of the remaining edges. A rank
    predicts edges that it holds, and fetches both ends' rows from their owners.
    """

    def __init__(self, worker: Worker, engine: Engine, num_layers: int) -> None:
        """Collects the held edges. Collective.

        Args:
            worker: This rank. Its links draw the edges and negative pairs.
            engine: The engine over the shards.
            num_layers: The model's number of layers, for counting rows.
        """
        self._worker, self._engine, self._num_layers = worker, engine, num_layers
        self._links = links = links_of(worker.rows)
        shard = engine.shard  # includes added self-loops
        self._lookup = Lookup(worker.comm, shard.owned, worker.owner, engine.tally)
        destinations = np.repeat(shard.targets, np.diff(shard.csc.indptr))
        self._pairs = np.stack([shard.sources[shard.csc.indices], destinations], 1)  # [held edges, 2]
        types = _types_of(worker.shard, shard.edge_ids)
        self._is_predicted, self._hidden = links.predicts(types), links.hides(types)

    def epoch(self, epoch: int) -> Supervised:
        worker, shard, links = self._worker, self._engine.shard, self._links
        is_supervised = links.draw_supervised(self._pairs, derive(worker.seed, epoch, _EDGES), worker.threads)
        # A cell's slice ranks hold the same edges, and each predicts a part of them.
        shared_edges = np.flatnonzero(
            is_supervised & self._is_predicted & (shard.edge_ids % shard.grid.slices == shard.slice)
        )
        key = derive(worker.seed, epoch, _NEGATIVES)
        pairs, labels, events = supervised_pairs(
            links, self._pairs[shared_edges], shard.edge_ids[shared_edges], key, threads=worker.threads
        )
        reach, rows = self._lookup.find(pairs, self._num_layers)
        count = worker.comm.all_reduce(torch.tensor([len(pairs)], device=worker.device))
        relations = None if links.relation is None else links.relation.hidden
        engine = self._engine.select_edges(np.flatnonzero(~(is_supervised & self._hidden)), relations)
        rows_read = rows, torch.from_numpy(labels).to(worker.device), int(count.item())
        return Supervised(engine, *rows_read, reach, tensor_of(events, worker.device))


def _types_of(shard: Shard, edge_ids: Ids) -> Ids | None:  # [num_edges]
    """Returns the relations of edges, -1 for added self-loops, or None without types.

    Args:
        shard: The rank's shard, without added self-loops.
        edge_ids: [num_edges] ids of its edges in any order, and of self-loops.
    """
    if shard.edge_types is None:
        return None
    types = np.full(len(edge_ids), -1, np.int64)
    is_loop = edge_ids >= shard.num_edges
    order = np.argsort(shard.edge_ids)
    places = np.searchsorted(shard.edge_ids, edge_ids[~is_loop], sorter=order)
    types[~is_loop] = shard.edge_types[order[places]]
    return types


MAX_REMOTE = 0.6  # share of edges from other workers' nodes above which stale rows cost too much accuracy


class Supersteps:
    """Supersteps of a fixed length, between the exact epochs of a run."""

    def __init__(self, local_iterations: int | Literal["auto"]) -> None:
        """Checks the number of epochs per superstep, or auto, which is 4."""
        number = 4 if local_iterations == "auto" else local_iterations
        self.length = whole("strategy.local_iterations", number, 1, MAX_COUNT, what="auto or a whole number")
        self.drifts = self.length > 1  # whether workers may hold different parameters

    def costs(self) -> str:
        """Returns the notice about supersteps of several epochs."""
        if self.length == 1:
            return ""
        reason = "workers step alone, with stale rows of the last exchange"
        return approximate(f"strategy.local_iterations={self.length}", reason)

    def begin(self, remote_edges: float, *, prints: bool) -> None:
        """Limits supersteps to one epoch if most rows would be stale.

        Args:
            remote_edges: Share of edges from other workers' nodes.
            prints: Whether this rank prints a notice.
        """
        if remote_edges <= MAX_REMOTE or self.length == 1:
            return
        if prints:
            text = f"strategy.local_iterations={self.length} stays at 1: {remote_edges:.0%} of the edges cross workers"
            print(text, file=sys.stderr, flush=True)
        self.length = 1

    def exchanges(self, epoch: int, phases: Phases) -> bool:
        """Returns whether an epoch is the last of its superstep."""
        return phases.is_exact(epoch) or (epoch + 1 - phases.first) % self.length == 0

    def update(self, epoch: int, phases: Phases) -> Update:
        """Returns the update that follows an epoch's backward pass."""
        if not self.drifts:
            return "synchronise"
        if self.exchanges(epoch, phases):
            return "conclude"
        return "average" if self.exchanges(epoch + 1, phases) else "own"

    def lengths(self, phases: Phases) -> list[list[int]]:
        """Returns the first epoch and the length, at each change."""
        if self.length == 1:
            return [[0, 1]]
        changes = [[0, 1], [phases.first, self.length], [phases.last, 1]]
        return [change for change in changes[phases.first == 0 :] if change[0] < sys.maxsize]


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

    def figures(self) -> dict[str, object]:
        alone = self.comm.world_size == 1
        figures: dict[str, object] = {"supersteps": [[0, 1]] if alone else self.supersteps.lengths(self.phases)}
        figures |= {} if alone or self._late is None else {"row_staleness": self._late.largest}
        return figures if self._reads is None else figures | {"features_read": self._reads.figures()}

    def state_dict(self) -> dict[str, object]:
        return {"schedule": self.passes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["schedule"], self.x.device)

    def close(self) -> None:
        self.engine.close()

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
