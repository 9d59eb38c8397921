"""Orders of a shard's rows in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids
from gnnkit.graph.types import offsets_of, take
from gnnkit.partition.degrees import stretches
from gnnkit.partition.shard import Shard
from gnnkit.utils.checks import array
from gnnkit.utils.ranges import whole


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


def rcm(csc: CSC) -> Ids:  # [num_nodes]
    """Computes the reverse Cuthill-McKee order (ACM 1969) of the destinations."""
    return _core.csc_cuthill_mckee(csc.indptr, csc.indices, csc.num_sources)


def by_degree(csc: CSC) -> Ids:  # [num_nodes]
    """Orders the destinations by descending out-degree."""
    degree = np.bincount(csc.indices, minlength=csc.num_sources)[: csc.num_nodes]
    return np.argsort(-degree, kind="stable")


_CACHES = (4096, 65_536)  # cache sizes in rows. With 128 numbers per row, 2 and 32 MiB


class Auto(NodeOrder):
    """Selects `rcm`, or else `degree`, if it saves a tenth of the memory reads.

    The reads are counted by simulating two cache sizes over the edges, so the choice
    does not depend on the machine. Nodes that fit the smaller cache keep their order.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids | None:
        if csc.num_sources <= _CACHES[0]:
            return None
        max_misses = 0.9 * _count_misses(csc, None)  # worth the order's time
        return next(
            (order for order in (find(csc) for find in (rcm, by_degree)) if _count_misses(csc, order) < max_misses),
            None,
        )


def _count_misses(csc: CSC, order: Ids | None) -> int:
    return _core.csc_missed_rows(csc.indptr, csc.indices, csc.num_sources, _CACHES, order)


_BUFFER, _BOUND = 1 << 18, 1.1  # nodes read together, and maximum group size over the mean, as in partition=buffered


class Community(NodeOrder):
    """Groups densely connected nodes, ordered by id within each group.

    Choose this order for graphs with communities and many epochs. It takes about as
    long as `partition=buffered`, which computes the groups.
    """

    def __init__(self, size: int = 1024) -> None:
        """Stores the size.

        Args:
            size: Approximate number of nodes per group.
        """
        self.size = whole("order.options.size", size, 1, 1 << 30)

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        is_owned = csc.indices < len(nodes)
        indptr = offsets_of(is_owned)[csc.indptr]
        groups = max(len(nodes) // self.size, 1)
        new_order = _core.buffer_nodes(indptr, csc.indices[is_owned], groups, _BUFFER, _BOUND, 1)
        return np.argsort(new_order, kind="stable")


class Degree(NodeOrder):
    """Orders nodes by descending out-degree, and by id among equals.

    Choose this order for graphs in which few nodes have most of the edges.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return by_degree(csc)


class ById(NodeOrder):
    """Keeps nodes in the order of their ids.

    Choose this order if neighbours have similar ids, as after a crawl or a traversal,
    because reordering would only cost time.
    """

    def order(self, csc: CSC, nodes: Ids) -> None:
        return None


class Rcm(NodeOrder):
    """Places neighbours close together, by breadth-first search from low degrees.

    Choose this order if the graph's ids do not reflect locality. Its run time is linear
    in the number of edges.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return rcm(csc)
