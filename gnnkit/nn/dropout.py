"""Dropout determined by node ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.utils.ranges import MAX_COUNT, share, whole


class Dropout(nn.Module):
    """Dropout of rows, the same on any number of ranks and any layout.

    Masks are derived from seed, step, layer and global node id. Two dropout modules on
    the same layer's rows use the same mask unless their `draw` differs.

    Torch's `nn.Dropout` draws from each process's generator, so its masks depend on
    the partition. Use this module where a run on several ranks should equal one on a
    single rank. In evaluation, rows are returned unchanged.
    """

    reads_adjacency = True

    if TYPE_CHECKING:  # torch annotates it as Any

        def __call__(self, x: Tensor, adjacency: Adjacency) -> Tensor: ...

    def __init__(self, p: float = 0.5, draw: int = 0) -> None:
        """Stores the probability. The module has no parameters.

        Args:
            p: Probability of zeroing a number, in [0, 1). The other numbers are
                divided by 1 - p.
            draw: Distinguishes several dropout modules of one layer.
        """
        super().__init__()
        self.p, self.draw = share("p", p), whole("draw", draw, 0, MAX_COUNT)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        """Zeroes random numbers in training, and scales the others.

        Args:
            x: [num_src or num_dst, f].
            adjacency: The adjacency of the layer that reads or computes these rows.
        """
        return adjacency.dropout(x, self.p, training=self.training, draw=self.draw)

    def extra_repr(self) -> str:
        return f"p={self.p}, draw={self.draw}"
