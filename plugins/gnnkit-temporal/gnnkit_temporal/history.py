"""What happened before an event: its ends' latest events, and counts of its pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnkit.sampler.events import NO_EVENT, EventHistory, codes
from gnnkit.sampler.links import Links

Numbers = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
NUM_STATISTICS = 16  # columns of `EndEvents.statistics`


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The latest events of some nodes before a time, the latest first."""

    exists: npt.NDArray[np.bool_]  # [n, K]
    age: Numbers  # [n, K] time since the event. 0 where there is none
    sent: npt.NDArray[np.bool_]  # [n, K] whether the node is the event's source
    features: Numbers | None = None  # [n, K, edge_width] of the events, 0 where there is none


class EndEvents:
    """All events by their ends, as of any time.

    Args:
        links: The edges to predict, split by time.
    """

    def __init__(self, links: Links) -> None:
        assert links.timeline.events is not None
        self._num_nodes, events = links.num_nodes, np.asarray(links.timeline.events)
        self._times = np.tile(events[:, 2], 2)
        self._nodes = EventHistory(events[:, :2].T.ravel().astype(np.int64), self._times)
        self._pairs = links.history
        self._features = links.timeline.event_features

    def tokens(self, nodes: Ids, times: Ids, count: int) -> Tokens:
        """Returns the last `count` events of nodes [n] before times [n]."""
        first, end = self._nodes.range(nodes, times)
        places = end[:, None] - 1 - np.arange(count)
        exists = places >= first[:, None]
        events = self._nodes.order[np.where(exists, places, 0)] if len(self._times) else np.zeros_like(places)
        age = np.where(exists, times[:, None] - self._times[events], 0)
        num_events = len(self._times) // 2
        features = None
        if self._features is not None and num_events:
            features = np.where(exists[..., None], self._features[events % num_events], 0).astype(np.float32)
        return Tokens(exists, age.astype(np.float32), exists & (events < num_events), features)

    def statistics(self, events: Ids, scale: float) -> Numbers:  # [k, NUM_STATISTICS]
        """Counts earlier events of pairs and of their ends.

        Args:
            events: [k, 3] sources, destinations and times.
            scale: Length of time that counts as short.
        """
        source, destination, times = events.T
        columns = []
        for pair in (events, events[:, [1, 0]]):
            keys = codes(pair, self._num_nodes)
            last = self._pairs.last(keys, times)
            columns += [self._pairs.count(keys, times), *self._since(last, times, scale)]
            columns += [self._between(node, last, times) for node in (source, destination)]
        for node in (source, destination):
            columns += [self._nodes.count(node, times), *self._since(self._nodes.last(node, times), times, scale)]
        return np.log1p(np.stack(columns, 1)).astype(np.float32)

    def _since(self, last: Ids, times: Ids, scale: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns the age of the last events, and whether there are any."""
        never = last == NO_EVENT
        return np.where(never, 0, times - np.where(never, times, last)) / scale, ~never * 1.0

    def _between(self, nodes: Ids, last: Ids, times: Ids) -> Ids:
        """Counts the events of nodes since a time, 0 if it is never."""
        since = self._nodes.count(nodes, times) - self._nodes.count(nodes, last)
        return np.where(last == NO_EVENT, 0, since)
