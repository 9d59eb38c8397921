"""Communities, one behind the other."""

from __future__ import annotations

import numpy as np

from gnnkit import _core
from gnnkit.graph import CSC, Ids
from gnnkit.order.base import NodeOrder
from gnnkit.ranges import whole

_BUFFER, _BOUND = 1 << 18, 1.1  # nodes that are read together, and largest group over mean, as of partition=buffered


class Community(NodeOrder):
    """Puts nodes with many edges among themselves together, each group in order of id.

    Choose this order for graphs with communities, in runs of many epochs: it takes
    about as long as `partition=buffered`, which finds the groups.
    """

    def __init__(self, size: int = 1024) -> None:
        """Keeps the size.

        Args:
            size: Nodes of a group, about.
        """
        self.size = whole("order.size", size, 1, 1 << 30)

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        is_owned = csc.indices < len(nodes)
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_owned)])[csc.indptr]
        groups = max(len(nodes) // self.size, 1)
        new_order = _core.buffer_nodes(indptr, csc.indices[is_owned], groups, _BUFFER, _BOUND, 1)
        return np.argsort(new_order, kind="stable")
