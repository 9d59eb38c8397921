"""Batch normalisation over the rows of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.engine.pool import Pools
from gnnkit.errors import UserError
from gnnkit.kernels.sums import wide


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation (Ioffe & Szegedy, ICML 2015), exact on any number of ranks.

    Parameters, buffers and names are torch's. In training, mean and variance cover a
    layer's rows on all ranks: all nodes of a full graph, or the union of the nodes in
    the ranks' batches, each counted once. With `trainer.accumulate`, each batch has its
    own statistics, as in torch. Evaluation uses the running statistics, which are equal
    on all ranks. In an epoch without an exchange (`strategy.local_iterations`), each
    rank uses its own rows, and the running statistics do not change. Every rank must
    call this module, even without rows. Unsupported with `sync.on_lost=continue`.

    Use it instead of torch's `BatchNorm1d`, which would compute statistics of one
    rank's rows. It takes the layer's adjacency as a second argument, which
    `gnnkit.nn.call` passes.

    Examples:
        >>> from gnnkit.nn import BatchNorm
        >>> norm = BatchNorm(16)
        >>> sorted(norm.state_dict())  # as in torch
        ['bias', 'num_batches_tracked', 'running_mean', 'running_var', 'weight']
    """

    reads_adjacency = True

    if TYPE_CHECKING:  # torch annotates it as Any

        def __call__(self, x: Tensor, adjacency: Adjacency) -> Tensor: ...

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True) -> None:
        """Creates parameters and running statistics.

        Args:
            num_features: Number of columns.
            eps: Added to the variance.
            momentum: Weight of a step in the running statistics. If None, cumulative
                mean.
            affine: Whether to learn a scale and a shift per column.
        """
        super().__init__(num_features, eps, momentum, affine)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # type: ignore[override]
        """Normalises the columns. Collective in training.

        Args:
            x: [num_src or num_dst, num_features].
            adjacency: The adjacency of the layer that reads or computes these rows.
        """
        if x.shape[1:] != (self.num_features,):
            raise UserError(
                f"gnnkit.nn.BatchNorm({self.num_features}) needs rows of {self.num_features} columns, got "
                f"{list(x.shape[1:])}: create it with the width of its rows"
            )
        if not self.training:
            return super().forward(x)
        out, batch_stats = normalize(x, adjacency, self.eps)
        if batch_stats.lasts:
            self._remember(batch_stats)
        if self.affine:
            out = out * self.weight + self.bias
        return out.to(x.dtype)

    def _remember(self, batch_stats: Statistics) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        batch_stats.remember(self.running_mean, self.running_var, share)


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Each column's mean and variance over all ranks' rows."""

    mean: Tensor  # [f]
    variance: Tensor  # [f] biased
    count: Tensor  # number of rows
    lasts: bool  # False: a pass without an exchange, which does not update running statistics

    @torch.no_grad()
    def remember(self, running_mean: Tensor | None, running_var: Tensor | None, share: float) -> None:
        """Updates the running statistics with momentum `share`, as torch does.

        Without rows, as in a batch without nodes of a type, they do not change.
        """
        sample_variance = self.variance * (self.count / (self.count - 1).clamp(min=1))
        for running, now in ((running_mean, self.mean), (running_var, sample_variance)):
            if running is not None:
                running.lerp_(torch.where(self.count > 0, now.to(running.dtype), running), share)


def normalize(x: Tensor, adjacency: Pools, eps: float) -> tuple[Tensor, Statistics]:
    """Standardises each column over all ranks.

    Collective, in forward and backward.

    Use it in your own normalisation layers, such as one without running statistics.
    Gradients flow through the mean and the variance, as in torch.

    Args:
        x: [num_rows, f] node or edge rows, each on one rank.
        adjacency: The adjacency of the layer that reads or computes these rows.
        eps: Added to the variance.

    Returns:
        [num_rows, f] in the statistics' precision, and the statistics.
    """
    pool, rows = adjacency.pool(len(x)), x.to(wide(x.dtype))
    mean, count = pool.mean(rows)
    deviations = rows - mean
    variance, _ = pool.mean(deviations.square())
    return deviations * (variance + eps).rsqrt(), Statistics(mean, variance, count, pool.lasts)
