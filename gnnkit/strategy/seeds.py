"""The seeds of each rank in a step, nodes or ends of pairs, and the loss's rows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, Rows
from gnnkit.engine.block import LayerValues
from gnnkit.engine.block_relations import relation_counts
from gnnkit.engine.remote import Reach
from gnnkit.engine.remote.owners import MessageCounter, swap_rows, to_all
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Ids, MiniBatch, RelationGroups, Split
from gnnkit.graph.times import Times, at_times
from gnnkit.graph.types import take
from gnnkit.kernels.dropout import derive
from gnnkit.partition.degrees import shared_weights
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Sampler
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import BatchSchedule, Epoch, bounds_of, draws_key, order_key
from gnnkit.sampler.events import Mask
from gnnkit.sampler.links import edges_without, links_of, pair_codes, pairs_of, supervised_pairs, without_pairs
from gnnkit.sampler.targets import targets_of
from gnnkit.strategy.base import Batch, Worker, tensor_of, weighing_sums
from gnnkit.utils.checks import int64s


@dataclass(frozen=True, slots=True, eq=False)
class SeedPairs:
    """The pairs that a rank predicts in a step, and the edges that no rank may read."""

    rows: Ids  # [k, 2] positions of the pairs' ends among the seeds
    labels: npt.NDArray[Any]  # [k, ...] labels of the pairs, or 1 for an edge and 0 for a drawn pair
    excluded: (
        npt.NDArray[np.int64] | None
    )  # [num_excluded] ascending `pair_codes` codes of all ranks' edges. None: none
    relations: tuple[int, ...] | None = None  # relations whose edges may join excluded pairs. None: all
    features: npt.NDArray[Any] | None = None  # [k, edge_width] of the pairs, or [k, 3] their events if split by time


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One rank's part of a step."""

    seeds: Ids  # [num_seeds] int64 distinct global node ids
    total: int  # number of rows that the loss reads on all ranks
    key: int  # random key of layers, equal on all ranks
    draws: int = 0  # random key of sampling, equal on all ranks
    pairs: SeedPairs | None = None  # None: the loss reads the seeds' rows
    times: Times | None = None  # [num_seeds] time of each seed. None: sampling ignores time

    def without_pairs(self, blocks: Sequence[Block], layers: LayerValues) -> Sequence[Block]:
        """Removes the edges that any rank predicts in this step from blocks.

        Args:
            blocks: [num_layers] blocks, in the numbering of `layers`.
            layers: Values of the blocks' nodes.
        """
        pairs = self.pairs
        if pairs is None or pairs.excluded is None:
            return blocks
        return [_without(block, layers, pairs, pairs.excluded) for block in blocks]

    def batch(
        self,
        x: Rows,
        adjacencies: Sequence[Adjacency],
        labels: npt.NDArray[np.generic],
        reach: Reach | None = None,
        nodes: Ids | None = None,
    ) -> Batch:
        """Creates this step's batch.

        Args:
            x: [num_src, width] input rows.
            adjacencies: One per layer.
            labels: [num_seeds, ...] labels of the seeds.
            reach: Fetches the rows that `pairs` refers to. If None, the model's output.
            nodes: [num_src] global ids of the input rows, if they may be learned.
        """
        features = None
        if self.pairs is None:
            rows, targets = torch.arange(len(self.seeds)), np.array(labels, order="C")
        else:
            rows, targets = torch.from_numpy(self.pairs.rows), self.pairs.labels
            features = tensor_of(self.pairs.features, x.device)
        loss_rows = (rows.to(x.device), torch.from_numpy(targets).to(x.device), self.total)
        return Batch(x, adjacencies, *loss_rows, reach=reach, nodes=nodes, pair_features=features)


MakeStep = Callable[
    [int, Communicator, MessageCounter], Step
]  # (step number, ranks, message counter) -> step. Collective


class Seeds(ABC):
    """The seeds of all ranks, distributed epoch by epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of steps per epoch, equal on every rank."""

    @abstractmethod
    def epoch(self, epoch: int, comm: Communicator, counter: MessageCounter) -> MakeStep:
        """Distributes an epoch's seeds. Collective.

        Args:
            epoch: Number of the epoch.
            comm: Connects the ranks.
            counter: Counts the messages.
        """

    @abstractmethod
    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:  # [num_owned]
        """Estimates the probability that an owned node is one rank's seed in a step.

        Args:
            in_edges: [num_owned] in-degree of each owned node.
            out_edges: [num_owned] out-degree of each owned node.
        """


