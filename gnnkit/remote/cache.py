"""Rows of other ranks that a rank keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph import Ids


class Cache:
    """At most a number of rows, found by global id.

    `keeps_latest` says whether rows that were not asked for give way to newer rows
    (least recently used). Otherwise the rows stay until `fill` replaces them.
    """

    def __init__(self, num_rows: int, row: np.dtype[Any], *, keeps_latest: bool = False) -> None:
        """Begins empty.

        Args:
            num_rows: Most rows kept.
            row: Type of a row.
            keeps_latest: Whether newer rows replace older ones.
        """
        self.num_rows, self.keeps_latest = num_rows, keeps_latest
        self.ids: Ids = np.empty(0, np.int64)  # ascending
        self._rows = np.empty(0, row)
        self._used: Ids = np.empty(0, np.int64)  # number of the batch that last read each row
        self._batch = 0

    def find(self, nodes: Ids) -> npt.NDArray[np.bool_]:  # [num_nodes]
        """Says which nodes have a row here."""
        return self._rows_of(nodes)[1]

    def read(self, nodes: Ids) -> npt.NDArray[Any]:  # [num_nodes] records
        """Returns the rows of nodes that are here."""
        places, here = self._rows_of(nodes)
        assert here.all(), "a row that the cache does not hold"
        self._used[places] = self._batch
        return self._rows[places]

    def add(self, nodes: Ids, rows: npt.NDArray[Any]) -> None:
        """Ends a batch, which fetched the rows [k] of `nodes` [k], not here before."""
        if self.keeps_latest and self.num_rows:
            ids, used = (
                np.concatenate([self.ids, nodes]),
                np.concatenate([self._used, np.full(len(nodes), self._batch)]),
            )
            order = np.lexsort((ids, -used))[: self.num_rows]
            self._set(ids[order], np.concatenate([self._rows, rows])[order], used[order])
        self._batch += 1

    def fill(self, nodes: Ids, rows: npt.NDArray[Any]) -> None:
        """Replaces all rows.

        Args:
            nodes: [k] distinct ids, at most `num_rows`.
            rows: [k] their rows.
        """
        assert len(nodes) <= self.num_rows
        self._set(nodes, rows, np.zeros(len(nodes), np.int64))

    def _set(self, nodes: Ids, rows: npt.NDArray[Any], used: Ids) -> None:
        order = np.argsort(nodes)
        self.ids, self._rows, self._used = nodes[order].astype(np.int64), rows[order], used[order]

    def _rows_of(self, nodes: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Returns a place for each node, and whether the node's row is there."""
        if not len(self.ids):
            return np.zeros(len(nodes), np.int64), np.zeros(len(nodes), bool)
        places = np.minimum(np.searchsorted(self.ids, nodes), len(self.ids) - 1)
        return places, self.ids[places] == nodes
