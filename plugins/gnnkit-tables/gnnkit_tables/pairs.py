"""Candidates of ranked lists: pairs of a target and a row that its list may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from threadpoolctl import threadpool_limits

from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.graph.times import ALWAYS, NEVER, Times
from gnnkit.graph.types import Floats, Ids
from gnnkit.launch.phases import say
from gnnkit.sampler.events import EventHistory
from gnnkit_tables.database import Database, RowLink, RowType
from gnnkit_tables.encode import Encoded, Mask, scaled
from gnnkit_tables.lists import Lists, Rule, rank_within
from gnnkit_tables.manifest import FILE
from gnnkit_tables.targets import Pairs, Targets

BEST = 50  # candidates of each rule. A table with at most twice as many rows is listed entirely
_MANY = 1_000_000  # pairs whose history is read at once
_LAST = (10, 10, 20)  # latest rows that a rule reads of the entity, of their rows, and of the entities of these
_NEGATIVES = 10  # candidates outside a training list, for each in it
_TRAINING = 50_000  # training pairs, at most, those of the latest targets
_PENALTY, _STEPS = 0.1, 200  # inverse of the logistic regression's penalty, and its iterations
LINEAR, RECENT = "logistic regression", "popularity in the last horizon"


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


def pair_targets(database: Database, targets: Targets) -> Targets:
    """Replaces targets with lists by pairs with the rows that their lists may have.

    A row is a candidate if it is among the best by any rule: the rows of the entity's
    own past, by number and by time, popular rows in all the past and in the last
    horizon, rows of entities with the same rows, and new rows. All of these read rows
    before the target's time. Of a training list, all its rows that are candidates and
    some of the others are pairs. Raises `UserError` if no table holds such a past.

    Args:
        database: The tables, as of the configured times.
        targets: What to predict.
    """
    lists = targets.lists
    assert lists is not None
    targets, lists = _in_time_order(targets, lists)
    events = [history for part in list_events(database, targets, lists) if (history := History.of(part))]
    if not events:
        raise UserError(
            f"tasks.{targets.name}: no table with times has rows of {targets.entity} with {lists.table}, so pairs have no past; "
            f"add tasks.{targets.name}.horizon to {FILE}, so that earlier lists are read, or links of such a table"
        )
    num_items = database.types[lists.table].num_rows
    pairs = find_candidates(database, targets, lists, events)
    wanted = np.isin(pairs.lists * num_items + pairs.items, lists.targets * num_items + lists.items)
    for line in _describe(database, targets, lists, pairs, wanted):
        say(line)
    keep = _drawn(targets, pairs, wanted)
    pairs, wanted = Candidates(*(getattr(pairs, name)[keep] for name in Candidates.__slots__)), wanted[keep]
    train, known = targets.split[pairs.lists] == Split.TRAIN, targets.split[pairs.lists] != Split.NONE
    rules, columns = _describe_pairs(targets, pairs, events, train, wanted)
    label = np.where(known, wanted, np.nan)
    sizes = np.where(known, lists.sizes[pairs.lists], np.nan)
    return replace(
        targets,
        rows=pairs.entities,
        times=pairs.times,
        labels=np.stack([label, pairs.lists.astype(np.float64), sizes], 1),
        split=targets.split[pairs.lists],
        lists=None,
        pairs=Pairs(lists.table, lists.length, pairs.items, columns, rules),
    )


def _describe_pairs(
    targets: Targets, pairs: Candidates, events: Sequence[History], train: Mask, wanted: Mask
) -> tuple[list[Rule], Encoded]:
    """Returns the rules, and the columns of pairs, which include the rules' places."""
    rules: list[Rule] = []
    parts: list[Encoded] = []
    for history in events:
        alike = history.alike(pairs)
        rules += history.rules(pairs, targets, alike)
        parts.append(history.columns(pairs, targets, alike, train))
    parts += [_places(pairs, rule, train) for rule in rules]
    columns = Encoded.join(parts, len(pairs.items))
    if len(np.unique(wanted[train])) > 1:
        rules.append(Rule(LINEAR, f"{columns.rows.shape[1]} columns", _linear_scores(columns.rows, wanted, train)))
        columns = Encoded.join([columns, _places(pairs, rules[-1], train)], len(pairs.items))
    return rules, columns


def _places(pairs: Candidates, rule: Rule, train: Mask) -> Encoded:
    places = -np.log1p(rank_within(pairs.lists, rule.scores))[:, None]
    return scaled(places, [rule.column], [rule.column], train)