class ScheduledSeeds(Seeds):
    """Rows by number, which all ranks' batches cover once per epoch."""

    def __init__(self, worker: Worker, ids: Ids, schedule: BatchSchedule, costs: Floats | None = None) -> None:
        """Stores the schedule.

        Args:
            worker: This rank.
            ids: [num_ids] ascending numbers of the rows.
            schedule: The division of `ids` into steps and ranks.
            costs: [num_ids] cost of each row, for balanced batching.
        """
        self._worker, self.ids, self._schedule, self._costs = worker, ids, schedule, costs

    def __len__(self) -> int:
        return self._schedule.num_steps

    def epoch(self, epoch: int, comm: Communicator, counter: MessageCounter) -> MakeStep:
        plan = self._schedule.epoch(order_key(wrap(self._worker.seed), epoch), self._costs)
        return partial(self._step, plan, epoch)

    def _step(self, plan: Epoch, epoch: int, step: int, comm: Communicator, counter: MessageCounter) -> Step:
        return self._step_of(epoch, step, self._seeds(plan, step), int(plan.bounds[step, -1] - plan.bounds[step, 0]))

    def _seeds(self, plan: Epoch, step: int) -> Ids:
        """Returns this rank's seeds."""
        return self.ids[plan.batch(step, self._worker.comm.rank)]

    @abstractmethod
    def _step_of(self, epoch: int, step: int, seeds: Ids, total: int) -> Step:
        """Returns this rank's step with some of `ids`.

        Args:
            epoch: Number of the epoch.
            step: Number of the step.
            seeds: [k] this rank's rows.
            total: Number of all ranks' rows.
        """


class NodeSeeds(ScheduledSeeds):
    """The training nodes, which all ranks' batches cover once per epoch."""

    def __init__(
        self,
        worker: Worker,
        batch_size: int,
        batching: str = "plain",
        window: int = 8,
        *,
        model: object = None,
    ) -> None:
        """Gathers the training nodes. Collective if no rank has the complete graph.

        Args:
            worker: This rank, with a sampler.
            batch_size: Seeds, or groups of seeds, per worker and step.
            batching: "plain", or "balanced" if every rank reads the graph.
            window: Number of steps over which balanced batching evens out work.
            model: The model, whose batches may draw by relation.
        """
        sampler, graph, comm = worker.sampler, worker.graph, worker.comm
        assert sampler is not None
        self._train = worker.shard.split == Split.TRAIN
        groups = costs = None
        self._times = None  # [num_ids], if no rank has the complete graph
        if graph is None:
            owned_nodes = worker.shard.owned[self._train].astype(np.int64)
            ids = np.concatenate(to_all(comm, owned_nodes))
            order = np.argsort(ids)
            if (times := worker.seed_times(owned_nodes)) is not None:
                self._times = np.concatenate(to_all(comm, times))[order]
            ids = ids[order]
        else:
            ids = np.flatnonzero(graph.split == Split.TRAIN)
            groups = sampler.groups(graph.csc, ids)
            in_edges: Any = worker.edges_to_sample(model)
            costs = sampler.costs(in_edges, ids) if batching == "balanced" else None
        schedule = BatchSchedule(ids, batch_size, comm.world_size, batching, window, groups=groups)
        super().__init__(worker, ids, schedule, costs)

    def deal(self, shares: Sequence[float]) -> None:
        """Distributes each step's seeds by shares, [world_size] with sum 1."""
        self._schedule = replace(self._schedule, shares=tuple(shares))

    def _step_of(self, epoch: int, step: int, seeds: Ids, total: int) -> Step:
        keys = step_keys(self._worker.seed, epoch, step, len(self))
        times = self._times
        times = self._worker.seed_times(seeds) if times is None else times[np.searchsorted(self.ids, seeds)]
        return Step(seeds, total, *keys, times=times)

    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:
        num_ranks, per_rank = self._worker.comm.world_size, self._schedule.batch_size
        share: float = min(per_rank * num_ranks / max(len(self.ids), 1), 1) / num_ranks
        return np.asarray(self._train * share, np.float64)


