"""The nodes that each rank draws for in a step, and the rows that the loss reads."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, Rows
from gnnkit.engine.block import LayerValues
from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids, Split
from gnnkit.kernels.dropout import derive
from gnnkit.remote import Reach
from gnnkit.remote.owners import Sent, to_all
from gnnkit.sampler import Sampler
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import Epoch, Schedule, draws_key, order_key
from gnnkit.sampler.links import without_pairs
from gnnkit.strategy.base import Batch, Worker, weighing_sums


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The pairs that a rank predicts in a step, and the edges that no rank reads."""

    rows: Ids  # [k, 2] positions of the ends among the seeds
    labels: npt.NDArray[np.float32]  # [k] 1 for an edge, else 0
    excluded: npt.NDArray[np.int64]  # [num_excluded] ascending `unordered` numbers of the edges of all ranks


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one rank computes in one step."""

    seeds: Ids  # [num_seeds] int64 distinct global ids of nodes, whose neighbourhoods are drawn
    total: int  # rows that the loss reads, over all ranks
    key: int  # of layers, equal on all ranks
    draws: int = 0  # key of all draws, equal on all ranks
    pairs: Pairs | None = None  # None: the loss reads the seeds

    def kept(self, blocks: Sequence[Block], layers: LayerValues) -> Sequence[Block]:
        """Leaves the edges out of blocks that any rank predicts in this step.

        Args:
            blocks: [num_layers] blocks, in the numbers of `layers`.
            layers: The values of the nodes of the blocks.
        """
        pairs = self.pairs
        return blocks if pairs is None else [_without(block, layers, pairs.excluded) for block in blocks]

    def batch(
        self,
        x: Rows,
        adjacencies: Sequence[Adjacency],
        labels: npt.NDArray[Any],
        reach: Reach | None = None,
        nodes: Ids | None = None,
    ) -> Batch:
        """Makes the batch of this step.

        Args:
            x: [num_src, width] input rows.
            adjacencies: One for each layer.
            labels: [num_seeds, ...] labels of the seeds.
            reach: Brings the rows that `pairs` counts. None: the model's output.
            nodes: [num_src] global ids of the input rows, where these may be learned.
        """
        if self.pairs is None:
            rows, wanted = torch.arange(len(self.seeds)), np.array(labels, order="C")
        else:
            rows, wanted = torch.from_numpy(self.pairs.rows), self.pairs.labels
        given = (rows.to(x.device), torch.from_numpy(wanted).to(x.device), self.total)
        return Batch(x, adjacencies, *given, reach=reach, nodes=nodes)


Deal = Callable[[int, Communicator, Sent], Step]  # (number of the step, ranks, counts messages) -> step. Collective


class Seeds(ABC):
    """The seeds of all ranks, dealt out epoch by epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""

    @abstractmethod
    def epoch(self, epoch: int, comm: Communicator, sent: Sent) -> Deal:
        """Deals the seeds of an epoch out. Collective.

        Args:
            epoch: Number of the epoch.
            comm: The ranks.
            sent: Counts the messages.
        """

    @abstractmethod
    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:  # [num_owned]
        """Estimates how likely an owned node is a seed of one rank in one step.

        Args:
            in_edges: [num_owned] in-edges of each owned node.
            out_edges: [num_owned] out-edges of each owned node.
        """


class NodeSeeds(Seeds):
    """The training nodes. The batches of all ranks cover them once in an epoch."""

    def __init__(self, worker: Worker, batch_size: int, batching: str = "plain", window: int = 8) -> None:
        """Gathers the training nodes. Collective where no rank has the whole graph.

        Args:
            worker: This rank, with a sampler.
            batch_size: Seeds per worker and step, or groups of seeds.
            batching: "plain", or "balanced" where the graph is at hand.
            window: Steps over which balanced batching evens out.
        """
        sampler, graph, comm = worker.sampler, worker.graph, worker.comm
        assert sampler is not None
        self._worker, self._train = worker, worker.shard.split == Split.TRAIN
        groups = self._costs = None
        if graph is None:
            self.ids = np.sort(np.concatenate(to_all(comm, worker.shard.owned[self._train].astype(np.int64))))
        else:
            self.ids = np.flatnonzero(graph.split == Split.TRAIN)
            groups = sampler.groups(graph.csc, self.ids)
            self._costs = sampler.costs(graph.csc, self.ids) if batching == "balanced" else None
        self._schedule = Schedule(self.ids, batch_size, comm.world_size, batching, window, groups=groups)

    def __len__(self) -> int:
        return self._schedule.num_steps

    def epoch(self, epoch: int, comm: Communicator, sent: Sent) -> Deal:
        plan = self._schedule.epoch(order_key(wrap(self._worker.seed), epoch), self._costs)
        return partial(self._step, plan, epoch)

    def _step(self, plan: Epoch, epoch: int, step: int, comm: Communicator, sent: Sent) -> Step:
        seed, total = self._worker.seed, int(plan.bounds[step, -1] - plan.bounds[step, 0])
        draws = derive(draws_key(wrap(seed), epoch), step)
        return Step(self._seeds(plan, step), total, derive(seed, epoch * plan.num_steps + step), draws)

    def _seeds(self, plan: Epoch, step: int) -> Ids:
        """Returns the seeds that this rank draws for."""
        return self.ids[plan.batch(step, self._worker.comm.rank)]

    def chance(self, in_edges: Ids, out_edges: Ids) -> npt.NDArray[np.float64]:
        num_ranks, per_rank = self._worker.comm.world_size, self._schedule.batch_size
        share: float = min(per_rank * num_ranks / max(len(self.ids), 1), 1) / num_ranks
        return np.asarray(self._train * share, np.float64)


class OwnedSeeds(NodeSeeds):
    """The training nodes, where each rank draws for the owned seeds of all ranks."""

    def _seeds(self, plan: Epoch, step: int) -> Ids:
        seeds = self.ids[plan.order[plan.bounds[step, 0] : plan.bounds[step, -1]]]
        return seeds[np.isin(seeds, self._worker.owned)]


def drawing(worker: Worker) -> Sampler:
    """Returns the sampler of a rank that draws whole batches on its threads."""
    assert worker.sampler is not None
    sampler = copy.copy(weighing_sums(worker.sampler))
    if hasattr(sampler, "threads"):
        sampler.threads = worker.threads
    return sampler


def _without(block: Block, layers: LayerValues, excluded: npt.NDArray[np.int64]) -> Block:
    """Leaves out the edges of a block that join some pairs.

    Args:
        block: The block, in the numbers of `layers`.
        layers: The values of the nodes of the block.
        excluded: [num_excluded] ascending numbers of `unordered` pairs.
    """
    if block.edge_ids is None:
        raise UserError("task=link_prediction: the sampler gives no edge ids, by which a strategy weighs drawn edges")
    named = replace(block, src_nodes=layers.node_ids(block.src_nodes))
    degree = layers.num_in_edges(block.src_nodes[: block.num_dst])
    return replace(without_pairs(named, degree, excluded, layers.num_nodes), src_nodes=block.src_nodes)
