"""How the cells of a column become numbers or categories, the same in every reader.

`Survey` looks at all cells of a column, piece by piece, and decides on one reading.
The reading then applies to any piece of the column, so that a table that is read in
pieces gives the numbers of a table that is read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.arrow import numbers_of
from gnnkit.graph.ids import first_row
from gnnkit.graph.missing import MISSING, missing_cells
from gnnkit.graph.types import Ids

MAX_CATEGORIES = 256  # values of a column of text, of which each becomes a column
_TOLERANCE = 1e-5  # error of float32 as a share of a column's range, below the noise of training
_UNITS = "$€£¥%"
_BLANK = "[ \u00a0\u202f']"  # between groups of three digits
_GROUPS = rf"[1-9]\d{{0,2}}(?:{_BLANK}\d{{3}})+"
_DOT = rf"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d+)?|{_GROUPS}(?:\.\d+)?"
_COMMA = rf"\d+(?:,\d+)?|,\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?|{_GROUPS}(?:,\d+)?"
_SPELT = r"^(?:[+\-\x{{2212}}]?[$€£¥]?|[$€£¥][+\-\x{{2212}}])\s?(?:{})\s?[$€£¥%]?$"
_WHOLE = r"^-?\d+$"
_DATE = r"^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?$"
_ZONED = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:Z|[+-]\d{2}(?::?\d{2})?)$"
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400  # seconds


@dataclass(frozen=True, slots=True)
class Style:
    """How the numbers of a text column are spelt."""

    comma: bool  # whether the comma is the decimal sign, and not the point
    unit: str = ""  # one of `_UNITS` in each cell

    def pattern(self) -> str:
        return _SPELT.format(_COMMA if self.comma else _DOT)

    def plain(self, text: pa.Array) -> pa.Array:
        """Spells numbers as programming languages do, without their unit."""
        text = pc.replace_substring_regex(text, f"[{_UNITS}+\\s\u00a0\u202f']", "")
        text = pc.replace_substring(text, "\u2212", "-")
        text = pc.replace_substring(text, "." if self.comma else ",", "")
        return pc.replace_substring(text, ",", ".") if self.comma else text

    def numbers(self, text: pa.Array) -> npt.NDArray[np.float64]:
        """Reads the numbers of cells that match `pattern`. 10 % is 0.1."""
        found = numbers_of(self.plain(text).cast(pa.float64()))
        return found / 100 if self.unit == "%" else found


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """What the cells of one column become."""

    kind: str  # numbers, seconds or categories
    style: Style | None = None  # of numbers that are text
    categories: tuple[str, ...] = ()  # in the order of code points
    narrow: bool = True  # whether float32 holds the numbers well enough
    whole: bool = False  # whether numbers that are text are spelt without decimals
    sample: str = ""  # a cell, for messages about text and dates

    @property
    def dtype(self) -> type[np.float32] | type[np.float64]:
        return np.float32 if self.narrow else np.float64

    def described(self, name: str) -> str:
        """Describes a reading that a user may not expect, and "" for any other."""
        if self.kind == "seconds":
            return f"{name!r} ({self.sample}) as seconds"
        return f"{name!r} ({self.sample}) as numbers" if self.style is not None else ""

    def numbers(self, column: pa.Array, words: Sequence[str] = MISSING) -> npt.NDArray[np.float64]:  # [rows]
        """Reads the numbers of a piece of the column, NaN in missing cells."""
        if not is_text(column.type):
            return typed_numbers(column)
        missing, found = missing_cells(column, words), np.full(len(column), np.nan)
        known = pc.utf8_trim_whitespace(column).filter(pa.array(~missing))
        found[~missing] = _seconds_of(known) if self.style is None else self.style.numbers(known)
        return found

    def places(self, column: pa.Array, words: Sequence[str] = MISSING) -> Ids:  # [rows]
        """Finds the category of each cell, -1 in missing cells."""
        text = column.cast(pa.string())
        found = pc.index_in(pc.utf8_trim_whitespace(text), value_set=pa.array(self.categories, pa.string()))
        places: Ids = np.array(numbers_of(found.fill_null(-1)), np.int64)
        places[missing_cells(text, words)] = -1
        return places


class Survey:
    """The facts of one column that its reading depends on, over all pieces."""

    def __init__(
        self, place: str, name: str, cure: str = "", words: Sequence[str] = MISSING, most: int | None = MAX_CATEGORIES
    ) -> None:
        """Prepares an empty survey.

        Args:
            place: table, for messages.
            name: column.
            cure: end of messages, which names a way out for the columns in `{}`.
            words: words for "missing".
            most: categories allowed. None: any number, as for names of classes, of
                which some may look like numbers.
        """
        self.place, self._cure, self._words, self._most = f"{place}, column {name!r}", cure.format(name), words, most
        self._cure_of_many = cure
        self._kinds: set[str] = set()  # of the pieces: text, seconds or numbers
        self._texts: set[str] = set()  # distinct, up to a few more than are allowed
        self._no_number: str | None = None  # the first text that is no number
        self._no_date: str | None = None
        self._fits = {False: True, True: True}  # whether all texts are numbers, by `Style.comma`
        self._spelt = {comma: _NumberRange() for comma in (False, True)}
        self._comma: str | None = None  # the first text with a comma
        self._whole = True
        self._with_unit: dict[str, str] = {}  # the first text with a unit, by unit
        self._without_unit: dict[str, str] = {}
        self._typed, self._dates = _NumberRange(), _NumberRange()
        self._date = ""  # a typed date, for people
        self._integers: tuple[int, int] | None = None  # the least and the largest, of integer types

    @property
    def has_too_many(self) -> bool:
        """Whether the column has too many categories, whatever the further pieces."""
        no_form = self._no_number is not None and self._no_date is not None
        return self._most is not None and len(self._texts) > self._most and no_form

    def add(self, column: pa.Array) -> None:
        """Looks at a piece of the column."""
        if is_listed(column.type):
            column = pc.list_flatten(column)
            self._refuse(is_text(column.type), f"list<{column.type}>")
        if is_text(column.type):
            self._add_text(column)
            return
        is_date = pa.types.is_temporal(column.type) and not pa.types.is_interval(column.type)
        self._refuse(not (is_date or is_number(column.type)), str(column.type))
        if column.null_count < len(column):
            self._kinds.add("seconds" if is_date else "numbers")
            self._date = self._date or (str(column.drop_null()[0]) if is_date else "")
        self._typed.add(typed_numbers(column))
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            ends = pc.min_max(column)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            least, largest = self._integers or (low, high)
            self._integers = min(low, least), max(high, largest)

    def _refuse(self, is_bad: bool, kind: str) -> None:
        if is_bad:
            raise UserError(f"{self.place} holds {kind}, expected numbers, text or dates{self._cure}")

    def _add_text(self, column: pa.Array) -> None:
        text = pc.unique(pc.utf8_trim_whitespace(column.cast(pa.string())))
        text = text.filter(pa.array(~missing_cells(text, self._words)))
        if not len(text):
            return
        self._kinds.add("text")
        if self._most is None or len(self._texts) <= self._most:
            self._texts |= set((text if self._most is None else text[: self._most + 1]).to_pylist())
        numbers = [_matches(text, Style(comma).pattern()) for comma in (False, True)]
        self._no_number = self._no_number or _first(text, ~(numbers[0] | numbers[1]))
        for comma, fits in zip((False, True), numbers, strict=True):
            self._fits[comma] &= bool(fits.all())
            if self._fits[comma]:
                style = Style(comma)
                self._whole &= bool(_matches(style.plain(text), _WHOLE).all())
                self._spelt[comma].add(style.numbers(text))
        if self._no_number is None:
            self._comma = self._comma or _first(text, _holds(text, ","))
            for unit in _UNITS:
                for texts, has in ((self._with_unit, True), (self._without_unit, False)):
                    if (cell := _first(text, _holds(text, unit) == has)) is not None:
                        texts.setdefault(unit, cell)
        if self._no_date is None:
            self._add_dates(text)

    def _add_dates(self, text: pa.Array) -> None:
        self._no_date = _first(text, ~_are_dates(text))
        if self._no_date is None:
            try:
                self._dates.add(_seconds_of(text))
            except pa.ArrowException:  # such as 2026-02-30
                self._no_date = text[first_row(text, _are_readable)].as_py()

    def reading(self, too_many: Sequence[str] = ()) -> ColumnReading:
        """Decides how the column is read.

        Raises `UserError` for a column whose cells have no common meaning.

        Args:
            too_many: columns of the table with too many categories, for the message.
        """
        kinds, has_text = self._kinds - {"text"}, "text" in self._kinds
        if len(kinds) > 1:
            raise UserError(
                f"{self.place} holds numbers in some files and dates in others: use one of both{self._cure}"
            )
        if not self._kinds:
            return ColumnReading("numbers", whole=True)
        self._check_integers()
        if not has_text:
            return ColumnReading(kinds.pop(), narrow=not self._typed.loses, sample=self._date)
        sample = min(self._texts)
        if self._no_date is None and "numbers" not in kinds:
            return ColumnReading("seconds", narrow=not (self._dates | self._typed).loses, sample=sample)
        if "seconds" in kinds:
            raise UserError(f"{self.place} holds dates, and {self._no_date!r}, which is no date{self._cure}")
        style = self._style() if self._no_number is None else None
        if style is not None:
            spread = self._spelt[style.comma] | self._typed
            return ColumnReading(
                "numbers", style, narrow=not spread.loses, whole=self._whole and style.unit != "%", sample=sample
            )
        if self._most is not None:
            self._check_outsiders("number", self._no_number)
            self._check_outsiders("date", self._no_date)
        if kinds:
            raise UserError(f"{self.place} holds numbers in some files, and {sample!r} in others{self._cure}")
        if self._most is not None and len(self._texts) > self._most:
            raise self._too_many(too_many)
        return ColumnReading("categories", categories=tuple(sorted(self._texts)))

    def _check_integers(self) -> None:
        """Refuses whole numbers beyond 2^53 that float64 hardly tells apart."""
        if self._integers is None:
            return
        low, high = self._integers
        largest = max(-low, high)
        if largest > 2**53 and np.spacing(float(largest)) > _TOLERANCE * (high - low) > 0:
            raise UserError(
                f"{self.place} holds whole numbers from {low} to {high}, which float64 does not tell apart: subtract {low}"
                f"{self._cure}"
            )

    def _style(self) -> Style | None:
        """Finds how all numbers are spelt, None for names of classes without a style.

        Raises `UserError` where the spelling is ambiguous.
        """
        units = [unit for unit in _UNITS if unit in self._with_unit]
        mixed = next((unit for unit in units if unit in self._without_unit), None)
        fits = [comma for comma in (False, True) if self._fits[comma]]
        why = ""
        if not fits:
            why = (
                "spells numbers with a decimal point in some cells, and with a decimal comma in others: use one of both"
            )
        elif mixed is not None:
            pair = f"{self._with_unit[mixed]!r} and {self._without_unit[mixed]!r}"
            why = f"mixes units, such as {pair}: use one unit"
        elif len(fits) == 2 and self._comma is not None:
            values = [Style(comma).numbers(pa.array([self._comma]))[0] for comma in (False, True)]
            why = (
                f"holds {self._comma!r}, which may be {values[0]:g} or {values[1]:g}: write the numbers with a decimal "
                "point, and without separators of thousands"
            )
        if not why:
            return Style(fits[0], "".join(units))
        if self._most is None:
            return None
        raise UserError(f"{self.place} {why}{self._cure}")

    def _check_outsiders(self, form: str, word: str | None) -> None:
        """Raises `UserError` for numbers or dates with fewer other words among them."""
        text = pa.array(sorted(self._texts), pa.string())
        numbers = _matches(text, Style(False).pattern()) | _matches(text, Style(True).pattern())
        fits = numbers if form == "number" else _are_dates(text)
        if word is not None and fits.any() and 2 * fits.sum() >= len(text):
            raise UserError(
                f"{self.place} holds {form}s, but {word!r} is neither a {form} nor a word for a missing value: leave a cell "
                f"without a {form} empty, or list the word beside the others of missing{self._cure}"
            )

    def _too_many(self, names: Sequence[str]) -> UserError:
        cure = self._cure_of_many.format(",".join(names)) if names else self._cure
        return UserError(
            f"{self.place} is text with more than {self._most} different values, and at most {self._most} become columns of "
            f"0 and 1{cure}"
        )


@dataclass(slots=True)
class _NumberRange:
    """The range of some numbers, and what float32 makes of them."""

    low: float = np.inf
    high: float = -np.inf
    error: float = 0.0  # largest rounding error in float32
    merges: bool = False  # whether float32 changes a whole number

    def add(self, values: npt.NDArray[np.float64]) -> None:
        values = values[np.isfinite(values)]
        if len(values):
            with np.errstate(over="ignore"):  # refused when the numbers are read
                errors = np.abs(values - values.astype(np.float32))
            self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
            self.error = max(self.error, errors.max())
            self.merges |= bool(errors[values == np.floor(values)].any())

    def __or__(self, other: _NumberRange) -> _NumberRange:
        ends = min(self.low, other.low), max(self.high, other.high)
        return _NumberRange(*ends, max(self.error, other.error), self.merges or other.merges)

    @property
    def loses(self) -> bool:
        """Whether float32 loses what a model may learn from.

        The answer is the same for any division into pieces.
        """
        return self.merges or self.error > _TOLERANCE * (self.high - self.low) > 0


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def is_listed(kind: pa.DataType) -> bool:
    """Whether each entry is a list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether entries are numbers, truth values, or all empty."""
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(fits(kind) for fits in known)


def needs_survey(kind: pa.DataType) -> bool:
    """Whether the type leaves open how a column is read, and as float32 or float64."""
    small = (pa.float16(), pa.float32(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.bool_(), pa.null())
    inner = kind.value_type if is_listed(kind) else kind
    return inner not in small


def typed_numbers(column: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
    """Reads numbers, and seconds of dates, times and durations, NaN for null."""
    kind, per_second = column.type, 1.0
    if pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
        per_second = 1 / _DAY
    elif pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        per_second = _PER_SECOND[kind.unit]
        column = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    found = np.asarray(numbers_of(column.cast(pa.float64(), safe=False)), np.float64)
    return found / per_second


def _matches(text: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    return numbers_of(pc.match_substring_regex(text, pattern))


def _holds(text: pa.Array, part: str) -> npt.NDArray[np.bool_]:
    return numbers_of(pc.match_substring(text, part))


def _are_dates(text: pa.Array) -> npt.NDArray[np.bool_]:
    return _matches(text, _DATE) | _matches(text, _ZONED)


def _first(text: pa.Array, wanted: npt.NDArray[np.bool_]) -> str | None:
    """Returns the first of the wanted texts."""
    return text[int(np.argmax(wanted))].as_py() if wanted.any() else None


def _are_readable(text: pa.Array) -> bool:
    """Whether the calendar has all dates of a text column."""
    try:
        _seconds_of(text)
    except pa.ArrowException:
        return False
    return True


def _seconds_of(text: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
    """Reads ISO 8601 dates as seconds since 1970. Without a zone they are in UTC."""
    zoned, seconds = _matches(text, _ZONED), np.empty(len(text))
    for some, kind in ((zoned, pa.timestamp("us", "UTC")), (~zoned, pa.timestamp("us"))):
        seconds[some] = typed_numbers(text.filter(pa.array(some)).cast(kind))
    return seconds