class ChosenSeeds(NodeSeeds):
    """Seeds that a strategy chooses on each rank, spread evenly over the steps."""

    def __init__(self, worker: Worker, batch_size: int, choose: Callable[[Worker, int], Ids]) -> None:
        """Counts the steps. Collective.

        Args:
            worker: This rank, with a sampler.
            batch_size: Maximum number of seeds per worker and step in epoch 0.
            choose: `IndividualSample.seeds`.
        """
        super().__init__(worker, batch_size)
        self._choose = choose
        counts = to_all(worker.comm, np.array([len(choose(worker, 0))]))
        self._num_steps = max(-(-int(max(map(np.max, counts))) // batch_size), 1)

    def __len__(self) -> int:
        return self._num_steps

    def epoch(self, epoch: int, comm: Communicator, counter: MessageCounter) -> MakeStep:
        seeds = int64s("seeds", self._choose(self._worker, epoch))
        if not np.isin(seeds, self.ids).all():
            raise UserError("strategy: seeds returned nodes that are not training nodes")
        steps = np.array_split(seeds, len(self))
        if any(len(np.unique(ids)) < len(ids) for ids in steps):
            raise UserError("strategy: seeds returned a node twice in one step")
        totals = np.sum(to_all(comm, np.array([[len(ids) for ids in steps]]), counter), axis=0)[0]
        if not totals.any():
            raise UserError(f"strategy: seeds returned no node on any rank in epoch {epoch}")
        return lambda step, comm, counter: self._step_of(epoch, step, steps[step], int(totals[step]))


class OwnedSeeds(NodeSeeds):
    """The training nodes, of which each rank samples the owned ones for all ranks."""

    def _seeds(self, plan: Epoch, step: int) -> Ids:
        seeds = self.ids[plan.order[plan.bounds[step, 0] : plan.bounds[step, -1]]]
        return seeds[np.isin(seeds, self._worker.owned)]


def step_keys(seed: int, epoch: int, step: int, num_steps: int) -> tuple[int, int]:
    """Returns the random keys `Step.key` and `Step.draws` of a step."""
    return derive(seed, epoch * num_steps + step), derive(draws_key(wrap(seed), epoch), step)


def sample_step(sampler: Sampler, graph: CSC | RelationGroups, step: Step, *, disjoint: bool = False) -> MiniBatch:
    """Draws a step's batch from the complete graph, `disjoint` by time."""
    times: Any = {} if step.times is None else {"times": step.times, "disjoint": disjoint}
    return sampler.sample(graph, step.seeds, key=step.draws, **times)


def drawing(worker: Worker) -> Sampler:
    """Returns the sampler of a rank that samples complete batches in its threads."""
    assert worker.sampler is not None
    sampler = copy.copy(weighing_sums(worker.sampler))
    if hasattr(sampler, "threads"):
        sampler.threads = worker.threads
    return sampler


def _without(block: Block, layers: LayerValues, pairs: SeedPairs, excluded_codes: npt.NDArray[np.int64]) -> Block:
    """Removes the edges that a step predicts from a block.

    Args:
        block: The block, in the numbering of `layers`.
        layers: Values of the block's nodes.
        pairs: The step's pairs, with the relations of the removed edges.
        excluded_codes: [num_excluded] `SeedPairs.excluded`.
    """
    if block.edge_ids is None:
        raise UserError("task=link_prediction: the sampler gives no edge ids, by which a strategy weighs drawn edges")
    global_block, hidden = replace(block, src_nodes=layers.node_ids(block.src_nodes)), None
    if pairs.relations is not None and layers.edge_types is not None:
        hidden = np.isin(layers.edge_types[block.edge_ids], pairs.relations)
    if block.relation is None:
        degree = layers.num_in_edges[block.src_nodes[: block.num_dst]]
        remainder = without_pairs(global_block, degree, excluded_codes, layers.num_nodes, hidden)
        return replace(remainder, src_nodes=block.src_nodes)
    return _with_means(block, layers, *edges_without(global_block, excluded_codes, layers.num_nodes, hidden))


def _with_means(block: Block, layers: LayerValues, indptr: Ids, edges: Ids) -> Block:
    """Selects edges of a block, in which nodes draw by relation.

    The mean over a node's selected edges then estimates the mean over its in-edges of
    the relation. A mean over fewer edges would reveal the node of a predicted edge.

    Args:
        block: The block.
        layers: Values of the block's nodes.
        indptr: [num_dst + 1] row offsets of the selected edges.
        edges: [k] positions of the selected edges, ascending.
    """
    assert block.edge_ids is not None, "relations are read by edge id"
    in_relation, remainder = layers.in_relation(block), block.with_edges(indptr, edges)
    counts = relation_counts(block, in_relation)
    weight = counts if layers.weight is None else counts * layers.weight[block.edge_ids]
    sums = [
        shared_weights(np.repeat(np.arange(part.num_dst), np.diff(part.indptr)), types, max(part.num_dst, 1), weights)
        for part, types, weights in (
            (block, in_relation.types, weight),
            (remainder, in_relation.types[edges], weight[edges]),
        )
    ]
    return replace(remainder, weight=counts[edges] * (sums[0][edges] / np.where(sums[1] == 0, 1, sums[1])))


_ORDER, _DRAWS = 1, 2  # purposes of random keys
_EDGE = np.dtype([("id", np.int64), ("ends", np.int64, 2)])
_Edges = npt.NDArray[np.void]  # records of type `_EDGE`


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
        return Step(seeds, edges.total * (1 + links.training.count), key, derive(key, _DRAWS), seed_pairs, times)

    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:
        # A negative pair consists of one end of its edge and a random node.
        links, batch_size = self._links, self._batch_size
        ends = (in_edges + out_edges) / max(self._edges.num_edges, 1)
        return np.asarray(np.minimum(batch_size * (ends + links.training.count / links.num_nodes), 1))


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
