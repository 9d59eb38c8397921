"""One rank's loader, which prefetches batches on native threads."""

from __future__ import annotations

import atexit
import copy
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Graph, Ids, MiniBatch, RelationGroups
from gnnkit.graph.edge_order import time_order
from gnnkit.graph.times import ALWAYS, Times, has_time, to_unit
from gnnkit.graph.types import take
from gnnkit.partition.quality import max_over_mean
from gnnkit.sampler.base import NativeSampler, Sampler, wrap
from gnnkit.sampler.batching import BatchSchedule, Epoch, Sharding, check_costs, draws_key, order_key
from gnnkit.sampler.contract import check_batch
from gnnkit.sampler.fanouts import Fanouts, FanoutsLike, check_draws
from gnnkit.sampler.gather import as_bytes
from gnnkit.sampler.loaded_batch import LoadedBatch, Tables, page_locked
from gnnkit.sampler.neighbor import NeighborSampler
from gnnkit.utils import storage
from gnnkit.utils.checks import MAX_THREADS, array, int64s, whole
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import num_cores, shown
from gnnkit.utils.spans import Spans, active


class TimedSeeds:
    """Draws a loader's batches by time, as a sampler written in Python."""

    def __init__(self, sampler: NativeSampler, times: Times, graph: Graph) -> None:
        """Stores the sampler, the time of each seed, and the edges by time.

        Args:
            sampler: The loader's sampler.
            times: [num_nodes] time of each node that is a seed.
            graph: The graph.
        """
        self._sampler, self._times = copy.copy(sampler), times
        self._sampler.threads = sampler.threads or 1  # the loader's threads sample one batch each
        csc, (since, self._edge_ids) = graph.csc, time_order(graph)
        order = self._edge_ids
        self._csc = CSC.trusted(csc.indptr, csc.indices[order], take(csc.weight, order), csc.num_sources, since[order])

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        batch = self._sampler.sample(self._csc, seeds, key=key, times=self._times[seeds])
        ids = [None if block.edge_ids is None else self._edge_ids[block.edge_ids] for block in batch.blocks]
        return replace(batch, blocks=[replace(block, edge_ids=of) for block, of in zip(batch.blocks, ids, strict=True)])

    @classmethod
    def of(cls, sampler: Any, graph: Any, seeds: Ids, times: npt.ArrayLike | None) -> TimedSeeds | None:
        """Reads the times of seeds, if the sampler draws by time.

        Raises `UserError` for seeds without a time.

        Args:
            sampler: The loader's sampler.
            graph: The graph.
            seeds: [num_seeds] distinct ids.
            times: [num_seeds] time of each seed. Default: `Graph.node_time`.
        """
        if sampler.time == "none":
            if times is not None:
                raise UserError(
                    f"times: {type(sampler).__name__} reads none: use sampler.time=strict, as in time='strict'"
                )
            return None
        if not isinstance(graph, Graph) or (graph.edge_time is None and graph.node_time is None):
            raise UserError(
                f"sampler.time={sampler.time}: the graph has no times: pass a Graph with edge_time, as of "
                "Graph.from_edges(src, dst, edge_time=TIMES) or Graph.from_tables(edges, time=COLUMN)"
            )
        by_node = np.full(graph.num_nodes, ALWAYS) if graph.node_time is None else graph.node_time
        if times is not None:
            by_node = np.full(graph.num_nodes, ALWAYS)
            by_node[seeds] = int64s("times", to_unit("times", times, graph.time_unit), len(seeds))
        if num_missing := np.count_nonzero(~has_time(by_node[seeds])):
            raise UserError(
                f"sampler.time={sampler.time}: {num_missing:,} of {len(seeds):,} seeds have no time: pass "
                "times=, one for each seed, or a graph with node_time"
            )
        return cls(sampler, by_node, graph)


