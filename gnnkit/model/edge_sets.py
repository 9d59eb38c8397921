"""Sets of edges between a rank's rows, with the kernels over them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import RankGraph
from gnnkit.engine.lent import version_of
from gnnkit.graph import CSC
from gnnkit.graph.csc import sort_edges
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.dropout import edge_streams
from gnnkit.kernels.sums import ONE, Factors
from gnnkit.model.edge_pieces import Piece, pieces_of

_MOST = 2  # derived sets that are kept, in edges of the larger of both sets


class EdgeSet:
    """Edges that a layer reads, in its order.

    Layers select edges and add self-loops anew at each forward pass. An equal selection
    gives the same set again, so that its edges are sorted only once.
    """

    def __init__(
        self, edge_index: Tensor, num_rows: tuple[int | None, int | None], edges: HeldEdges | None = None
    ) -> None:
        """Stores the edges.

        Args:
            edge_index: [2, num_edges] int64 source rows, destination rows. A negative
                source -1 - k is row k after the own rows.
            num_rows: Number of source rows and of destination rows, if known.
            edges: Kernels over the same edges in the same order. None: creates them.
        """
        self.edge_index, self.held = edge_index, edges
        self.source, self.destination = edge_index.unbind(0)  # [num_edges] each
        self._num_rows, self._num_own = list(num_rows), 0
        self._derived: dict[bytes, EdgeSet] = {}  # by a digest of what they were derived by
        self._looped: EdgeSet | None = None
        self._pieces: dict[int, list[Piece]] = {}  # by width
        self._loopless: tuple[Tensor, int] | None = None
        self._streams: tuple[Tensor | None, Tensor] | None = None

    @classmethod
    def of(cls, graph: RankGraph) -> EdgeSet:
        """Returns a rank's edges, the same set for the same graph."""
        if graph.edge_set is None:
            edges = graph.edges
            num_rows = (0, 0) if edges is None else (edges.num_src, edges.num_dst)
            if edges is None and graph.nodes is not None and graph.dst_nodes is not None:
                num_rows = (len(graph.nodes), len(graph.dst_nodes))
            object.__setattr__(graph, "edge_set", cls(graph.edge_index, num_rows, edges))
        edge_set: EdgeSet = graph.edge_set
        return edge_set

    def __len__(self) -> int:
        return len(self.source)

    def select(self, index: Any) -> EdgeSet:
        """Selects edges by a mask, positions or a slice."""
        if not isinstance(index, Tensor):
            return EdgeSet(self.edge_index[:, index], self.num_rows)
        return self._kept(_digest(index), lambda: EdgeSet(self.edge_index[:, index], self.num_rows))

    def joined(self, edge_index: Tensor) -> EdgeSet:
        """Returns the set of edges that these and others were joined to.

        Args:
            edge_index: [2, num_edges] the joined edges. Numbers of rows are unknown.
        """
        return self._kept(_digest(edge_index), lambda: EdgeSet(edge_index, (None, None)))

    def _kept(self, key: bytes, make: Callable[[], EdgeSet]) -> EdgeSet:
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
        edge_set = EdgeSet(torch.cat([self.edge_index, rows.expand(2, -1)], 1), self.num_rows)
        self._looped = edge_set if every else self._looped
        return edge_set

    def between(self, source: Tensor, destination: Tensor) -> EdgeSet:
        """Returns as many edges between other rows.

        Args:
            source: [num_edges] source rows.
            destination: [num_edges] destination rows.
        """
        return EdgeSet(torch.stack([source, destination]), self.num_rows)

    def loopless(self) -> Tensor:  # [num_edges] bool
        """Mask of the edges that are not self-loops."""
        if self._loopless is None or self._loopless[1] != version_of(self._loopless[0]):
            mask = self.source != self.destination
            self._loopless = (mask, version_of(mask))
        return self._loopless[0]

    def streams(self, graph: RankGraph) -> Tensor:  # [num_edges] int64
        """Returns ids derived from both ends' ids, so parallel edges share one.

        Args:
            graph: The rank's edges, with global ids of the rows.
        """
        nodes, source, destination = graph.nodes, self.source, self.destination
        if self._streams is None or self._streams[0] is not nodes:
            if nodes is not None:
                dst_nodes = nodes if graph.dst_nodes is None else graph.dst_nodes
                source, destination = nodes[source], dst_nodes[destination]
            self._streams = (nodes, edge_streams(source, destination))
        return self._streams[1]

    @cached_property
    def _sorted(self) -> tuple[HeldEdges, Tensor | None]:
        """The edges by destination, and their positions in this set. None: in order."""
        if self.held is not None:
            return self.held, None
        source, destination = self.row_of_source.cpu().numpy(), self.destination.cpu().numpy()
        csc, order = sort_edges(source, destination, self.num_rows[1], self.num_rows[0], True, None)
        positions = torch.from_numpy(order.astype(np.int64, copy=False)).to(self.source.device)
        return HeldEdges(csc, self.source.device), positions

    @property
    def kernels(self) -> HeldEdges:
        """The edges by destination, in the order of `in_order`."""
        return self._sorted[0]

    @cached_property
    def _by_destination(self) -> HeldEdges:
        """Sums edge rows in this set's order."""
        edges, order = self._sorted
        if order is None:
            return edges.by_destination
        csc = CSC(edges.csc.indptr, order.cpu().numpy(), num_sources=len(self))
        return HeldEdges(csc, edges.device)

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
        return torch.from_numpy(np.diff(self.kernels.csc.indptr)).to(self.source.device)

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
        return self._by_destination.constant_sum(values, ONE)

    def from_order(self, values: Tensor) -> Tensor:  # [num_edges, ...] -> [num_edges, ...]
        """Arranges values that the kernels computed in the order of this set."""
        return values if self._sorted[1] is None else values.index_select(0, self._inverse)

    def pieces(self, width: int) -> list[Piece]:
        """Divides the edges into pieces, in the order of the kernels.

        Args:
            width: Numbers of an edge in the widest array.
        """
        if width not in self._pieces:
            self._pieces[width] = pieces_of(self.kernels, width)
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
            weight: [num_edges, 1] or [num_edges, H]. None: 1.
        """
        if weight is None:
            return self.kernels.constant_sum(rows, ONE)
        dtype = torch.promote_types(rows.dtype, weight.dtype)
        rows, weight = rows.to(dtype), self.in_order(weight).to(dtype)
        if not weight.requires_grad:
            return self.kernels.constant_sum(rows, Factors(weight))
        width = math.prod(rows.shape[1:])
        heads = rows.reshape(len(rows), weight.shape[1], width // weight.shape[1])
        return self.kernels.weighted_sum(heads, weight).view(-1, *rows.shape[1:])

    def dot(self, rows: Tensor, others: Tensor) -> Tensor:  # [num_edges, H]
        """Multiplies the sources' rows with the destinations' rows.

        Args:
            rows: [num_src, H, d].
            others: [num_dst, H, d].
        """
        return self.from_order(self.kernels.dot(rows, others))


def _digest(index: Tensor) -> bytes:
    """Returns 16 bytes that differ between different tensors."""
    array = index.detach().contiguous().cpu().numpy()
    return hashlib.blake2b(array.data, digest_size=16, person=str(array.dtype).encode()).digest()


def _largest(edges: HeldEdges, rows: Tensor) -> Tensor:
    best = edges.kernels.max(rows.detach().reshape(len(rows), math.prod(rows.shape[1:])))[0]
    return best.view(len(best), *rows.shape[1:])
