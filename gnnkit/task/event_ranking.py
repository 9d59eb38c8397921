"""Ranks a relation's destinations at the time of each held-out event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.graph import Ids
from gnnkit.kernels.dropout import derive
from gnnkit.sampler.events import EventHistory, Mask, codes
from gnnkit.sampler.links import Links, at_times
from gnnkit.strategy import Worker
from gnnkit.task.item_ranking import metric_names, rank_block

NUM_RANKED = "ranked_events"  # names the figure that counts the measured events
_CHUNK = 2**16  # pairs whose rows are in memory at a time
PairScorer = Callable[[Ids], Tensor]  # [b, num_items, 3] sources, items and times -> [b, num_items]. Collective


class EventRanking:
    """Ranks all destinations that exist at an event's time and are new to its source.

    Events of earlier pairs are not measured, because lists contain new destinations
    only. A hash selects a sample of the events, so that no more pairs are scored than
    the split has negative pairs.
    """

    def __init__(self, links: Links, k: int) -> None:
        """Chooses the events.

        Args:
            links: The edges to predict, split by time, with a relation between two node
                types.
            k: Length of ranked lists.
        """
        assert links.relation is not None
        assert links.relation.ends is not None
        assert links.events is not None
        self.links, self.k, self._items = links, k, np.arange(*links.relation.ends[2:])
        self._popularity = EventHistory(links.events[:, 1], links.events[:, 2])
        self._events = {split: self._choose(split) for split in ("val", "test")}
        self._by_popularity: dict[str, dict[str, float]] = {}  # by measured split

    def _choose(self, split: str) -> Ids:  # [k, 3]
        """Returns the events to measure, in the order of the split."""
        links = self.links
        events = at_times(getattr(links, split), getattr(links, f"{split}_time"))
        limit = max(len(events) * (1 + links.eval_negatives) // max(len(self._items), 1), 1)
        new = np.flatnonzero(links.history.count(codes(events, links.num_nodes), events[:, 2]) == 0)
        hashes: Any = derive(links.seed, new.astype(np.uint64))  # type: ignore[arg-type]
        order = np.argsort(hashes, kind="stable")
        return events[np.sort(new[order[:limit]])]

    @torch.no_grad()
    def measure(self, worker: Worker, score: PairScorer, splits: Sequence[str]) -> dict[str, float]:
        """Averages NDCG, recall and MRR over events, also for ranking by popularity.

        Collective. Popularity is an item's number of earlier events.

        Args:
            worker: This rank.
            score: Scores pairs at their times.
            splits: Splits to measure.
        """
        metrics: dict[str, float] = {}
        for split in (split for split in splits if len(self._events[split])):
            if split not in self._by_popularity:
                self._by_popularity[split] = self._measure(worker, split, self._count_events)
            figures = self._measure(worker, split, score)
            figures |= {f"popularity_{name}": value for name, value in self._by_popularity[split].items()}
            figures[NUM_RANKED] = float(len(self._events[split]))
            metrics |= {f"{split}_{name}": value for name, value in figures.items()}
        return metrics

    def _measure(self, worker: Worker, split: str, score: PairScorer) -> dict[str, float]:
        """Averages the metrics of one score. Collective."""
        sums = torch.zeros(3, dtype=torch.float64, device=worker.device)
        for pairs, targets in self._chunks(worker, split):
            scores = score(pairs).to(worker.device, torch.float64)
            rows = np.arange(len(pairs))
            is_left_out = self._are_no_candidates(pairs)
            is_left_out[rows, targets] = False
            cells = tuple(torch.from_numpy(place) for place in np.nonzero(is_left_out))
            sums += rank_block(scores, cells, (torch.from_numpy(rows), torch.from_numpy(targets)), self.k)  # type: ignore[arg-type]
        means = worker.comm.all_reduce(sums) / len(self._events[split])
        return {name: float(mean) for name, mean in zip(metric_names(self.k), means, strict=True)}

    def _chunks(self, worker: Worker, split: str) -> Iterator[tuple[Ids, Ids]]:
        """Yields some of a rank's events with all items, and each event's own item.

        All ranks have equally many chunks.

        Yields:
            [b, num_items, 3] sources, items and times, and [b] positions of items.
        """
        events, num_ranks = self._events[split], worker.comm.world_size
        size = max(_CHUNK // max(len(self._items), 1), 1)
        for start in range(0, len(events), size * num_ranks):
            part = events[start + worker.comm.rank : start + size * num_ranks : num_ranks]
            pairs = np.repeat(part[:, None], len(self._items), 1)
            pairs[..., 1] = self._items
            yield pairs, part[:, 1] - self._items[0]

    def _are_no_candidates(self, pairs: Ids) -> Mask:  # [b, num_items]
        """Returns a mask of items that do not exist yet or that the source has seen."""
        links, times = self.links, pairs[..., 2]
        assert links.node_time is not None
        keys = codes(pairs.reshape(-1, 3), links.num_nodes).reshape(times.shape)
        return (links.node_time[pairs[..., 1]] >= times) | (links.history.count(keys, times + 1) > 0)

    def _count_events(self, pairs: Ids) -> Tensor:
        return torch.from_numpy(self._popularity.count(pairs[..., 1], pairs[..., 2]).astype(np.float64))
