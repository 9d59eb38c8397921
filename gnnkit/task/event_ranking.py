"""Ranks pairs at the time of each held-out event, by a model and by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.graph import Ids
from gnnkit.kernels.dropout import derive
from gnnkit.sampler.events import NO_EVENT, EventHistory, Mask, codes
from gnnkit.sampler.links import Links
from gnnkit.strategy import Worker
from gnnkit.task.item_ranking import metric_names, rank_block
from gnnkit.task.link_split import held_out_candidates
from gnnkit.task.ranking import mid_ranks

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
        assert links.timeline.events is not None
        self.links, self.k, self._items = links, k, np.arange(*links.relation.ends[2:])
        self._popularity = EventHistory(links.timeline.events[:, 1], links.timeline.events[:, 2])
        self._events = {split: self._choose(split) for split in ("val", "test")}
        self._by_popularity: dict[str, dict[str, float]] = {}  # by measured split

    def _choose(self, split: str) -> Ids:  # [k, 3]
        """Returns the events to measure, in the order of the split."""
        links = self.links
        events: Ids = getattr(links, split).events
        limit = max(len(events) * (1 + links.evaluation.count) // max(len(self._items), 1), 1)
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
        assert links.timeline.node_time is not None
        keys = codes(pairs.reshape(-1, 3), links.num_nodes).reshape(times.shape)
        return (links.timeline.node_time[pairs[..., 1]] >= times) | (links.history.count(keys, times + 1) > 0)

    def _count_events(self, pairs: Ids) -> Tensor:
        return torch.from_numpy(self._popularity.count(pairs[..., 1], pairs[..., 2]).astype(np.float64))


RULES = ("edgebank", "window", "recency", "reply", "activity", "popularity")


class Recurrence:
    """Ranks pairs by rules that learn nothing.

    - edgebank: whether the pair has occurred.
    - window: whether the pair has occurred in the time window before.
    - recency: when the pair has occurred last.
    - reply: when its reverse has occurred last.
    - activity: when the destination has been in an event last.
    - popularity: how often the destination has been in an event in the time window.

    Args:
        events: [num_events, 3] sources, destinations and times, also of the evaluated
            events.
        num_nodes: Number of nodes.
        window: Length of the time window.
    """

    def __init__(self, events: Ids, num_nodes: int, window: int) -> None:
        self._num_nodes, self._window = num_nodes, window
        self._pairs = EventHistory(codes(events, num_nodes), events[:, 2])
        self._nodes = EventHistory(events[:, :2].T.ravel().astype(np.int64), np.tile(events[:, 2], 2))

    def scores(self, pairs: Ids, times: Ids) -> dict[str, npt.NDArray[np.float64]]:
        """Scores pairs by the events before each row's time.

        Args:
            pairs: [k, c, 2] candidates, such as an event and its negative pairs.
            times: [k] time at which each row is asked.

        Returns:
            [k, c] scores for each of `RULES`. Equal scores are ties.
        """
        flat, before = pairs.reshape(-1, 2), times[:, None]
        forward, reverse = (codes(ends, self._num_nodes).reshape(pairs.shape[:2]) for ends in (flat, flat[:, ::-1]))
        recency, reply = (self._pairs.last(ends, before) for ends in (forward, reverse))
        nodes, since = pairs[..., 1].astype(np.int64), before - self._window
        activity = self._nodes.last(nodes, before)
        popularity = self._nodes.count(nodes, before) - self._nodes.count(nodes, since)
        is_late = (recency != NO_EVENT) & (recency >= since)
        scores = (recency != NO_EVENT, is_late, recency, reply, activity, popularity)
        return {rule: _ranks(score) for rule, score in zip(RULES, scores, strict=True)}


def measure_rules(worker: Worker, links: Links, splits: Sequence[str]) -> dict[str, float]:
    """Returns the mean reciprocal rank of each rule, named like `val_edgebank_mrr`.

    The rules see the same negative pairs as the model, and all earlier events, also
    held-out ones. Collective.

    Args:
        worker: This rank.
        links: The edges to predict, with `events`.
        splits: Names of the splits.
    """
    assert links.timeline.events is not None
    held_out = np.concatenate([links.val.time, links.test.time])
    window = int(np.ptp(held_out)) // 2 if len(held_out) else 0
    rules = Recurrence(links.timeline.events, links.num_nodes, window)
    figures: dict[str, float] = {}
    for split in splits:
        sums, num_edges = torch.zeros(len(RULES), dtype=torch.float64), len(getattr(links, split))
        for candidates in held_out_candidates(worker, links, split):
            scores = rules.scores(candidates[..., :2], candidates[:, 0, 2]).values()
            sums += torch.stack([(1 / mid_ranks(torch.from_numpy(score))).sum() for score in scores])
        means = worker.comm.all_reduce(sums.to(worker.comm.device)) / max(num_edges, 1)
        if num_edges:
            figures |= {f"{split}_{rule}_mrr": float(mean) for rule, mean in zip(RULES, means, strict=True)}
    return figures


def _ranks(scores: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Returns ranks of scores, because float64 cannot represent all nanoseconds."""
    order = np.unique(scores, return_inverse=True)[1]
    return np.asarray(order.reshape(scores.shape), np.float64)
