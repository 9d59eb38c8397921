"""Task tables: rows of (entity, time, label, split)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.column_table import require
from gnnkit_formats.label_columns import read_labels
from gnnkit_formats.table import Table

from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.graph.cells import numbers_of
from gnnkit.graph.labels import labelled, unlabelled
from gnnkit.graph.split import TimeSplit, parts_of, random_split
from gnnkit.graph.times import ALWAYS, NEVER, Times, read_span, show_time
from gnnkit.graph.types import Ids, Labels
from gnnkit.launch.progress import say
from gnnkit.utils.ranges import shown, shown_names
from gnnkit_tables.database import Database, RowType
from gnnkit_tables.encode import Encoded, Mask
from gnnkit_tables.folder import SHARE, SPLIT
from gnnkit_tables.keys import KeyIndex, find_parents
from gnnkit_tables.lists import Lists, Rule, read_items
from gnnkit_tables.manifest import FILE, TaskSpec

_SAME = 0.999  # share of training rows in which a column equals the label
_FEW = 10  # entities with a training row below which equal columns are chance
_CLASSES = 100  # distinct labels above which they are numbers
_EXAMPLES = 3  # values in a message
LENGTH = 10  # of ranked lists, by default
SplitRule = TimeSplit | tuple[float, float, float] | None  # value of dataset.split


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The row of another table that each target may list, if targets are pairs."""

    table: str  # type of the rows
    length: int  # of lists
    items: Ids  # [num_targets] rows
    columns: Encoded  # [num_targets, width]
    rules: Sequence[Rule]  # what ranks pairs without a model


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """What to predict: the label of an entity as of a time."""

    name: str
    entity: str  # type of the entities' rows
    rows: Ids  # [num_targets] row of the entity
    times: Times  # [num_targets] `ALWAYS` in a task without times
    labels: Labels  # [num_targets], as `Graph.labels`
    class_names: list[str] | None
    split: npt.NDArray[np.int8]  # [num_targets] values of `Split`
    horizon: int | None  # after which a label is known. None: unknown
    lists: Lists | None = None  # of a ranking task, whose labels are the lists' sizes
    pairs: Pairs | None = None  # of a ranking task, once its targets are pairs

    @property
    def cut(self) -> int:
        """Time of the last training row, up to which column statistics are computed."""
        times = self.times[self.split == Split.TRAIN]
        return NEVER - 1 if not len(times) or times.max() == ALWAYS else int(times.max())

    @property
    def line(self) -> str:
        """Describes the labels, and how many targets each part has."""
        parts = ", ".join(f"{np.count_nonzero(self.split == part):,} {part.name.lower()}" for part in Split if part)
        known = self.labels[labelled(self.labels)]
        if self.lists is not None:
            return f"tables: {self.name} has {parts} lists of {known.mean():.1f} rows of {self.lists.table} on average"
        what = "numbers" if known.dtype.kind == "f" else f"{len(np.unique(known))} classes"
        return f"tables: {self.name} has {parts} rows, and labels are {what}"

    @property
    def first_test(self) -> int:
        return int(self.times[self.split == Split.TEST].min(initial=NEVER))

    @property
    def default_split(self) -> dict[str, Any] | list[float] | None:
        """The split that job=init writes, or None if the task table has one."""
        shares = [1 - 2 * SHARE, SHARE, SHARE]
        return (
            None if self.split.any() else shares if (self.times == ALWAYS).all() else {"by": "time", "shares": shares}
        )

    def split_by(self, split: SplitRule, seed: int, unit: str | None) -> Targets:
        """Divides rows without a split, by time unless they have no times.

        Raises `UserError` for a split at random of rows with times.

        Args:
            split: Value of `dataset.split`, or None.
            seed: Of a random split.
            unit: Of times.
        """
        if split is None:
            if not (self.split == Split.TRAIN).any():
                raise UserError(
                    f"{self.name}: no row has the split train; fill the column split, or set dataset.split={{by: time, ...}}"
                )
            return self
        if self.split.any():
            raise UserError("dataset.split: the task table already has a split; remove the key")
        has_label = labelled(self.labels)
        if isinstance(split, TimeSplit):
            parts = parts_of(self.times, split.find_borders(self.times[has_label], unit))
            return replace(self, split=np.where(has_label, parts, Split.NONE).astype(np.int8))
        if not (self.times == ALWAYS).all():
            raise UserError(
                f"dataset.split={list(split)}: rows of {self.name} have times, and a random split would train on the future "
                "of test rows; use dataset.split={by: time, shares: [0.7,0.15,0.15]}"
            )
        return replace(self, split=random_split(has_label, split, seed, None))

    def with_all(self, entities: RowType, time: int) -> Targets:
        """Adds a row without a label for each entity that is visible at a time.

        Entities that have a row at this time are skipped. A ranking task, which has
        rows of lists that are not empty only, predicts the held-out ones again.
        """
        is_present = self.times == time
        present, is_held_out = self.rows[is_present], is_present & (self.split != Split.TRAIN)
        split = self.split if self.lists is None else np.where(is_held_out, Split.NONE, self.split).astype(np.int8)
        rows = np.setdiff1d(np.flatnonzero(entities.times <= time), present)
        return replace(
            self,
            rows=np.concatenate([self.rows, rows]),
            times=np.concatenate([self.times, np.full(len(rows), time)]),
            labels=np.concatenate([self.labels, unlabelled(self.labels, len(rows))]),
            split=np.concatenate([split, np.zeros(len(rows), np.int8)]),
            lists=None if self.lists is None else self.lists.with_empty(len(rows)),
        )

    def check_times(self, unit: str | None) -> None:
        """Warns if labels of training rows become known after the first test time."""
        first = min(int(self.times[self.split == part].min(initial=NEVER)) for part in (Split.VAL, Split.TEST))
        end = self.cut + (self.horizon or 0)
        if self.cut != NEVER - 1 and first < end:
            warnings.warn(
                f"{self.name}: held-out rows begin at {show_time(first, unit)}, but labels of training rows are known at "
                f"{show_time(end, unit)} only, so they tell about held-out rows; use dataset.split={{by: time, ...}}",
                stacklevel=3,
            )


