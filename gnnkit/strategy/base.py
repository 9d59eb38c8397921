"""The data that a strategy reads, and the batches that it hands out."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.checks import Array
from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, Engine, Rows, Tally
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, SparseFeatures, Split
from gnnkit.kernels.sparse_rows import SparseRows
from gnnkit.order import NodeOrder, renumbered
from gnnkit.partition.shard import Shard
from gnnkit.remote import FeatureStore, Reach, TableFeatures
from gnnkit.remote.disk import DiskFeatures, OnDisk
from gnnkit.remote.features import Bits
from gnnkit.sampler import Sampler
from gnnkit.sampler.links import Links
from gnnkit.strategy.abilities import Ability, Reads, Steps

A = TypeVar("A", bound=Ability)


@dataclass(frozen=True, eq=False)
class Worker:
    """One rank's part of the run, which is all that a strategy may read."""

    comm: Communicator
    shard: Shard  # the nodes that this rank owns, and their edges unless `graph` is given
    dtype: torch.dtype  # of features and parameters
    seed: int
    graph: Graph | None = None  # the whole graph, where the strategy reads it
    sampler: Sampler | None = None  # the configured one, where the strategy draws
    threads: int = 1  # of this rank
    links: Links | None = None  # the edges to predict, where the task is about edges
    peers: tuple[int, ...] | None = None  # ranks whose nodes share an edge with this rank's, ascending. None: unknown
    input_dtype: torch.dtype | None = None  # of the input rows in training. None: `dtype`
    rounded: Bits | None = None  # [num_nodes, width] features of `graph` in bfloat16, where `input_dtype` is
    on_disk: OnDisk | None = None  # where rows of features stay on disk
    remote_edges: float = 0.0  # share of the graph's edges that lead from a node of another rank
    order: NodeOrder | None = None  # of the rows of engines. None: by id

    @property
    def device(self) -> torch.device:
        return self.comm.device

    @property
    def fetches(self) -> bool:
        """Whether features of other ranks' nodes are with their owners alone.

        A graph without the features that the shard has is a topology.
        """
        return self.graph is None or self.graph.features.shape[1] < self.shard.features.shape[1]

    @cached_property
    def features(self) -> FeatureStore:
        """Rows of features by node.

        Of the owned nodes where this rank `fetches`, else of every node.
        """
        whole = self.graph if not self.fetches else None
        table, nodes = (self.shard.features, self.shard.owned) if whole is None else (whole.features, None)
        if self.on_disk is not None:
            return DiskFeatures(table, nodes, self.dtype, self.device, self.on_disk)
        return TableFeatures(table, nodes, self.dtype, self.device)

    def input_rows(self, nodes: Ids, model: object) -> Rows:  # [k] -> [k, width]
        """Returns the rows that `model` reads in a batch of training.

        Args:
            nodes: [k] nodes whose features this rank has.
            model: The model.
        """
        return self._shortened(self.features.input_rows(nodes, model), model)

    def lasting_rows(self, nodes: Ids, model: object, tally: Tally) -> Rows:  # [k] -> [k, width]
        """Returns `input_rows` of the batches of a whole run. Those on disk stay there.

        Args:
            nodes: [k] nodes whose features this rank has.
            model: The model.
            tally: Counts the bytes from disk.
        """
        return self._shortened(self.features.lasting_rows(nodes, model, tally), model)

    def fetched_rows(self, kept: Array | SparseFeatures, model: object) -> Rows:  # [k, width]
        """Returns `input_rows` of features that owners sent, as these are kept."""
        if isinstance(kept, SparseFeatures):
            return self._shortened(SparseRows.of(kept, self.dtype), model)
        return self.features.opening(kept, self.input_dtype)

    def _shortened(self, rows: Rows, model: object) -> Rows:
        """Returns rows of the type of training.

        Long sums of short numbers are wrong. So a model that `adds_rows_itself` gets
        rows of `dtype`.
        """
        if self.input_dtype is None or getattr(model, "adds_rows_itself", False):
            return rows
        return rows.to(self.input_dtype)

    @property
    def disk(self) -> DiskFeatures | None:
        """The features, where these stay on disk."""
        return self.features.disk

    @cached_property
    def _engines(self) -> dict[bool, Engine]:
        return {}

    def engine(self, model: object) -> Engine:
        """Returns the engine over the shards, as `model` reads the graph.

        Its rows are those of `engine.shard.owned`, in an order of its own. Collective
        at the first call.
        """
        loops = bool(getattr(model, "self_loops", False))
        if loops not in self._engines:
            shard = renumbered(self.shard, self.order)
            self._engines[loops] = Engine(shard.with_self_loops() if loops else shard, self.comm, self.dtype)
        return self._engines[loops]

    @cached_property
    def _owners(self) -> list[Ids]:
        return []

    # No cached property: one lock of all instances would keep other threads waiting.
    @property
    def owner(self) -> Ids:  # [num_nodes] int32
        """The rank that owns each node. Collective at the first call."""
        if not self._owners:
            self._owners.append(self.rank_of(self.owned))
        return self._owners[0]

    def rank_of(self, nodes: Ids) -> Ids:  # [num_nodes] int32
        """Finds the rank that gives each node of the graph. Collective.

        `nodes` are this rank's [k] ids. Each node is given by one rank.
        """
        ranks = torch.zeros(self.shard.num_nodes, dtype=torch.int32, device=self.device)
        ranks[torch.from_numpy(nodes.astype(np.int64)).to(self.device)] = self.comm.rank
        return self.comm.all_reduce(ranks).cpu().numpy()

    @property
    def weight(self) -> int:
        """This rank's weight in a mean of the ranks' parameters.

        Counts training nodes, or all owned nodes where the task is about edges.
        """
        train = self.shard.split == Split.TRAIN
        return len(self.owned) if self.links is not None else int(np.count_nonzero(train))

    @property
    def owned(self) -> Ids:  # [num_owned] int64, ascending
        """The global ids of the nodes that this rank owns, evaluates and predicts."""
        return self.shard.owned


