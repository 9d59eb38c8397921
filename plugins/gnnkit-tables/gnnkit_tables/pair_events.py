"""Rows that relate an entity to a row that may be listed, and their history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnnkit.graph.times import ALWAYS, NEVER, Times
from gnnkit.graph.types import Floats, Ids
from gnnkit.sampler.events import EventHistory
from gnnkit_tables.database import Database, RowLink, RowType
from gnnkit_tables.encode import Encoded, Mask, scaled
from gnnkit_tables.lists import Lists, Rule, rank_within
from gnnkit_tables.targets import Targets

BEST = 50  # candidates of each rule. A table with at most twice as many rows is listed entirely
_MANY = 1_000_000  # pairs whose history is read at once
_LAST = (10, 10, 20)  # latest rows that a rule reads of the entity, of their rows, and of the entities of these
RECENT = "popularity in the last horizon"


@dataclass(frozen=True, slots=True, eq=False)
class PairEvents:
    """Rows that refer to an entity and, over links, to a row that may be listed."""

    name: str
    entities: Ids  # [num_events]
    items: Ids  # [num_events]
    times: Times  # [num_events]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Pairs of targets and rows, grouped by target."""

    lists: Ids  # [num_pairs] number of the target
    items: Ids  # [num_pairs]
    entities: Ids  # [num_pairs]
    times: Times  # [num_pairs]


def list_events(database: Database, targets: Targets, lists: Lists) -> Iterator[PairEvents]:
    """Yields pairs of entity and row in other tables, and those of earlier lists."""
    for row_type in database.types.values():
        if row_type.is_static or any(link.is_same for link in row_type.links):
            continue  # the row itself has the same links
        for owner, entities, without, begin in _owners(database, row_type.name, targets.entity):
            is_near = owner == without
            for name, items, times in _paths(database, row_type.name, lists.table, without, is_near=is_near):
                known = np.flatnonzero((entities >= 0) & (items >= 0) & (times != NEVER) & (begin != NEVER))
                at = np.maximum(times, begin)[known]
                yield PairEvents(f"{row_type.name}.{owner}{name}", entities[known], items[known], at)
    if targets.horizon is not None:
        known_at = targets.times[lists.targets] + targets.horizon
        # At the end of the horizon, a list is known, and events are read before a time
        known = np.flatnonzero(known_at <= database.end)
        owners = targets.rows[lists.targets]
        yield PairEvents("earlier lists", owners[known], lists.items[known], known_at[known] - 1)


def _owners(database: Database, start: str, entity: str) -> Iterator[tuple[str, Ids, str, Times]]:
    """Yields the entity of each row, over one or two links.

    Also the name of the first link, and the time from which the path is visible.
    """
    first = database.types[start]
    for link in first.links:
        if link.parent == entity:
            yield link.name, link.rows, link.name, first.times
        elif link.parent != start:
            for name, rows, times in _further(database, first, link, entity):
                yield name, rows, link.name, times


def _further(database: Database, first: RowType, link: RowLink, end: str) -> Iterator[tuple[str, Ids, Times]]:
    """Yields the row of `end` to which each row's parent refers, and the path time."""
    parent = database.types[link.parent]
    times = np.maximum(first.times, np.append(parent.times, [ALWAYS, ALWAYS])[link.rows])
    for further in parent.links:
        if further.parent == end and not further.is_same:
            yield f"{further.name} of {link.name}", np.append(further.rows, [-1, -1])[link.rows], times


