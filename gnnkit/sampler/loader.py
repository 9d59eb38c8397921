"""Batches of seeds with their sampled blocks and features, made ahead on native
threads.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from gnnkit import _core, storage
from gnnkit.checks import MAX_THREADS, array, int64s, whole
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Graph, Ids, MiniBatch
from gnnkit.partition.quality import max_over_mean
from gnnkit.sampler import frameworks
from gnnkit.sampler.base import NativeSampler, Sampler, num_cores, wrap
from gnnkit.sampler.batching import Epoch, Schedule, check_costs
from gnnkit.sampler.contract import check_batch
from gnnkit.sampler.gather import as_bytes

if TYPE_CHECKING:
    import torch

_ORDER, _DRAWS = range(2)  # what an epoch's keys are for
_MAX_PREFETCH = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The rows of all nodes and edges of a graph.

    The edges stand in the CSC's order.
    """

    features: npt.NDArray[Any] | None = None  # [num_nodes, ...] C-contiguous
    labels: npt.NDArray[Any] | None = None  # [num_nodes, ...]
    edge_features: npt.NDArray[Any] | None = None  # [num_edges, ...]
    edge_weight: Floats | None = None  # [num_edges]
    edge_positions: Ids | None = None  # [num_edges] place of each edge in the list that the graph was made from

    @classmethod
    def of(cls, graph: Graph | CSC, features: object | None, labels: object | None) -> Tables:
        """Takes the graph's features and labels, unless others are given.

        Raises `UserError` for a table without a row of fixed size for each node.

        Args:
            graph: whose tables are wanted. A CSC has weights only.
            features: [num_nodes, ...] instead of the graph's, or None.
            labels: [num_nodes, ...] instead of the graph's, or None.
        """
        known = cls(edge_weight=graph.weight) if isinstance(graph, CSC) else _tables(graph)
        num_nodes = graph.num_sources if isinstance(graph, CSC) else graph.num_nodes
        given = {"features": features, "labels": labels}
        return replace(
            known, **{name: _table(name, rows, num_nodes) for name, rows in given.items() if rows is not None}
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A sampled batch with the rows of its nodes.

    Its arrays stay unchanged while they are held.

    The arrays are NumPy's, and offer `__dlpack__`. For example
    `jax.tree.map(jax.dlpack.from_dlpack, batch.arrays())`.
    """

    minibatch: MiniBatch
    positions: Ids  # [num_seeds] where each seed stands in the loader's `seeds`
    x: npt.NDArray[Any] | None  # [num_input_nodes, ...] features of `input_nodes`
    tables: Tables  # of the whole graph

    @property
    def seeds(self) -> Ids:  # [num_seeds] global ids
        return self.minibatch.seeds

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One per hop, outermost first."""
        return tuple(self.minibatch.blocks)

    @property
    def input_nodes(self) -> Ids:  # [num_input_nodes] global ids; the seeds come first
        return self.minibatch.input_nodes

    @property
    def y(self) -> npt.NDArray[Any] | None:  # [num_seeds, ...]
        """The labels of the seeds."""
        return None if self.tables.labels is None else self.tables.labels[self.seeds]

    def arrays(self) -> dict[str, Any]:
        """Returns all arrays by name, but for None.

        `blocks` is a list of such dictionaries, outermost hop first.
        """
        named = {"x": self.x, "y": self.y, "seeds": self.seeds, "input_nodes": self.input_nodes}
        fields = ("indptr", "indices", "src_nodes", "edge_ids", "weight")
        blocks = [_present({field: getattr(block, field) for field in fields}) for block in self.blocks]
        return {**_present(named), "blocks": blocks}

    def to_torch(self) -> dict[str, Any]:
        """Returns `arrays()` as tensors of the same memory."""
        return _map(frameworks.tensor, self.arrays())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> dict[str, Any]:
        """Copies `to_torch()` to a device. Lightning calls it for each batch.

        Args:
            device: of torch.
            non_blocking: whether to return before the copy is done.
        """
        return _map(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.to_torch())

    def to_pyg(self) -> Any:
        """Makes a `torch_geometric.data.Data` with the fields and meaning of
        `NeighborLoader`'s.

        Of the nodes of the batch it holds `x`, `y` and `n_id`, of its edges
        `edge_index` in order of hop, `edge_attr`, `edge_weight` and `e_id`. Beside them
        `input_id`, `batch_size`, and `num_sampled_nodes` and `num_sampled_edges` per
        hop.

        `e_id` counts the edges as the list that the graph was made from, so that
        `data.edge_attr[e_id]` are rows of the user's own `Data`. For a `CSC`, and a
        `Graph` made of one, it counts as in the CSC. Attributes of edges are absent
        where blocks have no edge ids. `importance` [num_edges] holds a sampler's
        importance weights.

        Other attributes of nodes (`pos`, `train_mask`, ...) are absent: index them by
        `n_id`. Raises `UserError` for a sampler whose nodes draw anew at every hop.
        """
        return frameworks.to_pyg(self)

    def to_dgl(self) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
        """Returns input nodes, output nodes and blocks, as DGL's `DataLoader` yields
        them.
        """
        return frameworks.to_dgl(self)


class Loader:
    """Iterates over the epochs of one rank. Each iteration is the next epoch.

    Native threads sample one batch each and gather its features without the
    interpreter's lock, at most `prefetch` batches ahead. A sampler written in Python
    takes the lock while it samples, and its batches are checked.

    Draws follow from the seed, the epoch, the step and the node. They do not depend on
    `threads`, `prefetch` and the id type. P ranks with batches of B have the same seeds
    at each step as one rank with batches of P * B. Where `sampler.rank_invariant` is
    true, they also draw the same neighbourhood of each seed.

    Memory of features is used again when no array of a batch is left. An error in a
    thread is raised by the iterator. A loader survives a fork. An iterator that has
    begun does not.

    Lightning takes a loader for training, validation, test and prediction, announces
    each epoch through `batch_sampler`, and resumes it in mid-epoch. Give
    `shuffle=False` where the order of the seeds matters, as in prediction. Give
    `self.log` the `batch_size`, which Lightning guesses wrongly from the first tensor.
    """

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
        pin_memory: bool = False,
        transform: Callable[[LoadedBatch], Any] | None = None,
    ) -> None:
        """Checks the arguments. Raises `UserError` naming the one that does not fit.

        Args:
            graph: a `Graph`, a `CSC`, or PyG's `Data`, which `Graph.from_pyg` reads.
            sampler: draws the neighbourhood of the seeds. Lists of fanouts are refused.
            seeds: [num_seeds] distinct ids, or a mask [num_nodes]. Default: all nodes.
            batch_size: seeds of this rank in a batch, or groups of seeds where the
                sampler has groups.
            features: [num_nodes, ...] C-contiguous. Default: the graph's.
            labels: [num_nodes, ...]. Default: the graph's.
            costs: [num_seeds] for balanced batches. Default: `sampler.costs`.
            rank: whose batches these are.
            world_size: number of ranks.
            batching: plain, or balanced, which gives batches of equal cost
                (`plan_epoch`).
            window: steps over which costs are evened out.
            seed: any whole number, modulo 2^64.
            threads: threads that make batches. Default: the cores at hand.
            prefetch: batches made ahead. Default: two a thread.
            shuffle: draw the order of the seeds anew in each epoch.
            drop_last: leave out the seeds that do not fill a step.
            pin_memory: features in page-locked memory, where there is a GPU.
            transform: called on each batch by the iterator, such as
                `LoadedBatch.to_pyg`.
        """
        known = graph if isinstance(graph, CSC) else Graph.of(graph)
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
        self._sampler = _check_sampler(sampler)
        groups = sampler.groups(self.csc, self.seeds)
        if groups is not None:
            groups = int64s(f"{type(sampler).__name__}.groups", groups, len(self.seeds))
        self.schedule = Schedule(self.seeds, batch_size, world_size, batching, window, shuffle, drop_last, groups)
        if self.rank >= self.schedule.world_size:
            raise UserError(f"rank={rank} is out of range for world_size={world_size}")
        self._allocate = frameworks.page_locked if pin_memory else _pageable
        self._priced = self.costs  # those of the sampler, once they are asked for
        self._next = (0, 0)  # epoch and step at which the next iterator begins
        self._now = (0, 0)  # epoch and step that the last iterator is at

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return self.schedule.num_steps

    def __iter__(self) -> Generator[Any, None, None]:
        # Nothing happens before the first `next`: Lightning calls `iter` once too often.
        epoch, first = self._now = self._next
        self._next = (epoch + 1, 0)
        order, offsets = self.plan(epoch).of_rank(self.rank)
        made = self._start(epoch, (self.seeds[order], offsets, first))
        atexit.register(made.close)  # threads that sample in Python must not outlive the interpreter
        try:
            for step in range(first, len(offsets) - 1):
                positions = order[offsets[step] : offsets[step + 1]]
                # Not in a variable, which would hold its memory until the next batch.
                yield self._loaded(made, positions, (epoch, step + 1))
        finally:
            made.close()
            atexit.unregister(made.close)

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Says that the loader itself wants `set_epoch`, which Lightning calls on
        `batch_sampler.sampler`.
        """
        return SimpleNamespace(sampler=self)

    def plan(self, epoch: int) -> Epoch:
        """Cuts the seeds of all ranks into the batches of `epoch`."""
        key = _core.derive(_core.derive(wrap(self.seed), epoch), _ORDER)
        return self.schedule.epoch(key, self._seed_costs() if self.schedule.batching == "balanced" else None)

    def balance(self, epoch: int) -> float:
        """Returns the largest load of a rank in `epoch` over the mean of all ranks.

        1 is even.

        A load is the sum of the costs of a rank's seeds. Every rank knows all loads
        without asking the others. The first call computes the costs, in a few passes
        over the graph, unless batching is balanced.
        """
        return max_over_mean(self.plan(epoch).loads(self._seed_costs()).sum(axis=0))

    def _seed_costs(self) -> Floats:  # [num_seeds]
        if self._priced is None:
            costs = self._sampler.costs(self.csc, self.seeds)
            self._priced = check_costs(f"{type(self._sampler).__name__}.costs", costs, len(self.seeds))
        return self._priced

    def set_epoch(self, epoch: int) -> None:
        """Lets the next iterator begin at the first step of `epoch`, or where the
        loader resumes in it.
        """
        if epoch != self._next[0]:
            self._next = (epoch, 0)

    def start_at(self, epoch: int, step: int = 0) -> None:
        """The next iterator begins at that step of that epoch."""
        self._next = self._now = (epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """Says where the last iterator is, counting the batches given out.

        The same on every rank.
        """
        epoch, step = self._now
        return {"epoch": epoch, "step": step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iterator go on where `state` was taken, to the bit.

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
            steps: seeds, where each batch begins and the last ends, and the first step.
        """
        key = _core.derive(wrap(self.seed), epoch)
        sampler, features = self._sampler, self.tables.features
        storage.expect_random_reads(features)
        return _core.Loader(
            sampler.reading(self.csc) if _is_native(sampler) else self.csc,
            sampler.native() if _is_native(sampler) else _Checked(sampler),
            (*steps, _core.derive(key, _DRAWS)),
            None if features is None else as_bytes("features", features),
            self._allocate,
            self.threads,
            self.prefetch,
        )

    def _loaded(self, made: _core.Loader, positions: Ids, now: tuple[int, int]) -> Any:
        batch, buffer = made.take()
        minibatch = self._sampler.batch(batch) if _is_native(self._sampler) else batch
        features = self.tables.features
        x = None if buffer is None or features is None else _first_rows(buffer, features, len(minibatch.input_nodes))
        self._now = now
        loaded = LoadedBatch(minibatch, positions, x, self.tables)
        return loaded if self.transform is None else self.transform(loaded)