class Loader:
    """Iterates over one rank's epochs. Each iteration is the next epoch.

    Native threads sample one batch each and gather its features without the interpreter
    lock, at most `prefetch` batches ahead. A Python sampler runs under the lock, and
    the loader checks its batches.

    Draws depend on the seed, epoch, step and node, and not on `threads`, `prefetch` or
    the id type. P ranks with batches of B have the same seeds at each step as one rank
    with batches of P * B. If `sampler.rank_invariant` is true, each seed's
    neighbourhood is also the same.

    Feature memory is reused once a batch's arrays are no longer referenced. The
    iterator raises the errors of its threads. A loader survives a fork, but an iterator
    that has started does not.

    Lightning accepts a loader for training, validation, test and prediction, sets each
    epoch through `batch_sampler`, and resumes mid-epoch. Pass `shuffle=False` if the
    seed order matters, as in prediction. Pass `batch_size` to `self.log`, because
    Lightning would infer a wrong value from the first tensor.

    Args:
        graph: A `Graph`, a `CSC`, or PyG's `Data` for `Graph.from_pyg`. From
            `RelationGroups`, nodes draw from each relation separately. For PyG's
            `HeteroData`, use `gnnkit.pyg.NeighborLoader`.
        sampler: Sampler of the seeds' neighbourhoods, or the fanouts of a
            `NeighborSampler`.
        seeds: [num_seeds] distinct ids, or a mask [num_nodes]. Default: all nodes.
        batch_size: This rank's seeds per batch, or groups of seeds if the sampler has
            groups.
        features: [num_nodes, ...] C-contiguous. Default: the graph's features.
        labels: [num_nodes, ...]. Default: the graph's labels.
        times: [num_seeds] time of each seed, if the sampler has a `time`. Default:
            `Graph.node_time`. A seed then sees the `Graph` as of its time, and the
            `input_nodes` of a batch may repeat.
        costs: [num_seeds] for balanced batches. Default: `sampler.costs`.
        rank: This rank. Default: the rank in `torch.distributed`'s default process
            group at the start of each iteration, 0 if there is no group. So a loader
            may be created before the group, as with `Trainer(strategy="ddp")`. With
            rank=0 and world_size=1, each process iterates over all seeds.
        world_size: Number of ranks, passed together with `rank`. Default: the size of
            that group, or 1.
        batching: plain, or balanced for batches of equal cost.
        window: Number of steps over which costs are balanced.
        seed: Any integer, modulo 2^64.
        threads: Threads that make batches. Default: all available cores.
        prefetch: Batches made in advance. Default: two per thread.
        shuffle: Whether to shuffle the seeds in each epoch.
        drop_last: Drop the seeds of an incomplete last step.
        repeat: Let a rank without a seed in the last step repeat another rank's seed,
            because the mean loss of an empty batch is NaN. Otherwise its batch is
            empty, and each seed occurs once over all ranks, as prediction requires.
        pin_memory: Whether features are in page-locked memory, if there is a GPU.
        transform: Function the iterator applies to each batch, such as
            `LoadedBatch.to_pyg`.

    Examples:
        >>> from gnnkit.graph import Graph
        >>> from gnnkit.sampler import Loader
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], features=[[0.0]] * 4)
        >>> loader = Loader(graph, [2, 2], batch_size=2, rank=0, world_size=1)
        >>> len(loader)
        2
        >>> for batch in loader:  # the first epoch
        ...     x, blocks = batch.x, batch.blocks
        >>> x.shape[1], len(blocks)
        (1, 2)
    """

    _plan_cache: tuple[int, BatchSchedule, Epoch] | None = None  # cache, which iterators and strategies share
    _last_schedule: BatchSchedule | None = None  # the schedule of the last iterator
    _next = _now = (0, 0)  # epoch and step at which the next iterator starts, and of the last iterator
    _epoch_start = 0.0  # when the last epoch started

    def __init__(
        self,
        graph: Graph | CSC | RelationGroups | Any,
        sampler: Sampler | FanoutsLike,
        seeds: npt.ArrayLike | None = None,
        batch_size: int = 1024,
        *,
        features: npt.NDArray[Any] | None = None,
        labels: npt.NDArray[Any] | None = None,
        times: npt.ArrayLike | None = None,
        costs: Floats | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        batching: str = "plain",
        window: int = 8,
        seed: int = 0,
        threads: int | None = None,
        prefetch: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        repeat: bool = True,
        pin_memory: bool = False,
        transform: Callable[[LoadedBatch], object] | None = None,
    ) -> None:
        """Checks the arguments. Raises `UserError` with an invalid argument's name."""
        sampler = _read_sampler(sampler)
        self._rows = graph if isinstance(graph, RelationGroups) else None  # the groups that nodes draw from
        graph = _read_graph(graph, seeds)
        self.csc: CSC = graph if isinstance(graph, CSC) else graph.csc
        self.tables, self.seeds = Tables.of(graph, features, labels), _seeds(seeds, self.csc.num_nodes)
        self.seed = whole("seed", seed)
        self.threads = num_cores() if threads is None else whole("threads", threads, 1, MAX_THREADS)
        self.prefetch = 2 * self.threads if prefetch is None else whole("prefetch", prefetch, 1, 2**16)
        self.transform = transform
        self.costs = None if costs is None else check_costs("costs", costs, len(self.seeds))
        if self._rows is not None:
            _check_by_relation(sampler, self._rows)
        # Not `sampler`: Lightning assumes a torch sampler in an attribute with that
        # name.
        self._sampler = sampler.with_features(self.tables.features)
        self._timed = TimedSeeds.of(self._sampler, graph, self.seeds, times)  # None: seeds see all edges
        groups = _read_groups(sampler, self.csc, self.seeds)
        schedule = BatchSchedule(self.seeds, batch_size, 1, batching, window, shuffle, drop_last, groups, repeat=repeat)
        if getattr(sampler, "replace", False) and sampler.fanouts is not None:
            key, sizes = f"sampler.fanouts={sampler.fanouts}", ({"": schedule.batch_size}, {"": self.csc.num_nodes})
            degree = self.csc.num_edges / max(self.csc.num_nodes, 1)
            check_draws(key, [("", "", sampler.fanouts, degree)], *sizes, self.threads)
        self._sharding = Sharding(schedule, rank, world_size)
        self._allocate = page_locked if pin_memory else _pageable
        self._cost_cache = self.costs  # computed by the sampler on first use
        self._spans = active()  # the trace

    def __len__(self) -> int:
        """Returns the number of steps per epoch, the same on every rank."""
        return self._sharding.schedule.num_steps

    def __iter__(self) -> Generator[Any, None, None]:
        # Nothing runs before the first `next`, because Lightning calls `iter` too
        # often.
        epoch, first = self._now = self._next
        self._next = (epoch + 1, 0)
        order, offsets = self.plan(epoch).of_rank(self._sharding.rank)
        self._last_schedule = self._sharding.schedule
        native_loader = self._start(epoch, (self.seeds[order], offsets, first))
        atexit.register(native_loader.close)  # threads that sample in Python must not outlive the interpreter
        try:
            for step in range(first, len(offsets) - 1):
                positions = order[offsets[step] : offsets[step + 1]]
                # Yielded directly, because a variable would hold the memory until the
                # next batch.
                yield self._load_batch(native_loader, positions, (epoch, step + 1))
        finally:
            native_loader.close()
            atexit.unregister(native_loader.close)

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """The object for Lightning's `set_epoch`: the loader itself, as `sampler`."""
        return SimpleNamespace(sampler=self)

    def plan(self, epoch: int) -> Epoch:
        """Returns the order and the batches of an epoch for all ranks.

        It follows from the seed and the epoch, so every rank computes the same plan
        without communication. The last plan is cached.
        """
        schedule = self._sharding.schedule
        if self._plan_cache is None or self._plan_cache[:2] != (epoch, schedule):
            key = order_key(wrap(self.seed), epoch)
            costs = self._seed_costs() if schedule.batching == "balanced" else None
            self._plan_cache = (epoch, schedule, schedule.epoch(key, costs))
        return self._plan_cache[2]

    def deal(self, shares: Sequence[float]) -> None:
        """Distributes each step's seeds unevenly over the ranks.

        It takes effect with the next iterator. The set of seeds in a step does not
        change. Call it with the same shares on all ranks.

        Args:
            shares: [world_size] each rank's share, with sum 1.
        """
        self._sharding.deal(shares)

    def balance(self, epoch: int) -> float:
        """Returns the ratio of the largest to the mean rank load in `epoch`.

        A rank's load is the total cost of its seeds, so 1 is perfectly balanced. Every
        rank computes all loads without communication. Unless batching is balanced, the
        first call computes the costs, in a few passes over the graph.
        """
        return max_over_mean(self.plan(epoch).loads(self._seed_costs()).sum(axis=0))

    def _seed_costs(self) -> Floats:  # [num_seeds]
        if self._cost_cache is None:
            in_edges: Any = self.csc if self._rows is None else self._rows
            costs = self._sampler.costs(in_edges, self.seeds)
            self._cost_cache = check_costs(f"{type(self._sampler).__name__}.costs", costs, len(self.seeds))
        return self._cost_cache

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iterator start at the first step of `epoch`.

        If the loader resumes within this epoch, its step is kept.
        """
        if epoch != self._next[0]:
            self._next = (epoch, 0)

    def start_at(self, epoch: int, step: int = 0) -> None:
        """Makes the next iterator start at `step` of `epoch`, as after a restart.

        Its batches are those that an uninterrupted run would have read.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of steps that were taken already.
        """
        self._next = self._now = (epoch, step)
        self._last_schedule = None

    def state_dict(self) -> Json:
        """Returns the last iterator's position, which counts the yielded batches.

        The state is the same on every rank.
        """
        epoch, step = self._now
        schedule = self._last_schedule or self._sharding.schedule
        return {"epoch": epoch, "step": step, **self._identity(schedule)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator resume from `state`, bit-identically.

        Raises `UserError` for the state of a loader with different batches.
        """
        for name, value in self._identity(self._sharding.schedule).items():
            if state[name] != value:
                source = self._sharding.source if name == "world_size" else ""
                raise UserError(f"the state was saved with {name}={state[name]}, this loader has {value}{source}")
        epoch, step = int(state["epoch"]), int(state["step"])
        self.start_at(*((epoch, step) if step < len(self) else (epoch + 1, 0)))

    def _identity(self, schedule: BatchSchedule) -> Json:
        """Returns all values that determine the batches, except graph and sampler."""
        return {"seed": self.seed, **schedule.identity(self.costs)}

    def _start(self, epoch: int, steps: tuple[Ids, list[int], int]) -> _core.Loader:
        """Starts the threads that make the batches of `epoch`.

        `steps` contains the seeds, the batch offsets, and the first step.
        """
        sampler, timed, features = self._sampler, self._timed, self.tables.features
        if features is not None:
            storage.expect_random_reads(features)
        self._epoch_start = time.perf_counter()
        return _core.Loader(
            sampler.reads(self._rows or self.csc) if timed is None and _is_native(sampler) else self.csc,
            sampler.native() if timed is None and _is_native(sampler) else timed or _Checked(sampler, self._rows),
            (*steps, draws_key(wrap(self.seed), epoch)),
            [] if features is None else [as_bytes("features", features)],
            self._allocate,
            self.threads,
            self.prefetch,
        )

    def _load_batch(self, native_loader: _core.Loader, positions: Ids, now: tuple[int, int]) -> object:
        batch, buffers = native_loader.take()
        if self._spans is not None:
            _add_work(self._spans, native_loader, self._epoch_start, now[1] - 1)
        minibatch = batch if self._timed or not _is_native(self._sampler) else self._sampler.batch(batch)
        self._now = now
        result = self.tables.load(minibatch, positions, buffers)
        return result if self.transform is None else self.transform(result)


