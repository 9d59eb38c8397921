"""Interfaces of execution strategies: their input data and their batches."""

from __future__ import annotations

import copy
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, BlockLayers, Engine, Pool, Rows, Tally
from gnnkit.engine.block import LayerValues
from gnnkit.engine.remote import FeatureStore, Reach, TableFeatures
from gnnkit.engine.remote.disk import DiskFeatures, OnDisk
from gnnkit.engine.remote.features import Bits
from gnnkit.engine.remote.owners import Owners
from gnnkit.engine.remote.visible_values import collect_timed_edges
from gnnkit.engine.visible import TimedEdges, TimedLayers
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, MiniBatch, RelationGroups, SparseFeatures, Split
from gnnkit.graph.times import ALWAYS, Times
from gnnkit.kernels.product_rows import SparseRows
from gnnkit.partition.order import NodeOrder, renumbered
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Sampler
from gnnkit.sampler.targets import NODES, Targets, TaskRows
from gnnkit.strategy.abilities import Ability, Reads, Steps
from gnnkit.utils.checks import Array

START, FINISH = 0.1, 0.2  # default shares of the epochs. The first and last steps suffer most from stale rows


@dataclass(frozen=True, slots=True)
class Phases:
    """A schedule of exact first, approximate middle and exact last epochs.

    It follows from the number of epochs alone, and nothing that a run measures changes
    it. By default, all epochs are approximate.
    """

    first: int = 0  # the first approximate epoch
    last: int = sys.maxsize  # the first epoch of the exact finish

    @classmethod
    def of(cls, epochs: int, start: float = START, finish: float = FINISH) -> Phases:
        """Returns the schedule of a run.

        The exact epochs are rounded down together, so that the approximate ones keep
        their share. If there are any, each positive share has at least one.

        Args:
            epochs: Number of epochs of the run.
            start: Share of exact epochs at the start.
            finish: Share of exact epochs at the end.
        """
        exact, first = (math.floor(share * epochs + 1e-9) for share in (start + finish, start))  # 0.3 * 100 < 30
        first = min(max(first, 1), exact) if start else 0
        return cls(first, epochs - max(exact - first, 1) if exact and finish else sys.maxsize)

    def is_exact(self, epoch: int) -> bool:
        """Returns whether the steps of an epoch are exact."""
        return not self.first <= epoch < self.last

    def describe(self, epochs: int, *, begin: int = 0, exact: str = "exact") -> str:
        """Describes the schedule of a run, with epochs counted from 1.

        Args:
            epochs: Number of epochs of the run.
            begin: Number of epochs that an earlier part of the run has completed.
            exact: What steps outside the approximate epochs are.
        """
        first, last = (min(max(epoch, begin), epochs) for epoch in (self.first, self.last))
        parts = [(begin + 1, first, exact), (first + 1, last, "approximate"), (last + 1, epochs, exact)]
        return ", ".join(f"{low} to {high} {kind}" for low, high, kind in parts if low <= high)


A = TypeVar("A", bound=Ability)


