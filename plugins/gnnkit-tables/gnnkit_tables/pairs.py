"""Candidates of ranked lists: pairs of a target and a row that its list may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.graph.times import ALWAYS, NEVER, Times
from gnnkit.graph.types import Floats, Ids
from gnnkit.launch.progress import say
from gnnkit_tables.database import Database
from gnnkit_tables.encode import Encoded, Mask, scaled
from gnnkit_tables.lists import Lists, Rule, rank_within
from gnnkit_tables.manifest import FILE
from gnnkit_tables.pair_events import BEST, Candidates, History, list_events, ranges
from gnnkit_tables.targets import Pairs, Targets

_NEGATIVES = 10  # candidates outside a training list, for each in it
_TRAINING = 50_000  # training pairs, at most, those of the latest targets
_PENALTY, _STEPS = 0.1, 200  # inverse of the logistic regression's penalty, and its iterations
LINEAR = "logistic regression"


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
        ranking, columns = history.describe(pairs, targets, train)
        rules += ranking
        parts.append(columns)
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
    keys, counts = history.walks(numbers, targets.rows, targets.times)
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
    rows, places = ranges(np.maximum(end - BEST, 0), end, order)
    return rows * num_items + places


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