class _Checked:
    """A Python sampler whose batches are checked in the thread that makes them."""

    def __init__(self, sampler: Sampler, rows: RelationGroups | None = None) -> None:
        self._sampler, self._rows = sampler, rows

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        batch = self._sampler.sample(graph if self._rows is None else self._rows, seeds, key=key)
        if type(self._sampler).sample is Sampler.sample:  # checks every hop itself
            return batch
        return check_batch(f"{type(self._sampler).__name__}.sample", batch, graph, seeds, self._sampler.num_hops)


def _read_graph(graph: object, seeds: object) -> Graph | CSC:
    """Returns the graph whose rows batches contain."""
    if isinstance(seeds, str) or (isinstance(seeds, tuple) and seeds and isinstance(seeds[0], str)):
        raise UserError(f"seeds={shown(seeds)}: seeds with a node type were removed: use gnnkit.pyg.NeighborLoader")
    if isinstance(graph, RelationGroups):
        return graph.csc.weighted(None)  # weights are in another order than edge ids
    return graph if isinstance(graph, CSC) else as_untyped(graph)


def as_untyped(value: object) -> Graph:
    """Returns a graph, or converts one of PyG or DGL.

    Raises `UserError` if a converted graph has types, because batches would drop them.
    A `Graph` with types is accepted, because its user has `edge_types`.
    """
    graph = Graph.of(value)
    if graph is not value and graph.schema.several:
        raise UserError(
            f"{type(value).__name__} has node or edge types: use gnnkit.pyg.NeighborLoader, or pass a Graph from "
            "Graph.from_pyg, and read a block's types as graph.edge_types[block.edge_ids]"
        )
    return graph


