"""Orders computed from the edges, shared by plugins."""

from __future__ import annotations

import numpy as np

from gnnkit import _core
from gnnkit.graph import CSC, Ids


def rcm(csc: CSC) -> Ids:  # [num_nodes]
    """Computes the reverse Cuthill-McKee order (ACM 1969) of the destinations."""
    return _core.csc_cuthill_mckee(csc.indptr, csc.indices, csc.num_sources)


def by_degree(csc: CSC) -> Ids:  # [num_nodes]
    """Orders the destinations by descending out-degree."""
    degree = np.bincount(csc.indices, minlength=csc.num_sources)[: csc.num_nodes]
    return np.argsort(-degree, kind="stable")
