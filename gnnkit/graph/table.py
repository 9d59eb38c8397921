"""Tables of nodes and of edges, column by column."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.checks import FLOAT32_MAX, Array, one_line
from gnnkit.errors import UserError
from gnnkit.graph.arrow import nulls_of, numbers_of
from gnnkit.graph.features import without_gaps
from gnnkit.graph.ids import IdTable
from gnnkit.graph.split import SPLIT_NAMES
from gnnkit.graph.types import Floats, Ids, Labels

MAX_CATEGORIES = 256  # values of a column of text, of which each becomes a column
_MAX_TEXT = 2048  # characters of an id. An array of ids gives each the room of the longest
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"  # text that says the same as a number


class Table:
    """The columns of a table. Errors name table, column and row."""

    def __init__(self, name: str, table: pa.Table, first: int = 0, cure: str = "") -> None:
        """Keeps the table. Raises `UserError` for two columns of one name.

        Args:
            name: of the file or the argument, for messages.
            table: the columns.
            first: the number of the first row in the file, for messages. Default: 0.
            cure: says how a column is left out, with `{}` for the name, or nothing.
        """
        self.name = name
        self._first, self._cure = first, cure
        self._table = table
        self._categories: dict[str, list[str]] = {}
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
        return Table(self.name, self._table.select(left), self._first, self._cure)

    def part(self, first: int, last: int) -> Table:
        """Returns the rows `first` to `last` - 1."""
        rows = self._table.slice(first, last - first)
        return Table(self.name, rows, self._first + first, self._cure)

    def is_text(self, name: str) -> bool:
        """Says whether the column holds text."""
        return is_text(self.plain(name).type)

    def ids(self, name: str) -> pa.Array:  # [rows] int64 or string, distinct
        """Reads ids of nodes: whole numbers, text, or UUIDs as text."""
        if not self._table.num_rows:
            raise UserError(f"{self.name} has no rows")
        column = self.plain(name)
        if pa.types.is_integer(column.type):
            ids = self._cast(name, pa.int64())
        elif is_text(column.type):
            ids = column.cast(pa.large_string())
        else:
            raise UserError(f"{self._place(name)} holds {column.type}, expected whole numbers, text or UUIDs")
        self._refuse_nulls(name, ids)
        if is_text(ids.type):
            length = numbers_of(pc.utf8_length(ids))
            self._refuse(name, length == 0, None, "is empty")
            self._refuse(name, length > _MAX_TEXT, length, f"characters are too many for an id, at most {_MAX_TEXT}")
        first = numbers_of(pc.index_in(ids, value_set=ids))
        self._refuse(name, first != np.arange(len(ids)), ids, "occurs a second time")
        return ids

    def positions(self, name: str, ids: pa.Array | IdTable | None) -> Ids:  # [rows]
        """Finds the position in `ids` of each entry of a column.

        Without `ids`, entries are positions.
        """
        column = self._cast(name, pa.int64() if ids is None else ids.type)
        self._refuse_nulls(name, column)
        if ids is None:
            return numbers_of(column)
        if isinstance(ids, IdTable):
            numbers = ids.find(column)
            self._refuse(name, numbers < 0, column, "is no id of a node")
            return numbers
        found = pc.index_in(column, value_set=ids)
        self._refuse(name, nulls_of(found), column, "is no id of a node")
        return numbers_of(found)

    def holds_numbers(self, names: Sequence[str]) -> bool:
        """Says whether most values in columns of text are whole numbers."""
        values = self.distinct(names)
        return 2 * (pc.sum(pc.match_substring_regex(values, _WHOLE)).as_py() or 0) >= len(values)

    def distinct(self, names: Sequence[str]) -> pa.Array:  # [num_nodes] string
        """Collects the ids in columns of text, in the order of code points."""
        found = [pc.unique(self.plain(name).cast(pa.large_string()).drop_null()) for name in names]
        return pc.unique(pa.concat_arrays(found)).sort()

    def labels(self, name: str) -> tuple[Labels | None, list[str] | None]:
        """Reads class numbers [rows], -1 for none, and names of other classes.

        Reads floating-point numbers as they are, NaN for none.
        """
        if name not in self.names:
            return None, None
        column = self.plain(name)
        if is_text(column.type) or pa.types.is_boolean(column.type):
            column = column.cast(pa.string())
            names = sorted(set(pc.unique(column).to_pylist()) - {"", None})
            return labels_of_words(column, names), names
        if pa.types.is_floating(column.type):
            return numbers_of(column), None
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers or text")
        labels = self._cast(name, pa.int64()).fill_null(-1)
        numbers = numbers_of(labels)
        self._refuse(name, numbers < -1, labels, "is no class and not -1")
        return numbers, None

    def splits(self, name: str) -> npt.NDArray[np.int8] | None:  # [rows]
        if name not in self.names:
            return None
        words = self._cast(name, pa.string()).fill_null("")
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
        column = self.plain(name).cast(pa.string())
        empty = pc.fill_null(pc.equal(column, ""), True)
        self._refuse(name, empty.to_numpy(zero_copy_only=False), None, "is empty")
        names = pc.unique(column).sort() if known is None else pa.array(known, pa.string())
        found = pc.index_in(column, value_set=names)
        self._refuse(name, nulls_of(found), column, "was not there a moment ago: the table changes while it is read")
        return numbers_of(found), names.to_pylist()

    def numbers(self, name: str, *, gaps: bool = False) -> Floats:  # [rows] finite
        """Reads a column of numbers.

        Args:
            name: of the column.
            gaps: whether cells may be empty or NaN, and are NaN then. Default: refused.
        """
        column = self.plain(name)
        kind = column.type
        plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not (plain or pa.types.is_null(kind) or not len(column)):
            raise UserError(f"{self._place(name)} holds {kind}, expected numbers{self._cure.format(name)}")
        if not gaps:
            self._refuse(name, nulls_of(column), None, f"is empty{self._cure.format(name)}")
        values = column if pa.types.is_floating(kind) else column.cast(pa.float64(), safe=False)
        numbers = numbers_of(values)
        self._refuse(name, np.isinf(numbers) if gaps else ~np.isfinite(numbers), values, "is not finite")
        return numbers

    def others(self, known: Collection[str]) -> list[str]:
        """Lists all columns but the known ones."""
        return [name for name in self.names if name not in known]

    def rows(self, names: Sequence[str]) -> Floats | None:  # [rows, columns] float32
        """Reads columns of numbers, or of lists of equal length, side by side."""
        if not names:
            return None
        self._refuse_text(names)
        return np.concatenate([self._wide(name) for name in names], axis=1)

    def cells(self, names: Sequence[str]) -> tuple[Floats | None, Ids | None]:
        """Reads columns like `rows`, of which cells may be empty or NaN.

        A column of text becomes one column for each of its values, with 1 where a row
        has the value and 0 elsewhere. All of these are empty where the text is.

        Returns:
            The rows [rows, columns], 0 in empty cells, and row and column of each empty
            cell [k, 2], None where there is none.
        """
        return without_gaps(self.open_cells(names)) if names else (None, None)

    def open_cells(self, names: Sequence[str]) -> Floats:  # [rows, columns] float32
        """Reads one or more columns like `cells`, with NaN where a cell is empty."""
        self._refuse_many(names)
        parts = [self._one_hot(name) if self.is_text(name) else self._wide(name, gaps=True) for name in names]
        return np.concatenate(parts, axis=1)

    def knowing(self, categories: Mapping[str, list[str]]) -> Table:
        """Returns the table, whose columns of text have the values of a larger one."""
        self._categories.update(categories)
        return self

    def column_names(self, names: Sequence[str]) -> list[str] | None:
        """Names the columns of `rows` and `cells`.

        Such as `x`, `x[0]` where `x` holds lists, and `x=red` where `x` holds text.
        """
        return [each for name in names for each in self._names(name)] or None

    def category_of(self, names: Sequence[str]) -> list[str] | None:
        """Names the column of text that each column of `cells` is a value of, or ""."""
        found = [name if self.is_text(name) else "" for name in names for _ in self._names(name)]
        return found if any(found) else None

    def categories(self, name: str) -> list[str]:
        """Lists the values of a column of text, in the order of code points."""
        if name not in self._categories:
            found = set(pc.unique(self.plain(name).cast(pa.string())).to_pylist())
            self._categories[name] = sorted(found - {"", None})
        return self._categories[name]

    def _one_hot(self, name: str) -> Floats:  # [rows, values] float32, NaN where a cell is empty
        values = self.categories(name)
        place = labels_of_words(self.plain(name), values)
        rows: Floats = (place[:, None] == np.arange(len(values))).astype(np.float32)
        rows[place < 0] = np.nan
        return rows

    def _names(self, name: str) -> list[str]:
        column = self.plain(name)
        if is_text(column.type):
            return [f"{name}={value}" for value in self.categories(name)]
        if not _is_listed(column.type):
            return [name]
        return [f"{name}[{number}]" for number in range(len(column[0]) if len(column) else 0)]

    def _wide(self, name: str, *, gaps: bool = False) -> Floats:  # [rows, 1 or more] float32
        column = self.plain(name)
        if not _is_listed(column.type):
            return self._narrow(name, self.numbers(name, gaps=gaps))[:, None]
        self._refuse_nulls(name, column)
        length = numbers_of(pc.list_value_length(column))
        width = int(length[0]) if len(length) else 0
        self._refuse(name, length != width, length, f"numbers, expected {width} as in row {self._first}")
        inner = Table(self.name, pa.table({name: pc.list_flatten(column)}))
        numbers: Floats = inner._narrow(name, inner.numbers(name, gaps=gaps)).reshape(-1, max(width, 1))
        return numbers[:, :width]

    def _narrow(self, name: str, exact: Floats) -> Floats:  # [rows] float32
        with np.errstate(over="ignore"):  # found below
            numbers = exact.astype(np.float32)
        self._refuse(name, np.isinf(numbers), exact, "is too large for float32")
        return numbers

    def check_range(self, name: str, ids: Ids, num_nodes: int) -> None:
        """Refuses numbers [rows] of nodes that are not within 0..num_nodes-1."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
            self._refuse(name, (ids < 0) | (ids >= num_nodes), ids, f"is out of range for {num_nodes} nodes")

    def _refuse_text(self, names: Sequence[str]) -> None:
        """Raises `UserError` for columns of text, with all of them in the cure."""
        if text := [name for name in names if self.is_text(name)]:
            cure = self._cure.format(",".join(text))
            raise UserError(f"{self._place(text[0])} holds {self.plain(text[0]).type}, expected numbers{cure}")

    def _refuse_many(self, names: Sequence[str]) -> None:
        """Raises `UserError` for text of many values, none or numbers, and dates."""
        dates = [name for name in names if pa.types.is_temporal(self.plain(name).type)]
        many = [name for name in names if self.is_text(name) and len(self.categories(name)) > MAX_CATEGORIES]
        cure = self._cure.format(",".join([*many, *dates]))
        if many:
            raise self.too_many(many[0], f"{len(self.categories(many[0])):,}", cure)
        for name in filter(self.is_text, names):
            words = [word for word in self.categories(name) if not _is_number(word)]
            if words and len(self.categories(name)) >= 2 * len(words) > 0:
                raise UserError(
                    f"{self._place(name)} holds numbers, and {words[0]!r}: leave a cell without a number empty"
                    f"{self._cure.format(name)}"
                )
        if none := [name for name in names if self.is_text(name) and not self.categories(name)]:
            raise UserError(f"{self._place(none[0])} is text, and empty in all rows{self._cure.format(','.join(none))}")
        if dates:
            kind = self.plain(dates[0]).type
            raise UserError(
                f"{self._place(dates[0])} holds {kind}, expected numbers or text, such as a date in days{cure}"
            )

    def too_many(self, name: str, count: str, cure: str) -> UserError:
        """Makes the error for text with more values than become columns."""
        return UserError(
            f"{self._place(name)} is text with {count} different values, and at most {MAX_CATEGORIES} become columns of 0 "
            f"and 1{cure}"
        )

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
            row = _first_misfit(column, kind)
            raise UserError(
                f"{self._place(name)}, row {self._first + row}: {column[row].as_py()!r} is no {kind}"
            ) from error

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
            raise UserError(f"{self._place(name)}, row {self._first + rows[0]}: {value}{why}")

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


