from __future__ import annotations

from gnnkit.partition.streaming import Streaming


class Ldg(Streaming):
    """Linear deterministic greedy (Stanton & Kliot, KDD 2012).

    Choose this partition for graphs too large for a multilevel method. A part's score
    is its number of neighbours times its remaining capacity. With
    `partition.border=cover`, few rows are sent on skewed graphs.
    """

    auto_seconds = 0.03
    score = "ldg"
