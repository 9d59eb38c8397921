"""Reverse Cuthill-McKee."""

from __future__ import annotations

from gnnkit.graph import CSC, Ids
from gnnkit.order.base import NodeOrder
from gnnkit.order.found import rcm


class Rcm(NodeOrder):
    """Puts neighbours close together, breadth first, nodes of few edges first.

    Choose this order for graphs whose ids say nothing about neighbours. It is found in
    time linear in the edges.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return rcm(csc)