def read_targets(name: str, spec: TaskSpec, table: Table, times: Times | None, database: Database) -> Targets:
    """Reads a task table.

    Raises `UserError` for unknown entities, repeated rows, and labels that are columns
    of the entity.

    Args:
        name: The task.
        spec: Its entry in the manifest.
        table: Its rows.
        times: [num_rows] in the database's unit, or None in a task without times.
        database: The tables.
    """
    index = _index_of(database, spec.table)
    for column in (*spec.entity, spec.label):
        require(table.name, table.names, column, f"; change tasks.{name} in the manifest")
    rows = find_parents(table, spec.entity, index)
    if len(bad := np.flatnonzero(rows < 0)):
        examples = pc.unique(table.plain(spec.entity[0]).take(bad)).to_pylist()[:_EXAMPLES]
        remedy = "remove them, or add these entities" if spec.query is None else f"join {spec.table} in the query"
        raise UserError(
            f"{table.name}, column {spec.entity[0]!r}: {len(bad):,} of {len(rows):,} rows name no row of {spec.table}, such "
            f"as {shown(examples)}; {remedy}"
        )
    if spec.target is not None:
        return _read_lists(name, spec, table, rows, times, database)
    labels, class_names = _read_labels(name, spec, table)
    split = table.splits(SPLIT) if SPLIT in table.names else None
    targets = Targets(
        name,
        spec.table,
        rows,
        np.full(len(rows), ALWAYS) if times is None else times,
        labels,
        class_names,
        np.zeros(len(rows), np.int8) if split is None else Split.of(split, len(rows)),
        read_span(f"{FILE}, tasks.{name}.horizon", spec.horizon, database.unit),
    )
    _check_values(targets, table, spec.label)
    _check_distinct(targets, table, database.unit)
    _check_label(targets, database.types[spec.table], table, spec)
    return targets


def _index_of(database: Database, table: str) -> KeyIndex:
    index = database.types[table].index
    assert index is not None, "the manifest is checked"
    return index


def _read_lists(name: str, spec: TaskSpec, table: Table, rows: Ids, times: Times | None, database: Database) -> Targets:
    """Reads a ranking task, which has one row for each item of a list.

    Args:
        name: The task.
        spec: Its entry in the manifest.
        table: Its rows.
        rows: [num_rows] row of the entity.
        times: [num_rows].
        database: The tables.
    """
    assert spec.target is not None
    assert times is not None, "the manifest is checked"
    items = read_items(table, spec, _index_of(database, spec.target))
    known = np.flatnonzero(items >= 0)
    split = table.splits(SPLIT) if SPLIT in table.names else np.zeros(len(rows), np.int8)
    keys, places = np.unique(np.stack([times, rows], 1)[known], axis=0, return_inverse=True)
    places = places.reshape(-1)
    lists = Lists.of(spec.target, spec.eval_k or LENGTH, places, items[known], len(keys))
    if count := len(known) - len(lists.items):
        say(f"tables: {count:,} of {len(known):,} rows of {table.name} repeat an item of a list: dropped")
    parts = np.zeros(len(keys), np.int8)
    parts[places] = split[known]
    if (mixed := parts[places] != split[known]).any():
        row = int(known[mixed.argmax()])
        raise UserError(f"{table.name}, row {row}: rows of one list have different splits; use one split for each list")
    horizon = read_span(f"{FILE}, tasks.{name}.horizon", spec.horizon, database.unit)
    targets = Targets(
        name, spec.table, keys[:, 1], keys[:, 0], lists.sizes.astype(np.float64), None, parts, horizon, lists
    )
    _check_links(targets, lists, database.types[spec.table], table, spec)
    return targets


