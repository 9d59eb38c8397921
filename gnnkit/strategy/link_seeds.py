"""Seeds of tasks on pairs: the ends of labelled edges, or of predicted pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.engine.remote.owners import MessageCounter, swap_rows, to_all
from gnnkit.graph import CSC, Ids, Split
from gnnkit.graph.times import Times, at_times
from gnnkit.graph.types import take
from gnnkit.kernels.dropout import derive
from gnnkit.partition.shard import Shard
from gnnkit.sampler.batching import BatchSchedule, Epoch, bounds_of
from gnnkit.sampler.events import Mask
from gnnkit.sampler.links import links_of, pair_codes, pairs_of, supervised_pairs
from gnnkit.sampler.targets import targets_of
from gnnkit.strategy.base import Worker
from gnnkit.strategy.seeds import MakeStep, ScheduledSeeds, SeedPairs, Seeds, Step, step_keys

_ORDER, _DRAWS = 1, 2  # purposes of random keys
_EDGE = np.dtype([("id", np.int64), ("ends", np.int64, 2)])
_Edges = npt.NDArray[Any]  # records of type `_EDGE`


def make_seeds(worker: Worker, batch_size: int, of_nodes: Callable[[], Seeds]) -> Seeds:
    """Creates the seeds of a task. Collective if no rank has the graph.

    Args:
        worker: This rank.
        batch_size: Number of pairs to predict per worker and step.
        of_nodes: Creates the seeds of a task on nodes.
    """
    if worker.rows.pairs:
        return (LinkSeeds if worker.rows.drawn else TargetSeeds)(worker, batch_size)
    return of_nodes()


class TargetSeeds(ScheduledSeeds):
    """The ends of the labelled training pairs, which an epoch's batches cover once."""

    def __init__(self, worker: Worker, batch_size: int) -> None:
        """Stores the pairs of all ranks.

        Args:
            worker: This rank.
            batch_size: Number of pairs per worker and step.
        """
        self._targets = targets_of(worker.rows)
        ids = self._targets.of_split(Split.TRAIN)
        super().__init__(worker, ids, BatchSchedule(ids, batch_size, worker.comm.world_size))

    def _step_of(self, epoch: int, step: int, seeds: Ids, total: int) -> Step:
        targets = self._targets
        nodes, times, ends = _find_ends(self._worker, targets.rows[seeds], targets.end_times[seeds])
        pairs = SeedPairs(ends, targets.label[seeds], None, features=take(targets.features, seeds))
        return Step(nodes, total, *step_keys(self._worker.seed, epoch, step, len(self)), pairs, times)

    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:
        pairs = self._targets.rows[self.ids]
        counts = np.bincount(pairs.ravel(), minlength=self._worker.shard.num_nodes)[self._worker.owned]
        return np.asarray(np.minimum(self._schedule.batch_size * counts / max(len(pairs), 1), 1), np.float64)


