"""Ranks a relation's destinations, such as items, for its sources, such as users.

Scores are computed for a block of sources at a time. The blocks do not depend on the
number of ranks, so all metrics and lists are those of one rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import Tally
from gnnkit.engine.remote import Lookup
from gnnkit.graph import Ids
from gnnkit.sampler.links import Links
from gnnkit.strategy import Worker

_CELLS, _CACHED = 2**22, 2**18  # numbers in memory at a time: at most, and so that they stay in the cache
_SOURCES = 16  # in a block if memory allows, because each block reads all items
Scorer = Callable[[Tensor, Tensor, Ids], Tensor]  # [b, width], [num_items, width], [b] source ids -> [b, num_items]


def metric_names(k: int) -> tuple[str, str, str]:
    """Names the ranking metrics, the first of which selects the best model."""
    return f"ndcg_{k}", f"recall_{k}", "full_mrr"


@dataclass(frozen=True, slots=True, eq=False)
class ItemLists:
    """Each source's items, as positions among all sources and items."""

    indptr: Ids  # [num_sources + 1]
    items: Ids  # [num_pairs]

    @classmethod
    def of(cls, pairs: Ids, ends: tuple[int, int, int, int]) -> ItemLists:
        """Groups id pairs [k, 2] by source, without duplicates."""
        sources, items = np.unique(pairs - [ends[0], ends[2]], axis=0).T if len(pairs) else np.empty((2, 0), np.int64)
        return cls(np.searchsorted(sources, np.arange(ends[1] - ends[0] + 1)), np.ascontiguousarray(items))

    def cells(self, sources: Ids) -> tuple[Tensor, Tensor]:  # [k], [k]
        """Returns all pairs' rows in `sources` and items."""
        counts = self.indptr[sources + 1] - self.indptr[sources]
        rows = np.repeat(np.arange(len(sources)), counts)
        places = np.arange(len(rows)) + np.repeat(self.indptr[sources] - np.cumsum(counts) + counts, counts)
        return torch.from_numpy(rows), torch.from_numpy(self.items[places])


@dataclass(frozen=True, slots=True, eq=False)
class TopItems:
    """Each source's best unseen items, best first.

    `job=predict` writes them as recommendations. An item is unseen if no edge of the
    predicted relation leads from the source to it.
    """

    items: Tensor  # [num_sources, k] int64 positions among the items
    scores: Tensor  # [num_sources, k] -inf where a source has fewer unseen items


