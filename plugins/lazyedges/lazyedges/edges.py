"""Sets of edges, with the kernels over them."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lazyedges.deferred import version_of
from lazyedges.kernels import Backend, EdgeKernels
from lazyedges.pieces import Piece, pieces_of

_MOST = 2  # derived sets that are kept, in edges of the larger of both sets


class EdgeSet:
    """Edges that a layer reads, in its order.

    Layers select edges and add self-loops anew at each forward pass. An equal selection
    gives the same set again, so that its edges are sorted only once.
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_rows: tuple[int | None, int | None],
        backend: Backend,
        kernels: EdgeKernels | None = None,
    ) -> None:
        """Stores the edges.

        Args:
            edge_index: [2, num_edges] int64 source rows, destination rows. A negative
                source -1 - k is row k after the own rows.
            num_rows: Number of source rows and of destination rows, if known.
            backend: Creates kernels.
            kernels: Kernels over the same edges in the same order. If None, creates
                them.
        """
        self.edge_index, self.backend, self._kernels = edge_index, backend, kernels
        self.source, self.destination = edge_index.unbind(0)  # [num_edges] each
        self._num_rows, self._num_own = list(num_rows), 0
        self._derived: dict[bytes, EdgeSet] = {}  # by a digest of what they were derived by
        self._looped: EdgeSet | None = None
        self._pieces: dict[int, list[Piece]] = {}  # by width
        self._loopless: tuple[Tensor, int] | None = None
        self._ids: tuple[Tensor | None, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def select(self, index: Any) -> EdgeSet:
        """Selects edges by a mask, positions or a slice."""
        if not isinstance(index, Tensor):
            return self.with_edges(self.edge_index[:, index])
        return self._remembered(_digest(index), lambda: self.with_edges(self.edge_index[:, index]))

    def joined(self, edge_index: Tensor) -> EdgeSet:
        """Returns the set of edges that these and others were joined to.

        Args:
            edge_index: [2, num_edges] the joined edges. Numbers of rows are unknown.
        """
        return self._remembered(_digest(edge_index), lambda: EdgeSet(edge_index, (None, None), self.backend))

    def with_edges(self, edge_index: Tensor) -> EdgeSet:
        """Returns other edges [2, num_edges] between the same rows."""
        return EdgeSet(edge_index, self.num_rows, self.backend)

    def _remembered(self, key: bytes, make: Callable[[], EdgeSet]) -> EdgeSet:
        """Returns the same set for the same key, as long as few sets came between."""
        edge_set = self._derived.pop(key, None) or make()
        self._derived[key] = edge_set  # the last used comes last
        limit, num_edges = _MOST * max(len(self), len(edge_set)), sum(map(len, self._derived.values()))
        while num_edges > limit:
            num_edges -= len(self._derived.pop(next(iter(self._derived))))
        return edge_set

    def place_sources(self, num_own: int, num_halo: int) -> bool:
        """Returns whether rows have these numbers. Unknown numbers become known.

        Args:
            num_own: Number of source rows of this rank.
            num_halo: Number of those after them, the negative sources.
        """
        if self._num_rows[0] is None:
            self._num_rows[0], self._num_own = num_own + num_halo, num_own
        return self._num_rows[0] == num_own + num_halo

    def place_destinations(self, count: int) -> bool:
        """Returns whether there are `count` rows. An unknown number becomes known."""
        if self._num_rows[1] is None:
            self._num_rows[1] = count
        return self._num_rows[1] == count

    @property
    def row_of_source(self) -> Tensor:  # [num_edges] int64
        """Source rows, in which own rows are followed by the others."""
        return torch.where(self.source < 0, self._num_own - 1 - self.source, self.source)

    @property
    def num_rows(self) -> tuple[int, int]:
        """Number of source rows and of destination rows."""
        num_src, num_dst = self._num_rows
        assert num_src is not None
        assert num_dst is not None
        return num_src, num_dst

    def with_loops(self, rows: Tensor) -> EdgeSet:
        """Appends self-loops at some rows [num_loops]."""
        every = len(rows) == self.num_rows[1] and torch.equal(rows, torch.arange(len(rows), device=rows.device))
        if every and self._looped is not None:
            return self._looped
        edge_set = self.with_edges(torch.cat([self.edge_index, rows.expand(2, -1)], 1))
        self._looped = edge_set if every else self._looped
        return edge_set

    def between(self, source: Tensor, destination: Tensor) -> EdgeSet:
        """Returns as many edges between other rows.

        Args:
            source: [num_edges] source rows.
            destination: [num_edges] destination rows.
        """
        return self.with_edges(torch.stack([source, destination]))

    def loopless(self) -> Tensor:  # [num_edges] bool
        """Mask of the edges that are not self-loops."""
        if self._loopless is None or self._loopless[1] != version_of(self._loopless[0]):
            mask = self.source != self.destination
            self._loopless = (mask, version_of(mask))
        return self._loopless[0]

    def ids(self, nodes: Tensor | None, dst_nodes: Tensor | None = None) -> Tensor:  # [num_edges] int64
        """Returns ids derived from both ends' ids, so parallel edges share one.

        Args:
            nodes: [num_src] ids of the sources. If None, row numbers are ids.
            dst_nodes: [num_dst] ids of the destinations. Default: the first of `nodes`.
        """
        source, destination = self.source, self.destination
        if self._ids is None or self._ids[0] is not nodes:
            if nodes is not None:
                source, destination = nodes[source], (nodes if dst_nodes is None else dst_nodes)[destination]
            self._ids = (nodes, self.backend.edge_ids(source, destination))
        return self._ids[1]

    @cached_property
    def _sorted(self) -> tuple[EdgeKernels, Tensor | None]:
        """The edges by destination, and their positions in this set. None: in order."""
        if self._kernels is not None:
            return self._kernels, None
        return self.backend.sort(self.row_of_source, self.destination, *self.num_rows)

    @property
    def kernels(self) -> EdgeKernels:
        """The edges by destination, in the order of `in_order`."""
        return self._sorted[0]

    @cached_property
    def _by_destination(self) -> EdgeKernels:
        """Sums edge rows in this set's order."""
        edges, order = self._sorted
        order = torch.arange(len(self), device=edges.device) if order is None else order
        return self.backend.kernels(edges.indptr, order, len(self))

    @cached_property
    def _inverse(self) -> Tensor:  # [num_edges] int64
        """Position of each of this set's edges in the sorted order."""
        order = self._sorted[1]
        assert order is not None
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return inverse

    @cached_property
    def in_degree(self) -> Tensor:  # [num_dst] int64
        """Number of edges into each destination."""
        return self.kernels.indptr.diff().to(self.source.device)

    @cached_property
    def edgeless(self) -> Tensor | None:  # [num_dst] bool
        """Mask of the destinations without edges, or None if there are none."""
        mask = self.in_degree == 0
        return mask if bool(mask.any()) else None

    def in_order(self, values: Tensor) -> Tensor:  # [num_edges, ...] -> [num_edges, ...]
        """Arranges values of this set's edges as the kernels read them."""
        order = self._sorted[1]
        return values if order is None else values.index_select(0, order)

    def sum_values(self, values: Tensor) -> Tensor:  # [num_edges, ...] -> [num_dst, ...]
        """Sums edge values by destination."""
        return self._by_destination.sum(values)

    def from_order(self, values: Tensor) -> Tensor:  # [num_edges, ...] -> [num_edges, ...]
        """Arranges values that the kernels computed in the order of this set."""
        return values if self._sorted[1] is None else values.index_select(0, self._inverse)

    def pieces(self, width: int) -> list[Piece]:
        """Divides the edges into pieces, in the order of the kernels.

        Args:
            width: Numbers of an edge in the widest array.
        """
        if width not in self._pieces:
            self._pieces[width] = pieces_of(self.kernels, self.backend, width)
        return self._pieces[width]

    def largest(self, values: Tensor) -> Tensor:  # [num_edges, H] -> [num_dst, H]
        """Finds the largest value by destination, -inf without edges. No gradient."""
        return _largest(self._by_destination, values)

    def largest_rows(self, rows: Tensor) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Finds the largest source rows, -inf without edges. No gradient."""
        return _largest(self.kernels, rows)

    def sum_rows(self, rows: Tensor, weight: Tensor | None) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Sums the sources' rows, times factors per edge and head.

        Args:
            rows: [num_src, ...], or [num_src, H, ...] with factors per head.
            weight: [num_edges, 1] or [num_edges, H]. If None, 1.
        """
        if weight is None:
            return self.kernels.sum(rows)
        dtype = torch.promote_types(rows.dtype, weight.dtype)
        return self.kernels.sum(rows.to(dtype), self.in_order(weight).to(dtype))

    def dot(self, rows: Tensor, others: Tensor) -> Tensor:  # [num_edges, H]
        """Multiplies the sources' rows with the destinations' rows.

        Args:
            rows: [num_src, H, d].
            others: [num_dst, H, d].
        """
        return self.from_order(self.kernels.dot(rows, others))


def _digest(index: Tensor) -> bytes:
    """Returns 16 bytes that differ between different tensors."""
    values = index.detach().contiguous().cpu()
    memory = (ctypes.c_char * values.nbytes).from_address(values.data_ptr())
    return hashlib.blake2b(memory, digest_size=16, person=str(values.dtype).encode()).digest()


def _largest(edges: EdgeKernels, rows: Tensor) -> Tensor:
    best = edges.max(rows.detach().reshape(len(rows), math.prod(rows.shape[1:])))
    return best.view(len(best), *rows.shape[1:])
