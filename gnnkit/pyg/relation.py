"""The in-edges of one edge type, as the native core reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gnnkit import _core
from gnnkit.graph import CSC, Ids
from gnnkit.sampler.base import Reading
from gnnkit.sampler.contract import Hop


@dataclass(frozen=True, eq=False)
class EdgeTimes:
    """The times of a relation's edges, which ascend within each row.

    An edge is visible to a seed of time t if its own time is at most t, as in PyG.
    """

    distinct: Ids  # [num_times] ascending
    codes: Ids  # [num_edges] row * (num_times + 1) + rank of the edge's time, ascending

    @classmethod
    def of(cls, csc: CSC, times: Ids) -> EdgeTimes:
        """Ranks times [num_edges]. Raises `ValueError` if a row is not sorted."""
        distinct, ranks = np.unique(times, return_inverse=True)
        rows = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        codes = rows * (len(distinct) + 1) + ranks
        unsorted = np.flatnonzero(np.diff(codes) < 0)
        if len(unsorted):
            raise ValueError(
                f"the in-edges of node {rows[unsorted[0]]} are not sorted by time: "
                "pass is_sorted=False, or sort edges by destination and then by time"
            )
        return cls(distinct, codes)

    def ends(self, rows: Ids, bounds: Ids) -> Ids:  # [num_rows]
        """Returns the end of the edges of each row [num_rows] up to its time bound."""
        visible = np.searchsorted(self.distinct, bounds, side="right")
        return np.searchsorted(self.codes, rows * (len(self.distinct) + 1) + visible).astype(np.int64)


@dataclass(frozen=True, eq=False)
class DrawRule:
    """What all draws of a batch share."""

    replace: bool
    last: bool  # draw the latest edges before the bound instead of any
    threads: int
    draw_bytes: int  # memory of a draw with replacement


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """One relation's in-edges, and the node types at their ends."""

    source: str
    destination: str
    csc: CSC  # with the weights of its edges, if draws are weighted
    times: EdgeTimes | None = None

    @classmethod
    def of(
        cls, ends: tuple[str, str], colptr: Tensor, row: Tensor, num_sources: int, weight: Tensor | None
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
        csc = CSC(colptr.numpy().astype(np.int64, copy=False), row.numpy(), weights, num_sources=num_sources)
        return cls(*ends, csc)

    def native(self, fanouts: list[int], replace: bool) -> _core.Sampler:
        """Makes the sampler that draws this relation's edges."""
        make = _core.Sampler.neighbor if self.csc.weight is None else _core.Sampler.weighted
        return make(fanouts, replace, False, None)

    def draw(self, nodes: Ids, keys: Ids | None, bounds: Ids | None, fanout: int, key: int, rule: DrawRule) -> Hop:
        """Draws in-edges of nodes, which may repeat.

        Args:
            nodes: [num_rows] int64 destinations.
            keys: [num_rows] int64 keys of their draws. None: the nodes themselves.
            bounds: [num_rows] latest visible time of each row. None: no limit.
            fanout: Draws per row, -1 for all.
            key: Key of the batch and relation.
            rule: What all draws of the batch share.
        """
        begins = ends = None
        if bounds is not None and self.times is not None:
            ends = self.times.ends(nodes, bounds)
            if rule.last and fanout >= 0:
                begins = np.maximum(self.csc.indptr[nodes], ends - fanout)
        reading = Reading(self.csc, keys=keys, begins=begins, ends=ends)
        drawn = self.native([fanout], rule.replace).draw(reading, nodes, 0, key, rule.threads)
        return Hop(drawn[0], drawn[1], drawn[2])