def _check_links(targets: Targets, lists: Lists, entities: RowType, table: Table, spec: TaskSpec) -> None:
    """Raises `UserError` if a link of the entity's row names a row of its lists."""
    train = _may_train(targets, entities)
    pairs, size = np.stack([lists.targets, lists.items], 1), int(lists.items.max(initial=0)) + 1
    for link in entities.links if len(np.unique(targets.rows[train])) >= _FEW else ():
        named = link.rows[targets.rows]
        found = np.isin(np.arange(len(named)) * size + named, pairs @ [size, 1]) & (named >= 0) & (named < size)
        if link.parent == lists.table and found[train].mean() >= _SAME:
            raise UserError(
                f"{table.name}, column {spec.label!r}: {link.name} of {spec.table} names a row of at least {100 * _SAME:g} % of "
                f"{train.sum():,} training lists, so it may be known later only; remove this link, or list it under ignore"
            )


def _may_train(targets: Targets, entities: RowType) -> Mask:
    """Marks training rows whose entity is visible, or all if no row has a split yet."""
    train = targets.split == Split.TRAIN if targets.split.any() else labelled(targets.labels)
    is_visible: Mask = entities.times[targets.rows] <= targets.times
    return train & is_visible


def _read_labels(name: str, spec: TaskSpec, table: Table) -> tuple[Labels, list[str] | None]:
    """Reads labels. Raises `UserError` for lists, and for text as numbers."""
    if pa.types.is_nested(table.kinds[spec.label]):
        raise UserError(
            f"{table.name}, column {spec.label!r} holds {table.kinds[spec.label]}: name the table of these keys as "
            f"tasks.{name}.target in the manifest to rank its rows"
        )
    labels, class_names = read_labels(lambda: [table], spec.label)
    if spec.type != "regression" or labels.dtype.kind == "f":
        return labels, class_names
    if class_names is not None:
        raise UserError(f"tasks.{name}.type=regression: labels are classes, such as {shown(class_names[0])}")
    return np.where(labelled(labels), labels, np.nan), None


def _check_values(targets: Targets, table: Table, column: str) -> None:
    """Raises `UserError` for labels beyond float32, and for parts without labels."""
    for bad, why in (
        (np.abs(targets.labels) > np.finfo(np.float32).max, "is too large for a label"),
        ((targets.split != Split.NONE) & ~labelled(targets.labels), "is no label, but the row has a split"),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad.reshape(len(targets.rows), -1).any(1))[0])
            raise UserError(
                f"{table.name}, column {column!r}, row {row}: {table.plain(column)[row].as_py()} {why}; {bad.sum():,} such "
                "rows: correct or remove them"
            )


def _check_distinct(targets: Targets, table: Table, unit: str | None) -> None:
    """Raises `UserError` for several rows of an entity at one time."""
    pairs = np.stack([targets.rows, targets.times], 1)
    _, first, counts = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    if len(again := np.flatnonzero(counts > 1)):
        examples = [f"row {first[place]} ({counts[place]} times)" for place in again[:_EXAMPLES]]
        time = targets.times[first[again[0]]]
        when = "" if time == ALWAYS else f", at {show_time(int(time), unit)}"
        raise UserError(
            f"{table.name}: {len(again):,} entities have several rows at one time, such as {', '.join(examples)}{when}; keep "
            "one label of each, or name the task's column of times in the manifest"
        )


def _check_label(targets: Targets, entities: RowType, table: Table, spec: TaskSpec) -> None:
    """Raises `UserError` if a visible column of the entity's row equals the label."""
    rows = np.flatnonzero(_may_train(targets, entities))
    if len(np.unique(targets.rows[rows])) < _FEW:
        return
    label = table.plain(spec.label).take(rows)
    same = [name for name in entities.columns if _equal_share(label, entities, name, targets.rows[rows]) >= _SAME]
    if same:
        raise UserError(
            f"{table.name}, column {spec.label!r}: the label equals {shown_names(same)} of {spec.table} in at least "
            f"{100 * _SAME:g} % of {len(rows):,} training rows; list it under ignore, or under later with the time at which "
            "it is known, in the manifest"
        )


def _equal_share(label: Any, entities: RowType, name: str, rows: Ids) -> float:
    """Returns the share of rows in which column and label determine each other.

    Many distinct labels are compared as numbers, because distinct values determine any.
    """
    column = entities.table.plain(name).take(rows)
    num_labels = len(pc.unique(label))
    if num_labels < 2:
        return 0.0
    if num_labels > min(_CLASSES, len(rows) // 5):
        return _equal_numbers(column, label)
    values, labels = (
        np.unique(numbers_of(cells.dictionary_encode().indices.fill_null(-1)).astype(np.int64), return_inverse=True)[1]
        for cells in (column, label)
    )
    if values.max() > 10 * num_labels:
        return 0.0
    table = np.zeros((values.max() + 1, labels.max() + 1), np.int64)
    np.add.at(table, (values, labels), 1)
    return float(min(table.max(1).sum(), table.max(0).sum()) / len(rows))


def _equal_numbers(column: Any, label: Any) -> float:
    """Returns the share of equal numbers, or 0 if either column has none."""
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (column.type, label.type)):
        return 0.0
    return float(np.isclose(numbers_of(column).astype(float), numbers_of(label).astype(float)).mean())
