"""The in-edges of one edge type, as the native core reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from gnnkit import _core
from gnnkit.graph import CSC, Ids
from gnnkit.sampler.base import Reading, Visibility


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """One relation's in-edges, and the node types at their ends."""

    source: str
    destination: str
    csc: CSC  # with the weights of its edges, if draws are weighted
    times: Ids | None = None  # [num_edges] int64, ascending within each row

    @classmethod
    def of(
        cls, ends: tuple[str, str], colptr: Tensor, row: Ids, num_sources: int, weight: Tensor | None
    ) -> RelationEdges:
        """Checks the arrays of a CSC once.

        Args:
            ends: Types of sources and destinations.
            colptr: [num_destinations + 1] offsets.
            row: [num_edges] sources.
            num_sources: Number of nodes of the source type.
            weight: [num_edges] float32 weights in the order of `row`, or None.
        """
        weights = None if weight is None else weight.numpy()
        csc = CSC(colptr.numpy().astype(np.int64, copy=False), row, weights, num_sources=num_sources)
        return cls(*ends, csc)

    def timed(self, times: Ids) -> RelationEdges:
        """Adds times [num_edges]. Raises `ValueError` if a row is not sorted."""
        rows = np.repeat(np.arange(self.csc.num_nodes), np.diff(self.csc.indptr))
        violations = np.flatnonzero((times[1:] < times[:-1]) & (rows[1:] == rows[:-1]))
        if len(violations):
            raise ValueError(
                f"the in-edges of node {rows[violations[0]]} are not sorted by time: "
                "pass is_sorted=False, or sort edges by destination and then by time"
            )
        return replace(self, times=times)

    def native(self, fanouts: list[int], with_replacement: bool) -> _core.Sampler:
        """Makes the sampler that draws this relation's edges."""
        make = _core.Sampler.neighbor if self.csc.weight is None else _core.Sampler.weighted
        return make(fanouts, with_replacement, False, None)

    def reading(self, *, latest: bool) -> Reading:
        """Returns the arrays that draws read.

        An edge is visible to a seed of time t if its own time is at most t, as in PyG.

        Args:
            latest: whether draws are among the latest visible edges.
        """
        return Reading(self.csc, visibility=None if self.times is None else Visibility(self.times, latest=latest))
