"""The transform from raw columns to the rows that a model reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import AUTO, FILLS, SCALES
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, Ids, PackedFeatures, SparseFeatures, Split
from gnnkit.graph.features import FILLED_BY, normalized
from gnnkit.graph.types import set_fields
from gnnkit.prepare.columns import NumericTable, are_numbers
from gnnkit.utils.checks import rows_at_once
from gnnkit.utils.ranges import one_of, shown, shown_names
from gnnkit.utils.storage import forget_pages, mapped_file

_LARGE = 4.0  # standard deviation of a column, or mean of a constant column, that impairs training
_UNEVEN = 30.0  # largest acceptable ratio of a table's standard deviations
_FAR = 2.0  # largest acceptable mean of a column, in standard deviations
_MAX_TABLE = 64  # columns. Wider rows are assumed to be counts, whose zeros are meaningful
_LIMIT = 10.0  # standard deviations at which values are clipped, unless training rows exceed it
_TAIL = 6.0  # standard deviations. A training value further from the mean indicates heavy tails
_STRAY = 30.0  # standard deviations. A value outside the training range and further from the mean needs scaling
_SAMPLE = 10_000  # rows read to distinguish tables from counts, and to check edge features
_ROWS = 1 << 16  # rows and cells processed at once
_NEEDS_DENSE = "features.scale=standard: features without zeros would be dense then: choose row or none"
_FILLED = {"mean": "take the mean of the nodes that train", "zero": "are 0", "drop": "leave these out"}
Numbers = npt.NDArray[np.float64]


def _are_finite(values: list[float] | None) -> bool:
    return all(isinstance(value, float) and np.isfinite(value) for value in values or ())


@dataclass(frozen=True, slots=True)
class Fill:
    """Replacement of empty feature cells."""

    kind: str = "refuse"  # one of FILLS
    means: list[float] | None = None  # [width] for `mean`: means, or medians, over the training nodes
    dropped: list[int] | None = None  # for `drop`: columns that the model does not read

    def __post_init__(self) -> None:
        one_of("features.fill", self.kind, FILLS)
        valid = _are_finite(self.means) and all(
            isinstance(column, int) and column >= 0 for column in self.dropped or ()
        )
        kinds = (self.means is not None) == (self.kind == "mean"), (self.dropped is not None) == (self.kind == "drop")
        if not (valid and all(kinds)):
            raise ValueError(f"fill={self.kind} with means {shown(self.means)}, dropped {shown(self.dropped)}")

    @classmethod
    def fit(cls, table: NumericTable, train_rows: Ids, kind: str) -> Fill:
        """Computes the means, or selects the columns to drop.

        Raises `UserError` if a column has no numbers to average, or if no column would
        remain.
        """
        if kind == "mean" and not isinstance(table.rows, SparseFeatures):
            return cls(kind, means=_means(table, train_rows))
        if kind == "drop":
            columns = [] if table.missing is None else np.unique(table.missing[:, 1]).tolist()
            if columns and len(columns) == table.width:
                raise UserError("features.fill=drop: every column has an empty cell: choose features.fill=mean")
            return cls(kind, dropped=columns)
        return cls("refuse" if kind == "mean" else kind)

    def changes(self, table: NumericTable) -> bool:
        return table.missing is not None or bool(self.dropped)

    def check(self, table: NumericTable, folder: Path | None = None) -> None:
        """Raises `UserError` for the first unfilled cell."""
        if table.missing is None or self.kind in ("mean", "zero"):
            return
        cells = table.missing[~np.isin(table.missing[:, 1], self.dropped or [])]
        if not len(cells):
            return
        cells = cells[table.are_sources()[cells[:, 1]]]
        count = "1 cell of features is" if len(cells) == 1 else f"{len(cells):,} cells of features are"
        remedy = FILLED_BY
        if folder is not None:
            remedy = (
                f"the model of {folder} reads whole columns there: fill the cells, or train with features.fill=mean"
            )
        raise UserError(f"dataset: {count} empty, the first in {table.cell(cells)}: {remedy}")

    def keep(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        """Returns the names of the remaining columns."""
        dropped = set(self.dropped or ())
        return None if names is None else tuple(name for number, name in enumerate(names) if number not in dropped)

    def apply(self, rows: Floats, cells: Ids) -> Floats:  # [k, width minus dropped]
        """Returns filled rows.

        Args:
            rows: [k, width] raw rows.
            cells: [c, 2] row and column of each empty cell.
        """
        values = rows.copy()
        values[cells[:, 0], cells[:, 1]] = 0 if self.means is None else np.array(self.means)[cells[:, 1]]
        return np.ascontiguousarray(np.delete(values, self.dropped, axis=1)) if self.dropped else values

    def describe(self, table: NumericTable) -> list[str]:
        """Returns a line on filled cells or dropped columns, if any."""
        if table.missing is None:
            return []
        counts = np.where(table.are_sources(), _count_cells(table), 0)
        cells = f"{counts.sum():,} empty cells in {np.count_nonzero(counts):,} of {table.num_sources:,} columns"
        return [f"features: {cells} {_FILLED[self.kind]} (features.fill={self.kind})"]


def _means(table: NumericTable, train_rows: Ids) -> list[float]:  # [width]
    """Averages each column's non-empty cells over the training rows.

    Columns with heavy tails have their median, as the mean exceeds most values.
    """
    features, trains = np.asarray(table.rows), np.zeros(len(table.rows), np.bool_)
    trains[train_rows] = True
    counts = len(train_rows) - _count_cells(table, trains)
    if not counts.all():
        column = table.column(int(counts.argmin()))
        raise UserError(f"features.fill=mean: column {column} has no number for any training node: remove the column")
    pieces = (train_rows[first : first + _ROWS] for first in range(0, len(train_rows), _ROWS))
    sums = sum(features[rows].sum(0, dtype=np.float64) for rows in pieces)  # empty cells are 0
    means: list[float] = (sums / counts).tolist()
    for number, values in _known_values(table, _sample(train_rows, table.width)):
        median, spread = _middle(values)
        if spread > 0 and np.abs(values - values.mean()).max() > _TAIL * values.std():
            means[number] = float(median)
    return means


def _sample(rows: Ids, width: int) -> Ids:
    """Selects at most 10,000 rows, evenly spread, and fewer of wide tables."""
    return rows[:: -(-len(rows) // min(_SAMPLE, rows_at_once(width)))]


def _middle(values: Numbers) -> tuple[Any, Any]:  # [k, ...] -> [...] each
    """Returns the median of values, and the median distance from it."""
    median = np.median(values, 0)
    return median, np.median(np.abs(values - median), 0)


def _known_values(table: NumericTable, rows: Ids) -> Iterator[tuple[int, Numbers]]:
    """Yields each column with empty cells, and its values [known] in some rows.

    Columns without a value in these rows are left out.

    Args:
        table: The table.
        rows: [k] ascending.
    """
    if table.missing is None:
        return
    sample, empty = np.asarray(table.rows)[rows].astype(np.float64), np.zeros((len(rows), table.width), np.bool_)
    for first in range(0, len(table.missing), _ROWS):
        cells = table.missing[first : first + _ROWS]
        cells = cells[np.isin(cells[:, 0], rows)]
        empty[np.searchsorted(rows, cells[:, 0]), cells[:, 1]] = True
    for column in np.flatnonzero(_count_cells(table)).tolist():
        if len(values := sample[~empty[:, column], column]):
            yield column, values


def _count_cells(table: NumericTable, rows: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:  # [width]
    """Counts each column's empty cells, in all rows or in rows masked by [n]."""
    counts, missing = np.zeros(table.width, np.int64), table.missing
    for first in range(0, 0 if missing is None else len(missing), _ROWS):
        cells = missing[first : first + _ROWS]  # type: ignore[index]
        cells = cells if rows is None else cells[rows[cells[:, 0]]]
        counts += np.bincount(cells[:, 1], minlength=len(counts))
    return counts


