"""The exact exchange."""

from __future__ import annotations

from gnnkit.exchange.base import RowExchange


class Exact(RowExchange):
    """Sends all rows in each pass, unencoded.

    It is the default, and evaluation always uses it.
    """

    exact = True
