"""Batches made ahead on threads, for loaders without worker processes."""

from __future__ import annotations

import copy
import os
import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import NoneType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler, _utils, get_worker_info
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, NegativeSampling

from gnnkit.errors import UserError
from gnnkit.utils.checks import MAX_THREADS, integers, whole
from gnnkit.utils.ranges import num_cores
from gnnkit_pyg.pool import RowPool, pooled_tables
from gnnkit_pyg.seeded import SeededIndices, seeded_state
from gnnkit_pyg.subgraph_sampler import SubgraphSampler

_MOST_THREADS = 4  # by default: Python's lock bounds the gain of more
_PER_THREAD = 2  # batches made or waiting per thread


_SEEDS_OF_RANKS = (
    "each rank reads all seeds of its own {name}: if these are the same on every rank, use Lightning's "
    "use_distributed_sampler=True, or sampler=torch.utils.data.DistributedSampler(range(num_seeds))"
)
_Mixin: Any = object  # PyG's class is untyped, and follows in the order of bases


class PrefetchingLoader(_Mixin):  # type: ignore[misc]
    """The part of a loader that fills recycled memory, and works ahead.

    Comes before PyG's class in the order of bases.
    """

    threads: int
    sampler_name: str  # attribute of the sampler
    pool: RowPool

    def keep_arguments(self, threads: int | None, **arguments: Any) -> Mapping[str, Any]:
        """Stores arguments of the constructor under their names, and returns them.

        Lightning passes them to a new loader with a sampler of each rank's share.

        Args:
            threads: Number of threads. Default: the available cores, at most 4.
            **arguments: The arguments that are returned.
        """
        default = min(num_cores(), _MOST_THREADS)
        self.threads = default if threads is None else whole("threads", threads, 0, MAX_THREADS)
        self.pool = RowPool()
        self.__dict__.update(arguments)
        return arguments

    def __call__(self, index: Any) -> Any:
        """Samples a batch of positions, or of a mask of them, as PyG's method does."""
        if not (isinstance(index, Tensor) and index.dtype == torch.bool):
            positions, count = integers("index", index), len(self.dataset)
            for position in positions[(positions >= count) | (positions < -count)]:
                raise UserError(f"index={position} is out of range for {count} seeds")
        return super().__call__(index)

    def filter_fn(self, out: Any) -> Any:
        """Joins a sampled subgraph with its attributes, as PyG's method does."""
        if get_worker_info() is not None:  # PyG writes to shared memory there
            return super().filter_fn(out)
        return super(PrefetchingLoader, self._pooled(self._sampler())).filter_fn(out)

    def make_batch(self, indices: SeededIndices) -> tuple[Any, torch.Generator]:
        """Samples and joins a batch, without torch's default generator.

        Returns:
            The batch, and the generator of its draws.
        """
        generator = torch.Generator().manual_seed(indices.seed)
        maker = self._pooled(self._sampler().drawing_from(generator))
        maker.transform, maker.filter_per_worker = None, False
        batch = super(PrefetchingLoader, maker).filter_fn(super(PrefetchingLoader, maker).collate_fn(indices))
        return batch, generator

    def finish_batch(self, batch: Any, generator: torch.Generator) -> Any:
        """Applies the transform in the consumer's thread."""
        if self.transform is None:
            return batch
        if not self.filter_per_worker:
            return self.transform(batch)
        with seeded_state(generator.get_state()):
            return self.transform(batch)

    def _sampler(self) -> Any:
        return getattr(self, self.sampler_name)

    def _pooled(self, sampler: BaseSampler) -> Any:
        """Returns a copy of this loader that reads tables into recycled memory."""
        reader = copy.copy(self)
        if isinstance(self.data, Data | HeteroData):
            threads = torch.get_num_threads()
            if isinstance(sampler, SubgraphSampler):
                sampler = sampler.filling(self.pool)
                threads = sampler.threads
            reader.data = pooled_tables(self.data, self.pool, threads)
        setattr(reader, self.sampler_name, sampler)
        return reader

    def _works_ahead(self) -> bool:
        """Returns whether threads can make batches without running users' code."""
        cls = type(self)
        return (
            cls.filter_fn is PrefetchingLoader.filter_fn
            and cls.collate_fn is super(PrefetchingLoader, cls).collate_fn
            and self.num_workers == 0
            and self.threads > 0
            and self._auto_collation
            and isinstance(self.data, Data | HeteroData)
            and type(self._sampler()) is SubgraphSampler
            and type(getattr(self, "neg_sampling", None)) in (NoneType, NegativeSampling)
            and self.transform_sampler_output is None
        )

    def _get_iterator(self) -> Any:
        splits = type(self.batch_sampler) is not BatchSampler or isinstance(self.sampler, DistributedSampler)
        if not splits and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            warnings.warn(_SEEDS_OF_RANKS.format(name=type(self).__name__), stacklevel=3)
        return PrefetchIterator(self) if self._works_ahead() else super()._get_iterator()


class PrefetchIterator(_SingleProcessDataLoaderIter):
    """Yields the batches of one epoch in order, whichever thread makes them."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._loader = loader
        self._depth = _PER_THREAD * loader.threads
        self._pending: deque[Future[Any]] = deque()
        self._process = os.getpid()
        executor = ThreadPoolExecutor(loader.threads, "gnnkit-loader")
        self._submit = executor.submit
        weakref.finalize(self, executor.shutdown, wait=False, cancel_futures=True)

    def _next_data(self) -> Any:
        if self._process != os.getpid():
            raise RuntimeError(
                "this iterator was made before a fork, which its threads do not survive: make a new one of the loader"
            )
        while len(self._pending) < self._depth:
            try:
                indices = self._next_index()  # type: ignore[no-untyped-call]
            except StopIteration:
                break
            self._pending.append(self._submit(self._loader.make_batch, indices))
        if not self._pending:
            raise StopIteration
        batch = self._loader.finish_batch(*self._pending.popleft().result())
        if self._pin_memory:
            return _utils.pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch
