"""From the gradients of all workers to the gradient of one step, by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.plugins import load
from gnnkit.ranges import real, shown

TRIM = 0.1  # share of the workers, on each side


class Aggregation(ABC):
    """From the workers' gradients to one gradient.

    Has no state. Equal inputs give equal bits. Arguments of the constructor are keys of
    `sync`.
    """

    exact: bool = False  # True: the gradient is that of one process

    @abstractmethod
    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        """Returns the gradient to apply, [n].

        With several servers, n counts the parameters of one server.

        Args:
            gradients: Parts of the sum, [num_workers, n]. A worker's own mean gradient
                is its part divided by its share.
            shares: Parts of the rows that the loss reads, [num_workers]. 0 for a worker
                without rows. The sum is 1 while all workers live.
        """


class Weighted(Aggregation):
    """The exact sum, which is the mean weighted by rows."""

    exact = True

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        return gradients.sum(0)


class Mean(Aggregation):
    """The mean of the workers' own mean gradients, whatever their numbers of rows.

    Parts of workers without rows are added to the sum, and not counted.
    """

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        have_rows = shares > 0
        means = gradients / torch.where(have_rows, shares, 1)[:, None]
        return means.sum(0) / have_rows.sum().clamp(min=1)


class Median(Aggregation):
    """The median of the own mean gradients, for each number on its own.

    Of the workers that have rows. Bears wrong gradients of fewer than half of these.
    """

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        ordered = _own_means(gradients, shares).sort(0).values
        middle = len(ordered) // 2
        return ordered[(len(ordered) - 1) // 2 : middle + 1].mean(0)


class TrimmedMean(Aggregation):
    """The mean without the largest and smallest values, for each number on its own.

    Of the own mean gradients of the workers that have rows (Yin et al., ICML 2018).
    """

    def __init__(self, trim: float = TRIM) -> None:
        """Checks the share.

        Args:
            trim: Share of the workers left out on each side, in [0, 0.5). The number is
                rounded up. Default: 0.1.
        """
        self.trim = real("sync.trim", trim, 0, below=0.5)

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        ordered = _own_means(gradients, shares).sort(0).values
        count = len(ordered)
        cut = min(-int(-self.trim * count // 1), (count - 1) // 2)
        return ordered[cut : count - cut].mean(0)


def aggregation(name: str, trim: float | None) -> Aggregation:
    """Makes the aggregation `sync.average=name` of any installed package.

    Raises `UserError` for unknown names, and for `sync.trim` where the aggregation has
    no such argument.

    Args:
        name: Name of an entry point of the group `gnnkit.aggregation`.
        trim: Value of `sync.trim`. None: the default of the aggregation.
    """
    cls: Callable[..., Aggregation] = load("aggregation", name)
    if trim is None:
        return cls()
    if "trim" not in inspect.signature(cls).parameters:
        raise UserError(f"sync.trim={shown(trim)}: sync.average={name} leaves no workers out, leave the key out")
    return cls(trim=trim)


def _own_means(gradients: Tensor, shares: Tensor) -> Tensor:  # [num_workers with rows, n]
    """Returns the own mean gradients. One row of zeros where no worker has rows."""
    rows = shares > 0
    return gradients[rows] / shares[rows, None] if bool(rows.any()) else torch.zeros_like(gradients[:1])
