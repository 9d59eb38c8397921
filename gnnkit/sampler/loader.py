"""The loader of one rank: batches of seeds, made ahead on native threads."""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from gnnkit import _core, storage
from gnnkit.checks import MAX_THREADS, array, int64s, whole
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Graph, Ids, MiniBatch
from gnnkit.partition.quality import max_over_mean
from gnnkit.ranges import num_cores
from gnnkit.sampler import frameworks
from gnnkit.sampler.base import NativeSampler, Sampler, wrap
from gnnkit.sampler.batching import Epoch, Schedule, check_costs, draws_key, order_key
from gnnkit.sampler.contract import check_batch
from gnnkit.sampler.gather import as_bytes
from gnnkit.sampler.loaded import LoadedBatch
from gnnkit.sampler.tables import Tables
from gnnkit.spans import Spans, active

_MAX_PREFETCH = 2**16


class Loader:
    """The iterable over the epochs of one rank. Each iteration is the next epoch.

    Native threads sample one batch each and gather the features without the
    interpreter's lock, at most `prefetch` batches ahead. A sampler written in Python
    samples under the lock, and the loader checks such batches.

    Draws follow from the seed, the epoch, the step and the node. Draws do not depend on
    `threads`, `prefetch` and the id type. P ranks with batches of B have the same seeds
    at each step as one rank with batches of P * B. Where `sampler.rank_invariant` is
    true, the neighbourhood of each seed is the same too.

    Memory of features is used again when no array of a batch is left. An error in a
    thread is raised by the iterator. A loader survives a fork. An iterator that has
    begun does not.

    Lightning takes a loader for training, validation, test and prediction, announces
    each epoch through `batch_sampler`, and resumes in mid-epoch. Give `shuffle=False`
    where the order of the seeds matters, as in prediction. Give `batch_size` to
    `self.log`, because Lightning's guess from the first tensor is wrong.

    Args:
        graph: a `Graph`, a `CSC`, or PyG's `Data` for `Graph.from_pyg`.
        sampler: draws the neighbourhood of the seeds. Lists of fanouts are refused.
        seeds: [num_seeds] distinct ids, or a mask [num_nodes]. Default: all nodes.
        batch_size: seeds of this rank in a batch, or groups of seeds where the sampler
            has groups.
        features: [num_nodes, ...] C-contiguous. Default: features of `graph`.
        labels: [num_nodes, ...]. Default: labels of `graph`.
        costs: [num_seeds] for balanced batches. Default: `sampler.costs`.
        rank: this rank.
        world_size: number of ranks.
        batching: plain, or balanced for batches of equal cost (`plan_epoch`).
        window: steps that share costs evenly.
        seed: any whole number, modulo 2^64.
        threads: threads that make batches. Default: the cores at hand.
        prefetch: batches made ahead. Default: two a thread.
        shuffle: draw the order of the seeds anew in each epoch.
        drop_last: leave out the seeds that do not fill a step.
        repeat: let a rank without a seed in the last step repeat a seed of another
            rank, as the mean loss of an empty batch is NaN. False: its batch is empty,
            and all ranks together have each seed once, as in prediction.
        pin_memory: features in page-locked memory, if there is a GPU.
        transform: called on each batch by the iterator, such as `LoadedBatch.to_pyg`.
    """

    _planned: tuple[int, Epoch] | None = None  # the last plan: strategies ask for the one that an iterator makes

    def __init__(
        self,
        graph: Graph | CSC | Any,
        sampler: Sampler,
        seeds: npt.ArrayLike | None = None,
        batch_size: int = 1024,
        *,
        features: npt.NDArray[Any] | None = None,
        labels: npt.NDArray[Any] | None = None,
        costs: Floats | None = None,
        rank: int = 0,
        world_size: int = 1,
        batching: str = "plain",
        window: int = 8,
        seed: int = 0,
        threads: int | None = None,
        prefetch: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        repeat: bool = True,
        pin_memory: bool = False,
        transform: Callable[[LoadedBatch], Any] | None = None,
    ) -> None:
        """Checks the arguments. Raises `UserError` with the name of a wrong one."""
        known = graph if isinstance(graph, CSC) else untyped(graph)
        self.csc = known if isinstance(known, CSC) else known.csc
        self.seeds = _seeds(seeds, self.csc.num_nodes)
        self.rank = whole("rank", rank, 0)
        self.seed = whole("seed", seed)
        self.threads = num_cores() if threads is None else whole("threads", threads, 1, MAX_THREADS)
        self.prefetch = 2 * self.threads if prefetch is None else whole("prefetch", prefetch, 1, _MAX_PREFETCH)
        self.transform = transform
        self.tables = Tables.of(known, features, labels)
        self.costs = None if costs is None else check_costs("costs", costs, len(self.seeds))
        # Not `sampler`: Lightning takes an attribute of that name for one of torch's.
        self._sampler = _check_sampler(sampler).with_features(self.tables.features)
        groups = sampler.groups(self.csc, self.seeds)
        if groups is not None:
            groups = int64s(f"{type(sampler).__name__}.groups", groups, len(self.seeds))
        self.schedule = Schedule(
            self.seeds, batch_size, world_size, batching, window, shuffle, drop_last, groups, repeat=repeat
        )
        if self.rank >= self.schedule.world_size:
            raise UserError(f"rank={rank} is out of range for world_size={world_size}")
        self._allocate = frameworks.page_locked if pin_memory else _pageable
        self._priced = self.costs  # by the sampler, once asked for
        self._next = (0, 0)  # epoch and step at the begin of the next iterator
        self._now = (0, 0)  # epoch and step of the last iterator
        self._spans, self._begun = active(), 0.0  # of a trace, and seconds of the clock at the last epoch

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return self.schedule.num_steps

    def __iter__(self) -> Generator[Any, None, None]:
        # Nothing happens before the first `next`, as Lightning calls `iter` too often.
        epoch, first = self._now = self._next
        self._next = (epoch + 1, 0)
        order, offsets = self.plan(epoch).of_rank(self.rank)
        made = self._start(epoch, (self.seeds[order], offsets, first))
        atexit.register(made.close)  # threads that sample in Python must not outlive the interpreter
        try:
            for step in range(first, len(offsets) - 1):
                positions = order[offsets[step] : offsets[step + 1]]
                # Not in a variable. A variable keeps the memory until the next batch.
                yield self._loaded(made, positions, (epoch, step + 1))
        finally:
            made.close()
            atexit.unregister(made.close)

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """The receiver of Lightning's `set_epoch`: the loader itself, as `sampler`."""
        return SimpleNamespace(sampler=self)

    def plan(self, epoch: int) -> Epoch:
        """Cuts the seeds of all ranks into the batches of `epoch`."""
        if self._planned is None or self._planned[0] != epoch:
            key = order_key(wrap(self.seed), epoch)
            costs = self._seed_costs() if self.schedule.batching == "balanced" else None
            self._planned = (epoch, self.schedule.epoch(key, costs))
        return self._planned[1]

    def deal(self, shares: Sequence[float]) -> None:
        """Deals out the seeds of a step in shares, [world_size] with a sum of 1."""
        self.schedule, self._planned = replace(self.schedule, shares=tuple(shares)), None

    def balance(self, epoch: int) -> float:
        """Returns the largest load of a rank in `epoch` over the mean of all ranks.

        1 is even.

        A load is the sum of the costs of a rank's seeds. Every rank knows all loads
        without communication. The first call computes the costs, in a few passes over
        the graph, unless batching is balanced.
        """
        return max_over_mean(self.plan(epoch).loads(self._seed_costs()).sum(axis=0))

    def _seed_costs(self) -> Floats:  # [num_seeds]
        if self._priced is None:
            costs = self._sampler.costs(self.csc, self.seeds)
            self._priced = check_costs(f"{type(self._sampler).__name__}.costs", costs, len(self.seeds))
        return self._priced

    def set_epoch(self, epoch: int) -> None:
        """Lets the next iterator begin at the first step of `epoch`.

        Keeps a later step where the loader resumes in this epoch.
        """
        if epoch != self._next[0]:
            self._next = (epoch, 0)

    def start_at(self, epoch: int, step: int = 0) -> None:
        """Lets the next iterator begin at `step` of `epoch`."""
        self._next = self._now = (epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of the last iterator, counting the batches given out.

        The same on every rank.
        """
        epoch, step = self._now
        return {"epoch": epoch, "step": step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iterator go on from `state`, to the bit.

        Raises `UserError` for the state of a loader with other batches.
        """
        for name, value in self._identity().items():
            if state[name] != value:
                raise UserError(f"the state was saved with {name}={state[name]}, this loader has {name}={value}")
        epoch, step = int(state["epoch"]), int(state["step"])
        self._now = self._next = (epoch, step) if step < len(self) else (epoch + 1, 0)

    def _identity(self) -> dict[str, Any]:
        """Names all that the batches follow from, but for the graph and the sampler."""
        return {"seed": self.seed, **self.schedule.identity(self.costs)}

    def _start(self, epoch: int, steps: tuple[Ids, list[int], int]) -> _core.Loader:
        """Starts the threads that make the batches of `epoch`.

        Args:
            epoch: number of the epoch.
            steps: seeds, begins of batches with the end of the last, and first step.
        """
        sampler, features = self._sampler, self.tables.features
        storage.expect_random_reads(features)
        self._begun = time.perf_counter()
        return _core.Loader(
            sampler.reading(self.csc) if _is_native(sampler) else self.csc,
            sampler.native() if _is_native(sampler) else _Checked(sampler),
            (*steps, draws_key(wrap(self.seed), epoch)),
            None if features is None else as_bytes("features", features),
            self._allocate,
            self.threads,
            self.prefetch,
        )

    def _loaded(self, made: _core.Loader, positions: Ids, now: tuple[int, int]) -> Any:
        batch, buffer = made.take()
        if self._spans is not None:
            _add_work(self._spans, made, self._begun, now[1] - 1)
        minibatch = self._sampler.batch(batch) if _is_native(self._sampler) else batch
        features = self.tables.features
        x = None if buffer is None or features is None else _first_rows(buffer, features, len(minibatch.input_nodes))
        self._now = now
        loaded = LoadedBatch(minibatch, positions, x, self.tables)
        return loaded if self.transform is None else self.transform(loaded)


class _Checked:
    """A sampler written in Python. Checks each batch in the thread of the batch."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        batch = self._sampler.sample(graph, seeds, key=key)
        if type(self._sampler).sample is Sampler.sample:  # has checked every hop
            return batch
        return check_batch(f"{type(self._sampler).__name__}.sample", batch, graph, seeds, self._sampler.num_hops)


def untyped(value: Any) -> Graph:
    """Returns a graph, or reads one of PyG or DGL.

    Raises `UserError` for types in the latter, which batches would drop. A `Graph` with
    types is taken, as its user holds `edge_types`.
    """
    graph = Graph.of(value)
    if graph is not value and graph.schema.several:
        raise UserError(
            f"{type(value).__name__} has types, and batches have none: Graph.from_pyg reads them, and "
            "graph.edge_types[block.edge_ids] are those of a block"
        )
    return graph


def _add_work(spans: Spans, made: _core.Loader, begun: float, step: int) -> None:
    """Adds the work of a native thread on the batch taken last.

    Args:
        spans: The record.
        made: The loader of the batch.
        begun: Seconds of the clock when the loader was made.
        step: Number of the batch.
    """
    thread, begin, drawn, gathered = made.last_work()
    track = f"sampling thread {thread}"
    spans.add(track, f"draw batch {step}", begun + begin, begun + drawn)
    if gathered > drawn:
        spans.add(track, f"gather batch {step}", begun + drawn, begun + gathered)


def _check_sampler(sampler: object) -> Sampler:
    if not isinstance(sampler, Sampler):
        hint = f": NeighborSampler({sampler})" if isinstance(sampler, list | tuple) else ""
        raise UserError(f"sampler={sampler} must be a Sampler, got {type(sampler).__name__}{hint}")
    return sampler


def _is_native(sampler: Sampler) -> TypeGuard[NativeSampler]:
    """Says whether threads may sample without Python.

    False for a subclass with another `sample`.
    """
    return isinstance(sampler, NativeSampler) and type(sampler).sample is NativeSampler.sample


def _seeds(seeds: npt.ArrayLike | None, num_nodes: int) -> npt.NDArray[np.int64]:
    if seeds is None:
        return np.arange(num_nodes)
    given = array("seeds", seeds)
    if given.dtype == np.bool_:
        if given.shape != (num_nodes,):
            raise UserError(f"the mask of seeds has shape {list(given.shape)}, expected [{num_nodes}]")
        return np.flatnonzero(given)
    ids = int64s("seeds", given)
    _core.Numbering(ids, num_nodes)  # refuses ids out of range or repeated
    return ids


def _first_rows(buffer: npt.NDArray[np.uint8], table: npt.NDArray[Any], num_rows: int) -> npt.NDArray[Any]:
    """Views the first rows of `buffer` as rows of `table`."""
    shape = (num_rows, *table.shape[1:])
    return buffer[: math.prod(shape) * table.itemsize].view(table.dtype).reshape(shape)


def _pageable(num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.empty(num_bytes, np.uint8)