def _add_work(spans: Spans, native_loader: _core.Loader, start: float, step: int) -> None:
    """Records a native thread's work on the last batch.

    Args:
        spans: The trace.
        native_loader: The native loader of the batch.
        start: Clock in seconds when the native loader was created.
        step: Step of the batch.
    """
    thread, begin, draw_end, gather_end = native_loader.last_work()
    track = f"sampling thread {thread}"
    spans.add(track, f"draw batch {step}", start + begin, start + draw_end)
    if gather_end > draw_end:
        spans.add(track, f"gather batch {step}", start + draw_end, start + gather_end)


def _read_sampler(sampler: object) -> Sampler:
    """Returns a sampler, or the uniform sampler of some fanouts."""
    if isinstance(sampler, list | tuple | Mapping | Fanouts):
        sampler = NeighborSampler(sampler)
    if not isinstance(sampler, Sampler):
        raise UserError(f"sampler={sampler} must be a Sampler or fanouts, got {type(sampler).__name__}")
    return sampler


def _check_by_relation(sampler: Sampler, rows: RelationGroups) -> None:
    """Raises `UserError` unless a sampler can draw from each relation of `rows`."""
    if not sampler.by_relation or not (_is_native(sampler) or type(sampler).sample is Sampler.sample):
        raise UserError(f"sampler={type(sampler).__name__} does not draw by relation: use NeighborSampler")
    if isinstance(sampler, NativeSampler):
        sampler.fanouts.by_hop(rows.names)