def _linear_scores(rows: Floats, wanted: Mask, train: Mask) -> Floats:  # [num_pairs]
    """Returns probabilities from a logistic regression of the training pairs."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    with threadpool_limits(1):  # sums in the order of one thread
        fitted = LogisticRegression(C=_PENALTY, max_iter=_STEPS).fit(rows[train].astype(np.float64), wanted[train])
        scores: Floats = fitted.predict_proba(rows.astype(np.float64))[:, 1]
    return scores


def _in_time_order(targets: Targets, lists: Lists) -> tuple[Targets, Lists]:
    """Orders targets by time, so that later ones change the numbers of no others."""
    order = np.lexsort([targets.rows, targets.times])
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    moved = Lists.of(lists.table, lists.length, places[lists.targets], lists.items, len(order))
    fields = {name: getattr(targets, name)[order] for name in ("rows", "times", "labels", "split")}
    return replace(targets, lists=moved, **fields), moved


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

    def _pair_keys(self, pairs: Candidates) -> Ids:
        return np.where(pairs.items < self.base, pairs.entities * self.base + pairs.items, -1)

    def columns(self, pairs: Candidates, targets: Targets, alike: Floats, fits: Mask) -> Encoded:
        """Counts events of pairs and of their ends, and the time since the last."""
        columns: list[Floats] = []
        names: list[str] = []
        for what, history, keys in (
            ("pair", self.by_pair, self._pair_keys(pairs)),
            ("row", self.by_item, pairs.items),
            ("entity", self.by_entity, pairs.entities),
        ):
            count, last = history.count(keys, pairs.times), history.last(keys, pairs.times)
            since = _since(last, pairs.times)
            columns += [np.log1p(count), np.log1p(since)]
            names += [f"{self.events.name}: {what}: {kind}" for kind in ("number of rows", "time since the last")]
        recent = self._recent(pairs, targets)
        popular = self.by_item.count(pairs.items, pairs.times)
        columns += [np.log1p(recent), np.log1p(alike), alike / np.sqrt(1 + popular)]
        names.append(f"{self.events.name}: row: number of rows in the last horizon")
        names += [
            f"{self.events.name}: entities with the same rows: {kind}" for kind in ("number", "number by popularity")
        ]
        return scaled(np.stack(columns, 1).astype(np.float64), names, names, fits)

    def _recent(self, pairs: Candidates, targets: Targets) -> Ids:
        begin = pairs.times - (targets.horizon or 0)
        return self.by_item.count(pairs.items, pairs.times) - self.by_item.count(pairs.items, begin)

    def rules(self, pairs: Candidates, targets: Targets, alike: Floats) -> list[Rule]:
        """Returns what ranks candidates without a model."""
        keys = self._pair_keys(pairs)
        popular = self.by_item.count(pairs.items, pairs.times).astype(np.float64)
        recent = self._recent(pairs, targets).astype(np.float64)
        count = self.by_pair.count(keys, pairs.times).astype(np.float64)
        last = self.by_pair.last(keys, pairs.times)
        since = _since(last, pairs.times)
        latest = np.nan_to_num(2 - since / (1 + np.nanmax(since, initial=0)))
        most = 1 + recent.max(initial=0)
        return [
            Rule(name, self.events.name, scores)
            for name, scores in (
                ("popularity", popular),
                (RECENT, recent),
                ("rows of the entity's past, by number", count),
                ("rows of the entity's past, the latest first", latest),
                ("rows of the entity's past, then popularity", count + recent / most),
                ("rows of the latest past, then popularity", np.maximum(latest, recent / most)),
                ("rows of entities with the same rows", alike),
            )
            if name != RECENT or targets.horizon
        ]

    def alike(self, pairs: Candidates) -> Floats:  # [num_pairs]
        """Counts how often entities with the same rows have the candidate, too."""
        first = np.searchsorted(pairs.lists, np.unique(pairs.lists))
        keys, counts = self._alike(pairs.lists[first], pairs.entities[first], pairs.times[first])
        return _look_up(keys, counts, pairs.lists * self.base + np.minimum(pairs.items, self.base - 1)) * (
            pairs.items < self.base
        )

    def _alike(self, lists: Ids, entities: Ids, times: Times) -> tuple[Ids, Floats]:
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
        return _ranges(np.maximum(first, end - count), end, history.order)

    def own(self, lists: Ids, entities: Ids, times: Times) -> Ids:
        """Returns codes of list and row of the past, the best by number and by time."""
        codes = [np.empty(0, np.int64)]
        first, end = self.by_entity.range(entities, times)
        bounds = np.searchsorted(np.cumsum(end - first), np.arange(_MANY, (end - first).sum(), _MANY))
        for begin, stop in pairwise([0, *bounds.tolist(), len(lists)]):
            rows, events = _ranges(first[begin:stop], end[begin:stop], self.by_entity.order)
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


def find_candidates(database: Database, targets: Targets, lists: Lists, events: Sequence[History]) -> Candidates:
    """Returns the candidates of each target, in the order of targets and rows.

    Args:
        database: The tables.
        targets: In the order of their times.
        lists: Their lists.
        events: Pair events, from `list_events`.
    """
    times, num_items = database.types[lists.table].times, database.types[lists.table].num_rows
    numbers = np.arange(len(targets.rows))
    codes: list[Ids]
    if num_items <= 2 * BEST:
        codes = [np.arange(len(numbers) * num_items)]
    else:
        codes = [
            code // history.base * num_items + code % history.base
            for history in events
            for code in _best_codes(history, targets, numbers)
        ]
        codes.append(_newest(times, targets, num_items))
    places = np.unique(np.concatenate([*codes, np.empty(0, np.int64)]))
    owners, items = np.divmod(places, num_items)
    visible = (times[items] <= targets.times[owners]) & (times[items] != NEVER)
    owners, items = owners[visible], items[visible]
    return Candidates(owners, items, targets.rows[owners], targets.times[owners])


def _best_codes(history: History, targets: Targets, numbers: Ids) -> Iterator[Ids]:
    """Yields codes of list and row, with the history's base."""
    yield history.own(numbers, targets.rows, targets.times)
    keys, counts = history._alike(numbers, targets.rows, targets.times)
    yield keys[rank_within(keys // history.base, counts) < BEST]
    dates, first = np.unique(targets.times, return_index=True)
    owners = np.split(numbers, first[1:])
    for rows, part in zip(history.popular(dates, targets.horizon or 0), owners, strict=True):
        yield (part[:, None] * history.base + rows).ravel()


def _newest(times: Times, targets: Targets, num_items: int) -> Ids:
    """Returns codes of the rows that became visible last, which may have no events."""
    if (times == ALWAYS).all():
        return np.empty(0, np.int64)
    order = np.argsort(times, kind="stable")
    end = np.searchsorted(times[order], targets.times, "right")
    rows, places = _ranges(np.maximum(end - BEST, 0), end, order)
    return rows * num_items + places


def _ranges(first: Ids, end: Ids, order: Ids) -> tuple[Ids, Ids]:
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


def _drawn(targets: Targets, pairs: Candidates, wanted: Mask) -> Mask:
    """Selects training pairs: rows of the lists, and for each some other candidates.

    Draws depend on entity, row and time alone.
    """
    split, num_lists = targets.split[pairs.lists], len(targets.rows)
    draws = pairs.entities.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for part in (pairs.items, pairs.times):  # splitmix64
        draws = (draws ^ part.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        draws ^= draws >> np.uint64(29)
    ranks = rank_within(pairs.lists, wanted, (draws >> np.uint64(11)).astype(np.float64))
    positives = np.bincount(pairs.lists, wanted, num_lists)
    keep = (ranks < (1 + _NEGATIVES) * positives[pairs.lists]) | (split != Split.TRAIN)
    trains = keep & (split == Split.TRAIN)
    sizes = np.bincount(pairs.lists[trains], minlength=num_lists)
    late = np.cumsum(sizes[::-1])[::-1] <= _TRAINING  # targets are in the order of their times
    drawn: Mask = keep & (late[pairs.lists] | ~trains)
    return drawn


def _describe(database: Database, targets: Targets, lists: Lists, pairs: Candidates, wanted: Mask) -> Iterator[str]:
    """Yields how many candidates there are, and how much of the lists they hold."""
    has_pair = np.bincount(pairs.lists, minlength=len(targets.rows)) > 0
    held_out = np.isin(targets.split, (Split.VAL, Split.TEST))
    found = np.bincount(pairs.lists, wanted, len(targets.rows))[held_out].sum()
    total = int(lists.sizes[held_out].sum())
    late = database.types[lists.table].times[lists.items] > targets.times[lists.targets]
    yield (
        f"tables: {targets.name} has {len(pairs.lists) / max(has_pair.sum(), 1):,.0f} candidates for a list on average, "
        f"which hold {100 * found / max(total, 1):.1f} % of the {total:,} listed rows of validation and test"
    )
    if late.any():
        yield f"tables: {late.sum():,} listed rows of {lists.table} are later than their target: no list can have them"
    if count := int((~has_pair & (targets.split != Split.NONE)).sum()):
        yield f"tables: {count:,} rows of {targets.name} are before all rows of {lists.table}, and are not measured"


def _since(last: Times, times: Times) -> Floats:
    """Returns the time since the last event, NaN if there is none."""
    known = last != ALWAYS  # also the time of no event
    return np.where(known, times - np.where(known, last, times), np.nan)
