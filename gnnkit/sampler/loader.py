"""Batches of seeds with their sampled blocks and features, made ahead on native threads."""

from __future__ import annotations

import atexit
import hashlib
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from gnnkit import _core, storage
from gnnkit.graph import CSC, Block, Floats, Graph, Ids, MiniBatch
from gnnkit.partition.quality import max_over_mean
from gnnkit.sampler import frameworks
from gnnkit.sampler.base import NativeSampler, Sampler, as_ids, num_cores, wrap
from gnnkit.sampler.batching import Epoch, plan_epoch
from gnnkit.sampler.gather import as_bytes

if TYPE_CHECKING:
    import torch

_ORDER, _DRAWS = range(2)  # what an epoch's keys are for


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A sampled batch with what the loader knows of its nodes. The arrays stay as they are for as long as they are held.

    They are NumPy's, and offer `__dlpack__`: `jax.tree.map(jax.dlpack.from_dlpack, batch.arrays())`, say.
    """

    minibatch: MiniBatch
    positions: Ids  # [num_seeds] where each seed stands in the loader's `seeds`
    x: npt.NDArray[Any] | None  # [num_input_nodes, ...] features of `input_nodes`
    labels: npt.NDArray[Any] | None  # [num_nodes, ...] of the whole graph
    edge_features: npt.NDArray[Any] | None  # [num_edges, ...] of the whole graph

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
        return None if self.labels is None else self.labels[self.seeds]

    def arrays(self) -> dict[str, Any]:
        """All arrays by name; `blocks` is a list of such dictionaries, outermost hop first. What is None is left out."""
        named = {"x": self.x, "y": self.y, "seeds": self.seeds, "input_nodes": self.input_nodes}
        fields = ("indptr", "indices", "src_nodes", "edge_ids", "weight")
        blocks = [_present({field: getattr(block, field) for field in fields}) for block in self.blocks]
        return {**_present(named), "blocks": blocks}

    def to_torch(self) -> dict[str, Any]:
        """`arrays()` as tensors of the same memory."""
        return _map(frameworks.tensor, self.arrays())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> dict[str, Any]:
        """`to_torch()` on `device`: what Lightning calls for each batch."""
        return _map(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.to_torch())

    def to_pyg(self) -> Any:
        """A `torch_geometric.data.Data` with the fields and meaning of `NeighborLoader`'s.

        `x` and `y` [num_nodes_of_batch], `edge_index` in order of hop, `n_id`, `e_id` (positions in the CSC), `input_id`,
        `batch_size`, `num_sampled_nodes` and `num_sampled_edges` per hop, `edge_attr` where there are edge features. Raises
        `ValueError` for a sampler whose nodes draw anew at every hop.
        """
        return frameworks.to_pyg(self)

    def to_dgl(self) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
        """Input nodes, output nodes and DGL blocks, as its `DataLoader` yields them."""
        return frameworks.to_dgl(self)


class Loader:
    """Iterates over the epochs of one rank; each iteration is the next epoch.

    Native threads sample one batch each and gather its features without the interpreter's lock, at most `prefetch`
    batches ahead; a sampler written in Python takes the lock while it samples. Draws follow from the seed, the epoch, the
    step and the node: not from `threads`, `prefetch` or the id type, and not from the rank either, so that P ranks with
    batches of B compute at each step what one with batches of P * B does.

    Memory of features is used again when no array of a batch is left. An error in a thread is raised by the iterator. A
    loader survives a fork, an iterator that has begun does not. Lightning takes it as it is, and resumes it in mid-epoch.
    """

    def __init__(
        self,
        graph: Graph | CSC,
        sampler: Sampler,
        seeds: npt.ArrayLike | None = None,  # [num_seeds] distinct ids, or a mask [num_nodes]; None: all nodes
        batch_size: int = 1024,
        *,
        features: npt.NDArray[Any] | None = None,  # [num_nodes, ...] C-contiguous; default: the graph's
        labels: npt.NDArray[Any] | None = None,  # [num_nodes, ...]; default: the graph's
        costs: Floats | None = None,  # [num_seeds] for batching=balanced; default: `sampler.costs`
        rank: int = 0,
        world_size: int = 1,
        batching: str = "plain",
        window: int = 8,
        seed: int = 0,
        threads: int | None = None,
        prefetch: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        pin_memory: bool = False,  # features in page-locked memory, where there is a GPU
        transform: Callable[[LoadedBatch], Any] | None = None,
    ) -> None:
        """`batch_size` is a rank's, of seeds or, where the sampler has groups of them, of groups. `batching` is `plain` or `balanced` (see `plan_epoch`, as for `window`, the steps over
        which costs are evened out). `threads` defaults to the cores at hand, `prefetch` to twice as many batches.
        `transform` is called on each batch by the iterator, `LoadedBatch.to_pyg` for example. Raises `ValueError` for
        arguments that do not fit together.
        """
        source = graph if isinstance(graph, Graph) else None
        self.csc = graph.csc if isinstance(graph, Graph) else graph
        self.sampler = sampler
        self.seeds = _seeds(seeds, self.csc.num_nodes)
        self.batch_size = batch_size
        self.features = source.features if source and features is None else features
        self.labels = source.labels if source and labels is None else labels
        self.edge_features = source.edge_features if source else None
        self.rank = rank
        self.world_size = world_size
        self.batching = batching
        self.window = window
        self.seed = seed
        self.threads = threads if threads is not None else num_cores()
        self.prefetch = prefetch if prefetch is not None else 2 * self.threads
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.transform = transform
        self.costs = None if costs is None else np.ascontiguousarray(costs, np.float64)
        self._allocate = frameworks.page_locked if pin_memory else _pageable
        self._check()
        self._groups = sampler.groups(self.csc, self.seeds)
        self._num_units = len(self.seeds if self._groups is None else np.unique(self._groups))
        self._priced: Floats | None = None  # what the seeds cost, once that is asked for
        self._next = (0, 0)  # epoch and step at which the next iterator begins
        self._now = (0, 0)  # epoch and step that the last iterator is at

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        per_step = self.batch_size * self.world_size
        return self._num_units // per_step if self.drop_last else -(-self._num_units // per_step)

    def __iter__(self) -> Generator[Any, None, None]:
        # All of it waits for the first batch to be asked for: Lightning calls `iter` once more, to see whether it can.
        epoch, first = self._now = self._next
        self._next = (epoch + 1, 0)
        order, offsets = self.plan(epoch).of_rank(self.rank)
        made = self._start(epoch, (self.seeds[order], offsets, first))
        atexit.register(made.close)  # threads that sample in Python must not outlive the interpreter
        try:
            for step in range(first, len(offsets) - 1):
                positions = order[offsets[step] : offsets[step + 1]]
                # Not kept in a variable: the generator would hold its memory until the next batch.
                yield self._loaded(made, positions, (epoch, step + 1))
        finally:
            made.close()
            atexit.unregister(made.close)

    def plan(self, epoch: int) -> Epoch:
        """Which seeds every rank has at each step of `epoch`."""
        order = _core.derive(_core.derive(wrap(self.seed), epoch), _ORDER)
        return plan_epoch(
            self.seeds,
            self.batch_size,
            world_size=self.world_size,
            key=order if self.shuffle else None,
            costs=self._seed_costs() if self.batching == "balanced" else None,
            groups=self._groups,
            window=self.window,
            drop_last=self.drop_last,
        )

    def balance(self, epoch: int) -> float:
        """The largest load of a rank in `epoch` over the mean of all, by the costs of their seeds: 1 is even.

        Every rank knows it without asking the others. The first call prices the seeds, which takes a few passes over the
        graph; with `batching=balanced` they have been.
        """
        return max_over_mean(self.plan(epoch).loads(self._seed_costs()).sum(axis=0))

    def _seed_costs(self) -> Floats:  # [num_seeds]
        if self._priced is None:
            self._priced = self.sampler.costs(self.csc, self.seeds) if self.costs is None else self.costs
        return self._priced

    def set_epoch(self, epoch: int) -> None:
        """The next iterator begins at the first step of `epoch`, unless that is where the loader was told to resume."""
        if epoch != self._next[0]:
            self._next = (epoch, 0)

    def start_at(self, epoch: int, step: int = 0) -> None:
        """The next iterator begins at that step of that epoch."""
        self._next = self._now = (epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """Where the last iterator is, counting the batches that it has given out; the same on every rank."""
        epoch, step = self._now
        return {"epoch": epoch, "step": step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator goes on where `state` was taken, to the bit. Raises `ValueError` if it is that of a loader with
        other batches."""
        for name, value in self._identity().items():
            if state[name] != value:
                raise ValueError(f"the state was saved with {name}={state[name]}, this loader has {name}={value}")
        epoch, step = int(state["epoch"]), int(state["step"])
        self._now = self._next = (epoch, step) if step < len(self) else (epoch + 1, 0)

    def _start(self, epoch: int, steps: tuple[Ids, list[int], int]) -> _core.Loader:
        """The threads that make the batches of `epoch`: seeds, where each batch begins, and the first step."""
        key = _core.derive(wrap(self.seed), epoch)
        sampler = self.sampler
        storage.expect_random_reads(self.features)
        return _core.Loader(
            sampler.reading(self.csc) if _is_native(sampler) else self.csc,
            sampler.native() if _is_native(sampler) else sampler,
            (*steps, _core.derive(key, _DRAWS)),
            None if self.features is None else as_bytes("features", self.features),
            self._allocate,
            self.threads,
            self.prefetch,
        )

    def _loaded(self, made: _core.Loader, positions: Ids, now: tuple[int, int]) -> Any:
        batch, buffer = made.take()
        minibatch = self.sampler.batch(batch) if _is_native(self.sampler) else batch
        num_rows = len(minibatch.input_nodes)
        x = None if buffer is None or self.features is None else _rows(buffer, self.features, num_rows)
        self._now = now
        loaded = LoadedBatch(minibatch, positions, x, self.labels, self.edge_features)
        return loaded if self.transform is None else self.transform(loaded)

    def _identity(self) -> dict[str, Any]:
        """What the batches follow from, but for the graph and the sampler."""
        digest = hashlib.blake2b(self.seeds.tobytes(), digest_size=8)
        if self.costs is not None:
            digest.update(self.costs.tobytes())
        names = ("batch_size", "world_size", "batching", "window", "seed", "shuffle", "drop_last")
        return {name: getattr(self, name) for name in names} | {"seeds": digest.hexdigest()}

    def _check(self) -> None:
        """Raises `ValueError` for the first argument that does not fit."""
        for name in ("batch_size", "world_size", "window", "threads", "prefetch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} is out of range for world_size={self.world_size}")
        if self.batching not in ("plain", "balanced"):
            raise ValueError(f"batching={self.batching} must be plain or balanced")
        if self.costs is not None and self.costs.shape != self.seeds.shape:
            raise ValueError(f"costs has shape {self.costs.shape}, expected one for each of {len(self.seeds)} seeds")
        for name in ("features", "labels"):
            rows = getattr(self, name)
            if rows is not None and (rows.ndim == 0 or len(rows) != self.csc.num_sources or rows.dtype.hasobject):
                shape = f"{rows.dtype} of shape {rows.shape}"
                raise ValueError(
                    f"{name} must have a row of fixed size for each of {self.csc.num_sources} nodes, got {shape}"
                )


