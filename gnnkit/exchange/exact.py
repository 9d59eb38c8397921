"""The exact exchange."""

from __future__ import annotations

from gnnkit.exchange.base import RowExchange


class Exact(RowExchange):
    """Sends all rows in each pass, unencoded.

    This is the default, and it gives the gradients of one rank. Evaluation always
    exchanges rows in this way, whatever training uses.
    """

    exact = True
