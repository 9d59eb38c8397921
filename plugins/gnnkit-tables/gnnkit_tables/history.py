"""Summaries of the rows that refer to a target's entity, as of the target's time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnnkit.graph import Split
from gnnkit.graph.labels import labelled
from gnnkit.graph.times import ALWAYS, NEVER, Times
from gnnkit.graph.types import Floats, Ids
from gnnkit.sampler.events import EventHistory
from gnnkit_tables.database import Database, RowType
from gnnkit_tables.encode import Encoded, scaled
from gnnkit_tables.targets import Targets

LAST = (1, 5, 20)  # numbers of the latest rows that a mean reads, besides all rows
_FEW = 10  # a column that is encoded in more columns has no means, because they fit noise
LABELS = "earlier labels"


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """Rows with a time that refer to a parent, and the parent of each target."""

    name: str
    times: Times  # [num_children]
    parents: Ids  # [num_children] negative: no parent
    values: Encoded  # [num_children, width]
    targets: Ids  # [num_targets] parent of each target. Negative: no parent


def past_columns(database: Database, encoded: dict[str, Encoded], targets: Targets) -> Encoded:
    """Summarises the rows before each target's time, with columns for each relation.

    The rows are those that refer to the entity. If the entity is an event at the
    target's time, the rows that refer to its parents are summarised, too.

    Args:
        database: The tables.
        encoded: Columns of each type.
        targets: The rows to describe.
    """
    children = list(_list_children(database, encoded, targets))
    parts = [part for child in children for part in _summarise(child, targets)]
    return Encoded.join(parts, len(targets.rows))


def is_event(entities: RowType, targets: Targets) -> bool:
    """Returns whether most entities have their targets' time or a later one."""
    given = targets.split != Split.NONE  # rows that dataset.until adds do not count
    times = entities.times[targets.rows[given]]
    return bool(((times >= targets.times[given]) & (times != NEVER)).sum() > 0.5 * given.sum())


def _list_children(database: Database, encoded: dict[str, Encoded], targets: Targets) -> Iterator[Children]:
    entities = database.types[targets.entity]
    anchors = [("", targets.entity, targets.rows)]
    if is_event(entities, targets):
        anchors += [(f"{link.name} of ", link.parent, link.rows[targets.rows]) for link in entities.links]
    for prefix, parent, rows in anchors:
        for row_type in database.types.values():
            for link in row_type.links:
                if link.parent == parent and not link.is_same:
                    name = f"{prefix}{row_type.name}.{link.name}"
                    yield Children(name, row_type.times, link.rows, _means_of(encoded[row_type.name]), rows)
    if targets.horizon is not None and (labels := _label_columns(targets)) is not None:
        times = np.where(labelled(targets.labels), targets.times + targets.horizon, NEVER)
        times = np.where(times > database.end, NEVER, times)
        yield Children(LABELS, times, targets.rows, labels, targets.rows)


def _means_of(encoded: Encoded) -> Encoded:
    """Selects the columns to average: numbers, and columns with few categories."""
    widths = Counter(encoded.sources)
    return encoded.select([place for place, source in enumerate(encoded.sources) if widths[source] <= _FEW])


def _label_columns(targets: Targets) -> Encoded | None:
    """Returns labels as numbers: scaled, or a column for each class but the first."""
    if targets.labels.ndim > 1:
        return None
    if targets.labels.dtype.kind == "f":
        return scaled(targets.labels[:, None], ["label"], ["label"], targets.split == Split.TRAIN)
    classes = range(1, int(targets.labels.max(initial=0)) + 1)
    rows = (targets.labels[:, None] == np.array(classes)).astype(np.float32)
    return Encoded(rows, tuple(f"label={number}" for number in classes), ("label",) * len(classes))


def _summarise(children: Children, targets: Targets) -> Iterator[Encoded]:
    """Yields the number of rows, the time since the last, and means of the latest."""
    first, last, latest, order = _spans(children, targets.times)
    count = last - first
    with np.errstate(over="ignore"):
        since = np.where((count > 0) & (latest != ALWAYS), targets.times - latest, -1)
    sizes = np.stack([np.log1p(count), np.where(since < 0, np.nan, np.log1p(np.maximum(since, 0)))], 1)
    names = [f"{children.name}: number of rows", f"{children.name}: time since the last"]
    yield scaled(sizes.astype(np.float64), names, [children.name] * 2, targets.split == Split.TRAIN)
    sums = np.concatenate(
        [np.zeros((1, children.values.rows.shape[1])), np.cumsum(children.values.rows[order], 0, float)]
    )
    for size in (*LAST, None):
        begin = first if size is None else np.maximum(first, last - size)
        what = "mean of all" if size is None else "last" if size == 1 else f"mean of the last {size}"
        rows: Floats = ((sums[last] - sums[begin]) / np.maximum(last - begin, 1)[:, None]).astype(np.float32)
        names = [f"{children.name}.{name}: {what}" for name in children.values.names]
        yield Encoded(rows, tuple(names), (children.name,) * len(names))


def _spans(children: Children, times: Times) -> tuple[Ids, Ids, Times, Ids]:
    """Returns the range of each target's earlier children, in an order of all children.

    Also returns the time of the latest one, `ALWAYS` if there is none, and the order.
    """
    if (times == ALWAYS).all():  # a task without times reads all rows
        times = np.full(len(times), NEVER)
    history, has_parent = EventHistory(children.parents, children.times), children.targets >= 0
    first, last = history.range(children.targets, times)
    latest = np.where(has_parent, history.last(children.targets, times), ALWAYS)
    return first, np.where(has_parent, last, first), latest, history.order
