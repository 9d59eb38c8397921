from __future__ import annotations

from gnnkit.partition.vertex_cut import StreamedEdges


class TwoPhase(StreamedEdges):
    """2PS-L, two-phase streaming (Mayer, Orujzade & Jacobsen, ICDE 2022), a vertex-cut.

    Choose this partition over `hdrf` for many workers, or for graphs with communities.
    Nodes are clustered in one pass, and only two cells are compared per edge.
    """
