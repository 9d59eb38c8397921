"""The interface of row orders, and the reordering of a shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids
from gnnkit.graph.types import offsets_of, take
from gnnkit.partition.loops import stretches
from gnnkit.partition.shard import Shard
from gnnkit.utils.checks import array


class NodeOrder(ABC):
    """Chooses the order of a rank's rows in memory.

    Aggregation reads one row per edge. Cache hits are more likely if rows that are read
    in succession are neighbours in memory. Each rank orders its own nodes.

    The order does not change aggregated rows, to the bit. Sums over all rows, such as
    the gradient of a weight, change by rounding only. Implementations must be
    deterministic.

    Examples:
        >>> import numpy
        >>> from gnnkit.partition.order import NodeOrder
        >>> class ByDegree(NodeOrder):
        ...     '''Puts nodes with many in-edges first.'''
        ...     def order(self, csc, nodes):
        ...         return numpy.argsort(-csc.in_degree(), kind="stable")
    """

    @abstractmethod
    def order(self, csc: CSC, nodes: Ids) -> Ids | None:  # [num_nodes]
        """Returns a permutation of 0..num_nodes-1. None keeps the current order.

        Args:
            csc: In-edges of the nodes. Sources from num_nodes on are other ranks' rows.
            nodes: [num_nodes] global ids, ascending.
        """


def renumbered(shard: Shard, order: NodeOrder | None) -> Shard:
    """Returns the shard with its nodes reordered. Each node's edges keep their order.

    The result has no features, because readers look rows up by `owned`. On a grid with
    slices, the shard is returned unchanged, because the slices of a cell share rows.

    Raises `UserError` if the order is not a permutation.

    Args:
        order: The order. None returns the shard unchanged.
    """
    num_nodes = len(shard.owned)
    if order is None or shard.grid.slices > 1:
        return shard
    csc = shard.csc
    last = int(csc.indptr[num_nodes])
    owned_part = CSC.trusted(csc.indptr[: num_nodes + 1], csc.indices[:last], None, csc.num_sources)
    new_order = order.order(owned_part, shard.owned)
    if new_order is None:
        return shard
    first = _check_permutation(new_order, num_nodes, type(order).__name__)
    indptr, indices, edges = _reorder_edges(csc, first)
    nodes = ("owned", "in_degree", "out_degree", "looped", "labels", "split", "mean_edge_features")
    values: dict[str, Any] = {name: take(getattr(shard, name), first) for name in nodes}
    values |= {name: take(getattr(shard, name), edges) for name in ("edge_ids", "relation_degrees")}
    columns = shard.edge_columns.take(edges)
    return replace(
        shard,
        features=np.empty((num_nodes, 0), np.float32),
        **values,
        cell_nodes=shard.owned[first],
        csc=CSC.trusted(indptr, indices, columns.get("weight"), csc.num_sources),
        **columns.fields_of(Shard),
    )


def _reorder_edges(csc: CSC, first: Ids) -> tuple[Ids, Ids, Ids]:
    """Reorders the rows of a shard's in-edges.

    Args:
        csc: The in-edges. Rows from `len(first)` on keep their numbers.
        first: [num_nodes] the former row at each new row.

    Returns:
        `indptr`, `indices`, and the former each edge's position.
    """
    num_nodes = len(first)
    place = np.empty(num_nodes, csc.indices.dtype)
    place[first] = np.arange(num_nodes, dtype=place.dtype)
    rows = np.concatenate([first, np.arange(num_nodes, csc.num_nodes)])
    degree = np.diff(csc.indptr)[rows]
    indptr = offsets_of(degree)
    indices, edges = np.empty_like(csc.indices), np.empty(csc.num_edges, np.int64)
    for begin, end in stretches(indptr):  # bounds temporary memory
        piece = slice(int(indptr[begin]), int(indptr[end]))
        shift = np.repeat(csc.indptr[rows[begin:end]] - indptr[begin:end], degree[begin:end])
        edges[piece] = shift + np.arange(piece.start, piece.stop)
        sources = csc.indices[edges[piece]]
        mine = sources < num_nodes
        sources[mine] = place[sources[mine]]
        indices[piece] = sources
    return indptr, indices, edges


def _check_permutation(new_order: Ids, num_nodes: int, name: str) -> Ids:
    """Raises `UserError` unless `new_order` is a permutation of 0..num_nodes-1."""
    order = array(f"order: the order of {name}", new_order)
    if order.shape != (num_nodes,) or not np.issubdtype(order.dtype, np.integer):
        raise UserError(
            f"order: {name} returned {order.dtype} of shape {list(order.shape)}, expected integers of shape [{num_nodes}]"
        )
    wrong = order[(order < 0) | (order >= num_nodes)]
    if len(wrong):
        raise UserError(f"order: {name} returned {wrong[0]}, which is out of range for {num_nodes} nodes")
    counts = np.bincount(order, minlength=num_nodes)
    if num_nodes and counts.max() > 1:
        raise UserError(f"order: {name} returned {int(counts.argmax())} more than once")
    return order.astype(np.int64, copy=False)