def table_of(name: str, frame: Any, cure: str = "") -> Table:
    """Reads a table of pyarrow, or a data frame of pandas or polars.

    Raises `UserError` for anything else, and for columns that mix types. `cure` is that
    of `Table`.
    """
    if isinstance(frame, pa.Table):
        return Table(name, frame, cure=cure)
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise UserError(f"{name} is a {type(frame).__name__}, expected a table of pandas, polars or pyarrow")
    columns = list(frame.columns)
    for column in columns:
        if not isinstance(column, str):
            raise UserError(f"{name} has a column {column!r}, names of columns must be text")
    arrays = [_array(f"{name}, column {column!r}", frame[column]) for column in _once(name, columns)]
    return Table(name, pa.table(dict(zip(columns, arrays, strict=True))), cure=cure)


def _once(name: str, columns: list[str]) -> list[str]:
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise UserError(f"{name} has two columns {twice!r}")
    return columns


def _array(place: str, series: Any) -> pa.ChunkedArray:
    """Reads one column of a frame. Values without a type of Arrow become text."""
    if str(series.dtype) == "Object":  # of polars, which would give addresses
        return pa.chunked_array([as_text(place, list(series))])
    try:
        made = series.to_arrow() if hasattr(series, "to_arrow") else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        made = as_text(place, list(series), error)
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


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
    if any(not _has_text(kind) for kind in kinds):
        raise UserError(f"{place} cannot be read: {one_line(error or 'no text stands for the values')}") from error
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _has_text(kind: type) -> bool:
    """Says whether values of a type have a text of their own, as UUIDs do."""
    own = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return own and not issubclass(kind, list | dict | set | int)


