"""Reverse Cuthill-McKee."""

from __future__ import annotations

from gnnkit.graph import CSC, Ids
from gnnkit.partition.order.base import NodeOrder
from gnnkit.partition.order.compute import rcm


class Rcm(NodeOrder):
    """Places neighbours close together, by breadth-first search from low degrees.

    Choose this order if the graph's ids do not reflect locality. Its run time is linear
    in the number of edges.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return rcm(csc)