class ItemRanking:
    """Ranks a relation's unseen destinations for each source."""

    def __init__(self, links: Links, k: int, cost: int = 1) -> None:
        """Groups the edges by source.

        Args:
            links: The edges to predict, with a relation between two node types.
            k: Length of ranked lists.
            cost: Numbers in memory per score. Default: 1.
        """
        assert links.relation is not None
        assert links.relation.ends is not None
        self.links, self.k, self._cost = links, k, cost
        self.ends = ends = links.relation.ends
        self.num_sources, self.num_items = ends[1] - ends[0], ends[3] - ends[2]
        training = _decode(links.training.excluded, links.num_nodes)
        self.popularity = torch.from_numpy(np.bincount(training[:, 1] - ends[2], minlength=self.num_items)).double()
        self.known = ItemLists.of(_decode(links.evaluation.excluded, links.num_nodes), ends)
        # The test set's seen items include the validation edges.
        seen_pairs = {"val": training, "test": np.concatenate([training, links.val.pairs])}
        self._seen_items = {name: ItemLists.of(pairs, ends) for name, pairs in seen_pairs.items()}
        self._held_out = {name: ItemLists.of(getattr(links, name).pairs, ends) for name in seen_pairs}
        self._by_popularity: dict[str, dict[str, float]] = {}  # by measured split

    @torch.no_grad()
    def measure(self, outputs: Tensor, worker: Worker, scorer: Scorer, splits: Sequence[str]) -> dict[str, float]:
        """Averages recall, NDCG and MRR over the sources of held-out edges. Collective.

        Args:
            outputs: [num_owned, width] outputs for this rank's nodes.
            worker: This rank.
            scorer: Scores all items for some sources.
            splits: Splits to measure.
        """
        metrics: dict[str, float] = {}
        for split in splits:
            if split not in self._by_popularity:
                blocks = functools.partial(self._popular_blocks, worker)
                self._by_popularity[split] = self._measure(split, worker, blocks)
            figures = self._measure(split, worker, functools.partial(self._blocks, outputs, worker, scorer))
            figures |= {f"popularity_{name}": value for name, value in self._by_popularity[split].items()}
            metrics |= {f"{split}_{name}": value for name, value in figures.items()}
        return metrics

    def popularity_figures(self) -> dict[str, float]:
        """Returns the metrics when items are ranked by training edges.

        Follows `measure`, and covers the measured splits.
        """
        splits = self._by_popularity.items()
        return {f"{split}_{name}": value for split, figures in splits for name, value in figures.items()}

    @torch.no_grad()
    def top(self, outputs: Tensor, worker: Worker, scorer: Scorer) -> TopItems | None:
        """Returns the k best items without an edge for each source. Collective.

        Returns None on other ranks than the leader. The arguments are those of
        `measure`.
        """
        k = min(self.k, self.num_items)
        parts = []
        for sources, scores in self._blocks(outputs, worker, scorer, np.arange(self.num_sources)):
            scores[self.known.cells(sources)] = -torch.inf
            best = scores.topk(k, dim=1)
            parts.append((torch.from_numpy(sources).to(scores.device), best.indices, best.values))
        columns = [worker.comm.gather(torch.cat(column)) for column in zip(*parts, strict=True)]
        if not columns[0]:
            return None
        rows, items, values = map(torch.cat, columns)
        order = torch.argsort(rows)
        return TopItems(items[order], values[order])

    def _measure(
        self, split: str, worker: Worker, blocks: Callable[[Ids], Iterator[tuple[Ids, Tensor]]]
    ) -> dict[str, float]:
        """Averages a split's metrics, if it has held-out edges. Collective."""
        held_out = self._held_out[split]
        sources = np.flatnonzero(np.diff(held_out.indptr))
        if not len(sources):
            return {}
        sums = torch.zeros(3, dtype=torch.float64, device=worker.device)
        for block, scores in blocks(sources):
            sums += rank_block(scores, self._seen_items[split].cells(block), held_out.cells(block), self.k)
        means = worker.comm.all_reduce(sums) / len(sources)
        return {name: float(mean) for name, mean in zip(metric_names(self.k), means, strict=True)}

    def _blocks(self, outputs: Tensor, worker: Worker, scorer: Scorer, sources: Ids) -> Iterator[tuple[Ids, Tensor]]:
        """Yields sources and their scores [b, num_items], at least once. Collective.

        Rank r scores the blocks r, r + P, ...

        Args:
            outputs: [num_owned, width] outputs for this rank's nodes.
            worker: This rank.
            scorer: Scores all items for some sources.
            sources: [k] positions among the sources.
        """
        lookup = Lookup(worker.comm, worker.owned, worker.owner, Tally())
        reach, places = lookup.find(np.arange(*self.ends[2:]))
        items = reach(outputs)[places]
        for block in self._split(sources, worker):
            reach, places = lookup.find(block + self.ends[0])
            yield block, scorer(reach(outputs)[places], items, block + self.ends[0])

    def _popular_blocks(self, worker: Worker, sources: Ids) -> Iterator[tuple[Ids, Tensor]]:
        """Yields sources with each item's number of training edges. Not collective."""
        scores = self.popularity.to(worker.device)
        for block in self._split(sources, worker):
            yield block, scores.repeat(len(block), 1)

    def _split(self, sources: Ids, worker: Worker) -> Iterator[Ids]:
        """Yields this rank's blocks, equally many on all ranks."""
        cells = max(self.num_items * self._cost, 1)
        size = max(_CACHED // cells, min(_CELLS // cells, _SOURCES), 1)
        rank, num_ranks = worker.comm.rank, worker.comm.world_size
        for first in range(0, len(sources), size * num_ranks):
            yield sources[first + rank * size : first + (rank + 1) * size]


def rank_block(
    scores: Tensor, seen_cells: tuple[Tensor, Tensor], target_cells: tuple[Tensor, Tensor], k: int
) -> Tensor:  # [3] float64
    """Sums NDCG, recall and the reciprocal rank of the best wanted item over sources.

    Ties count half in the reciprocal rank.

    Args:
        scores: [b, num_items], which change.
        seen_cells: Rows and items to exclude, unless wanted.
        target_cells: Rows and items of held-out edges, at least one per row.
        k: Length of ranked lists.
    """
    if not len(scores):
        return torch.zeros(3, dtype=torch.float64, device=scores.device)
    rows, device, k = target_cells[0].to(scores.device), scores.device, min(k, scores.shape[1])
    targets = scores[target_cells]
    scores[seen_cells], scores[target_cells] = -torch.inf, -torch.inf
    best = torch.full((len(scores),), -torch.inf, dtype=scores.dtype, device=device)
    best = best.scatter_reduce(0, rows, targets, "amax")
    # A comparison of all scores is cheaper than two sums of Booleans.
    ranks = 1 + 0.5 * (scores.shape[1] + torch.sign(scores - best[:, None]).sum(1, dtype=torch.float64))
    scores[target_cells] = targets
    is_target = torch.zeros(scores.shape, dtype=torch.bool, device=device)
    is_target[target_cells] = True
    hits = is_target.gather(1, scores.topk(k, dim=1).indices).double()
    gains = 1 / torch.log2(torch.arange(2, k + 2, dtype=torch.float64, device=device))
    counts = torch.bincount(rows, minlength=len(scores))
    ndcg = (hits @ gains) / gains.cumsum(0)[counts.clamp(max=k) - 1]
    return torch.stack([ndcg.sum(), (hits.sum(1) / counts).sum(), (1 / ranks).sum()])


def _decode(codes: Ids | None, num_nodes: int) -> Ids:  # [k, 2]
    """Returns the pairs for codes from `gnnkit.sampler.links.codes`."""
    assert codes is not None, "the ranking needs the filter of edges"
    return np.stack([codes % num_nodes, codes // num_nodes], 1)