@dataclass(frozen=True, slots=True)
class Scale:
    """Scaling of the rows that a model reads.

    Under `standard`, a column becomes clip((x - mean) / deviation, -limit, limit). The
    limit is 0 if the column is constant in the training rows, because its weights get
    no training signal. Otherwise, it is the larger of 10 and the training rows' largest
    distance from the mean. In a column with heavy tails, x is first replaced by
    sign(d) log(1 + |d|), where d = (x - median) / spread.
    """

    kind: str  # one of SCALES
    mean: list[float] | None = None  # [width] for `standard`
    deviation: list[float] | None = None  # [width] for `standard`, above 0
    limit: list[float] | None = None  # [width] for `standard`, in deviations
    median: list[float] | None = None  # [width] None: no column has heavy tails
    spread: list[float] | None = None  # [width] median distance from the median. 0: no heavy tails

    def __post_init__(self) -> None:
        one_of("features.scale", self.kind, SCALES)
        columns, tails = (self.mean, self.deviation, self.limit), (self.median, self.spread)
        widths = {None if values is None else len(values) for values in columns}
        tail_widths = {None if values is None else len(values) for values in tails}
        valid = all(map(_are_finite, (*columns, *tails))) and tail_widths in ({None}, widths)
        valid &= min(self.deviation or (1,)) > 0 and min(*(self.limit or (0,)), *(self.spread or (0,)), 0) >= 0
        if (self.kind == "standard") != (self.mean is not None) or len(widths) > 1 or not valid:
            raise ValueError(f"a scale of kind {self.kind} with means {shown(self.mean)}")

    @classmethod
    def standard(cls, rows: InputRows | Floats, train_rows: Ids, category_of: Sequence[str] | None = None) -> Scale:
        """Computes each column's mean, standard deviation and limit.

        Columns of 0 and 1 that encode text are not scaled.

        Args:
            rows: [n, width].
            train_rows: [k] ids of the rows to read, at least one.
            category_of: [width] as `Graph.category_of`. If None, no column encodes
                text.
        """
        mean, deviation, reach = _moments(rows, train_rows)
        rounding = np.finfo(rows.dtype).eps * np.abs(mean)
        constant = deviation <= rounding
        deviation = np.maximum(np.maximum(deviation, rounding), np.finfo(np.float32).tiny)
        limit = np.where(constant, 0, np.maximum(_LIMIT, reach / deviation))
        numbers = are_numbers(category_of, len(mean))
        columns = ((mean, 0), (deviation, 1), (limit, 1))
        return cls("standard", *(np.where(numbers, values, identity).tolist() for values, identity in columns))

    def compress(self, rows: InputRows | Floats, train_rows: Ids) -> Scale:
        """Returns a scale that compresses columns with heavy tails.

        These have training values beyond 6 deviations, unless most values are equal, as
        counts of rare words are. Medians are those of at most 10,000 training rows.

        Args:
            rows: [n, width].
            train_rows: [k] ids of the rows to read, at least one.
        """
        sample = rows[_sample(train_rows, rows.shape[1])].astype(np.float64)
        limit = np.array(self.limit)
        far = (limit > 0) & ((np.abs(self._deviations(sample)).max(0) > _TAIL) | (limit > _LIMIT))
        median, spread = (np.where(far, values, 0) for values in _middle(sample))
        if not spread.any():
            return self
        tails = replace(self, median=median.tolist(), spread=spread.tolist())
        mean, deviation, reach = _moments(rows, train_rows, tails._compressed)
        mean = np.where(spread > 0, mean, np.array(self.mean))
        deviation = np.where(spread > 0, deviation, np.array(self.deviation))
        limit = np.where(spread > 0, np.maximum(_LIMIT, reach / deviation), limit)
        return replace(tails, mean=mean.tolist(), deviation=deviation.tolist(), limit=limit.tolist())

    def _compressed(self, rows: Floats) -> Floats | Numbers:  # [k, width]
        """Returns rows in which heavy tails are logarithms."""
        if self.spread is None:
            return rows
        columns, logs = np.flatnonzero(self.spread), rows.astype(np.float64)
        median, spread = (np.array(values)[columns] for values in (self.median, self.spread))
        distance = (logs[:, columns] - median) / spread
        logs[:, columns] = np.sign(distance) * np.log1p(np.abs(distance))
        return logs

    def check(self, table: NumericTable) -> None:
        """Raises `UserError` if a standardising scale does not fit the table."""
        if self.kind != "standard":
            return
        if isinstance(table.rows, SparseFeatures):
            raise UserError(_NEEDS_DENSE)
        if table.width != len(self.mean or ()):
            raise UserError(f"dataset has {table.width} columns of features, the model reads {len(self.mean or ())}")

    def apply(self, rows: Floats) -> Floats:  # [k, width]
        if self.kind == "none":
            return rows
        if self.kind == "row":
            return normalized(rows)
        limit = np.array(self.limit)
        values: Floats = np.clip(self._deviations(rows), -limit, limit).astype(rows.dtype)
        return values

    def _deviations(self, rows: Floats) -> Numbers:  # [k, width]
        """Returns each value's distance from the mean, in deviations."""
        distance: Numbers = (self._compressed(rows) - np.array(self.mean)) / np.array(self.deviation)
        return distance

    def count_clipped(self, rows: InputRows, distance: float = 0) -> npt.NDArray[np.int64]:  # [width]
        """Counts each column's clipped values that are `distance` from the mean.

        In constant columns, only values beyond 10 deviations count, to ignore rounding.
        """
        limits = np.maximum(np.maximum(self.limit or (), _LIMIT), distance / np.array(self.deviation))
        counts = np.zeros(len(limits), np.int64)
        for piece in rows.pieces(rows_at_once(rows.shape[1])):
            counts += (np.abs(self._deviations(piece)) > limits).sum(0)
        return counts

    def why_uneven(self, rows: InputRows) -> str:
        """Explains how scales of numeric columns differ, if they do."""
        mean, deviation, limit = (np.array(values) for values in (self.mean, self.deviation, self.limit))
        numbers = are_numbers(rows.category_of, len(mean))
        table, distance, varies = len(mean) <= _MAX_TABLE, np.abs(mean), (limit > 0) & numbers
        spread = deviation[varies]
        if len(spread) and (spread.max() > _LARGE or (table and spread.max() > _UNEVEN * spread.min())):
            return f"columns have standard deviations of {spread.min():.3g} to {spread.max():.3g}"
        far = varies & (distance > _FAR * deviation) & (table | (distance > _LARGE))
        if far.any():
            return f"the mean of a column is {(distance[far] / deviation[far]).max():.3g} times its standard deviation"
        constant = distance[limit == 0].max(initial=0)
        if constant > _LARGE:
            return f"a column is {constant:.3g} in all of these rows"
        stray = np.count_nonzero(self.count_clipped(rows, _STRAY))
        return f"{stray:,} columns have values far outside the range of these rows" if stray else ""


