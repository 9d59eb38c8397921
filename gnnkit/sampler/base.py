"""CSC + seeds -> MiniBatch."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gnnkit.graph import CSC, Ids, MiniBatch


class Sampler(ABC):
    """Draws the neighbourhood of seeds. Equal arguments give equal results, whatever the number of threads."""

    @abstractmethod
    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> tuple[Ids, Ids]:
        """One hop: `indptr` [len(nodes) + 1] and the edge positions drawn for each of `nodes`. Hop 0 is the seeds' own."""

    @abstractmethod
    def sample(self, graph: CSC, seeds: Ids, *, key: int) -> MiniBatch:
        """All hops of `seeds` (distinct). Raises `ValueError` for seeds out of range."""
