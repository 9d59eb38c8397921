"""Local ids of the nodes of a batch."""

from __future__ import annotations

import numpy as np

from gnnkit import _core
from gnnkit.graph import Ids


class LocalIds:
    """Numbers the nodes of one type in order of discovery, the seeds first.

    A seed that repeats keeps its place, and edges lead to its first occurrence. In a
    disjoint batch, each seed has a tree of its own, and a node is numbered once per
    tree. A code is then tree * num_nodes + node.
    """

    def __init__(self, seeds: Ids, num_nodes: int, trees: Ids | None, num_trees: int) -> None:
        """Numbers the seeds.

        Args:
            seeds: [num_seeds] int64 nodes.
            num_nodes: Number of nodes of the type.
            trees: [num_seeds] tree of each seed. None: all seeds share one tree.
            num_trees: Number of trees of the batch.
        """
        if len(seeds) and not 0 <= seeds.min() <= seeds.max() < num_nodes:
            raise ValueError(f"seeds range from {seeds.min()} to {seeds.max()}, but there are {num_nodes} nodes")
        self.num_nodes = num_nodes
        self.disjoint = trees is not None
        self.seeds = seeds if trees is None else trees * num_nodes + seeds
        self._numbering = _core.Numbering(np.empty(0, np.int64), num_nodes * max(num_trees, 1))
        first = self._numbering.add(self.seeds)
        self._num_distinct = int(first.max()) + 1 if len(first) else 0
        self._first = None if self._num_distinct == len(seeds) else np.unique(first, return_index=True)[1]
        self.codes = self.seeds  # [num_found]
        self.drawn = 0  # nodes that have drawn
        self.counts = [len(seeds)]  # nodes found per hop, the seeds first

    def add(self, sources: Ids, trees: Ids | None) -> Ids:  # [num_edges]
        """Returns the local ids of sources, which are numbered when first seen."""
        codes = sources.astype(np.int64, copy=False)
        local = self._numbering.add(codes if trees is None else trees * self.num_nodes + codes)
        if self._first is None:
            return local
        offset = len(self.seeds) - self._num_distinct
        return np.where(
            local < self._num_distinct,
            self._first[np.minimum(local, self._num_distinct - 1)] if self._num_distinct else local,
            local + offset,
        )

    def frontier(self) -> Ids:  # [num_rows]
        """Returns the codes of the nodes found in the last hop, which draw next."""
        return self.codes[self.drawn :]

    def close_hop(self) -> None:
        """Makes the nodes found since the last call the next frontier."""
        self.drawn = len(self.codes)
        found = self._numbering.nodes()[self._num_distinct :]
        self.codes = np.concatenate([self.seeds, found])
        self.counts.append(len(self.codes) - self.drawn)

    def keys(self, codes: Ids) -> Ids | None:  # [num_rows]
        """Returns the keys of a frontier's draws. None: the nodes themselves.

        Seeds that repeat draw independently.
        """
        if self.disjoint:
            return codes
        if self._first is None or self.drawn:
            return None
        repeated = np.ones(len(codes), bool)
        repeated[self._first] = False
        return np.where(repeated, self.num_nodes + np.arange(len(codes)), codes)

    def nodes(self, codes: Ids) -> Ids:  # [num_rows]
        """Returns the node of each code."""
        return codes % self.num_nodes if self.disjoint else codes

    def trees(self, codes: Ids) -> Ids | None:  # [num_rows]
        """Returns the tree of each code. None: the batch is not disjoint."""
        return codes // self.num_nodes if self.disjoint else None
