"""Scores of pairs by the events before, without a model.

Most pairs of event streams recur, so a model of such links must rank better than these
rules. EdgeBank is that of Poursafaei et al., NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.graph import Ids
from gnnkit.sampler.links import Links, codes
from gnnkit.strategy import Worker
from gnnkit.task.link_split import held_out_candidates
from gnnkit.task.ranking import mid_ranks

RULES = ("edgebank", "recency", "reply", "activity")
_NEVER = np.iinfo(np.int64).min
_Times = npt.NDArray[np.int64]


class EventHistory:
    """Counts the events of a key before a time, and finds the last one.

    Events of equal time are not before each other. A lookup takes time logarithmic in
    the number of events.

    Args:
        keys: [num_events] int64 key of each event.
        times: [num_events] int64 time of each event, in any order.
    """

    def __init__(self, keys: Ids, times: Ids) -> None:
        self._keys, key = np.unique(keys, return_inverse=True)
        self._times, time = np.unique(times, return_inverse=True)
        self._events = np.sort(self._place(key, time))

    def _place(self, key: Ids, time: Ids) -> Ids:
        return np.asarray(key * (len(self._times) + 1) + time)

    def _range(self, keys: Ids, before: _Times) -> tuple[Ids, Ids]:
        """Returns the range of each key's events before a time."""
        key = np.searchsorted(self._keys, keys)
        time = np.searchsorted(self._times, before)
        occurs = np.append(self._keys, _NEVER)[key] == keys
        first = np.searchsorted(self._events, self._place(key, np.zeros_like(time)))
        return first, np.where(occurs, np.searchsorted(self._events, self._place(key, time)), first)

    def count(self, keys: Ids, before: _Times) -> Ids:
        """Counts each key's events before a time.

        Args:
            keys: [...] int64.
            before: Times that broadcast to `keys`.
        """
        first, end = self._range(keys, np.broadcast_to(before, keys.shape))
        return np.asarray(end - first)

    def last(self, keys: Ids, before: _Times) -> _Times:
        """Returns the time of each key's last event before a time.

        A key without such an event has the lowest int64.
        """
        first, end = self._range(keys, np.broadcast_to(before, keys.shape))
        times = np.append(self._times, _NEVER)[np.append(self._events, 0)[end - 1] % (len(self._times) + 1)]
        return np.where(end > first, times, _NEVER)


class Recurrence:
    """Ranks pairs by rules that learn nothing.

    - edgebank: whether the pair has occurred.
    - recency: when the pair has occurred last.
    - reply: when its reverse has occurred last.
    - activity: when the destination has been in an event last.

    Args:
        events: [num_events, 2] sources and destinations, also of the evaluated events.
        times: [num_events] int64 time of each event.
        num_nodes: Number of nodes.
    """

    def __init__(self, events: Ids, times: Ids, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._pairs = EventHistory(codes(events, num_nodes), times)
        self._nodes = EventHistory(events.T.ravel().astype(np.int64), np.tile(times, 2))

    def scores(self, pairs: Ids, times: _Times) -> dict[str, npt.NDArray[np.float64]]:
        """Scores pairs by what came before each row's time.

        Args:
            pairs: [k, c, 2] candidates, such as an event and its negative pairs.
            times: [k] time at which each row is asked.

        Returns:
            [k, c] scores for each of `RULES`. Equal scores are ties.
        """
        flat, before = pairs.reshape(-1, 2), times[:, None]
        forward, reverse = (codes(ends, self._num_nodes).reshape(pairs.shape[:2]) for ends in (flat, flat[:, ::-1]))
        recency, reply = (self._pairs.last(each, before) for each in (forward, reverse))
        activity = self._nodes.last(pairs[..., 1].astype(np.int64), before)
        scores = (recency != _NEVER, recency, reply, activity)
        return {rule: _ranks(score) for rule, score in zip(RULES, scores, strict=True)}


def measure_rules(worker: Worker, links: Links, splits: Sequence[str]) -> dict[str, float]:
    """Returns the mean reciprocal rank of each rule, named like `val_edgebank_mrr`.

    The rules see the same negative pairs as the model, and all earlier events, also
    held-out ones. Collective.

    Args:
        worker: This rank.
        links: The edges to predict, with `events`.
        splits: Names of the splits, in the order of their numbers.
    """
    assert links.events is not None
    rules = Recurrence(links.events[:, :2], links.events[:, 2], links.num_nodes)
    figures: dict[str, float] = {}
    for number, split in enumerate(splits):
        pairs, times = getattr(links, split), getattr(links, f"{split}_time")
        sums = torch.zeros(len(RULES), dtype=torch.float64)
        for ids, candidates in held_out_candidates(worker, links, pairs, number):
            scores = rules.scores(candidates, np.asarray(times[ids])).values()
            sums += torch.stack([(1 / mid_ranks(torch.from_numpy(score))).sum() for score in scores])
        means = worker.comm.all_reduce(sums.to(worker.comm.device)) / max(len(pairs), 1)
        if len(pairs):
            figures |= {f"{split}_{rule}_mrr": float(mean) for rule, mean in zip(RULES, means, strict=True)}
    return figures


def _ranks(scores: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Returns ranks of scores, as nanoseconds are no exact float64."""
    order = np.unique(scores, return_inverse=True)[1]
    return np.asarray(order.reshape(scores.shape), np.float64)