# What follows the backward pass of a batch:
# synchronise  the gradients of all ranks make one step
# own          this rank steps its own parameters. `total` counts own rows
# accumulate   no step: the gradient is added to the gradient of the next step. `total`
#              counts the rows of all ranks in all these steps, the last one included
# average      as own, then the parameters become the ranks' mean, weighted by `weight`
# correct      as synchronise, by an optimiser whose state is equal on all ranks, while
#              the optimiser of own steps keeps its state
# conclude     as correct, then own steps go on from the state of that optimiser
Update = Literal["synchronise", "own", "accumulate", "average", "correct", "conclude"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows and edges that one rank computes with in one step."""

    x: Rows  # [num_src, width] input rows, sparse for a model that `reads_sparse` only
    adjacencies: Sequence[Adjacency]  # one for each layer of the model
    rows: Tensor  # [k] int64, the output rows that the loss reads, or [k, 2] pairs of rows
    labels: Tensor  # [k, ...] labels of these rows, in the form of `Graph.labels`. Of pairs 1 or 0, floating
    total: int  # sum of k over all ranks: the loss is a sum divided by it, so gradients of ranks add up
    update: Update = "synchronise"
    weight: float = 0.0  # of this rank in a mean, where `update` is "average" or the batch `leads`
    row_weights: Tensor | None = None  # [k] factor of each row's loss. None: 1 each
    reach: Reach | None = None  # collective, brings the rows that `rows` counts. None: the model's output
    nodes: Ids | None = None  # [num_src] distinct global ids of the input rows, where these may be learned
    # Whether an own step takes the ranks' mean gradient. The own steps up to the next
    # such batch then add what this rank's gradient lacked of that mean.
    leads: bool = False

    def outputs(self, out: Tensor) -> Tensor:  # [k, width], or [k, 2, width] for pairs
        """Returns the rows that the loss reads of the model's output. Collective.

        Args:
            out: [num_dst, width] output of the model.
        """
        return (out if self.reach is None else self.reach(out))[self.rows]

    def precision(self) -> torch.autocast:
        """Makes a context in which a model computes with this batch.

        Products of rows in bfloat16 round parameters to bfloat16 too.
        """
        return torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.x.dtype == torch.bfloat16)

    @property
    def synchronise(self) -> bool:
        """Whether the gradients of all ranks make one step."""
        return self.update in ("synchronise", "correct", "conclude")

    @property
    def meets(self) -> bool:
        """Whether ranks meet after the backward pass."""
        return self.synchronise or self.update == "average" or self.leads

    def again(self) -> Batch:
        """Returns the batch for a second look that is no part of training.

        Rows of other ranks come exactly, whatever the exchange of the strategy.
        """
        return replace(self, adjacencies=[adjacency.again() for adjacency in self.adjacencies])

    @property
    def share(self) -> float:
        """This rank's part of the rows that the loss reads."""
        return len(self.rows) / max(self.total, 1)

    @property
    def num_edges(self) -> int:
        """Edges that this rank aggregates over in a forward pass, over all layers."""
        return sum(adjacency.num_edges for adjacency in self.adjacencies)


@dataclass(frozen=True, slots=True)
class Measured:
    """The work of one rank in one epoch, for strategies that adapt."""

    seconds_compute: float
    seconds_exchange: float  # of rows, waiting included
    seconds_sync: float  # of gradients and parameters, waiting included
    edges: int  # aggregated over
    drift: float = 0.0  # distance of this rank's parameters from the last mean taken, over the norm of the mean


class ExecutionStrategy(ABC):
    """Decides which batches a rank gets, and nothing else.

    `setup`, and the computation of a batch, are collective: all ranks call in the
    same order, and get the same number of batches, empty ones included. Equal worker,
    seed and epoch give equal batches. Arguments of the constructor are the keys of
    `strategy`.
    """

    reads: Reads = Reads()
    steps: Steps = Steps()
    supports: Collection[Ability] = ()  # one of each kind
    tally: Tally  # what batches move, counted over the whole run
    shares: Sequence[float] | None = None  # [world_size] of the seeds of a step. None: equal

    def ability(self, kind: type[A]) -> A | None:
        """Returns what the strategy says of an ability. None where it lacks this."""
        return next((each for each in self.supports if isinstance(each, kind) and each.but is None), None)

    def lacks(self, kind: type[Ability]) -> str | None:
        """Says why the strategy lacks an ability. None where it has this."""
        return next((each.but for each in self.supports if isinstance(each, kind)), kind.lacking)

    def cure(self) -> str:
        """Says what to choose where ranks drift too far apart."""
        return "more frequent means of the workers' models"

    def costs(self) -> str:
        """Returns the lines of what is approximate in a step, from `approximate`.

        The run begins with these lines, where several workers train. Default: "", for
        steps that are exact.
        """
        return ""

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        """Returns the strategy whose only rank does the work of `world_size` ranks.

        Returns None where no such strategy exists.
        """
        return None

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        """Raises `UserError` for a sampler or a number of layers that does not fit.

        Called before ranks start, on the launching process. Here a strategy that
        `samples` needs a sampler with one hop for each layer. Other strategies refuse
        samplers.
        """
        if sampler is None:
            if self.reads.sampler:
                raise UserError("sampler is missing: this strategy draws, choose one with sampler=NAME")
        elif not self.reads.sampler:
            raise UserError(f"sampler={type(sampler).__name__}: this strategy draws nothing, leave the sampler out")
        elif sampler.num_hops != num_layers:
            raise UserError(
                f"sampler.fanouts has {sampler.num_hops} hops, but model.num_layers={num_layers}: one hop for each layer"
            )

    @abstractmethod
    def setup(self, worker: Worker, model: nn.Module) -> None:
        """Builds the state of the whole run.

        The model says `num_layers` and whether it wants `self_loops`.
        """

    @abstractmethod
    def num_batches(self, epoch: int) -> int:
        """Returns the number of steps of one epoch, equal on all ranks."""

    @abstractmethod
    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the steps of one epoch, from step `first` on."""

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:  # noqa: B027 - most do not adapt
        """Adapts to an epoch that has ended. Collective.

        Args:
            epoch: Number of the epoch.
            measured: The work of this rank in that epoch.
            model: The model, with this rank's parameters.
        """

    def deal(self, shares: Sequence[float]) -> None:
        """Deals out the seeds of a step in these shares, from the next epoch on.

        All seeds of a step stay the same. Called where the strategy has
        `MovableSeeds`.

        Args:
            shares: [world_size] share of each worker, with a sum of 1.
        """
        raise NotImplementedError

    def foresee_reads(self, epochs: int) -> dict[str, Any]:
        """Counts what the first epochs will read from disk, as `figures` tells it.

        Draws the batches and reads no rows of these. Collective. Called after `setup`
        in place of training, where the strategy has `RowsOnDisk`.
        """
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """Returns further figures of `result.json`. Called at the end."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank between two steps.

        Parameters and optimiser are saved elsewhere.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Goes on from a state, on the same shard. Called after `setup`."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Lets go of threads. Called after the last step, on all ranks."""


def weighing_sums(sampler: Sampler) -> Sampler:
    """Returns the sampler with blocks whose sums estimate the sums over all in-edges.

    Raises `UserError` where the user has asked for other weights.
    """
    kinds: Any = getattr(sampler, "importance", "none")
    if kinds == "none":
        return sampler
    wanted = "sum" if getattr(sampler, "draws_edges", True) else "mean"
    if kinds not in (None, wanted):
        raise UserError(f"sampler.importance={kinds}: a strategy weighs drawn edges itself, leave the key out")
    if not getattr(sampler, "edge_ids", True):
        raise UserError("sampler.edge_ids=False: a strategy weighs drawn edges, whose ids it reads, leave the key out")
    weighing = copy.copy(sampler)
    weighing.importance = wanted  # type: ignore[attr-defined]
    return weighing
