"""Tables of nodes and of edges, column by column."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.checks import FLOAT32_MAX, Array, one_line
from gnnkit.errors import UserError
from gnnkit.graph.arrow import nulls_of, numbers_of
from gnnkit.graph.features import without_gaps
from gnnkit.graph.ids import MAX_EXACT, IdTable, counts_on, find_ids, first_row, whole_numbers
from gnnkit.graph.index_columns import index_columns
from gnnkit.graph.labels import check_signs
from gnnkit.graph.missing import MISSING, missing_cells
from gnnkit.graph.split import SPLIT_NAMES
from gnnkit.graph.types import Floats, Ids, Labels
from gnnkit.graph.values import Reading, Survey, is_listed, is_number, is_text, typed_numbers

_MAX_TEXT = 2048  # characters of an id. An array of ids gives each the room of the longest
_WHOLE = r"^(0|-?[1-9][0-9]*)$"  # text that is spelt as a whole number
_INT64 = 2**63 - 1
_LAZY = ("collect", "compute", "toPandas")  # what makes a table of a frame of polars, Dask and Spark


class Table:
    """The columns of a table. Errors name table, column and row."""

    def __init__(
        self,
        name: str,
        table: pa.Table,
        first: int = 0,
        cure: str = "",
        missing: Sequence[str] = MISSING,
        rows: Ids | None = None,
    ) -> None:
        """Keeps the table. Raises `UserError` for two columns of one name.

        Args:
            name: of the file or the argument, for messages.
            table: the columns.
            first: the number of the first row in the file, for messages. Default: 0.
            cure: says how a column is left out, with `{}` for the name, or nothing.
            missing: words for "missing", in lower case.
            rows: [rows] number of each row in the file, where rows were left out.
        """
        self.name = name
        self._first, self._cure, self.missing, self._rows = first, cure, tuple(missing), rows
        self._table = table
        self.readings: dict[str, Reading] = {}  # of columns that were read so far
        self.names: list[str] = table.column_names
        seen: set[str] = set()
        for column in self.names:
            if column in seen:
                raise UserError(f"{name} has two columns {column!r}")
            seen.add(column)

    @property
    def num_rows(self) -> int:
        return int(self._table.num_rows)

    def without(self, names: Collection[str]) -> Table:
        """Returns the table without some columns."""
        left = [name for name in self.names if name not in names]
        return self._like(self._table.select(left), self._first)

    def part(self, first: int, last: int) -> Table:
        """Returns the rows `first` to `last` - 1."""
        rows = self._table.slice(first, last - first)
        if self._rows is None:
            return self._like(rows, self._first + first).knowing(self.readings)
        return self._like(rows, self._first, self._rows[first:last]).knowing(self.readings)

    def first_rows(self, name: str) -> Table:
        """Leaves out each row whose id stands in an earlier row."""
        ids = self.id_column(name)
        kept = np.flatnonzero(find_ids(ids, ids) == np.arange(len(ids)))
        return self if len(kept) == len(ids) else self._like(self._table.take(kept), self._first, kept)

    def _like(self, table: pa.Table, first: int, rows: Ids | None = None) -> Table:
        """Returns another table that is read as this one is."""
        rows = self._rows if rows is None else rows
        return Table(self.name, table, first, self._cure, self.missing, rows)

    def is_text(self, name: str) -> bool:
        """Says whether the column holds text."""
        return is_text(self.plain(name).type)

    def ids(self, name: str, cure: str = "") -> pa.Array:  # [rows] int64 or large_string, distinct
        """Reads ids of nodes, as `id_column` does, which must be distinct.

        Args:
            name: of the column.
            cure: says what to do about an id that occurs twice, or nothing.
        """
        if not self._table.num_rows:
            raise UserError(f"{self.name} has no rows")
        ids = self.id_column(name)
        if is_text(ids.type):
            length = numbers_of(pc.utf8_length(ids))
            self._refuse(name, length > _MAX_TEXT, length, f"characters are too many for an id, at most {_MAX_TEXT}")
        first = find_ids(ids, ids)
        if len(again := np.flatnonzero(first != np.arange(len(ids)))):
            row, before = int(again[0]), int(first[again[0]])
            value, other = (self.plain(name)[each].as_py() for each in (row, before))
            spelt = "" if value == other else f", where it is spelt {other!r}"
            raise UserError(
                f"{self._place(name)}, row {self._number(row)}: {value!r} occurs a second time, after row "
                f"{self._number(before)}{spelt}{cure}"
            )
        return ids

    def id_column(self, name: str) -> pa.Array:  # [rows] int64 or large_string
        """Reads ids: whole numbers, text without surrounding blanks, or UUIDs as text.

        Floating-point numbers are ids where they are whole and exact. Raises
        `UserError` with the row of an empty id, of text with a NUL character, and of a
        number that int64 cannot hold.
        """
        column = self.plain(name)
        return self._text_ids(name, column) if is_text(column.type) else self._number_ids(name, column)

    def positions(self, name: str, ids: pa.Array | IdTable | None, *, fraction: bool = False) -> Ids:  # [rows]
        """Finds the position in `ids` of each entry of a column.

        Without `ids`, entries are positions. Numbers and text match where the text is
        spelt as the number is.

        Args:
            name: of the column.
            ids: [num_nodes] int64 or large_string, or None.
            fraction: whether a column of text spells whole numbers as `7.0`.
        """
        numbers = ids is None or not is_text(ids.type)
        if numbers:
            column = self._whole_ids(name, fraction)
        elif self.is_text(name):
            column = self.plain(name).cast(pa.large_string())
            self._refuse_nulls(name, column)
        else:
            column = self.id_column(name).cast(pa.large_string())
        if ids is None:
            return numbers_of(column)
        found = find_ids(ids, column)
        if not numbers and found.min(initial=0) < 0:  # blanks are stripped where there may be some
            column = self._text_ids(name, column)
            found = find_ids(ids, column)
        spelt = not numbers and not self.is_text(name)
        self._refuse(name, found < 0, column, "is no id of a node" + (", as these are text" if spelt else ""))
        return found

    def holds_numbers(self, names: Sequence[str]) -> bool:
        """Says whether most values in columns of text are whole numbers."""
        values = self.distinct(names)
        return 2 * (pc.sum(pc.match_substring_regex(values, _WHOLE)).as_py() or 0) >= len(values)

    def distinct(self, names: Sequence[str]) -> pa.Array:  # [values] large_string
        """Collects the ids in columns of text, as they are spelt.

        Raises `UserError` with the row of an empty id, and of a NUL character.
        """
        found = []
        for name in names:
            column = self.plain(name).cast(pa.large_string())
            values = pc.unique(column)
            if self._bad_text(values).any():
                self._text_ids(name, column)  # raises, with the row
            found.append(values)
        return pc.unique(pa.concat_arrays(found))

    def _whole_ids(self, name: str, fraction: bool) -> pa.Array:  # [rows] int64
        """Reads a column of whole numbers, which may be text."""
        column = self.plain(name)
        if not is_text(column.type):
            return self._number_ids(name, column)
        self._refuse_nulls(name, column)
        numbers = whole_numbers(column, fraction=fraction)
        if numbers is not None:
            return numbers
        self._text_ids(name, column)  # raises for an empty cell
        row = first_row(column, lambda cells: whole_numbers(cells, fraction=fraction) is not None)
        text = column[row].as_py()
        raise UserError(f"{self._place(name)}, row {self._number(row)}: {text!r} {_why_no_number(text)}")

    def _number_ids(self, name: str, column: pa.Array) -> pa.Array:  # [rows] int64
        """Reads a column of numbers, which are whole and exact."""
        kind = column.type
        if pa.types.is_null(kind) or not len(column):
            column = column.cast(pa.int64())
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise UserError(f"{self._place(name)} holds {kind}, expected whole numbers, text or UUIDs")
        self._refuse_nulls(name, column)
        if pa.types.is_floating(kind):
            numbers = numbers_of(column).astype(np.float64, copy=False)
            self._refuse(name, np.isnan(numbers), None, "is empty")
            self._refuse(name, np.rint(numbers) != numbers, numbers, "is no whole number")
            inexact = np.abs(numbers) > MAX_EXACT
            self._refuse(name, inexact, numbers, "is beyond 2^53, where a float is no exact id: use int64 or text")
            return pa.array(numbers.astype(np.int64))
        if pa.types.is_unsigned_integer(kind):
            numbers = numbers_of(column)
            self._refuse(name, numbers > _INT64, numbers, "is too large for an id of 64 bits: give such ids as text")
        return self._cast(name, pa.int64())

    def _text_ids(self, name: str, column: pa.Array) -> pa.Array:  # [rows] large_string
        """Strips blanks from ids that are text."""
        column = column.cast(pa.large_string())
        self._refuse_nulls(name, column)
        if self._bad_text(column).any():
            empty = missing_cells(column, ("",))
            self._refuse(name, empty, None, "is empty")
            why = "is empty: the word stands for a missing value, unless missing=[WORD, ...] (dataset.missing) lists others"
            self._refuse(name, missing_cells(column, self.missing), column, why)
            nul = pc.match_substring(column, "\0").to_numpy(zero_copy_only=False)
            self._refuse(name, nul, column, "holds a NUL character, which ids cannot")
        return pc.utf8_trim_whitespace(column)

    def _bad_text(self, text: pa.Array) -> npt.NDArray[np.bool_]:  # [rows]
        """Marks text that is no id: empty cells, and text with a NUL character."""
        nul = pc.match_substring(text, "\0").fill_null(True).to_numpy(zero_copy_only=False)
        return np.asarray(nul | missing_cells(text, ("", *self.missing)))

    def labels(self, name: str, reading: Reading) -> Labels:  # [rows]
        """Reads class numbers, -1 for none, or decimal fractions, NaN for none.

        Args:
            name: of the column.
            reading: of text and truth values, over all pieces of a larger table.
        """
        column = self.plain(name)
        if _has_words(column.type):
            return self._text_labels(name, column.cast(pa.string()), reading)
        if pa.types.is_decimal(column.type):
            column = self._cast(name, pa.int64() if column.type.scale == 0 else pa.float64())
        if pa.types.is_floating(column.type):
            return numbers_of(column)
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers or text")
        return self._classes(name, self._cast(name, pa.int64()))

    def _text_labels(self, name: str, text: pa.Array, reading: Reading) -> Labels:
        if reading.kind == "seconds":
            raise UserError(f"{self._place(name)} holds dates such as {reading.sample!r}, expected classes or numbers")
        if reading.kind == "categories":
            return reading.places(text, self.missing)
        numbers = reading.numbers(text, self.missing)
        return self._classes(name, pa.array(numbers, from_pandas=True).cast(pa.int64())) if reading.whole else numbers

    def _classes(self, name: str, labels: pa.Array) -> Labels:
        labels = labels.fill_null(-1)
        numbers = numbers_of(labels)
        self._refuse(name, numbers < -1, labels, "is no class and not -1")
        return numbers

    def spells_none(self, name: str) -> bool:
        """Whether a cell of labels spells -1, and is not just empty."""
        column = self.plain(name)
        if is_text(column.type):
            return bool(pc.any(pc.equal(pc.utf8_trim_whitespace(column), "-1")).as_py())
        return pa.types.is_integer(column.type) and bool(pc.any(pc.equal(column, -1)).as_py())

    def missing_words(self, name: str) -> list[str]:
        """Lists the cells of a text column that hold a word for a missing value."""
        column = self.plain(name)
        if not is_text(column.type):
            return []
        spelt = missing_cells(column, self.missing) & ~missing_cells(column, ("",))
        words: list[str] = column.filter(pa.array(spelt)).to_pylist()
        return words

    def splits(self, name: str) -> npt.NDArray[np.int8] | None:  # [rows]
        if name not in self.names:
            return None
        words = pc.utf8_trim_whitespace(self._cast(name, pa.string()).fill_null(""))
        words = pc.if_else(pa.array(missing_cells(words, self.missing)), "none", words)
        found = pc.index_in(words, value_set=pa.array(SPLIT_NAMES, pa.string()))
        self._refuse(name, nulls_of(found), words, "is none of train, val, test, none")
        return np.asarray(np.array(list(SPLIT_NAMES.values()), np.int8)[numbers_of(found)])

    def types(self, name: str, known: Sequence[str] | None = None) -> tuple[Ids | None, list[str] | None]:
        """Reads types of edges [rows], and their names if these are text.

        Names are numbered in the order of code points.

        Args:
            name: of the column.
            known: names in order. Default: those of the column.
        """
        if name not in self.names:
            return None, None
        if not self.is_text(name):
            return self.positions(name, None), None
        column = pc.utf8_trim_whitespace(self.plain(name).cast(pa.string()))
        empty = pc.fill_null(pc.equal(column, ""), True)
        self._refuse(name, empty.to_numpy(zero_copy_only=False), None, "is empty")
        names = pc.unique(column).sort() if known is None else pa.array(known, pa.string())
        found = pc.index_in(column, value_set=names)
        self._refuse(name, nulls_of(found), column, "was not there a moment ago: the table changes while it is read")
        return numbers_of(found), names.to_pylist()

    def weights(self, name: str) -> Floats:  # [rows] finite
        """Reads a column of numbers without missing cells."""
        column = self.plain(name)
        if is_number(column.type):
            plain = pa.types.is_floating(column.type) and not column.null_count
            numbers: Array = numbers_of(column) if plain else typed_numbers(column)
        elif is_text(column.type) and self.reading(name).kind == "numbers":
            numbers = self.reading(name).numbers(column, self.missing)
        else:
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers{self._cure.format(name)}")
        self._refuse_gaps(name, np.isnan(numbers))
        self._refuse(name, np.isinf(numbers), numbers, "is not finite")
        return numbers

    def others(self, known: Collection[str | None]) -> list[str]:
        """Lists all columns but the known ones."""
        return [name for name in self.names if name not in known]

    def index_columns(self, known: Collection[str | None]) -> list[str]:
        """Lists the columns but the known ones that hold the index of a data frame."""
        names = self.others(known)
        return index_columns(self._table.schema, names, lambda name: counts_on(self.plain(name), 0))

    def rows(self, names: Sequence[str]) -> Floats | None:  # [rows, columns]
        """Reads columns like `cells`, of which no cell may be empty."""
        if not names:
            return None
        found = self._beside(names)
        for name, values in zip(names, found, strict=True):
            self._refuse_gaps(name, np.asarray(np.isnan(values).any(axis=1)))
        return np.concatenate(found, axis=1)

    def cells(self, names: Sequence[str]) -> tuple[Floats | None, Ids | None]:
        """Reads columns side by side, of which cells may be empty or NaN.

        Numbers, dates (as seconds) and lists of numbers of equal length are float32, or
        float64 where float32 loses what `values.Survey` finds. A column of other text
        becomes one column for each of its values, with 1 where a row has the value and
        0 elsewhere. All of these are empty where the text is.

        Returns:
            The rows [rows, columns], 0 in empty cells, and row and column of each empty
            cell [k, 2], None where there is none.
        """
        return without_gaps(self.open_cells(names)) if names else (None, None)

    def open_cells(self, names: Sequence[str]) -> Floats:  # [rows, columns]
        """Reads one or more columns like `cells`, with NaN where a cell is empty."""
        return np.concatenate(self._beside(names), axis=1)

    def _beside(self, names: Sequence[str]) -> list[Floats]:  # [rows, 1 or more] each
        """Reads columns in one type: float64 where one of these needs it."""
        self._find_readings(names)
        dtype = np.result_type(np.float32, *(self.readings[name].dtype for name in names))
        return [self._values(name, dtype) for name in names]

    def reading(self, name: str) -> Reading:
        """Returns how the column's cells are read."""
        self._find_readings([name])
        return self.readings[name]

    def _find_readings(self, names: Sequence[str]) -> None:
        """Finds how columns are read, with all that have none in one message."""
        if new := [name for name in names if name not in self.readings]:
            self.readings |= readings_of(self.name, [self], new, self._cure)

    def knowing(self, readings: Mapping[str, Reading]) -> Table:
        """Returns the table, whose columns are read as those of a larger one."""
        self.readings.update(readings)
        return self

    def column_names(self, names: Sequence[str]) -> list[str] | None:
        """Names the columns of `rows` and `cells`.

        Such as `x`, `x[0]` where `x` holds lists, and `x=red` where `x` holds text.
        """
        return [each for name in names for each in self._names(name)] or None

    def category_of(self, names: Sequence[str]) -> list[str] | None:
        """Names the column of text that each column of `cells` is a value of, or ""."""
        kinds = {name: self.reading(name).kind for name in names}
        found = [name if kinds[name] == "categories" else "" for name in names for _ in self._names(name)]
        return found if any(found) else None

    def _names(self, name: str) -> list[str]:
        column, reading = self.plain(name), self.reading(name)
        if reading.kind == "categories":
            return [f"{name}={value}" for value in reading.categories]
        if not is_listed(column.type):
            return [name]
        return [
            f"{name}[{number}]"
            for number in range(len(pc.drop_null(column)[0]) if column.null_count < len(column) else 0)
        ]

    def _values(self, name: str, dtype: np.dtype[Any]) -> Floats:  # [rows, 1 or more], NaN where a cell is empty
        column, reading = self.plain(name), self.reading(name)
        if reading.kind == "categories":
            places = reading.places(column, self.missing)
            rows: Floats = (places[:, None] == np.arange(len(reading.categories))).astype(dtype)
            rows[places < 0] = np.nan
            return rows
        if not is_listed(column.type):
            return self._checked(name, reading.numbers(column, self.missing)).astype(dtype)[:, None]
        known = ~nulls_of(column)
        length = numbers_of(pc.list_value_length(column).drop_null())
        width = int(length[0]) if len(length) else 0
        lengths = np.full(len(column), width)
        lengths[known] = length
        self._refuse(
            name,
            lengths != width,
            lengths,
            f"numbers, expected {width} as in row {self._number(int(np.argmax(known)))}",
        )
        wide: Floats = np.full((len(column), width), np.nan, dtype)
        inner = reading.numbers(pc.list_flatten(column), self.missing)
        wide[known] = self._checked(name, inner, width).reshape(-1, width) if width else 0
        return wide

    def _checked(self, name: str, numbers: Floats, width: int = 1) -> Floats:
        """Refuses infinite numbers, `width` of a row, and those beyond float32."""
        for bad, why in (
            (np.isinf(numbers), "is not finite"),
            (np.abs(numbers) > FLOAT32_MAX, "is too large for float32"),
        ):
            if bad.any():
                at = int(np.argmax(bad))
                raise UserError(f"{self._place(name)}, row {self._number(at // width)}: {numbers[at].item()!r} {why}")
        return numbers

    def _refuse_gaps(self, name: str, bad: npt.NDArray[np.bool_]) -> None:
        cure, text = self._cure.format(name), self.plain(name)
        empty = missing_cells(text, ("",)) if is_text(text.type) and bad.any() else bad
        self._refuse(name, bad & empty, None, f"is empty{cure}")
        why = "stands for a missing value, unless missing=[WORD, ...] (dataset.missing) lists other words"
        self._refuse(name, bad, text, f"{why}{cure}")

    def check_range(self, name: str, ids: Ids, num_nodes: int) -> None:
        """Refuses numbers [rows] of nodes that are not within 0..num_nodes-1."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
            self._refuse(name, (ids < 0) | (ids >= num_nodes), ids, f"is out of range for {num_nodes} nodes")

    def check_bound(self, name: str, numbers: Floats) -> None:
        """Refuses numbers [rows] that float32 cannot hold."""
        self._refuse(name, np.abs(numbers) > FLOAT32_MAX, numbers, "is too large for float32")

    def plain(self, name: str) -> pa.Array:
        """Returns a column of plain numbers, text or lists."""
        require(self.name, self.names, name)
        column = self._table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        elif _is_uuid(column.type):
            column = pa.chunked_array([pa.array([str(each) for each in column.to_pylist()], pa.string())])
        elif isinstance(column.type, pa.BaseExtensionType):
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers or text")
        return column.combine_chunks()

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self.plain(name)
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            row = first_row(column, lambda cells: _can_cast(cells, kind))
            what = "whole number of 64 bits" if pa.types.is_integer(kind) else str(kind)
            raise UserError(
                f"{self._place(name)}, row {self._number(row)}: {str(column[row].as_py())!r} is no {what}"
            ) from error

    def _number(self, row: int) -> int:
        """Returns the number of a row in the file."""
        return self._first + int(row if self._rows is None else self._rows[row])

    def _refuse_nulls(self, name: str, column: pa.Array) -> None:
        self._refuse(name, nulls_of(column), None, "is empty")

    def _refuse(self, name: str, bad: npt.NDArray[np.bool_], column: pa.Array | Array | None, why: str) -> None:
        """Raises `UserError` with the first bad row, the value and `why`.

        Args:
            name: Name of the column.
            bad: [rows] whether a row is bad.
            column: Values of the rows, or None.
            why: End of the message.
        """
        rows = np.flatnonzero(bad)
        if len(rows):
            value = "" if column is None else f"{_plain(column[int(rows[0])])!r} "
            raise UserError(f"{self._place(name)}, row {self._number(int(rows[0]))}: {value}{why}")

    def _place(self, name: str) -> str:
        return f"{self.name}, column {name!r}"


def require(table: str, names: Sequence[str], column: str, cure: str = "") -> None:
    """Raises `UserError` for a missing column, with `cure` behind the message.

    Args:
        table: name of the table, for the message.
        names: columns that there are.
        column: the one that is needed.
        cure: what to do.
    """
    if column not in names:
        shown = [*map(repr, names[:20]), *(["..."] if len(names) > 20 else [])]
        raise UserError(f"{table} has no column {column!r}, only {', '.join(shown)}{cure}")


def table_of(name: str, frame: Any, cure: str = "", missing: Sequence[str] = MISSING) -> Table:
    """Reads a table of pyarrow, or a data frame of pandas or polars.

    Raises `UserError` for anything else, and for columns that mix types. `cure` and
    `missing` are those of `Table`.
    """
    if isinstance(frame, pa.Table):
        return Table(name, frame, cure=cure, missing=missing)
    if method := next((each for each in _LAZY if hasattr(type(frame), each)), None):
        raise UserError(f"{name} is a {type(frame).__name__}, which holds no rows yet: give {name}.{method}()")
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise UserError(f"{name} is a {type(frame).__name__}, expected a table of pandas, polars or pyarrow")
    columns = list(frame.columns)
    for column in columns:
        if not isinstance(column, str):
            raise UserError(f"{name} has a column {column!r}, names of columns must be text")
    arrays = [_array(f"{name}, column {column!r}", frame[column], missing) for column in _once(name, columns)]
    return Table(name, pa.table(dict(zip(columns, arrays, strict=True))), cure=cure, missing=missing)


def _once(name: str, columns: list[str]) -> list[str]:
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise UserError(f"{name} has two columns {twice!r}")
    return columns


def _array(place: str, series: Any, missing: Sequence[str]) -> pa.ChunkedArray:
    """Reads one column of a frame."""
    kind = str(series.dtype)
    if kind.startswith("Sparse["):  # of pandas, which Arrow does not read
        series = series.sparse.to_dense()
    try:
        if kind == "Object":  # of polars, which would give addresses
            made = values_as_arrow(place, list(series), missing)
        else:
            made = series.to_arrow() if hasattr(series, "to_arrow") else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        made = values_as_arrow(place, list(series), missing)
    inner = made.type.value_type if pa.types.is_dictionary(made.type) else made.type
    if str(getattr(inner, "extension_name", "")).startswith("pandas."):  # intervals, as of pd.cut, and periods
        values = series.astype(object).where(series.notna(), None)
        made = pa.array([None if value is None else str(value) for value in values], pa.string())
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def values_as_arrow(place: str, values: Sequence[Any], missing: Sequence[str] = MISSING) -> pa.Array:
    """Reads Python objects. Values without a type of Arrow become text.

    Words for "missing" among values of another type are empty cells. Raises `UserError`
    for values of several types otherwise.

    Args:
        place: name of the column, for the message.
        values: [n] values, None for none.
        missing: words for "missing", in lower case.
    """
    others = {type(value) for value in values if value is not None and not isinstance(value, str)}
    if others and all(value.strip().lower() in missing for value in values if isinstance(value, str)):
        values = [None if isinstance(value, str) else value for value in values]
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return as_text(place, values, error)


def as_text(place: str, values: Sequence[Any], error: BaseException | None = None) -> pa.Array:
    """Spells values of one type as text, None as null.

    Raises `UserError` for values of several types.

    Args:
        place: name of the column, for the message.
        values: [n] values.
        error: the reason why they cannot be read as they are.
    """
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(f"{place} mixes {names}: give all values one type") from error
    if kinds == {int}:
        raise UserError(
            f"{place} holds whole numbers beyond 64 bits: give ids as text, and features as floating-point numbers"
        ) from error
    if any(not _has_text(kind) for kind in kinds):
        raise UserError(f"{place} cannot be read: {one_line(error or 'no text stands for the values')}") from error
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _has_text(kind: type) -> bool:
    """Says whether values of a type have a text of their own, as UUIDs do."""
    own = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return own and not issubclass(kind, list | dict | set | Number)


def readings_of(place: str, pieces: Iterable[Table], names: Sequence[str], cure: str = "") -> dict[str, Reading]:
    """Finds how columns are read, over all pieces of one or several tables.

    Raises `UserError` for a column that has no reading.

    Args:
        place: table, for messages.
        pieces: the rows. Without any, columns are numbers.
        names: of the columns.
        cure: as of `Table`.
    """
    surveys: dict[str, Survey] = {}
    for piece in pieces:
        surveys = surveys or {name: Survey(place, name, cure, piece.missing) for name in names}
        for name, survey in surveys.items():
            survey.add(piece.plain(name))
        if all(survey.has_too_many for survey in surveys.values()):
            break
    many = [name for name, survey in surveys.items() if survey.has_too_many]
    return {name: surveys[name].reading(many) if name in surveys else Reading("numbers") for name in names}


def warn_of_readings(table: str, readings: Mapping[str, Reading]) -> None:
    """Warns, in one line, of text and dates that are read as numbers."""
    if unusual := [text for name, reading in readings.items() if (text := reading.described(name))]:
        warnings.warn(f"{table}: reads {', '.join(unusual)}", stacklevel=4)


def read_labels(pieces: Callable[[], Iterable[Table]], name: str) -> tuple[Labels, list[str] | None]:
    """Reads a column of labels, and the names of classes. Text is read twice.

    Text that spells numbers is read as these are. Raises `UserError` for the classes -1
    and 1, unless all -1 are empty cells.

    Args:
        pieces: yields the rows, in one or several tables.
        name: of the column.
    """
    survey, reading = None, Reading("numbers")
    for piece in pieces():
        if not _has_words(piece.plain(name).type):
            break
        survey = survey or Survey(piece.name, name, words=piece.missing, most=None)
        survey.add(piece.plain(name).cast(pa.string()))
    if survey is not None:
        reading = survey.reading()
    found, spells_none = [np.empty(0, np.int64)], False
    num_missing, word = 0, None
    for piece in pieces():
        found.append(piece.labels(name, reading))
        spells_none |= piece.spells_none(name)
        words = piece.missing_words(name)
        num_missing, word = num_missing + len(words), word or next(iter(words), None)
    if word is not None:
        warnings.warn(
            f"column {name!r}: {num_missing:,} nodes have no label, because {word!r} and the like stand for a missing "
            "value, unless missing=[WORD, ...] (dataset.missing) lists other words",
            stacklevel=4,
        )
    labels = np.concatenate(found[1:] or found)
    names = list(reading.categories) if reading.kind == "categories" else None
    if spells_none:
        check_signs(labels, names)
    return labels, names


def _has_words(kind: pa.DataType) -> bool:
    """Whether labels of a type are read as text."""
    return is_text(kind) or pa.types.is_boolean(kind)


def as_ids(ids: pa.Array) -> Array | None:  # [num_nodes]
    """Returns ids for `Graph.node_ids`, or None where each is the node's own number."""
    if is_text(ids.type):
        return np.array(ids.to_pylist(), np.str_)
    numbers = numbers_of(ids)
    return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def joined_ids(tables: Sequence[Table], names: Sequence[str]) -> pa.Array:  # [num_nodes] large_string
    """Collects the ids in columns of text, in the order of code points.

    Surrounding blanks do not count. Raises `UserError` for ids that differ in these
    alone.
    """
    spelt = pc.unique(pa.concat_arrays([table.distinct(names) for table in tables]))
    ids = pc.utf8_trim_whitespace(spelt)
    distinct = pc.unique(ids).sort()
    if len(distinct) < len(ids):
        first = find_ids(ids, ids)
        row = int(np.flatnonzero(first != np.arange(len(ids)))[0])
        one, other = spelt[int(first[row])].as_py(), spelt[row].as_py()
        raise UserError(
            f"{tables[0].name}, columns {names[0]!r} and {names[1]!r}: {one!r} and {other!r} differ in blanks alone: "
            "spell the id one way"
        )
    return distinct


def _why_no_number(text: str) -> str:
    """Returns why text is not the id of a node where ids are numbers."""
    try:
        number = float(text) if "." in text else int(text)
    except ValueError:
        return "is no whole number"
    if number != int(number):
        return "is no whole number"
    if abs(number) > _INT64:
        return "is too large for an id of 64 bits: give a table of nodes whose ids are text"
    return f"is not spelt as the id {int(number)} is: spell an id one way, or give all ids as text"


def _is_uuid(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def _plain(value: Any) -> object:
    """Returns the Python object of an entry of a column or an array."""
    return value.as_py() if isinstance(value, pa.Scalar) else value.item()


def _can_cast(column: pa.Array, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowException:
        return False
    return True
