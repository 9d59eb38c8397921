"""The exact exchange."""

from __future__ import annotations

from gnnkit.exchange.base import RowExchange


class Exact(RowExchange):
    """Sends all rows in each pass, unencoded. The default, and the one that evaluation
    uses.
    """

    exact = True
