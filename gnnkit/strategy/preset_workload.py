"""Preset workload: every rank trains on a share that is cut before the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
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
from gnnkit.strategy.exchanged import Exchanged
from gnnkit.strategy.linked_share import LinkedShare
from gnnkit.strategy.on_disk import DiskReads
from gnnkit.strategy.preset_keys import PresetKeys
from gnnkit.strategy.resplit import chunk_costs, cut_chunks, reassign
from gnnkit.strategy.sampled import SampledBatches, whole_steps
from gnnkit.strategy.share import in_neighbours
from gnnkit.strategy.workload import Clusters, Covered, OneShare, Reader, Workload
from gnnkit.utils.approximate import approximate

_ROWS_OF_SHARE = (
    "builds the input rows of a share once, while learned rows of in-neighbours change at their owners in each step"
)
_PART_OF_RELATIONS = (
    "does not weigh edges by relation with strategy.correction=coverage, strategy.degrees=local, "
    "strategy.exchange_every above 1 or an exchange that keeps rows: remove these keys"
)
_CORRECTED = "with strategy.correction=llcg also draws batches, whose rows are read one by one: use another correction"
_OTHER_EDGES = (  # for link tasks
    "strategy.halo=cluster, strategy.correction and strategy.exchange_every read edges from which the epoch's predicted "
    "edges are not removed: leave these keys out"
)


class PresetWorkload(ExecutionStrategy):
    """Each worker trains on its share of the graph, without exchanging rows.

    Choose this strategy if communication costs more than the last digits of accuracy
    (preset-workload-based in Lin et al., Proc. IEEE 2023). Shares are cut before an
    epoch, and edges from nodes outside a share are dropped. `correction` compensates
    for these edges: "llcg" by steps on batches of the complete graph (Ramezani et al.,
    ICLR 2022), "coverage" by a rotating split (Grappa, arXiv 2602.01872).

    Workers that average parameters drift apart if their parts have different classes.
    Control variates remove the drift: each local gradient g(w) becomes g(w) - g(w0) +
    c(w0), where w0 is the last average and c the gradient over all workers at w0
    (SCAFFOLD; Karimireddy et al., ICML 2020).

    Args:
        halo: "none": owned nodes only. "one_hop": plus their in-neighbours.
            "cluster": some clusters of owned nodes per step (Cluster-GCN). None:
            one_hop, or none with correction "coverage".
        clusters: Number of clusters per worker. None: 32.
        clusters_per_batch: Number of clusters per step. None: 4.
        clusters_by: Name of the partitioner that cuts clusters, with its defaults.
            None: buffered.
        degrees: "global": degrees of the complete graph, and a row that sees s of
            its d in-edges is weighted by d/s. "local": the share is a graph of its
            own.
        sync_every: Number of steps between synchronisations, or "epoch". None:
            epoch, or 1 with halo "cluster" and gradients.
        average: "gradients": a step uses the exact mean over all rows since the
            last synchronisation. "parameters": workers step independently, then
            average. None: gradients, or parameters with llcg.
        control_variates: Whether the first step after an average uses the workers'
            mean gradient, and later steps add the difference between that mean and
            the worker's own gradient. None: true.
        split: "fixed", or "dynamic": cut again between epochs. None: fixed, or
            dynamic with coverage.
        resplit_every: Number of epochs between splits. None: 1.
        chunks: Number of chunks per worker that a dynamic split distributes. None:
            16.
        correction: "none", "llcg" or "coverage".
        correction_steps: Number of LLCG steps after each average. None: 2.
        correction_batch_size: Seeds per worker in such a step. None: 1024.
        exchange_every: Number of epochs between exchanges of rows. None: never.
        exchange: How rows are exchanged. None: exactly.
    """

    finishes = "always"

    def __init__(
        self,
        halo: str | None = None,
        clusters: int | None = None,
        clusters_per_batch: int | None = None,
        clusters_by: str | None = None,
        degrees: str = "global",
        sync_every: int | str | None = None,
        average: str | None = None,
        control_variates: bool | None = None,
        split: str | None = None,
        resplit_every: int | None = None,
        chunks: int | None = None,
        correction: str = "none",
        correction_steps: int | None = None,
        correction_batch_size: int | None = None,
        exchange_every: int | None = None,
        exchange: RowExchange | None = None,
    ) -> None:
        self.keys = keys = PresetKeys(
            halo,
            clusters,
            clusters_per_batch,
            clusters_by,
            degrees,
            sync_every,
            average,
            control_variates,
            split,
            resplit_every,
            chunks,
            correction,
            correction_steps,
            correction_batch_size,
            exchange_every,
        )
        self.exchange = _exchange(exchange, exchange_every)
        self.cutter = keys.cutter()
        self.has_whole_steps = keys.num_steps == 1
        self.builds_own_workload = type(self).workload is not PresetWorkload.workload
        if self.builds_own_workload:
            covers = correction if correction == "coverage" else None
            cluster_keys = {"clusters": clusters, "clusters_per_batch": clusters_per_batch, "clusters_by": clusters_by}
            _refuse({"halo": halo, **cluster_keys, "correction": covers, "exchange_every": exchange_every})
        self._reads: DiskReads | None = None  # if rows stay on disk
        self._whole: SampledBatches | None = None  # exact steps, once needed
        self.measures = keys.split == "dynamic" and not keys.covers
        self.num_corrections: int = keys.correction_steps if correction == "llcg" else 0  # after each average
        self._declare(keys, exchange_every)

    def _declare(self, keys: PresetKeys, exchange_every: int | None) -> None:
        """Sets the declarations: data, steps and abilities."""
        llcg, alone = keys.correction == "llcg", keys.average == "parameters"
        keeps_rows = (exchange_every or 1) > 1 or self.exchange.keeps_state
        self.reads = Reads(sampler=llcg, graph=exchange_every is None)
        self.steps = Steps(
            only_synchronise=keys.period == 1 and not alone,
            drift=alone,
            keep_state=keys.period > 1 or self.measures or keeps_rows,
        )
        self.supports: tuple[Ability, ...] = (
            SparseRows(),
            LastingRows(but=_CORRECTED if llcg else None),
            LearnedInputs(but=_ROWS_OF_SHARE),
            Relations(but=_PART_OF_RELATIONS if keys.covers or keys.degrees == "local" or keeps_rows else None),
        )
        if not self.builds_own_workload:
            complete = keys.halo != "cluster" and keys.correction == "none" and exchange_every is None
            self.supports += (EdgeTask("share", but=None if complete else _OTHER_EDGES),)
        if self.reads.graph:
            self.supports += (JoinedLayers(),)

    def costs(self) -> str:
        notices = [] if self.keys.is_exact else [approximate(*self.keys.approximation)]
        return "\n".join(filter(None, (*notices, self.exchange.costs())))

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        sees_all = world_size == 2 if self.keys.covers else self.keys.exchange_every == 1 and self.exchange.exact
        return self if world_size == 1 or (sees_all and self.steps.only_synchronise) else None

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.worker, self._model = worker, model
        self._reads = DiskReads.lasting(worker.disk, worker.comm)
        if self.keys.exchange_every is not None:
            self.work: Workload = Exchanged(worker, model, self.keys.exchange_every, self.exchange)
            self.tally = self.work.tally
            return
        if worker.graph is None:
            raise UserError("strategy=preset_workload needs the whole graph")
        self.tally = Tally()
        self.reader = Reader.of(worker, model, self.tally, local_degrees=self.keys.degrees == "local")
        if self.measures:
            num_ranks = worker.comm.world_size
            self._chunk = cut_chunks(worker.owner, num_ranks, self.keys.chunks)
            self._costs = chunk_costs(worker.graph.csc, self._chunk, num_ranks * self.keys.chunks)
            self._chunk_rank: Ids = np.repeat(np.arange(num_ranks), self.keys.chunks)
        self.work = self.workload(worker.owned)
        if self.reads.sampler:
            self.sampled = SampledBatches(worker, model, self.tally, batch_size=self.keys.correction_batch_size)

    def exact_batch(self, epoch: int) -> Batch:
        update: Update = "conclude" if self.steps.drift else "synchronise"
        if isinstance(self.work, Exchanged):
            inputs = self.work.exact_inputs(derive(self.worker.seed, epoch))
            return Batch(inputs.x, inputs.adjacencies, inputs.rows, inputs.labels, self.work.num_train, update)
        if self._whole is None:
            worker, batch_size = whole_steps(self.worker, self._model)
            self._whole = SampledBatches(worker, self._model, self.tally, batch_size=batch_size, prefetch=1)
        (batch,) = self._whole.epoch(epoch)
        return replace(batch, update=update)

    def num_batches(self, epoch: int) -> int:
        if self.phases.is_exact(epoch):
            return 1
        first, last = (place * self.keys.num_steps // self.keys.period for place in (epoch, epoch + 1))
        return self.keys.num_steps + self.num_corrections * (last - first)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if self.phases.is_exact(epoch):
            yield from islice([self.exact_batch(epoch)], first, None)
            return
        corrections: Iterator[Batch] | None = None
        for step, correction in islice(self._steps(epoch), first, None):
            if correction is None:
                yield self._batch(epoch, step)
            else:
                corrections = corrections or self.sampled.endless(correction)
                yield replace(next(corrections), update="correct")

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        if self._reads is not None:
            self._reads.end_epoch(None)
        if not self.measures or self.phases.is_exact(epoch) or (epoch + 1) % self.keys.resplit_every:
            return
        comm = self.worker.comm
        seconds = torch.zeros(comm.world_size, dtype=torch.float64, device=comm.device)
        seconds[comm.rank] = measured.seconds_compute
        self._deal(reassign(self._chunk_rank, self._costs, comm.all_reduce(seconds).cpu().numpy()))

    def figures(self) -> dict[str, Any]:
        return {} if self._reads is None else {"features_read": self._reads.figures()}

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self.work, Exchanged):
            return self.work.state_dict()
        return {"chunk_rank": torch.from_numpy(self._chunk_rank)} if self.measures else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self.work, Exchanged):
            self.work.load_state_dict(state)
        else:
            self._deal(state["chunk_rank"].numpy())

    def _deal(self, chunk_rank: Ids) -> None:
        """Assigns chunks to ranks, and rebuilds shares if one has moved.

        Collective.
        """
        if not np.array_equal(chunk_rank, self._chunk_rank):
            self._chunk_rank = chunk_rank
            self.work = self.workload(np.flatnonzero(chunk_rank[self._chunk] == self.worker.comm.rank))

    def workload(self, nodes: Ids) -> Workload:
        """Builds this rank's workload, from `reader`. Collective.

        A custom strategy may override this method. It then supports the keys of
        corrections, averages and splits, but not those of halo, coverage and exchange,
        and no link tasks. An epoch has one step.

        Args:
            nodes: [num_own] nodes computed by this rank, ascending.
        """
        keys = self.keys
        if self.worker.links is not None:
            return LinkedShare(self.reader, self.worker.links, nodes, one_hop=keys.halo == "one_hop")
        if keys.covers:
            return Covered(self.reader, self.worker.owner, every=keys.resplit_every)
        if keys.halo == "cluster":
            return Clusters(
                self.reader, nodes, clusters=keys.clusters, per_batch=keys.clusters_per_batch, cutter=self.cutter
            )
        return OneShare(
            self.reader, nodes, in_neighbours(self.reader.graph.csc, nodes) if keys.halo == "one_hop" else None
        )

    def _steps(self, epoch: int) -> Iterator[tuple[int, int | None]]:
        """Yields each step of an epoch, with the number of its correction or None."""
        num_steps, period = self.keys.num_steps, self.keys.period
        for step in range(epoch * num_steps, (epoch + 1) * num_steps):
            yield step, None
            done, rest = divmod(step + 1, period)
            if rest == 0:
                yield from ((step, (done - 1) * self.num_corrections + i) for i in range(self.num_corrections))

    def _batch(self, epoch: int, step: int) -> Batch:
        """Creates a step's batch. `step` counts from the start of the run."""
        period, work = self.keys.period, self.work
        inputs = work.inputs(epoch, step % self.keys.num_steps, derive(self.worker.seed, step))
        meets = (step + 1) % period == 0
        update: Update
        if self.keys.average == "parameters":
            update, total = "average" if meets else "own", len(inputs.rows)
        else:
            first = step - step % period
            update, total = "synchronise" if meets else "accumulate", work.rows_between(first, first + period)
        weight = float(work.num_own)
        leads = self.keys.control_variates and step % period == 0
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
        )


def _refuse(keys: Mapping[str, object]) -> None:
    """Raises `UserError` for keys of the built-in workloads, with a custom one."""
    for name, value in keys.items():
        if value is not None:
            raise UserError(f"strategy.{name}={value}: this strategy builds a share of its own, leave the key out")


def _exchange(exchange: RowExchange | None, every: int | None) -> RowExchange:
    """Returns the exchange. Raises `UserError` if it does not suit the epochs.

    Args:
        exchange: The configured exchange. None: exact.
        every: Number of epochs between exchanges. None: never.
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