@dataclass(frozen=True, slots=True, eq=False)
class InputRows:
    """A table's rows as a model reads them, filled and scaled when they are read."""

    table: NumericTable
    fill: Fill = field(default_factory=Fill)
    scale: Scale = field(default_factory=lambda: Scale("none"))
    _cells: Ids | None = field(init=False)  # [c, 2] rows and columns to fill, by row, or None

    def __post_init__(self) -> None:
        missing = np.empty((0, 2), np.int64) if self.table.missing is None else self.table.missing
        set_fields(self, _cells=_by_row(missing) if self.fill.changes(self.table) else None)

    def __len__(self) -> int:
        return len(self.table.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.table.width - len(self.fill.dropped or ())

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.table.rows.dtype

    @property
    def names(self) -> tuple[str, ...] | None:  # [width]
        return self.fill.keep(self.table.names)

    @property
    def category_of(self) -> tuple[str, ...] | None:  # [width]
        return self.fill.keep(self.table.category_of)

    @property
    def is_raw(self) -> bool:
        """Whether the rows are returned unchanged."""
        return self._cells is None and self.scale.kind == "none"

    def __getitem__(self, place: slice | Ids) -> Floats:  # [k, width]
        rows = np.asarray(self.table.rows[place])
        if self._cells is not None:
            ids = np.arange(*place.indices(len(self))) if isinstance(place, slice) else place
            rows = self.fill.apply(rows, self._cells_of(ids))
        return self.scale.apply(rows)

    def _cells_of(self, ids: Ids) -> Ids:  # [c, 2]
        """Returns the empty cells in some rows, numbered within these rows."""
        assert self._cells is not None
        low, high = (np.searchsorted(self._cells[:, 0], ids, side) for side in ("left", "right"))
        counts = high - low
        row = np.repeat(np.arange(len(ids)), counts)
        cell = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(len(row))
        return np.stack([row, self._cells[cell, 1]], 1)

    def pieces(self, step: int, rows: Ids | None = None) -> Iterator[Floats]:
        """Yields all rows or the selected ones, `step` at a time."""
        for first in range(0, len(self) if rows is None else len(rows), step):
            yield self[slice(first, first + step) if rows is None else rows[first : first + step]]
            if isinstance(self.table.rows, np.ndarray):
                forget_pages(self.table.rows)

    def load(self) -> NumericTable:
        """Returns the table in memory, transformed in pieces to bound float64 memory.

        Raises `UserError` if the scale does not fit it.
        """
        if self.is_raw:
            return self.table
        if isinstance(self.table.rows, SparseFeatures) and self._cells is None:
            self.scale.check(self.table)
            return replace(self.table, rows=self.table.rows.row_normalize())
        rows, step = np.empty(self.shape, self.dtype), rows_at_once(self.shape[1])
        self.scale.check(NumericTable(rows))
        for number, piece in enumerate(self.pieces(step)):
            rows[number * step : (number + 1) * step] = piece
        return NumericTable(rows, self.names, self.category_of, row_ids=self.table.row_ids)

    def describe_clipped(self) -> list[str]:
        """Returns a line that counts clipped values by column, if there are any."""
        if self.scale.kind != "standard":
            return []
        names, counts = self.names, self.scale.count_clipped(replace(self, scale=Scale("none")))
        columns = [
            f"{counts[column]:,} in column {column if names is None else repr(names[column])}"
            for column in np.flatnonzero(counts)
        ]
        line = f"values far outside the range of the nodes that train are clipped: {shown_names(columns)}"
        return [f"features: {line}"] if columns else []


def _by_row(cells: Ids) -> Ids:
    """Sorts cells by row. Sorted cells are not copied."""
    rows = cells[:, 0]
    pieces = (rows[first : first + _ROWS + 1] for first in range(0, len(rows), _ROWS))
    return cells if all((piece[1:] >= piece[:-1]).all() for piece in pieces) else cells[np.argsort(rows, kind="stable")]


def _moments(
    rows: InputRows | Floats, train_rows: Ids, convert: Callable[[Floats], Floats | Numbers] = np.asarray
) -> tuple[Numbers, Numbers, Numbers]:  # [width] each
    """Computes converted columns' mean, deviation and largest distance from the mean.

    Sums use float64 distances from the first row, so a constant column's deviation is
    exactly 0.
    """
    input_rows = rows if isinstance(rows, InputRows) else InputRows(NumericTable(rows))
    first, step = convert(input_rows[train_rows[:1]])[0].astype(np.float64), rows_at_once(input_rows.shape[1])
    pieces = functools.partial(input_rows.pieces, step, train_rows)
    mean = first + sum((convert(piece) - first).sum(0) for piece in pieces()) / len(train_rows)
    squares, reach = np.zeros_like(first), np.zeros_like(first)
    for piece in pieces():
        distance = convert(piece) - mean
        squares += np.square(distance).sum(0)
        reach = np.maximum(reach, np.abs(distance).max(0))
    return mean, np.sqrt(squares / len(train_rows)), reach


@dataclass(frozen=True, slots=True)
class InputTransform:
    """The transform from raw columns to model rows: fill, then scale.

    It is fitted to the training graph, saved with the model, and applied to later data.
    """

    fill: Fill = field(default_factory=Fill)
    scale: Scale = field(default_factory=lambda: Scale("none"))

    @classmethod
    def fit(
        cls, table: NumericTable, split: npt.NDArray[np.int8], *, fill: str = "refuse", scale: str = "none"
    ) -> tuple[InputTransform, InputRows, str]:
        """Returns a new model's transform, its rows, and the reason for the scale.

        Reads the table in pieces. The reason is empty if rows are not scaled. Raises
        `UserError` for unfilled cells and for a scale that does not fit the table.

        Args:
            table: The training table.
            split: [n] values of `Split`. Without training rows, all rows are read.
            fill: One of FILLS.
            scale: `auto`, or one of SCALES.
        """
        train_rows = np.flatnonzero(split == Split.TRAIN)
        train_rows = train_rows if len(train_rows) else np.arange(len(table.rows))
        filling = Fill.fit(table, train_rows, fill)
        input_rows = cls(filling).read(table)
        scaling, reason = _fit_scale(input_rows, train_rows, scale)
        return cls(filling, scaling), replace(input_rows, scale=scaling), reason

    def read(self, table: NumericTable, folder: Path | None = None) -> InputRows:
        """Returns the table's rows as the model reads them.

        A table in memory is filled here, once. A mapped table's rows are filled when
        they are read, which bounds memory. Raises `UserError` for unfilled cells.

        Args:
            table: The model's columns, in its order.
            folder: The trained model's, for messages.
        """
        self.fill.check(table, folder)
        rows = InputRows(table, self.fill)
        if isinstance(table.rows, np.ndarray) and mapped_file(table.rows) is None:
            rows = InputRows(rows.load())
        return replace(rows, scale=self.scale)


def _fit_scale(rows: InputRows, train_rows: Ids, kind: str) -> tuple[Scale, str]:
    """Returns the filled rows' scale, and the reason for it."""
    features, width = rows.table.rows, rows.shape[1]
    if isinstance(features, PackedFeatures) or not (len(features) and width):  # a store's rows are already scaled
        return Scale("none"), ""
    if kind == AUTO and isinstance(features, SparseFeatures):
        largest = float(np.abs(features.values).max(initial=0))
        reason = (
            f"features: sparse rows stay as they are, with values up to {largest:.3g}; features.scale=row divides them"
        )
        return Scale("none"), reason if largest > _STRAY else ""
    if kind in ("none", "row"):
        return Scale(kind), "" if kind == "none" else "features: each row is divided by its sum (features.scale=row)"
    if isinstance(features, SparseFeatures):
        raise UserError(_NEEDS_DENSE)
    scale, reason = Scale.standard(rows, train_rows, rows.category_of), f"features.scale={kind}"
    if kind == AUTO and not (reason := scale.why_uneven(rows)):
        return Scale("none"), ""
    scale = scale.compress(rows, train_rows)
    num_tails = np.count_nonzero(scale.spread or ())
    tails = f"; heavy tails enter as logarithms in {num_tails:,} of {width:,} columns" if num_tails else ""
    return scale, f"features: standardised by {len(train_rows):,} nodes that train ({reason}){tails}"


def is_table(graph: Graph) -> bool:
    """Returns whether the features are a table, that is, narrow, text or negative.

    Other features are assumed to be counts, which may be row-normalised.
    """
    features = graph.features
    if isinstance(features, SparseFeatures):
        return bool((features.values < 0).any())
    features = np.asarray(features)
    if graph.category_of is not None:
        return True
    return features.shape[1] <= _MAX_TABLE or bool((features[:: max(len(features) // _SAMPLE, 1)] < 0).any())


def why_uneven(graph: Graph, train_rows: Ids) -> str:
    """Explains how scales of numeric columns differ, if they do."""
    table = NumericTable.of_nodes(graph)
    if isinstance(table.rows, SparseFeatures) or not len(train_rows) or not table.width:
        return ""
    rows = InputRows(replace(table, missing=None))  # empty cells are 0
    return Scale.standard(rows, train_rows, table.category_of).why_uneven(rows)


def warn_of_edges(graph: Graph) -> list[str]:
    """Returns warnings if edge features or weights do not suit training."""
    return [*_warn_of_edge_features(graph), *_warn_of_weights(graph)]


def _warn_of_edge_features(graph: Graph) -> list[str]:
    if graph.edge_features is None or not graph.edge_features.size:
        return []
    table = NumericTable(graph.edge_features[:: max(graph.num_edges // _SAMPLE, 1)], graph.edge_feature_names)
    rows = InputRows(table)
    scale = Scale.standard(rows, np.arange(len(rows)))
    if not (reason := scale.why_uneven(rows)):
        return []
    sizes = np.maximum(np.abs(scale.mean or ()), scale.deviation or ())
    large = [table.column(int(number)) for number in np.flatnonzero(sizes > _LARGE)]
    note = f" (large: {shown_names(large)})" if large else ""
    return [f"warning: edge features: {reason}{note}. If layers of the model read them, standardise them in the data"]


def _warn_of_weights(graph: Graph) -> list[str]:
    """Warns of weights that subtract neighbours' rows, or let none pass."""
    weight = graph.csc.weight
    if weight is None or not len(weight):
        return []
    cure = "dataset.ignore=[weight] leaves the weights of a table out"
    if not weight.any():
        return [f"warning: edges: all weights are 0, so no messages pass: {cure}"]
    count = int(np.count_nonzero(weight < 0))
    text = (
        f"warning: edges: {count:,} of {len(weight):,} weights are negative, which subtract the neighbour's row: {cure}"
    )
    return [text] if count else []