class LinkSeeds(Seeds):
    """The ends of the edges to predict, and of negative pairs.

    Together, all ranks' batches cover the graph's edges once per epoch, or those of one
    relation.
    """

    def __init__(self, worker: Worker, batch_size: int) -> None:
        """Counts the edges. Collective if no rank has the complete graph.

        Args:
            worker: This rank, with links.
            batch_size: Number of edges to predict per worker and step.
        """
        self._worker, self._seed, self._links, self._batch_size = worker, worker.seed, links_of(worker.rows), batch_size
        self._threads = worker.threads
        self._edges: GraphEdges | ShardEdges
        if worker.graph is None:
            shard = worker.shard
            is_predicted = self._links.predicts(shard.edge_types) & self._links.trains(shard.edge_ids)
            self._edges = ShardEdges(shard, batch_size, worker.comm, is_predicted)
        else:
            is_predicted = self._links.predicts(worker.graph.edge_types) & self._links.trains()
            self._edges = GraphEdges(worker.graph.csc, batch_size, worker.comm, is_predicted)

    def __len__(self) -> int:
        return self._edges.num_steps

    def epoch(self, epoch: int, comm: Communicator, counter: MessageCounter) -> MakeStep:
        return partial(self._step, self._edges.schedule_epoch(derive(self._seed, epoch, _ORDER), comm, counter), epoch)

    def _step(
        self, make_edges: MakeStepEdges, epoch: int, step: int, comm: Communicator, counter: MessageCounter
    ) -> Step:
        key, links = derive(self._seed, epoch * len(self) + step), self._links
        edges = make_edges(step, comm, counter)
        edge_fields = edges.own["ends"], edges.own["id"]
        pairs, labels, events = supervised_pairs(links, *edge_fields, key, threads=self._threads)
        seeds, times, rows = _find_ends(self._worker, pairs, None if events is None else events[:, 2:].repeat(2, 1))
        hidden = None if links.relation is None else links.relation.hidden
        excluded_codes = edges.excluded if times is None else None  # no end sees the edges of its own time
        seed_pairs = SeedPairs(rows, labels, excluded_codes, hidden, events)
        return Step(seeds, edges.total * (1 + links.negatives), key, derive(key, _DRAWS), seed_pairs, times)

    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:
        # A negative pair consists of one end of its edge and a random node.
        links, batch_size = self._links, self._batch_size
        ends = (in_edges + out_edges) / max(self._edges.num_edges, 1)
        return np.asarray(np.minimum(batch_size * (ends + links.negatives / links.num_nodes), 1))


