"""Aggregations of the workers' gradients into one gradient, selected by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gnnkit.plugins import load
from gnnkit.utils.ranges import real


class Aggregation(ABC):
    """Combines the workers' gradients into one.

    An aggregation is stateless and deterministic. It is created without arguments.

    Use it for robust or normalised means: it is selected by `sync.average=NAME`
    where the gradients of all workers are available in one place.

    Examples:
        >>> import torch
        >>> from gnnkit.sync import Aggregation
        >>> class Sign(Aggregation):
        ...     '''Applies the sign of the sum.'''
        ...     def combine(self, gradients, shares):
        ...         return gradients.sum(0).sign()
        >>> gradients = torch.tensor([[1.0, -3.0], [2.0, 1.0]])
        >>> Sign().combine(gradients, shares=torch.tensor([0.5, 0.5]))
        tensor([ 1., -1.])
    """

    exact: bool = False  # True: the result equals one process's gradient

    @abstractmethod
    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        """Returns the gradient to apply, [n].

        With several servers, n is the number of parameters on one server.

        Args:
            gradients: [num_workers, n] contributions to the sum. A worker's mean
                gradient is its contribution divided by its share.
            shares: [num_workers] shares of the rows that the loss reads, 0 for a worker
                without rows. They add up to 1 unless a worker was lost.
        """


class Weighted(Aggregation):
    """The exact sum of the workers' contributions, which is the default.

    It equals the mean weighted by each worker's number of rows, and so one process's
    gradient.
    """

    exact = True

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        return gradients.sum(0)


class Mean(Aggregation):
    """The unweighted mean of the workers' mean gradients.

    Every worker with rows counts alike, however many rows it has. Contributions of
    workers without rows are added to the mean.
    """

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        have_rows = shares > 0
        means = gradients / torch.where(have_rows, shares, 1)[:, None]
        return means.sum(0) / have_rows.sum().clamp(min=1)


class Median(Aggregation):
    """The coordinate-wise median of the workers' mean gradients.

    Tolerates wrong gradients from a minority of the workers, at the price of a biased
    gradient if workers have different data. Workers without rows are ignored.
    """

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        sorted_means = _own_means(gradients, shares).sort(0).values
        middle = len(sorted_means) // 2
        return sorted_means[(len(sorted_means) - 1) // 2 : middle + 1].mean(0)


class TrimmedMean(Aggregation):
    """The coordinate-wise trimmed mean of the workers' mean gradients.

    In each coordinate, the largest and smallest values are removed and the others
    averaged (Yin et al., ICML 2018). Workers without rows are ignored.
    """

    def __init__(self, trim: float = 0.1) -> None:
        """Checks the share.

        Args:
            trim: Share of the workers removed on each side, in [0, 0.5), rounded up to
                a number of workers.
        """
        self.trim = real("trim", trim, 0, below=0.5)

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        sorted_means = _own_means(gradients, shares).sort(0).values
        count = len(sorted_means)
        cut = min(-int(-self.trim * count // 1), (count - 1) // 2)
        return sorted_means[cut : count - cut].mean(0)


def aggregation(name: str) -> Aggregation:
    """Creates the aggregation selected by `sync.average=name`.

    Raises `UserError` for a name that is not an entry point in `gnnkit.aggregation`.
    """
    cls: Callable[[], Aggregation] = load("aggregation", name)
    return cls()


def _own_means(gradients: Tensor, shares: Tensor) -> Tensor:  # [num_workers with rows, n]
    """Returns each worker's mean gradient, or a row of zeros if no worker has rows."""
    rows = shares > 0
    return gradients[rows] / shares[rows, None] if bool(rows.any()) else torch.zeros_like(gradients[:1])
