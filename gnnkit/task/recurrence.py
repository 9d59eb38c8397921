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
from gnnkit.sampler.events import NO_EVENT, EventHistory, codes
from gnnkit.sampler.links import Links
from gnnkit.strategy import Worker
from gnnkit.task.link_split import held_out_candidates
from gnnkit.task.ranking import mid_ranks

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
    assert links.events is not None
    held_out = np.concatenate([links.val_time, links.test_time])
    window = int(np.ptp(held_out)) // 2 if len(held_out) else 0
    rules = Recurrence(links.events, links.num_nodes, window)
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
