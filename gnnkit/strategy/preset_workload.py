"""Preset workload: every rank trains on a share that is cut before the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch import nn

from gnnkit.engine import Tally
from gnnkit.errors import UserError
from gnnkit.exchange import Exact, RowExchange
from gnnkit.graph import Ids
from gnnkit.kernels.dropout import derive
from gnnkit.sampler import Sampler
from gnnkit.strategy.abilities import (
    Ability,
    EdgeTask,
    JoinedLayers,
    LastingRows,
    LearnedInputs,
    Reads,
    Relations,
    SparseRows,
    Steps,
)
from gnnkit.strategy.base import Batch, ExecutionStrategy, Measured, Update, Worker
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.strategy.sampled_batches import SampledBatches, whole_steps
from gnnkit.strategy.workload import Exchanged, LabelledShare, LinkedShare, OneShare, Reader, Workload, in_neighbours
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, one_of, switch, whole

_CHOICES: dict[str, tuple[str, ...]] = {  # the default comes first
    "halo": ("one_hop", "none"),
    "degrees": ("global", "local"),
    "average": ("gradients", "parameters"),
}
_EXCHANGED = {  # keys whose default is required if rows are exchanged, and the reason
    "halo": "the in-neighbours' rows are the ones that move",
    "degrees": "no edge is dropped",
}


@dataclass(slots=True)
class PresetKeys:
    """The strategy's keys, checked and completed with defaults by the constructor.

    `PresetWorkload` documents them.
    """

    halo: Any
    degrees: Any
    sync_every: Any
    average: Any
    control_variates: Any
    exchange_every: Any
    num_steps: int  # number of steps per epoch

    def __post_init__(self) -> None:
        if self.halo == "cluster":
            raise UserError("strategy.halo=cluster was removed: use strategy=cluster (pip install gnnkit-preset)")
        for name, values in _CHOICES.items():
            value = values[0] if getattr(self, name) is None else getattr(self, name)
            setattr(self, name, one_of(f"strategy.{name}", value, values))
        if self.exchange_every is not None:
            whole("strategy.exchange_every", self.exchange_every, 1, MAX_COUNT)
            self._check_exchanged()
        self.sync_every = "epoch" if self.sync_every is None else self.sync_every
        if self.sync_every != "epoch":
            whole("strategy.sync_every", self.sync_every, 1, MAX_COUNT, what="epoch or a whole number")
        self._settle_control_variates()

    @property
    def is_exact(self) -> bool:
        """Whether steps equal one worker's, given an exact exchange."""
        return self.exchange_every == 1 and self.average == "gradients" and self.period == 1

    @property
    def approximation(self) -> tuple[str, str]:
        """The key that makes steps approximate, and the reason."""
        without, alone = self.halo == "none", self.average == "parameters"
        cut, drift = "edges between shares are missing", "workers step alone between two averages"
        choices = (
            (alone and not self.control_variates, "options.control_variates=false", drift),
            (alone and without, "average=parameters", f"{cut} and {drift}"),
            (alone, "average=parameters", drift),
            (without, "halo=none", cut),
            (
                (self.exchange_every or 1) > 1,
                f"exchange_every={self.exchange_every}",
                "rows of other workers are stale",
            ),
            (True, f"halo={self.halo}", cut),
        )
        key, reason = next(choice for holds, *choice in choices if holds)
        return f"strategy.{key}", reason

    @property
    def period(self) -> int:
        """Number of steps between synchronisations."""
        return self.num_steps if self.sync_every == "epoch" else int(self.sync_every)

    def _settle_control_variates(self) -> None:
        """Uses control variates by default. Raises `UserError` if they have no use."""
        if self.control_variates is not None:
            value = switch("strategy.options.control_variates", self.control_variates, what="true, false or null")
            if self.average != "parameters":
                raise UserError(
                    f"strategy.options.control_variates={str(value).lower()} is read with strategy.average=parameters only: "
                    "leave the key out"
                )
        self.control_variates = self.average == "parameters" and self.control_variates is not False

    def _check_exchanged(self) -> None:
        """Raises `UserError` for keys that contradict an exchange of rows."""
        for key, reason in _EXCHANGED.items():
            if getattr(self, key) != (default := _CHOICES[key][0]):
                name = "strategy.options.degrees" if key == "degrees" else f"strategy.{key}"
                raise UserError(
                    f"{name}={getattr(self, key)} does not go with strategy.exchange_every: {reason}, choose "
                    f"{name}={default}"
                )


