"""Batches that draw the same in any number of worker processes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gnnkit import _core

_MAX_SEED = 2**63 - 1


class SeededIndices(list[Any]):
    """The positions of a batch, and the seed of its random draws."""

    seed: int


class _Positions(Dataset[int]):
    """Positions 0..length-1. A batch of them keeps its seed on the way to a worker."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        return range(self.length)[position]

    def __getitems__(self, positions: list[int]) -> list[int]:
        return positions


class _SeededBatches:
    """A batch sampler that gives each batch a seed, drawn once per epoch.

    The seed is drawn after the first batch, so a shuffled order is PyG's.
    """

    def __init__(self, batches: Any, generator: torch.Generator | None) -> None:
        self.batches = batches
        self.generator = generator

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededIndices]:
        epoch = None
        for position, indices in enumerate(self.batches):
            if epoch is None:
                epoch = int(torch.randint(_MAX_SEED, (1,), generator=self.generator))
            batch = SeededIndices(indices)
            batch.seed = _core.derive(epoch, position)
            yield batch


class SeededLoader(DataLoader[Any]):
    """A data loader whose batches draw under seeds of the main process.

    While a batch is sampled, torch's default generator on the CPU has the batch's seed.
    The batches then follow from the loader's `generator`, or else from torch's default
    one. They are the same for any `num_workers`.
    """

    def __init__(self, dataset: Any, *, collate_fn: Callable[[Any], Any], **kwargs: Any) -> None:
        """Wraps positions and collation.

        Args:
            dataset: positions of the loader's inputs.
            collate_fn: samples a batch of positions.
            **kwargs: arguments of `torch.utils.data.DataLoader`.
        """
        collate = functools.partial(_collate, collate_fn)
        super().__init__(_Positions(len(dataset)), collate_fn=collate, **kwargs)

    @property
    def _index_sampler(self) -> Any:
        indices = super()._index_sampler
        return _SeededBatches(indices, self.generator) if self._auto_collation else indices


@contextlib.contextmanager
def seeded_state(state: Tensor) -> Iterator[None]:
    """Gives torch's default generator another state within the block."""
    outer = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(outer)


def _collate(collate_fn: Callable[[Any], Any], indices: Any) -> Any:
    seed = getattr(indices, "seed", None)
    if seed is None:
        return collate_fn(indices)
    with seeded_state(torch.Generator().manual_seed(seed).get_state()):
        return collate_fn(indices)
