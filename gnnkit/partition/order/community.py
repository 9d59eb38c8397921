"""Nodes ordered by community."""

from __future__ import annotations

import numpy as np

from gnnkit import _core
from gnnkit.graph import CSC, Ids
from gnnkit.graph.types import offsets_of
from gnnkit.partition.order.base import NodeOrder
from gnnkit.utils.ranges import whole

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
        self.size = whole("order.size", size, 1, 1 << 30)

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        is_owned = csc.indices < len(nodes)
        indptr = offsets_of(is_owned)[csc.indptr]
        groups = max(len(nodes) // self.size, 1)
        new_order = _core.buffer_nodes(indptr, csc.indices[is_owned], groups, _BUFFER, _BOUND, 1)
        return np.argsort(new_order, kind="stable")