def _is_native(sampler: Sampler) -> TypeGuard[NativeSampler]:
    """Whether threads may sample without calling Python: not where a subclass samples in its own way."""
    return isinstance(sampler, NativeSampler) and type(sampler).sample is NativeSampler.sample


def _seeds(seeds: npt.ArrayLike | None, num_nodes: int) -> npt.NDArray[np.int64]:
    if seeds is None:
        return np.arange(num_nodes)
    array = np.asarray(seeds)
    if array.dtype == np.bool_:
        if array.shape != (num_nodes,):
            raise ValueError(f"the mask of seeds has shape {array.shape}, expected ({num_nodes},)")
        return np.flatnonzero(array)
    ids = as_ids("seeds", array)
    _core.Numbering(ids, num_nodes)  # refuses what is out of range or repeated
    return ids


def _rows(buffer: npt.NDArray[np.uint8], table: npt.NDArray[Any], num_rows: int) -> npt.NDArray[Any]:
    """The first rows of `buffer`, as rows of `table`."""
    shape = (num_rows, *table.shape[1:])
    return buffer[: math.prod(shape) * table.itemsize].view(table.dtype).reshape(shape)


def _pageable(num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.empty(num_bytes, np.uint8)


def _present(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _map(convert: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """`arrays` converted, those of the blocks too."""
    blocks = [{name: convert(array) for name, array in block.items()} for block in arrays["blocks"]]
    return {name: blocks if name == "blocks" else convert(value) for name, value in arrays.items()}
