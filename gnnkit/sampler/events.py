"""Events, which are pairs of nodes at a time: their history and negative pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.graph.times import Times

NO_EVENT = np.iinfo(np.int64).min  # time of the last event if there is none
MAX_NODES = math.isqrt(2**63 - 1)  # so that the codes of all pairs fit in int64
_ROUNDS = 100  # of draws until a pair is negative
Mask = npt.NDArray[np.bool_]


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
        places = self._place(key, time)
        self.order = np.argsort(places, kind="stable")  # [num_events] events sorted by key and time
        self._events = places[self.order]

    def _place(self, key: Ids, time: Ids) -> Ids:
        return np.asarray(key * (len(self._times) + 1) + time)

    def range(self, keys: Ids, before: Ids) -> tuple[Ids, Ids]:
        """Returns where each key's events before a time begin and end in `order`.

        Args:
            keys: [...] int64.
            before: Times that broadcast to `keys`.
        """
        before = np.broadcast_to(before, keys.shape)
        key = np.searchsorted(self._keys, keys)
        time = np.searchsorted(self._times, before)
        occurs = np.append(self._keys, NO_EVENT)[key] == keys
        first = np.searchsorted(self._events, self._place(key, np.zeros_like(time)))
        return first, np.where(occurs, np.searchsorted(self._events, self._place(key, time)), first)

    def count(self, keys: Ids, before: Ids) -> Ids:
        """Counts each key's events before a time, for the arguments of `range`."""
        first, end = self.range(keys, before)
        return np.asarray(end - first)

    def last(self, keys: Ids, before: Ids) -> Times:
        """Returns the time of each key's last event before a time.

        A key without such an event has the lowest int64.
        """
        first, end = self.range(keys, before)
        times = np.append(self._times, NO_EVENT)[np.append(self._events, 0)[end - 1] % (len(self._times) + 1)]
        return np.where(end > first, times, NO_EVENT)

    def occurs(self, keys: Ids, times: Ids) -> Mask:
        """Returns whether each key has an event at a time.

        Args:
            keys: [...] int64.
            times: Times that broadcast to `keys`, below the highest int64.
        """
        return np.asarray(self.count(keys, times + 1) > self.count(keys, times))


@dataclass(frozen=True, slots=True, eq=False)
class EventNegatives:
    """Draws other destinations of events, among the nodes that exist at their times.

    A node exists after its time. A pair with an event at the same time is not negative.
    """

    nodes: Ids  # [num_candidates] in the order of `times`, repeated by their weight
    times: Times  # [num_candidates] ascending
    events: EventHistory | None  # all events by `codes`. None: all pairs are negative
    num_nodes: int
    until: int | None  # events without a negative pair draw from the nodes that exist at this time. None: an error
    earlier: (
        tuple[EventHistory, Ids] | None
    )  # all events by source, and their destinations, which a quarter of the pairs have

    @classmethod
    def of(cls, nodes: Ids, times: Times, **fields: Any) -> EventNegatives:
        """Sorts candidates by time.

        Args:
            nodes: [num_candidates] nodes, repeated by their weight.
            times: [num_nodes] time of each node.
            **fields: The other fields.
        """
        order = np.argsort(times[nodes], kind="stable")
        return cls(nodes[order], times[nodes[order]], num_nodes=len(times), **fields)

    def draw(self, events: Ids, ids: Ids, count: int, key: int, threads: int = 1) -> Ids:  # [k, count, 2]
        """Draws negative pairs, each by the key, its event and the event's id only.

        Raises `UserError` if an event has no negative pair.

        Args:
            events: [k, 3] source, destination and time.
            ids: [k] distinct numbers from 0.
            count: Number of pairs per event.
            key: Key of all draws.
            threads: Number of threads.
        """
        pairs = np.repeat(events, count, 0)
        pending = np.arange(len(pairs))
        bounds = [events[:, 2], *([] if self.until is None else [np.full(len(events), self.until)])]
        for attempt in range(_ROUNDS * len(bounds)):
            if not len(pending):
                break
            edges, places = np.divmod(pending, count)
            keys = np.stack([places, count + ids[edges] % (MAX_NODES - count)], 1)
            shares = _core.pair_draws(keys, MAX_NODES, _core.derive(key, attempt), threads)
            bound = bounds[attempt // _ROUNDS][edges]
            if attempt % _ROUNDS < _ROUNDS - 1:
                pairs[pending, 1] = self._find(shares, bound)
            else:  # few nodes are negative
                pairs[pending, 1] = [self._list(*row) for row in zip(events[edges], shares, bound, strict=True)]
            if self.earlier is not None and not attempt:
                self._find_earlier(pairs, shares, (ids[edges] + places) % 4 == 3)
            pending = pending[~self._are_negative(pairs[pending], events[edges, 1])]
        if not len(pending):
            return pairs[:, :2].reshape(len(events), count, 2)
        source, destination, time = events[pending[0] // count]
        raise UserError(
            f"the edge from node {source} to node {destination} at time {time} has no negative pair: each node that "
            "exists then is an end of it, or a destination at this time"
        )

    def _find(self, shares: npt.NDArray[np.float64], bounds: Times) -> Ids:  # [k]
        """Returns the node at a share of those that exist before a time, or -1."""
        present = np.searchsorted(self.times, bounds)
        return np.append(self.nodes, -1)[np.where(present > 0, (shares * present).astype(np.int64), len(self.nodes))]

    def _list(self, event: Ids, share: float, bound: int) -> int:
        """Returns the node at a share of those that are negative, or -1."""
        nodes = self.nodes[: np.searchsorted(self.times, bound)]
        pairs = np.stack([np.full(len(nodes), event[0]), nodes, np.full(len(nodes), event[2])], 1)
        nodes = nodes[self._are_negative(pairs, np.full(len(nodes), event[1]))]
        return int(nodes[int(share * len(nodes))]) if len(nodes) else -1

    def _find_earlier(self, pairs: Ids, shares: npt.NDArray[np.float64], mask: Mask) -> None:
        """Replaces destinations in a mask by earlier ones of the source, if any."""
        assert self.earlier is not None
        history, destinations = self.earlier
        first, end = history.range(pairs[:, 0], pairs[:, 2])
        rows = np.flatnonzero(mask & (end > first))
        places = first[rows] + (shares[rows] * (end - first)[rows]).astype(np.int64)
        pairs[rows, 1] = destinations[history.order[places]]

    def _are_negative(self, events: Ids, destinations: Ids) -> Mask:  # [k, 3], [k] -> [k]
        differ: Mask = (events[:, 1] >= 0) & (events[:, 1] != events[:, 0]) & (events[:, 1] != destinations)
        if self.events is not None:
            differ &= ~self.events.occurs(codes(events, self.num_nodes), events[:, 2])
        return differ


def codes(pairs: Ids, num_nodes: int) -> npt.NDArray[np.int64]:  # [k]
    """Encodes ordered node pairs as integers.

    Args:
        pairs: [k, 2] pairs, or [k, 3] events.
        num_nodes: Number of nodes.
    """
    return np.asarray(pairs[:, 1].astype(np.int64) * num_nodes + pairs[:, 0])
