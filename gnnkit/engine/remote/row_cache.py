"""The configured cache of other ranks' rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gnnkit.comm import Communicator
from gnnkit.engine.remote.owned_rows import FetchedRows, OwnedRows
from gnnkit.engine.remote.owners import MessageCounter, to_all
from gnnkit.engine.remote.source_sums import SourceSums
from gnnkit.engine.remote.tier import KeptRows, most_read
from gnnkit.graph import Floats, Ids
from gnnkit.sampler import Fanouts

_POLICIES = {"none": "static", "degree": "static", "lru": "lru", "vip": "static", "exact": "exact"}
CACHES = tuple(_POLICIES)
_SCORE = np.dtype([("id", np.int64), ("score", np.float64)])


class RowCache:
    """A cache with the policy of `strategy.cache`.

    - degree: the nodes with most out-edges
    - lru: the most recently read nodes
    - vip: the nodes most likely to be in a batch (SALIENT++, MLSys 2023)
    - exact: the nodes read most often in the epoch, which is drawn twice to find them
    """

    def __init__(self, name: str, num_rows: int | None, rows: OwnedRows, comm: Communicator) -> None:
        """Creates an empty cache.

        Args:
            name: One of `CACHES`.
            num_rows: Maximum number of rows. If None, a tenth of the nodes.
            rows: The rows of the owned nodes.
            comm: The ranks.
        """
        self.name, self.owned, self._comm = name, rows, comm
        self.num_rows = 0 if name == "none" else rows.shard.num_nodes // 10 if num_rows is None else num_rows
        rows.cache = KeptRows(self.num_rows, rows.row, _POLICIES[name])

    def begin(
        self, fanouts: Fanouts, chance: Callable[[Ids, Ids], Floats]
    ) -> tuple[FetchedRows, MessageCounter] | None:
        """Fetches rows that are cached for the entire run. Collective.

        Args:
            fanouts: [num_hops] draws per node.
            chance: Estimates from in-edges and out-edges [num_owned] the probability of
                each owned node to be a seed.

        Returns:
            The fetched rows and messages, or None.
        """
        if self.name not in ("degree", "vip"):
            return None
        shard = self.owned.shard
        sums = SourceSums(shard, self.owned.owners, self._comm)
        out_edges = sums.out_edges()
        scores: Floats = out_edges.astype(np.float64)
        if self.name == "vip":
            scores = sums.inclusion(fanouts, chance(self.owned.in_edges, out_edges))
        counter = MessageCounter.zeros(self._comm.world_size)
        return self._keep(self._best(scores), self._comm, counter)

    def announce(
        self, batches: Iterable[Ids], comm: Communicator, counter: MessageCounter
    ) -> tuple[FetchedRows, MessageCounter]:
        """Caches the rows read most often, and at least twice, in an epoch. Collective.

        Args:
            batches: Global ids of the rows read by each batch of the epoch.
            comm: The ranks.
            counter: Counter of messages.
        """
        rank_of = self.owned.owners.rank_of
        away = (ids[rank_of[ids] != comm.rank] for ids in batches)
        return self._keep(most_read(away, len(rank_of), self.num_rows, times=2), comm, counter)

    def _keep(self, nodes: Ids, comm: Communicator, counter: MessageCounter) -> tuple[FetchedRows, MessageCounter]:
        result = self.owned.fetch(nodes, comm, counter)
        self.owned.cache.fill(nodes, result.rows)
        return result, counter

    def _best(self, scores: Floats) -> Ids:  # at most [num_rows]
        """Returns other ranks' nodes with the highest positive scores. Collective."""
        records = np.empty(len(scores), _SCORE)
        records["id"], records["score"] = self.owned.shard.owned, scores
        parts = to_all(self._comm, self._top(records))
        return self._top(
            np.concatenate([part for rank, part in enumerate(parts) if rank != self._comm.rank] or [records[:0]])
        )["id"]

    def _top(self, records: np.ndarray) -> np.ndarray:
        candidates = records[records["score"] > 0]
        return candidates[np.lexsort((candidates["id"], -candidates["score"]))[: self.num_rows]]