class _Checked:
    """A sampler written in Python, whose batches are checked in the thread that makes
    them.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        batch = self._sampler.sample(graph, seeds, key=key)
        if type(self._sampler).sample is Sampler.sample:  # has checked every hop
            return batch
        return check_batch(f"{type(self._sampler).__name__}.sample", batch, graph, seeds, self._sampler.num_hops)


def _check_sampler(sampler: object) -> Sampler:
    if not isinstance(sampler, Sampler):
        hint = f": NeighborSampler({sampler})" if isinstance(sampler, list | tuple) else ""
        raise UserError(f"sampler={sampler} must be a Sampler, got {type(sampler).__name__}{hint}")
    return sampler


def _is_native(sampler: Sampler) -> TypeGuard[NativeSampler]:
    """Whether threads may sample without calling Python: not where a subclass samples
    in its own way.
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
    _core.Numbering(ids, num_nodes)  # refuses what is out of range or repeated
    return ids


def _tables(graph: Graph) -> Tables:
    return Tables(graph.features, graph.labels, graph.edge_features, graph.csc.weight, graph.edge_positions)


def _table(name: str, values: object, num_nodes: int) -> npt.NDArray[Any]:
    """Reads a table with a row for each node."""
    rows = array(name, values)
    if rows.ndim == 0 or len(rows) != num_nodes or rows.dtype.hasobject:
        shape = f"{rows.dtype} of shape {list(rows.shape)}"
        raise UserError(f"{name} must have a row of fixed size for each of {num_nodes} nodes, got {shape}")
    return rows


def _first_rows(buffer: npt.NDArray[np.uint8], table: npt.NDArray[Any], num_rows: int) -> npt.NDArray[Any]:
    """Views the first rows of `buffer` as rows of `table`."""
    shape = (num_rows, *table.shape[1:])
    return buffer[: math.prod(shape) * table.itemsize].view(table.dtype).reshape(shape)


def _pageable(num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.empty(num_bytes, np.uint8)


def _present(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _map(convert: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Converts all arrays, of the blocks too."""
    blocks = [{name: convert(array) for name, array in block.items()} for block in arrays["blocks"]]
    return {name: blocks if name == "blocks" else convert(value) for name, value in arrays.items()}
