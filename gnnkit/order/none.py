"""As the data have them."""

from __future__ import annotations

from gnnkit.graph import CSC, Ids
from gnnkit.order.base import NodeOrder


class ById(NodeOrder):
    """Keeps nodes in the order of their ids.

    Choose this order where ids say who is near whom already.
    """

    def order(self, csc: CSC, nodes: Ids) -> None:
        return None
