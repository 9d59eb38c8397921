"""Nodes ordered by degree."""

from __future__ import annotations

from gnnkit.graph import CSC, Ids
from gnnkit.partition.order.base import NodeOrder
from gnnkit.partition.order.compute import by_degree


class Degree(NodeOrder):
    """Orders nodes by descending out-degree, and by id among equals.

    Choose this order for graphs in which few nodes have most of the edges.
    """

    def order(self, csc: CSC, nodes: Ids) -> Ids:
        return by_degree(csc)
