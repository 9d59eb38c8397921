"""By degree."""

from __future__ import annotations

from gnnkit.graph import CSC, Ids
from gnnkit.order.base import NodeOrder
from gnnkit.order.found import by_degree


class Degree(NodeOrder):
    """Puts nodes that many edges leave first, equal ones in the order of their ids.

    Choose this order where few nodes have most of the edges: their rows stand together.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return by_degree(csc)
