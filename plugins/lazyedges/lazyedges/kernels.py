"""What a library of kernels provides: sums, maxima and products over edges.

Both classes are protocols. A class may also inherit from `EdgeKernels`, to get the
methods that have a body.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class EdgeDropout(NamedTuple):
    """Dropout of a value per edge and head."""

    ids: Tensor  # [num_edges] int64, one random stream each
    p: float  # probability, in [0, 1)
    key: int


class EdgeKernels(Protocol):
    """Edges that are sorted by destination, and functions of rows at their ends.

    Rows are tensors of floats [n, ...]. Values of edges are in the order of the edges.
    """

    num_src: int
    num_dst: int
    device: torch.device  # of rows and values

    @property
    def indptr(self) -> Tensor:  # [num_dst + 1] int64, on the CPU
        """The range of each destination's edges."""

    @property
    def indices(self) -> Tensor:  # [num_edges] int64, on the device
        """Each edge's source."""

    def sum(
        self,
        rows: Tensor,
        weight: Tensor | None = None,
        source: Tensor | None = None,
        destination: Tensor | None = None,
    ) -> Tensor:  # [num_dst, ...]
        """Sums the sources' rows by destination, multiplied by factors.

        Rows have a gradient, and this gradient has one, too. Weights have a gradient.

        Args:
            rows: [num_src, ...], or [num_src, H, ...] with weights of heads.
            weight: [num_edges, 1] or [num_edges, H]. Default: 1.
            source: [num_src] factors without gradient, not combined with weights.
            destination: [num_dst] factors without gradient, not combined with weights.
        """

    def add_sum(self, rows: Tensor, out: Tensor) -> None:
        """Adds sums of rows [num_src, f] to `out` [num_dst, f], without gradient."""
        out += self.sum(rows)

    def max(self, rows: Tensor) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Finds the largest source rows by destination, -inf without edges.

        Raises an error if rows need a gradient and it has none.
        """

    def dot(self, rows: Tensor, others: Tensor) -> Tensor:  # [num_edges, H]
        """Multiplies the sources' rows [num_src, H, d] with rows [num_dst, H, d].

        Both have a gradient.
        """

    def attend(
        self,
        rows: Tensor,
        source: Tensor,
        destination: Tensor,
        edge: Tensor | None,
        slope: float,
        dropout: EdgeDropout | None,
    ) -> Tensor | None:  # [num_dst, H, d]
        """Sums the sources' rows with attention.

        If it returns None, the sums are computed from weights instead. The weights are
        the softmax of leaky_relu(source[u] + destination[v] + edge[e]) over a
        destination's edges.

        Args:
            rows: [num_src, H, d].
            source: [num_src, H].
            destination: [num_dst, H].
            edge: [num_edges, H]. If None, 0.
            slope: Negative slope of the leaky ReLU.
            dropout: Dropout of the weights. If None, keeps all.
        """
        return None


class Backend(Protocol):
    """Creates kernels over edges."""

    def kernels(self, indptr: Tensor, indices: Tensor, num_src: int) -> EdgeKernels:
        """Creates kernels over sorted edges.

        Args:
            indptr: [num_dst + 1] int64, on the CPU.
            indices: [num_edges] int64 sources, on any device.
            num_src: Number of source rows.
        """

    def sort(
        self, source: Tensor, destination: Tensor, num_src: int, num_dst: int
    ) -> tuple[EdgeKernels, Tensor]:  # [num_edges] int64
        """Sorts edges by destination, and creates kernels over them.

        Also returns the position of each sorted edge among the arguments.

        Args:
            source: [num_edges] int64.
            destination: [num_edges] int64.
            num_src: Number of source rows.
            num_dst: Number of destination rows.
        """

    def dropout(self, values: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        """Zeroes random values, and scales the others to preserve the mean.

        Args:
            values: [num_edges, H].
            ids: [num_edges] int64, one random stream each.
            p: Probability, in [0, 1).
            key: Random key.
        """

    def edge_ids(self, source: Tensor, destination: Tensor) -> Tensor:  # [num_edges] int64
        """Derives ids of edges, equal for equal ids of both ends [num_edges]."""
