"""Batch normalisation over the rows of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.kernels.sums import wide


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation (Ioffe & Szegedy, ICML 2015), exact on any number of ranks.

    Parameters, buffers and names are torch's. In training, mean and variance are taken
    over the rows of a layer on all ranks: of all nodes of a full graph, or of the nodes
    that the ranks' batches have together. A node in several batches counts once. Each
    of the batches that `trainer.accumulate` adds up has statistics of its own, as in
    torch. Evaluation uses the running statistics, which are equal on all ranks. In an
    epoch without exchange (`strategy.local_iterations`) a rank takes its own rows, and
    the running statistics stay. Every rank calls this module, also without rows.
    Refused with `sync.on_lost=continue`, where ranks may be gone.
    """

    reads_adjacency = True

    if TYPE_CHECKING:  # torch says Any

        def __call__(self, x: Tensor, adjacency: Adjacency) -> Tensor: ...

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True) -> None:
        """Makes parameters and running statistics.

        Args:
            num_features: Columns of the rows.
            eps: Added to the variance. Default: 1e-5.
            momentum: Share of a step in the running statistics. None: their mean.
            affine: Whether columns are scaled and shifted by parameters. Default: yes.
        """
        super().__init__(num_features, eps, momentum, affine)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # type: ignore[override]
        """Normalises the columns of rows. Collective in training.

        Args:
            x: [num_src or num_dst, num_features].
            adjacency: The adjacency of the layer that reads or computes these rows.
        """
        if x.shape[1:] != (self.num_features,):
            raise UserError(
                f"gnnkit.nn.BatchNorm({self.num_features}) needs rows of {self.num_features} columns, got "
                f"{list(x.shape[1:])}. Under strategy.mode=push_pull, input rows have a part of their columns: "
                "normalise after the first layer"
            )
        if not self.training:
            return super().forward(x)
        out, seen = normalize(x, adjacency, self.eps)
        if seen.lasts:
            self._remember(seen)
        if self.affine:
            out = out * self.weight + self.bias
        return out.to(x.dtype)

    def _remember(self, seen: Statistics) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        seen.remember(self.running_mean, self.running_var, share)


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Mean and variance of each column over the rows of all ranks."""

    mean: Tensor  # [f]
    variance: Tensor  # [f] divided by the number of rows
    count: Tensor  # the number of rows
    lasts: bool  # False: ranks do not meet in this pass, so running statistics stay

    @torch.no_grad()
    def remember(self, running_mean: Tensor | None, running_var: Tensor | None, share: float) -> None:
        """Moves the running statistics towards these by a share, as torch does."""
        unbiased = self.variance * (self.count / (self.count - 1).clamp(min=1))
        for running, now in ((running_mean, self.mean), (running_var, unbiased)):
            if running is not None:
                running.lerp_(now.to(running.dtype), share)


def normalize(x: Tensor, adjacency: Adjacency, eps: float) -> tuple[Tensor, Statistics]:
    """Takes from each column its mean over all ranks, and divides by the deviation.

    Collective, in forward and backward.

    Args:
        x: [num_rows, f] rows, each on one rank, of nodes or edges.
        adjacency: The adjacency of the layer that reads or computes these rows.
        eps: Added to the variance.

    Returns:
        [num_rows, f] in the precision of the statistics, and the statistics.
    """
    pool, rows = adjacency.pool(len(x)), x.to(wide(x.dtype))
    mean, count = pool.mean(rows)
    centred = rows - mean
    variance, _ = pool.mean(centred.square())
    return centred * (variance + eps).rsqrt(), Statistics(mean, variance, count, pool.lasts)