@dataclass(frozen=True, eq=False)
class Worker:
    """One rank's part of the run, the only data a strategy may read.

    `shard` is this rank's part of the graph, `graph` the complete one if the
    strategy reads it. The methods prepare rows and edges as the model and the
    configuration require, so a strategy does not have to know about precision,
    relations, disks or time. Methods that are collective say so.
    """

    comm: Communicator
    shard: Shard  # this rank's nodes, and their edges unless `graph` is set
    dtype: torch.dtype  # type of features and parameters
    seed: int
    graph: Graph | None = None  # the complete graph, if the strategy reads it
    sampler: Sampler | None = None  # the configured sampler, if the strategy samples
    threads: int = 1  # number of threads of this rank
    rows: TaskRows = NODES  # the rows that the task predicts, of all ranks
    peers: tuple[int, ...] | None = None  # ranks whose nodes share an edge with this rank's, ascending. None: unknown
    input_dtype: torch.dtype | None = None  # type of input rows in training. None: `dtype`
    rounded: Bits | None = None  # [num_nodes, width] features of `graph` in bfloat16, if `input_dtype` is
    on_disk: OnDisk | None = None  # set if feature rows are read from disk
    remote_edges: float = 0.0  # share of edges whose source has another owner
    order: NodeOrder | None = None  # row order of engines. None: by id
    inverse_edges: bool = False  # whether the graph has the reverse of each edge, with relations numbered last
    relation_names: tuple[str, ...] | None = None  # [num_relations] including inverse ones. None: 0, 1, ...
    # Outputs [..., width] of nodes [...] at times [...], in figures of an evaluation
    # by time. Collective if ranks fetch rows. None: figures read the nodes' outputs.
    embed: Callable[[Ids, Ids], Tensor] | None = None

    @property
    def device(self) -> torch.device:
        return self.comm.device

    @property
    def fetches(self) -> bool:
        """Whether other ranks' features are only available from their owners.

        This is also true for a graph without the shard's features, which is a topology
        only.
        """
        return self.graph is None or self.graph.features.shape[1] < self.shard.features.shape[1]

    @cached_property
    def features(self) -> FeatureStore:
        """Feature rows by node.

        They cover the owned nodes if this rank `fetches`, and all nodes otherwise.
        """
        graph = self.graph if not self.fetches else None
        table, nodes = (self.shard.features, self.shard.owned) if graph is None else (graph.features, None)
        if self.on_disk is not None:
            return DiskFeatures(table, nodes, self.dtype, self.device, self.on_disk)
        return TableFeatures(table, nodes, self.dtype, self.device)

    def input_rows(self, nodes: Ids, model: object) -> Rows:  # [k] -> [k, width]
        """Returns the rows that `model` reads in a training batch.

        Args:
            nodes: [k] nodes whose features this rank has.
            model: The model.
        """
        return self._to_training_type(self.features.input_rows(nodes, model), model)

    def lasting_rows(self, nodes: Ids, model: object, tally: Tally) -> Rows:  # [k] -> [k, width]
        """Returns `input_rows` for the entire run. Rows on disk are not loaded.

        Args:
            nodes: [k] nodes whose features this rank has.
            model: The model.
            tally: Counter of the bytes read from disk.
        """
        return self._to_training_type(self.features.lasting_rows(nodes, model, tally), model)

    def fetched_rows(self, features: Array | SparseFeatures, model: object) -> Rows:  # [k, width]
        """Returns `input_rows` of features received from owners, as stored.

        Args:
            features: [k, width] rows in the type in which their owners store them.
            model: The model, which may require dense rows.
        """
        if isinstance(features, SparseFeatures):
            return self._to_training_type(SparseRows.of(features, self.dtype), model)
        return self.features.convert(features, self.input_dtype)

    def _to_training_type(self, rows: Rows, model: object) -> Rows:
        """Converts rows to the training type.

        Long sums in low precision are inaccurate, so a model that `adds_rows_itself`
        gets rows of `dtype`.
        """
        if self.input_dtype is None or getattr(model, "adds_rows_itself", False):
            return rows
        return rows.to(self.input_dtype)

    @property
    def disk(self) -> DiskFeatures | None:
        """The features, if they are read from disk, else None."""
        return self.features.disk

    def layers(self, model: object, pool: Pool | None = None) -> BlockLayers:
        """Returns the node and edge values of blocks of the complete graph.

        Args:
            model: The model. With `self_loops`, nodes without a self-loop get one.
            pool: The ranks whose rows enter batch statistics. If None, this rank only.
        """
        assert self.graph is not None, "needs the complete graph"
        group_relations = lambda: self._relation_groups  # noqa: E731 - grouped on first use
        form = (self.dtype, self.device, pool)
        return BlockLayers(self.graph, model, *form, inverse_edges=self.inverse_edges, group_relations=group_relations)

    def edges_to_sample(self, model: object) -> CSC | RelationGroups:
        """Returns the complete graph's in-edges, by relation if the model reads any."""
        return self._edges if self.relations_for(model) is None else self._relation_groups

    @cached_property
    def _edges(self) -> CSC:
        graph = self.graph
        assert graph is not None, "needs the complete graph"
        if self.samples_by_time:  # the preparation has sorted each node's edges
            csc = graph.csc
            return CSC.trusted(csc.indptr, csc.indices, csc.weight, csc.num_sources, graph.edge_time)
        return graph.csc

    @property
    def samples_by_time(self) -> bool:
        """Whether seeds see earlier edges only, as set by `sampler.time`."""
        return self.sampler is not None and self.sampler.time != "none"

    def seed_times(self, nodes: Ids) -> Times | None:  # [k] -> [k]
        """Returns times of seeds, which this rank owns unless it has the graph.

        Returns None if sampling ignores time.
        """
        if not self.samples_by_time:
            return None
        if self.graph is None:
            times, nodes = self.shard.node_time, np.searchsorted(self.owned, nodes)
        else:
            times = self.graph.node_time
        return np.full(len(nodes), ALWAYS) if times is None else np.asarray(times[nodes], np.int64)

    @property
    def _window(self) -> int | None:
        return None if self.sampler is None else self.sampler.window

    @cached_property
    def _timed_edges(self) -> TimedEdges:
        return TimedEdges(self._edges, lambda: self._relation_groups, window=self._window)

    def timed_edges(self, model: object, owners: Owners) -> TimedEdges | None:
        """Returns the owned nodes' edges by time, or None if sampling ignores it.

        Collective.
        """
        if not self.samples_by_time:
            return None
        return collect_timed_edges(self.shard, owners, self.comm, self.relations_for(model), self._window)

    def layers_of(self, batch: MiniBatch, layers: LayerValues) -> LayerValues:
        """Returns the node and edge values of a batch's blocks.

        Args:
            batch: The batch.
            layers: The complete graph's values.
        """
        if batch.nodes is None:
            return layers
        assert self.sampler is not None, "the batch was sampled"
        return TimedLayers.of(layers, self._timed_edges, batch, self.sampler)

    @cached_property
    def _relation_groups(self) -> RelationGroups:
        graph = self.graph
        assert graph is not None
        names = self.relation_names or tuple(map(str, range(graph.num_relations)))
        return RelationGroups.of(self._edges, graph.edge_types, names)

    def relations_for(self, model: object) -> tuple[str, ...] | None:
        """Returns the names of the relations, or None if the model reads none."""
        if not getattr(model, "reads_relations", False):
            return None
        return self.relation_names or tuple(map(str, range(self.shard.num_relations)))

    @cached_property
    def _engines(self) -> dict[bool, Engine]:
        return {}

    def engine(self, model: object) -> Engine:
        """Returns the engine over this rank's shard, as required by `model`.

        Its rows are the nodes in `engine.shard.owned`, whose order may differ from
        `owned`. Collective on the first call.
        """
        loops = bool(getattr(model, "self_loops", False))
        if loops not in self._engines:
            shard = renumbered(self.shard, self.order)
            shard = shard.with_self_loops() if loops else shard
            self._engines[loops] = Engine(shard, self.comm, self.dtype, inverse_edges=self.inverse_edges)
        return self._engines[loops]

    @cached_property
    def _owners(self) -> list[Ids]:
        return []

    # Not a cached property, whose lock for all instances would block other threads.
    @property
    def owner(self) -> Ids:  # [num_nodes] int32
        """Owner rank of each node, [num_nodes] int32. Collective on the first call.

        Use it to find the rank that holds a node's features. It takes 4 bytes per node.
        """
        if not self._owners:
            self._owners.append(self.rank_of(self.owned))
        return self._owners[0]

    def rank_of(self, nodes: Ids) -> Ids:  # [num_nodes] int32
        """Returns, for each node, the rank that listed it in `nodes`. Collective.

        `nodes` are this rank's [k] ids. Exactly one rank must list each node.
        """
        ranks = torch.zeros(self.shard.num_nodes, dtype=torch.int32, device=self.device)
        ranks[torch.from_numpy(nodes.astype(np.int64)).to(self.device)] = self.comm.rank
        return self.comm.all_reduce(ranks).cpu().numpy()

    @property
    def weight(self) -> int:
        """This rank's weight in a mean of the ranks' parameters.

        The weight is the number of training rows, or of owned nodes in link prediction.
        """
        return self.rows.count(Split.TRAIN, self.targets)

    @cached_property
    def targets(self) -> Targets:
        """This rank's labelled rows: its nodes, or the pairs into its nodes."""
        return self.rows.of_rank(self.shard)

    @property
    def owned(self) -> Ids:  # [num_owned] int64, ascending
        """Global ids of the nodes that this rank owns, evaluates and predicts."""
        return self.shard.owned


