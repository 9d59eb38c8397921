"""Tables of nodes and of edges, column by column."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from gnnkit.graph.missing import MISSING, missing_cells
from gnnkit.graph.split import SPLIT_NAMES
from gnnkit.graph.types import Floats, Ids, Labels
from gnnkit.graph.values import Reading, Survey, is_listed, is_number, is_text, typed_numbers

_MAX_TEXT = 2048  # characters of an id. An array of ids gives each the room of the longest
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"  # text that says the same as a number


class Table:
    """The columns of a table. Errors name table, column and row."""

    def __init__(
        self, name: str, table: pa.Table, first: int = 0, cure: str = "", missing: Sequence[str] = MISSING
    ) -> None:
        """Keeps the table. Raises `UserError` for two columns of one name.

        Args:
            name: of the file or the argument, for messages.
            table: the columns.
            first: the number of the first row in the file, for messages. Default: 0.
            cure: says how a column is left out, with `{}` for the name, or nothing.
            missing: words for "missing", in lower case.
        """
        self.name = name
        self._first, self._cure, self.missing = first, cure, tuple(missing)
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
        return Table(self.name, self._table.select(left), self._first, self._cure, self.missing)

    def part(self, first: int, last: int) -> Table:
        """Returns the rows `first` to `last` - 1."""
        rows = self._table.slice(first, last - first)
        return Table(self.name, rows, self._first + first, self._cure, self.missing).knowing(self.readings)

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

    def labels(self, name: str, reading: Reading | None = None) -> tuple[Labels | None, list[str] | None]:
        """Reads class numbers [rows], -1 for none, and names of other classes.

        Reads decimal fractions as they are, NaN for none. Text that spells numbers is
        read as these are.

        Args:
            name: of the column.
            reading: of text and truth values, over all pieces of a larger table.
                Default: that of this table.
        """
        if name not in self.names:
            return None, None
        column = self.plain(name)
        if is_text(column.type) or pa.types.is_boolean(column.type):
            return self._text_labels(name, column.cast(pa.string()), reading or read_labels_as([self], name))
        if pa.types.is_decimal(column.type):
            column = self._cast(name, pa.int64() if column.type.scale == 0 else pa.float64())
        if pa.types.is_floating(column.type):
            return numbers_of(column), None
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers or text")
        return self._classes(name, self._cast(name, pa.int64()))

    def _text_labels(self, name: str, text: pa.Array, reading: Reading) -> tuple[Labels, list[str] | None]:
        if reading.kind == "seconds":
            raise UserError(f"{self._place(name)} holds dates such as {reading.sample!r}, expected classes or numbers")
        if reading.kind == "categories":
            return reading.places(text, self.missing), list(reading.categories)
        numbers = reading.numbers(text, self.missing)
        return self._classes(name, pa.array(numbers, from_pandas=True).cast(pa.int64())) if reading.whole else (numbers, None)

    def _classes(self, name: str, labels: pa.Array) -> tuple[Labels, None]:
        labels = labels.fill_null(-1)
        numbers = numbers_of(labels)
        self._refuse(name, numbers < -1, labels, "is no class and not -1")
        return numbers, None

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
            numbers = numbers_of(column) if plain else typed_numbers(column)
        elif is_text(column.type) and self.reading(name).kind == "numbers":
            numbers = self.reading(name).numbers(column, self.missing)
        else:
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers{self._cure.format(name)}")
        self._refuse_gaps(name, np.isnan(numbers))
        self._refuse(name, np.isinf(numbers), numbers, "is not finite")
        return numbers

    def others(self, known: Collection[str]) -> list[str]:
        """Lists all columns but the known ones."""
        return [name for name in self.names if name not in known]

    def rows(self, names: Sequence[str]) -> Floats | None:  # [rows, columns]
        """Reads columns like `cells`, of which no cell may be empty."""
        if not names:
            return None
        found = self._beside(names)
        for name, values in zip(names, found, strict=True):
            self._refuse_gaps(name, np.isnan(values).any(axis=1))
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
        return [f"{name}[{number}]" for number in range(len(pc.drop_null(column)[0]) if column.null_count < len(column) else 0)]

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
        self._refuse(name, lengths != width, lengths, f"numbers, expected {width} as in row {self._first + np.argmax(known)}")
        wide: Floats = np.full((len(column), width), np.nan, dtype)
        inner = reading.numbers(pc.list_flatten(column), self.missing)
        wide[known] = self._checked(name, inner, width).reshape(-1, width) if width else 0
        return wide

    def _checked(self, name: str, numbers: Floats, width: int = 1) -> Floats:
        """Refuses infinite numbers, `width` of a row, and those beyond float32."""
        for bad, why in ((np.isinf(numbers), "is not finite"), (np.abs(numbers) > FLOAT32_MAX, "is too large for float32")):
            if bad.any():
                at = int(np.argmax(bad))
                raise UserError(f"{self._place(name)}, row {self._first + at // width}: {numbers[at].item()!r} {why}")
        return numbers

    def _refuse_gaps(self, name: str, bad: npt.NDArray[np.bool_]) -> None:
        self._refuse(name, bad, None, f"is empty{self._cure.format(name)}")

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


def table_of(name: str, frame: Any, cure: str = "", missing: Sequence[str] = MISSING) -> Table:
    """Reads a table of pyarrow, or a data frame of pandas or polars.

    Raises `UserError` for anything else, and for columns that mix types. `cure` and
    `missing` are those of `Table`.
    """
    if isinstance(frame, pa.Table):
        return Table(name, frame, cure=cure, missing=missing)
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
    if getattr(inner, "extension_name", "") == "pandas.interval":  # of pd.cut
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
    if any(not _has_text(kind) for kind in kinds):
        raise UserError(f"{place} cannot be read: {one_line(error or 'no text stands for the values')}") from error
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _has_text(kind: type) -> bool:
    """Says whether values of a type have a text of their own, as UUIDs do."""
    own = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return own and not issubclass(kind, list | dict | set | int)


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


def read_labels_as(pieces: Iterable[Table], name: str) -> Reading:
    """Finds how a text column of labels is read, as `Table.labels` does."""
    survey: Survey | None = None
    for piece in pieces:
        survey = survey or Survey(piece.name, name, words=piece.missing, most=None)
        survey.add(piece.plain(name).cast(pa.string()))
    return Reading("categories") if survey is None else survey.reading()


def as_ids(ids: pa.Array) -> Array | None:  # [num_nodes]
    """Returns ids for `Graph.node_ids`, or None where each is the node's own number."""
    if is_text(ids.type):
        return np.array(ids.to_pylist(), np.str_)
    numbers = numbers_of(ids)
    return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def narrowed(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Reads text as whole numbers, where each number is spelt as the text is."""
    whole = pc.match_substring_regex(text, _WHOLE)
    return text.cast(pa.int64()) if pc.all(whole, skip_nulls=False).as_py() else text


def _is_uuid(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.uuid"


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