def _find_ends(worker: Worker, pairs: Ids, times: Ids | None) -> tuple[Ids, Times | None, Ids]:
    """Returns pairs' distinct ends, their times, and each end's place [k, 2].

    Args:
        worker: This rank. Times are None unless it samples by time.
        pairs: [k, 2] nodes.
        times: [k, 2] time of each end.
    """
    if not worker.samples_by_time:
        seeds, places = np.unique(pairs, return_inverse=True)
        return seeds.astype(np.int64), None, places.reshape(-1, 2)
    assert times is not None, "pairs are split by time"
    nodes, distinct_times, ends = at_times(pairs.reshape(-1), times.reshape(-1))
    return nodes, distinct_times, ends.reshape(-1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class StepEdges:
    """The edges predicted in one step, as seen by one rank."""

    own: _Edges  # [k] this rank's edges
    total: int  # number of edges of all ranks
    excluded: npt.NDArray[np.int64]  # [at most total] ascending `pair_codes` codes of all ranks' edges


MakeStepEdges = Callable[[int, Communicator, MessageCounter], StepEdges]  # like `MakeStep`


class GraphEdges:
    """The edges of a graph that every rank can read, without communication."""

    def __init__(self, csc: CSC, batch_size: int, comm: Communicator, is_predicted: Mask | np.bool_ = np.True_) -> None:
        """Collects the edges, without self-loops.

        Args:
            csc: The graph.
            batch_size: Number of edges per worker and step.
            comm: Connects the ranks.
            is_predicted: [num_edges] the edges to predict, by default all.
        """
        pairs = pairs_of(csc)
        self._csc, self._rank = csc, comm.rank
        self._ids = np.flatnonzero(is_predicted & (pairs[:, 0] != pairs[:, 1])).astype(np.int64)
        self._schedule = BatchSchedule(self._ids, batch_size, comm.world_size)
        self.num_edges, self.num_steps = len(self._ids), self._schedule.num_steps

    def schedule_epoch(self, key: int, comm: Communicator, counter: MessageCounter) -> MakeStepEdges:
        """Shuffles the edges by `key`, and assigns each rank its part of each step."""
        return partial(self._step, self._schedule.epoch(key, None))

    def _step(self, plan: Epoch, step: int, comm: Communicator, counter: MessageCounter) -> StepEdges:
        everyones = self._ids[plan.order[plan.bounds[step, 0] : plan.bounds[step, -1]]]
        step_edges = np.empty(len(plan.batch(step, self._rank)), _EDGE)
        step_edges["id"] = self._ids[plan.batch(step, self._rank)]
        step_edges["ends"] = pairs_of(self._csc, step_edges["id"])
        excluded_codes = np.unique(pair_codes(pairs_of(self._csc, everyones), self._csc.num_nodes))
        return StepEdges(step_edges, len(everyones), excluded_codes)


class ShardEdges:
    """The edges of a graph that no rank holds, in the same order as `GraphEdges`.

    Once per epoch, a destination's owner sends each edge to the rank that predicts it.
    In each step, all ranks exchange the step's edges.
    """

    def __init__(
        self, shard: Shard, batch_size: int, comm: Communicator, is_predicted: Mask | np.bool_ = np.True_
    ) -> None:
        """Counts the edges of all ranks. Collective.

        Args:
            shard: The owned nodes' in-edges.
            batch_size: Number of edges per worker and step.
            comm: Connects the ranks.
            is_predicted: [num_held_edges] the edges to predict, by default all.
        """
        self._shard, self._rank, self._is_predicted = shard, comm.rank, is_predicted
        count = torch.tensor([len(self._find_edges())], device=comm.device)
        self.num_edges = int(comm.all_reduce(count).item())
        self._bounds = bounds_of(self.num_edges, batch_size, comm.world_size)
        self.num_steps = len(self._bounds)

    def _find_edges(self) -> _Edges:  # [num_held]
        """Returns the held edges to predict, without self-loops."""
        shard = self._shard
        ends = [shard.sources[shard.csc.indices], np.repeat(shard.targets, np.diff(shard.csc.indptr))]
        edges = np.empty(len(shard.edge_ids), _EDGE)
        edges["id"], edges["ends"] = shard.edge_ids, np.stack(ends, 1)
        return np.asarray(edges[self._is_predicted & (edges["ends"][:, 0] != edges["ends"][:, 1])])

    def schedule_epoch(self, key: int, comm: Communicator, counter: MessageCounter) -> MakeStepEdges:
        """Shuffles the edges by `key`, and assigns each rank its part of each step.

        Collective. Each rank sorts one range of hashes, so no rank holds all edges.
        """
        held_edges = self._find_edges()
        slices = ((_hashes(key, held_edges) >> np.uint64(32)) * np.uint64(comm.world_size)) >> np.uint64(32)
        edges = _send_edges(slices.astype(np.int64), held_edges, comm, counter)
        edges = edges[np.argsort(_hashes(key, edges))]
        counts = [int(part[0]) for part in to_all(comm, np.array([len(edges)]), counter)]
        before = sum(counts[: comm.rank])
        place = np.arange(before, before + len(edges))
        batches = np.searchsorted(self._bounds[:, :-1].reshape(-1), place, side="right") - 1  # by step, then by rank
        return partial(self._step, _send_edges(batches % comm.world_size, edges, comm, counter))

    def _step(self, dealt: _Edges, step: int, comm: Communicator, counter: MessageCounter) -> StepEdges:
        sizes = np.diff(self._bounds)[:, self._rank]
        first = int(sizes[:step].sum())
        step_edges = dealt[first : first + int(sizes[step])]
        numbers = to_all(comm, pair_codes(step_edges["ends"], self._shard.num_nodes), counter)
        total = int(self._bounds[step, -1] - self._bounds[step, 0])
        return StepEdges(step_edges, total, np.unique(np.concatenate(numbers)))


def _hashes(key: int, edges: _Edges) -> npt.NDArray[np.uint64]:  # [k]
    """Hashes edges like the shuffle of a `BatchSchedule`. All hashes are distinct."""
    hashes: Any = derive(key, cast(Any, edges["id"].astype(np.uint64)))
    return np.asarray(hashes, np.uint64)


def _send_edges(ranks: Ids, edges: _Edges, comm: Communicator, counter: MessageCounter) -> _Edges:
    """Sends edges to ranks, and returns the received edges by sender. Collective.

    Args:
        ranks: [k] receiver of each edge.
        edges: [k] edges, whose order is preserved.
        comm: Connects the ranks.
        counter: Counts the messages.
    """
    order = np.argsort(ranks, kind="stable")
    parts = np.split(edges[order], np.cumsum(np.bincount(ranks, minlength=comm.world_size))[:-1])
    return np.concatenate(swap_rows(comm, parts, counter))