def _paths(
    database: Database, start: str, end: str, without: str, *, is_near: bool
) -> Iterator[tuple[str, Ids, Times]]:
    """Yields the listed row of each row, and its time, over one link.

    With `is_near`, also over two links.
    """
    first = database.types[start]
    if start == end:
        yield "", np.arange(first.num_rows), first.times
    for link in first.links:
        if link.name == without or link.is_same:
            continue
        if link.parent == end:
            yield f" with {link.name}", link.rows, first.times
        for name, rows, times in _further(database, first, link, end) if is_near and link.parent != start else ():
            yield f" with {name}", rows, times


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Pair events, to count them before a time."""

    events: PairEvents
    base: int  # above all items
    by_pair: EventHistory
    by_entity: EventHistory
    by_item: EventHistory

    @classmethod
    def of(cls, events: PairEvents) -> History | None:
        """Sorts events. Returns None if there are none."""
        if not len(events.times):
            return None
        base = int(events.items.max()) + 1
        keys = events.entities * base + events.items
        histories = (EventHistory(part, events.times) for part in (keys, events.entities, events.items))
        return cls(events, base, *histories)

    def describe(self, pairs: Candidates, targets: Targets, fits: Mask) -> tuple[list[Rule], Encoded]:
        """Returns what ranks candidates without a model, and columns of candidates.

        Columns count events of pairs and of their ends, and have the time since the
        last.
        """
        keys = np.where(pairs.items < self.base, pairs.entities * self.base + pairs.items, -1)
        ends = {
            "pair": (self.by_pair, keys),
            "row": (self.by_item, pairs.items),
            "entity": (self.by_entity, pairs.entities),
        }
        counts = {what: history.count(ids, pairs.times) for what, (history, ids) in ends.items()}
        since = {what: _since(history.last(ids, pairs.times), pairs.times) for what, (history, ids) in ends.items()}
        recent = counts["row"] - self.by_item.count(pairs.items, pairs.times - (targets.horizon or 0))
        alike = self._alike(pairs)
        columns = {
            f"{what}: {kind}": np.log1p(part[what])
            for what in ends
            for kind, part in (("number of rows", counts), ("time since the last", since))
        }
        columns["row: number of rows in the last horizon"] = np.log1p(recent)
        columns["entities with the same rows: number"] = np.log1p(alike)
        columns["entities with the same rows: number by popularity"] = alike / np.sqrt(1 + counts["row"])
        names = [f"{self.events.name}: {name}" for name in columns]
        encoded = scaled(np.stack([*columns.values()], 1).astype(np.float64), names, names, fits)
        count, latest = (
            counts["pair"].astype(np.float64),
            np.nan_to_num(2 - since["pair"] / (1 + np.nanmax(since["pair"], initial=0))),
        )
        popular, share = counts["row"].astype(np.float64), recent / (1 + recent.max(initial=0))
        scores = {
            "popularity": popular,
            **({RECENT: recent.astype(np.float64)} if targets.horizon else {}),
            "rows of the entity's past, by number": count,
            "rows of the entity's past, the latest first": latest,
            "rows of the entity's past, then popularity": count + share,
            "rows of the latest past, then popularity": np.maximum(latest, share),
            "rows of entities with the same rows": alike,
        }
        return [Rule(name, self.events.name, score) for name, score in scores.items()], encoded

    def _alike(self, pairs: Candidates) -> Floats:  # [num_pairs]
        """Counts how often entities with the same rows have the candidate, too."""
        first = np.searchsorted(pairs.lists, np.unique(pairs.lists))
        keys, counts = self.walks(pairs.lists[first], pairs.entities[first], pairs.times[first])
        return _look_up(keys, counts, pairs.lists * self.base + np.minimum(pairs.items, self.base - 1)) * (
            pairs.items < self.base
        )

    def walks(self, lists: Ids, entities: Ids, times: Times) -> tuple[Ids, Floats]:
        """Walks from entities over their latest rows to others with these, and theirs.

        Returns codes of list and row in ascending order, and how many walks end there.
        """
        found = [(np.empty(0, np.int64), np.empty(0, np.float64))]
        size = max(_MANY // (_LAST[0] * _LAST[1] * _LAST[2]), 1)
        for begin in range(0, len(lists), size):
            part = slice(begin, begin + size)
            rows, events = self._latest(self.by_entity, entities[part], times[part], _LAST[0])
            items, bounds = self.events.items[events], times[part][rows]
            further, events = self._latest(self.by_item, items, bounds, _LAST[1])
            others, rows = self.events.entities[events], rows[further]
            apart = others != entities[part][rows]
            others, rows = others[apart], rows[apart]
            further, events = self._latest(self.by_entity, others, times[part][rows], _LAST[2])
            codes, counts = np.unique(
                lists[part][rows[further]] * self.base + self.events.items[events], return_counts=True
            )
            found.append((codes, counts.astype(np.float64)))
        return np.concatenate([codes for codes, _ in found]), np.concatenate([counts for _, counts in found])

    def _latest(self, history: EventHistory, keys: Ids, times: Times, count: int) -> tuple[Ids, Ids]:
        """Returns pairs of a key's place and one of its latest events before a time."""
        first, end = history.range(keys, times)
        return ranges(np.maximum(first, end - count), end, history.order)

    def own(self, lists: Ids, entities: Ids, times: Times) -> Ids:
        """Returns codes of list and row of the past, the best by number and by time."""
        codes = [np.empty(0, np.int64)]
        first, end = self.by_entity.range(entities, times)
        bounds = np.searchsorted(np.cumsum(end - first), np.arange(_MANY, (end - first).sum(), _MANY))
        for begin, stop in pairwise([0, *bounds.tolist(), len(lists)]):
            rows, events = ranges(first[begin:stop], end[begin:stop], self.by_entity.order)
            items, last, counts = np.unique(
                np.stack([lists[begin:stop][rows], self.events.items[events]], 1)[::-1],
                axis=0,
                return_index=True,
                return_counts=True,
            )
            if len(items):
                for scores in (counts, -last):
                    codes.append((items @ [self.base, 1])[rank_within(items[:, 0], scores) < BEST])
        return np.concatenate(codes)

    def popular(self, dates: Times, window: int) -> Iterator[Ids]:
        """Yields the most frequent rows before each date, in all the past and recently.

        Args:
            dates: [k] ascending.
            window: Length of the recent past.
        """
        order = np.argsort(self.events.times, kind="stable")
        items, times = self.events.items[order], self.events.times[order]
        counts, early = np.zeros(self.base, np.int64), np.zeros(self.base, np.int64)
        place = start = 0
        for date in dates.tolist():
            end, begin = (int(np.searchsorted(times, bound)) for bound in (date, date - window))
            counts += np.bincount(items[place:end], minlength=self.base)
            early += np.bincount(items[start:begin], minlength=self.base)
            place, start = end, max(begin, start)
            best = [np.argsort(-numbers, kind="stable")[:BEST] for numbers in (counts, counts - early)]
            yield np.unique(np.concatenate([rows[counts[rows] > 0] for rows in best]))


def ranges(first: Ids, end: Ids, order: Ids) -> tuple[Ids, Ids]:
    """Returns the owner and the element of `order` of each position in some ranges."""
    counts = np.maximum(end - first, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    return rows, order[np.arange(len(rows)) + np.repeat(first - np.cumsum(counts) + counts, counts)]


def _look_up(keys: Ids, values: Floats, wanted: Ids) -> Floats:
    """Returns the values of ascending keys, 0 for others."""
    if not len(keys):
        return np.zeros(len(wanted))
    places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0.0)


def _since(last: Times, times: Times) -> Floats:
    """Returns the time since the last event, NaN if there is none."""
    known = last != ALWAYS  # also the time of no event
    return np.where(known, times - np.where(known, last, times), np.nan)
