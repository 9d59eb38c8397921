"""All rows, at once, to the bit."""

from __future__ import annotations

from gnnkit.exchange.base import RowExchange


class Exact(RowExchange):
    """Rows travel when they are read, as they are."""

    exact = True