_ROWS_OF_SHARE = (
    "builds the input rows of a share once, while learned rows of in-neighbours change at their owners in each step"
)
_PART_OF_RELATIONS = (
    "does not weigh edges by relation with local degrees, strategy.exchange_every above 1 or an exchange that keeps "
    "rows: remove these keys"
)
_OTHER_EDGES = (  # for link tasks
    "strategy.exchange_every reads edges from which the epoch's predicted edges are not removed: leave the key out"
)


class PresetWorkload(ExecutionStrategy):
    """Each worker trains on its share of the graph, without exchanging rows.

    Choose this strategy if communication costs more than the last digits of accuracy
    (preset-workload-based in Lin et al., Proc. IEEE 2023). Shares are cut before an
    epoch, and edges from nodes outside a share are dropped.

    Workers that average parameters drift apart if their parts have different classes.
    Control variates remove the drift: each local gradient g(w) becomes g(w) - g(w0) +
    c(w0), where w0 is the last average and c the gradient over all workers at w0
    (SCAFFOLD; Karimireddy et al., ICML 2020).

    A strategy with other shares inherits from this class and overrides `workload`. It
    may set `num_steps` before it calls this constructor, and assign `work` between two
    epochs. It supports all keys but halo and exchange_every, and no link tasks.

    Args:
        halo: "none": owned nodes only. "one_hop": plus their in-neighbours. None:
            one_hop.
        degrees: "global": degrees of the complete graph, and a row that sees s of
            its d in-edges is weighted by d/s. "local": the share is a graph of its
            own. If None, global.
        sync_every: Number of steps between synchronisations, or "epoch". If None,
            epoch.
        average: "gradients": a step uses the exact mean over all rows since the
            last synchronisation. "parameters": workers step independently, then
            average. If None, gradients.
        control_variates: Whether the first step after an average uses the workers'
            mean gradient, and later steps add the difference between that mean and
            the worker's own gradient. If None, true.
        exchange_every: Number of epochs between exchanges of rows. If None, never.
        exchange: How rows are exchanged. If None, exactly.
    """

    finishes = "always"
    num_steps: int = 1  # number of steps per epoch, equal to `work.num_steps`
    work: Workload  # this rank's computation
    approximation: tuple[str, str]  # the key that makes steps approximate, and the reason

    def __init__(
        self,
        halo: str | None = None,
        degrees: str | None = "global",
        sync_every: int | str | None = None,
        average: str | None = None,
        control_variates: bool | None = None,
        exchange_every: int | None = None,
        exchange: RowExchange | None = None,
    ) -> None:
        self.keys = keys = PresetKeys(
            halo, degrees, sync_every, average, control_variates, exchange_every, self.num_steps
        )
        self.approximation = keys.approximation
        self.exchange = _exchange(exchange, exchange_every)
        self.has_whole_steps = self.num_steps == 1
        if self.builds_own_workload:
            _refuse(halo=halo, exchange_every=exchange_every)
        self._reads: DiskReads | None = None  # if rows stay on disk
        self._exact_batches: SampledBatches | None = None  # exact steps, once needed
        self._declare(keys)

    @property
    def builds_own_workload(self) -> bool:
        """Whether a custom strategy builds the shares."""
        return type(self).workload is not PresetWorkload.workload

    def _declare(self, keys: PresetKeys) -> None:
        """Sets the declarations: data, steps and abilities."""
        alone, exchanges = keys.average == "parameters", keys.exchange_every is not None
        keeps_rows = (keys.exchange_every or 1) > 1 or self.exchange.keeps_state
        self.reads = Reads(graph=not exchanges)
        self.steps = Steps(
            only_synchronise=keys.period == 1 and not alone, drift=alone, keep_state=keys.period > 1 or keeps_rows
        )
        self.supports: tuple[Ability, ...] = (
            SparseRows(),
            LastingRows(),
            LearnedInputs(but=_ROWS_OF_SHARE),
            Relations(but=_PART_OF_RELATIONS if keys.degrees == "local" or keeps_rows else None),
        )
        if not self.builds_own_workload:
            self.supports += (EdgeTask("share", but=_OTHER_EDGES if exchanges else None),)
        if self.reads.graph:
            self.supports += (JoinedLayers(),)

    def costs(self) -> str:
        notices = [] if self.keys.is_exact else [approximate(*self.approximation)]
        return "\n".join(filter(None, (*notices, self.exchange.costs())))

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        sees_all = self.keys.exchange_every == 1 and self.exchange.exact
        return self if world_size == 1 or (sees_all and self.steps.only_synchronise) else None

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.worker, self._model = worker, model
        self._reads = DiskReads.lasting(worker.disk, worker.comm)
        if self.keys.exchange_every is not None:
            self.work = Exchanged(worker, model, self.keys.exchange_every, self.exchange)
            self.tally = self.work.tally
            return
        if worker.graph is None:
            raise UserError("strategy=preset_workload needs the whole graph")
        self.tally = Tally()
        self.reader = Reader.of(worker, model, self.tally, local_degrees=self.keys.degrees == "local")
        self.work = self.workload(worker.owned)

    def exact_batch(self, epoch: int) -> Batch:
        update: Update = "conclude" if self.steps.drift else "synchronise"
        if isinstance(self.work, Exchanged):
            inputs = self.work.exact_inputs(derive(self.worker.seed, epoch))
            return Batch(inputs.x, inputs.adjacencies, inputs.rows, inputs.labels, self.work.num_train, update)
        if self._exact_batches is None:
            worker, batch_size = whole_steps(self.worker, self._model)
            self._exact_batches = SampledBatches(worker, self._model, self.tally, batch_size=batch_size, prefetch=1)
        (batch,) = self._exact_batches.epoch(epoch)
        return replace(batch, update=update)

    def num_batches(self, epoch: int) -> int:
        return 1 if self.phases.is_exact(epoch) else self.num_steps

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if self.phases.is_exact(epoch):
            yield from islice([self.exact_batch(epoch)], first, None)
            return
        for step in range(self.num_steps)[first:]:
            yield self.batch(epoch, step)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        if self._reads is not None:
            self._reads.end_epoch(None)

    def figures(self) -> dict[str, object]:
        return {} if self._reads is None else {"features_read": self._reads.figures()}

    def state_dict(self) -> dict[str, object]:
        return self.work.state_dict() if isinstance(self.work, Exchanged) else {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        if isinstance(self.work, Exchanged):
            self.work.load_state_dict(state)

    def workload(self, nodes: Ids) -> Workload:
        """Builds this rank's workload, from `reader`. Collective.

        Args:
            nodes: [num_own] nodes computed by this rank, ascending.
        """
        one_hop = self.keys.halo == "one_hop"
        if self.worker.rows.pairs:
            share = LinkedShare if self.worker.rows.drawn else LabelledShare
            return share(self.reader, nodes, one_hop=one_hop)
        return OneShare(self.reader, nodes, in_neighbours(self.reader.graph.csc, nodes) if one_hop else None)

    def batch(self, epoch: int, step: int) -> Batch:
        """Creates the batch of an epoch's step."""
        period, work, place = self.keys.period, self.work, epoch * self.num_steps + step
        inputs = work.inputs(epoch, step, derive(self.worker.seed, place))
        meets = (place + 1) % period == 0
        update: Update
        if self.keys.average == "parameters":
            update, total = "average" if meets else "own", len(inputs.rows)
        else:
            first = place - place % period
            update, total = "synchronise" if meets else "accumulate", work.rows_between(first, first + period)
        weight = float(work.num_own)
        leads = self.keys.control_variates and place % period == 0
        return Batch(
            inputs.x,
            inputs.adjacencies,
            inputs.rows,
            inputs.labels,
            total,
            update,
            weight,
            inputs.row_weights,
            leads=leads,
            pair_features=inputs.pair_features,
        )


def _refuse(**keys: object) -> None:
    """Raises `UserError` for keys of the built-in workloads, with a custom one."""
    for name, value in keys.items():
        if value is not None:
            raise UserError(f"strategy.{name}={value}: this strategy builds a share of its own, leave the key out")


def _exchange(exchange: RowExchange | None, every: int | None) -> RowExchange:
    """Returns the exchange. Raises `UserError` if it does not suit the epochs.

    Args:
        exchange: The configured exchange. If None, exact.
        every: Number of epochs between exchanges. If None, never.
    """
    if exchange is None:
        return Exact()
    if every is None:
        raise UserError(
            f"exchange={exchange.name}: strategy=preset_workload exchanges rows with strategy.exchange_every=N only: "
            "set N, or leave exchange out"
        )
    if every > 1:
        exchange.check_pauses("strategy.exchange_every above 1")
    return exchange
