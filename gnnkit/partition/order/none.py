"""Nodes ordered by id."""

from __future__ import annotations

from gnnkit.graph import CSC, Ids
from gnnkit.partition.order.base import NodeOrder


class ById(NodeOrder):
    """Keeps nodes in the order of their ids.

    Choose this order if neighbours have similar ids, as after a crawl or a traversal,
    because reordering would only cost time.
    """

    def order(self, csc: CSC, nodes: Ids) -> None:
        return None