# What happens after a batch's backward pass:
# synchronise  one step is taken with the gradients of all ranks
# own          each rank steps its own parameters. `total` counts this rank's rows only
# accumulate   no step: the gradient is added to the next step's. `total` counts rows of
#              all ranks in all these steps, including the last one
# average      like own, then the parameters are averaged, weighted by `weight`
# correct      like synchronise, but a second optimiser takes the step, whose state is
#              equal on all ranks. The state of the local optimiser does not change
# conclude     like correct, then the local optimiser continues from the second one's
#              state
Update = Literal["synchronise", "own", "accumulate", "average", "correct", "conclude"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows and edges that one rank processes in one step.

    A strategy yields one per step on every rank. A rank without rows gets a batch with
    empty arrays. The trainer computes the model on `x` and `adjacencies`, sums
    the task's losses over `rows`, and takes the step that `update` names.
    """

    x: Rows  # [num_src, width] input rows, sparse only for a model that `reads_sparse`
    adjacencies: Sequence[Adjacency]  # one per layer of the model
    rows: Tensor  # [k] int64 output rows that the loss reads, or [k, 2] pairs of rows
    labels: Tensor  # [k, ...] labels of these rows, as in `Graph.labels`, or 1 and 0 (floating) for drawn pairs
    total: int  # sum of k over all ranks. The loss is a sum divided by it, so gradients of ranks add up
    update: Update = "synchronise"
    weight: float = 0.0  # this rank's weight in a mean, if `update` is "average" or the batch `leads`
    row_weights: Tensor | None = None  # [k] factor of each row's loss. None: 1 each
    reach: Reach | None = None  # collective function that provides the rows indexed by `rows`. None: the model's output
    nodes: Ids | None = None  # [num_src] distinct global ids of the input rows, if these may be learned
    pair_features: Tensor | None = None  # [k, edge_width] the pairs' features. None: they have none
    # True: a step that uses the ranks' mean gradient. Later local steps, until the next
    # such batch, add (mean - own gradient) as a correction (control variate).
    leads: bool = False

    def outputs(self, out: Tensor) -> Tensor:  # [k, width], or [k, 2, width] for pairs
        """Selects the output rows that the loss reads. Collective.

        Args:
            out: [num_dst, width] output of the model.
        """
        return self.reached(out)[self.rows]

    def reached(self, out: Tensor) -> Tensor:  # [num_reached, width]
        """Returns the rows that `rows` indexes. Collective.

        Args:
            out: [num_dst, width] output of the model.
        """
        return out if self.reach is None else self.reach(out)

    def precision(self) -> torch.autocast:
        """Returns the autocast context for this batch.

        If rows are bfloat16, products round the parameters to bfloat16, too.
        """
        return torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.x.dtype == torch.bfloat16)

    @property
    def synchronise(self) -> bool:
        """Whether the gradients of all ranks are combined in one step, by `sync`."""
        return self.update in ("synchronise", "correct", "conclude")

    @property
    def meets(self) -> bool:
        """Whether ranks communicate after the backward pass.

        If not, a rank may run ahead of the others until the next batch that does.
        """
        return self.synchronise or self.update == "average" or self.leads

    def again(self) -> Batch:
        """Returns the batch for a second forward pass that is not part of training.

        Rows of other ranks are then exact, for any exchange.
        """
        return replace(self, adjacencies=[adjacency.again() for adjacency in self.adjacencies])

    @property
    def share(self) -> float:
        """This rank's share of the rows that the loss reads.

        Shares add up to 1 over the ranks. `GradientSync.step` receives the share as the
        rank's weight in a mean.
        """
        return len(self.rows) / max(self.total, 1)

    @property
    def num_edges(self) -> int:
        """Edges that this rank aggregates in a forward pass, summed over layers."""
        return sum(adjacency.num_edges for adjacency in self.adjacencies)


@dataclass(frozen=True, slots=True)
class Measured:
    """One rank's measurements of an epoch, for adaptive strategies.

    `ExecutionStrategy.end_epoch` receives them, for example to exchange rows less often
    when the exchange dominates. They differ between ranks and between runs, so
    decisions based on them must be made together, such as by summing over the ranks.
    """

    seconds_compute: float
    seconds_exchange: float  # exchange of rows, including waiting
    seconds_sync: float  # synchronisation of gradients and parameters, including waiting
    edges: int  # number of aggregated edges


class ExecutionStrategy(ABC):
    """Determines each rank's batches.

    `setup`, and the computation of a batch, are collective: all ranks call them in the
    same order and get the same number of batches, including empty ones. Equal worker,
    seed and epoch give equal batches. The constructor's arguments are the keys of
    `strategy`.

    Derive from it to define a training scheme: declare in `reads`, `steps` and
    `supports` what the strategy needs and supports, build its state in `setup`, and
    yield batches. gnnkit then checks combinations with the other plugins, and does
    evaluation, checkpoints and synchronisation. Derive from
    `gnnkit.strategy.sampled_strategy.SampledStrategy` if batches are sampled.
    """

    reads: Reads = Reads()
    steps: Steps = Steps()
    supports: Collection[Ability] = ()  # one instance of each kind
    tally: Tally  # exchanges of all batches in the run
    # Whether the strategy takes exact steps in epochs of `phases`. asked: only at the
    # user's request.
    finishes: Literal["no", "asked", "always"] = "no"
    phases: Phases = Phases()  # the schedule of exact epochs, set before the first batch
    has_whole_steps: bool = True  # whether each step has all training rows
    shares: Sequence[float] | None = None  # [world_size] shares of a step's seeds. None: equal

    def ability(self, kind: type[A]) -> A | None:
        """Returns the strategy's declaration of an ability, or None if unsupported.

        Callers ask for an ability instead of testing for the strategy's class.

        Args:
            kind: The class of the ability, such as `LearnedInputs`.
        """
        return next((ability for ability in self.supports if isinstance(ability, kind) and ability.but is None), None)

    def lacks(self, kind: type[Ability]) -> str | None:
        """Returns why an ability is unsupported, or None if it is supported.

        Error messages contain the text after the strategy's name.

        Args:
            kind: The class of the ability.
        """
        return next((ability.but for ability in self.supports if isinstance(ability, kind)), kind.lacking)

    def costs(self) -> str:
        """Describes how a step is approximate, in lines from `approximate`.

        They are printed at the start of a run with several workers. Default: "", for
        exact steps.
        """
        return ""

    def delay_rows(self, key: str, bound: int | None) -> bool:
        """Exchanges rows less often. Returns whether the strategy can.

        Args:
            key: The configuration key that asks for it, with its value.
            bound: Maximum staleness of a row in epochs. If None, chosen by the
                strategy.
        """
        return False

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        """Returns a strategy for one rank with the same steps as `world_size` ranks.

        Returns None if there is no such strategy.
        """
        return None

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        """Raises `UserError` for an unsuitable sampler or number of layers.

        Called in the launching process before ranks start. By default, a strategy that
        reads a sampler needs one hop per layer, and other strategies reject samplers.
        """
        if sampler is None:
            if self.reads.sampler:
                raise UserError("sampler is missing: this strategy samples; choose one with sampler=NAME")
        elif not self.reads.sampler:
            raise UserError(f"sampler={type(sampler).__name__}: this strategy does not sample; remove the sampler")
        elif sampler.num_hops != num_layers:
            raise UserError(
                f"{sampler.hops_key} has {sampler.num_hops} hops, but model.num_layers={num_layers}: "
                "use one hop per layer"
            )

    @abstractmethod
    def setup(self, worker: Worker, model: nn.Module) -> None:
        """Builds the state of the run. Collective.

        Called once on each rank before the first batch, and again with another shard
        after `close` if work is moved. The model has `num_layers`, and optionally
        `self_loops`.

        Args:
            worker: This rank's data, ranks and settings.
            model: The model to train. Its parameters may change later.
        """

    @abstractmethod
    def num_batches(self, epoch: int) -> int:
        """Returns the number of steps per epoch, the same on all ranks.

        Called after `setup`. Ranks with fewer rows get empty batches.

        Args:
            epoch: Number of the epoch, from 0.
        """

    @abstractmethod
    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch, starting at step `first`.

        A resumed run starts in the middle of an epoch, and must get the batches that an
        uninterrupted one gets. Computing a batch may be collective.

        Args:
            epoch: Number of the epoch, from 0.
            first: Number of steps that were taken already.
        """

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:  # noqa: B027 - most do not adapt
        """Adapts to a completed epoch. Collective.

        Args:
            epoch: Number of the epoch.
            measured: This rank's measurements of the epoch.
            model: The model, with this rank's parameters.
        """

    def figures(self) -> Mapping[str, object]:
        """Returns additional figures for `result.json`, as plain values by name.

        Called once, after the last step, on rank 0 only, so it must not be collective.
        Default: none.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state between two steps.

        Parameters and optimiser are saved separately.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Resumes from a state, on the same shard. Called after `setup`.

        Args:
            state: What `state_dict` returned on this rank.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Stops threads and releases memory. Called on all ranks after the run."""


def tensor_of(values: Array | None, device: torch.device) -> Tensor | None:
    """Copies an optional array to a device."""
    return None if values is None else torch.from_numpy(np.array(values)).to(device)


def weighing_sums(sampler: Sampler) -> Sampler:
    """Returns the sampler with importance weights, for unbiased sums.

    Raises `UserError` if the user has requested other weights.

    Strategies sample with weights, because a sum over drawn in-edges would otherwise
    be smaller than the sum over all of them.
    """
    kinds: object = getattr(sampler, "importance", "none")
    if kinds == "none":
        return sampler
    importance = "sum" if getattr(sampler, "draws_edges", True) else "mean"
    if kinds not in (None, importance):
        raise UserError(f"sampler.importance={kinds}: strategies compute importance weights themselves; remove the key")
    if not getattr(sampler, "edge_ids", True):
        raise UserError("sampler.edge_ids=False: strategies need edge ids; remove the key")
    weighing = copy.copy(sampler)
    weighing.importance = importance  # type: ignore[attr-defined]
    return weighing