def _read_groups(sampler: Sampler, graph: CSC, seeds: Ids) -> Ids | None:  # [num_seeds]
    """Returns the seeds' groups. Raises `UserError` unless each seed has an integer."""
    groups = sampler.groups(graph, seeds)
    return None if groups is None else int64s(f"{type(sampler).__name__}.groups", groups, len(seeds))


def _is_native(sampler: Sampler) -> TypeGuard[NativeSampler]:
    """Returns whether threads may sample without Python.

    False for a subclass that overrides `sample`.
    """
    return isinstance(sampler, NativeSampler) and type(sampler).sample is NativeSampler.sample


def _seeds(seeds: object, num_nodes: int) -> npt.NDArray[np.int64]:
    """Reads ids or a mask of nodes."""
    if seeds is None:
        return np.arange(num_nodes)
    values = array("seeds", seeds)
    if values.dtype == np.bool_:
        if values.shape != (num_nodes,):
            raise UserError(f"seeds: the mask has shape {list(values.shape)}, expected [{num_nodes}] for the nodes")
        return np.flatnonzero(values)
    ids = int64s("seeds", values)
    outside = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if len(outside):
        raise UserError(f"seeds[{outside[0]}] = {ids[outside[0]]} is out of range for {num_nodes} nodes")
    _core.Numbering(ids, num_nodes)  # rejects repeated ids
    return ids


def _pageable(num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.empty(num_bytes, np.uint8)