def labels_of_words(column: pa.Array, names: Sequence[str]) -> Labels:  # [rows]
    """Returns the place of each word in the names of classes, -1 for other words."""
    words = column.cast(pa.string())
    return numbers_of(pc.index_in(words, value_set=pa.array(names, pa.string())).fill_null(-1))


def as_ids(ids: pa.Array) -> Array | None:  # [num_nodes]
    """Returns ids for `Graph.node_ids`, or None where each is the node's own number."""
    if is_text(ids.type):
        return np.array(ids.to_pylist(), np.str_)
    numbers = numbers_of(ids)
    return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def is_text(kind: pa.DataType) -> bool:
    """Says whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def narrowed(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads text as whole numbers, where each number is spelt as the text is."""
    whole = pc.match_substring_regex(text, _WHOLE)
    return text.cast(pa.int64()) if pc.all(whole, skip_nulls=False).as_py() else text


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _is_uuid(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def _is_listed(kind: pa.DataType) -> bool:
    """Says whether each entry is a list of numbers."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _plain(value: Any) -> object:
    """Returns the Python object of an entry of a column or an array."""
    return value.as_py() if isinstance(value, pa.Scalar) else value.item()


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    """Finds the first row that cannot be cast, by bisection. There must be one."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowException:
            high = middle
    return low
