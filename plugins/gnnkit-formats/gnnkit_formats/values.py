"""Conversion of column cells to numbers or categories, shared by all readers.

`Survey` reads all pieces of a column, and then decides on one `ColumnReading`. The
reading applies to every piece, so tables that are read in pieces give the same numbers
as tables that are read at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.cells import MISSING, first_row, missing_cells, numbers_of, quote, without_missing
from gnnkit.graph.graph import MARKS
from gnnkit.graph.times import UNITS
from gnnkit.graph.types import Ids

_MIDNIGHT = -2_208_988_800  # 1900-01-01 in seconds, the day that strptime gives a clock time
UNCLEAR_CENTURY = 1_893_456_000  # 2030-01-01 in seconds. Other programs read the years 30 to 68 as 1930 to 1968
_UTC = r" ?(?:Z|UTC|GMT|[+-]00:?00)"
_PARTS = {
    **{"%Y": r"\d{4}", "%y": r"\d{2}", "%m": r"\d{1,2}", "%d": r"(?P<day>\d{1,2})", "%b": "[A-Za-z]{3,9}"},
    **{"%a": "[A-Z][a-z]{2}", "%H": r"\d{1,2}", "%I": r"\d{1,2}", "%M": r"\d{2}", "%S": r"\d{2}"},
    **{"%p": "(?i:[AP]M)", ".": r"\.", "+": r"\+"},
}
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p", " %I:%M:%S%p")
_DAYS = (
    *("%Y/%m/%d", "%Y-%m-%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%m-%d-%Y", "%d-%m-%Y"),
    *("%d.%m.%Y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %b %y", "%b %Y", "%b %d, %Y", "%b %d %Y"),
    *("%a, %d %b %Y", "%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S +0000 %Y"),
)


@dataclass(frozen=True, slots=True)
class DateForm:
    """One way to write a day, which a clock time may follow, or a clock time."""

    day: str  # format for strptime, or ""

    @property
    def kind(self) -> str:
        """The kind for `ColumnReading`, because only dates may be row times."""
        return "seconds" if self.day else "numbers"

    def seconds(self, text: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
        """Returns seconds since 1970 or midnight, and NaN for other text."""
        text = pc.replace_substring_regex(text, f"{_UTC}$", "") if self.day else text
        seconds = np.full(len(text), np.nan)
        for form in filter(None, (f"{self.day}{time}".strip() for time in _TIMES)):
            pattern = f"^{re.sub('%.|[.+]', lambda part: _PARTS[part[0]], form)}$"
            fits = numbers_of(pc.match_substring_regex(text, pattern))
            if fits.any():
                seconds[fits] = _parse(text.filter(pa.array(fits)), pattern, form)
        return seconds if self.day else seconds - _MIDNIGHT

    def read(self, text: pa.Array) -> npt.NDArray[np.float64] | None:  # [rows]
        """Returns `seconds`, or None unless all texts have this form.

        The first text decides most columns.
        """
        if np.isnan(self.seconds(text[:1])).any():
            return None
        seconds = self.seconds(text)
        return None if np.isnan(seconds).any() else seconds


@dataclass(frozen=True, slots=True)
class LapForm(DateForm):
    """A duration in minutes and seconds with a fraction, such as 1:27.452."""

    def seconds(self, text: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
        cells = pc.extract_regex(text, r"^(?P<m>\d{1,3}):(?P<s>[0-5]\d\.\d{1,6})$")
        minutes, seconds = (numbers_of(pc.struct_field(cells, name).cast(pa.float64())) for name in ("m", "s"))
        result: npt.NDArray[np.float64] = 60 * minutes + seconds
        return result


FORMS = (*map(DateForm, (*_DAYS, "")), LapForm(""))


def _parse(text: pa.Array, pattern: str, form: str) -> npt.NDArray[np.float64]:  # [rows]
    """Parses texts that match a pattern. Days that no month has are NaN."""
    dates = pc.strptime(text, format=form, unit="s", error_is_null=True)
    seconds: npt.NDArray[np.float64] = numbers_of(dates.cast(pa.int64()).cast(pa.float64()))
    if "%d" in form:
        days = pc.struct_field(pc.extract_regex(text, pattern), "day").cast(pa.int64())
        seconds = np.where(numbers_of(pc.equal(days, pc.day(dates)).fill_null(False)), seconds, np.nan)
    return seconds


_TOLERANCE = 1e-5  # float32 error, as a fraction of the column's range, that training noise exceeds
_UNITS = "$€£¥%"
_BLANK = "[ \u00a0\u202f']"  # separates groups of three digits
_GROUPS = rf"[1-9]\d{{0,2}}(?:{_BLANK}\d{{3}})+"
_DOT = rf"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d+)?|{_GROUPS}(?:\.\d+)?"
_COMMA = rf"\d+(?:,\d+)?|,\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?|{_GROUPS}(?:,\d+)?"
_SPELT = r"^(?:[+\-\x{{2212}}]?[$€£¥]?|[$€£¥][+\-\x{{2212}}])\s?(?:{})\s?[$€£¥%]?$"
WHOLE = r"^-?\d+$"
_CODE = r"^[+-]?0\d+$"  # a label such as 01, which differs from 1
_SWITCH = r"(?i)^(?:true|false|0|1)$"  # with at least one word, as pyarrow reads booleans in a CSV
DATE = r"^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?$"
ZONED = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:Z|[+-]\d{2}(?::?\d{2})?)$"
DAY = 86_400  # seconds per day


@dataclass(frozen=True, slots=True)
class Style:
    """The number format of a text column."""

    comma: bool  # whether the decimal separator is a comma
    unit: str = ""  # the one of `_UNITS` that every cell has
    is_switch: bool = False  # whether cells are true and false
    mark: str = ""  # one of `MARKS`, if the same text could have another one

    def pattern(self) -> str:
        return _SPELT.format(_COMMA if self.comma else _DOT)

    def plain(self, text: pa.Array) -> pa.Array:
        """Rewrites numbers as programming languages do, without their unit."""
        text = pc.replace_substring_regex(text, f"[{_UNITS}+\\s\u00a0\u202f']", "")
        text = pc.replace_substring(text, "\u2212", "-")
        text = pc.replace_substring(text, "." if self.comma else ",", "")
        return pc.replace_substring(text, ",", ".") if self.comma else text

    def numbers(self, text: pa.Array) -> npt.NDArray[np.float64]:
        """Parses cells that match `pattern`. 10 % is 0.1."""
        if self.is_switch:
            return numbers_of(text.cast(pa.bool_()).cast(pa.float64()))
        numbers = numbers_of(self.plain(text).cast(pa.float64()))
        return numbers / 100 if self.unit == "%" else numbers


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """How the cells of one column are converted."""

    kind: str  # numbers, seconds or categories
    style: Style | None = None  # format of numbers in text
    categories: tuple[str, ...] = ()  # sorted by code point
    narrow: bool = True  # whether float32 is precise enough
    is_integer: bool = False  # whether numbers in text have no decimals
    sample: str = ""  # example cell, for messages about text and dates
    form: DateForm | None = None  # how text writes dates or clock times. None: ISO 8601
    word: str = ""  # a word for missing values that occurs among categories

    @property
    def dtype(self) -> type[np.float32] | type[np.float64]:
        return np.float32 if self.narrow else np.float64

    def description(self, name: str) -> str:
        """Describes a conversion that users may not expect. Otherwise returns ""."""
        if self.kind == "seconds" or (self.form is not None and self.kind == "numbers"):
            return f"{name!r} ({self.sample}) as seconds"
        lines = []
        if self.categories and all(re.match(r"\W*\d", text) for text in self.categories):
            lines.append(f"{name!r} ({self.categories[0]}) as categories, neither numbers nor dates")
        if self.word:
            lines.append(
                f"{quote(self.word)} in {name!r} as a missing value, unless missing=[WORD, ...] (dataset.missing) lists other words"
            )
        if lines:
            return ", ".join(lines)
        return f"{name!r} ({self.sample}) as numbers" if self.style is not None else ""

    def numbers(self, column: pa.Array, words: Sequence[str] = MISSING) -> npt.NDArray[np.float64]:  # [rows]
        """Returns a piece of the column as numbers, with NaN in missing cells."""
        if not is_text(column.type):
            return typed_numbers(column)
        missing, numbers = missing_cells(column, words), np.full(len(column), np.nan)
        known = pc.utf8_trim_whitespace(column).filter(pa.array(~missing))
        if self.style is not None:
            numbers[~missing] = self.style.numbers(known)
        else:
            numbers[~missing] = _parse_dates(known) if self.form is None else self.form.seconds(known)
        return numbers

    def places(self, column: pa.Array, words: Sequence[str] = MISSING) -> Ids:  # [rows]
        """Returns each cell's category, or -1 in missing cells."""
        text = column.cast(pa.string())
        codes = pc.index_in(pc.utf8_trim_whitespace(text), value_set=pa.array(self.categories, pa.string()))
        places: Ids = np.array(numbers_of(codes.fill_null(-1)), np.int64)
        places[missing_cells(text, words)] = -1
        return places


class Survey:
    """Collects the facts about a column that its reading depends on, piece by piece."""

    def __init__(self, place: str, name: str, words: Sequence[str] = MISSING, most: int | None = 256) -> None:
        """Starts an empty survey.

        Args:
            place: Table, for messages.
            name: Column.
            words: Words for missing values.
            most: Limit of categories. If None, unlimited, as for class names, some of
                which may look like numbers.
        """
        self.place, self._words, self._most = f"{place}, column {name!r}", words, most
        self._kinds: set[str] = set()  # kinds of the pieces: text, seconds or numbers
        self._texts: set[str] = set()  # distinct texts, up to slightly more than the limit
        self._no_number: str | None = None  # the first text that is not a number
        self._no_date: str | None = None
        self._zoned: set[bool] = set()  # whether dates name a time zone
        forms = FORMS if most is not None else ()  # class names may look like dates
        self._forms = {form: _NumberRange() for form in forms}  # further forms that fit all texts, with their seconds
        self._unclear: str | None = None  # the first text whose day may be the month
        self._word = ""  # the first word for a missing value
        self._fits = {False: True, True: True}  # whether all texts are numbers, by `Style.comma`
        self._ranges = {comma: _NumberRange() for comma in (False, True)}
        self._comma: str | None = None  # the first text with a comma
        self._point: str | None = None  # the first text with a point
        self._is_integer = True
        self._units: dict[str, str] = {}  # the first text with each unit, "" without one
        self._typed, self._dates = _NumberRange(), _NumberRange()
        self._date = ""  # example of a typed date, for messages
        self._integers: tuple[int, int] | None = None  # minimum and maximum of integer columns
        self._integers_in_text: tuple[int, int] | None = None

    @property
    def has_too_many(self) -> bool:
        """Whether the column has too many categories, regardless of further pieces."""
        no_form = self._no_number is not None and self._no_date is not None and not self._forms
        return self._most is not None and len(self._texts) > self._most and no_form

    def add(self, column: pa.Array) -> None:
        """Adds a piece of the column."""
        if is_listed(column.type):
            column = without_missing(pc.list_flatten(column), self._words)
            self._check_type(is_text(column.type), f"list<{column.type}>")
        if is_text(column.type):
            self._add_text(column)
            return
        is_date = pa.types.is_temporal(column.type) and not pa.types.is_interval(column.type)
        self._check_type(not (is_date or is_number(column.type)), str(column.type))
        if column.null_count < len(column):
            self._kinds.add("seconds" if is_date else "numbers")
            self._date = self._date or (str(column.drop_null()[0]) if is_date else "")
        self._typed.add(typed_numbers(column))
        is_decimal = pa.types.is_decimal(column.type) and column.type.scale == 0
        if (is_decimal or pa.types.is_integer(column.type)) and column.null_count < len(column):
            self._integers = _extend(self._integers, column)

    def _check_type(self, is_bad: bool, kind: str) -> None:
        if is_bad:
            raise UserError(f"{self.place} holds {kind}, expected numbers, text or dates")

    def _add_text(self, column: pa.Array) -> None:
        text = pc.unique(pc.utf8_trim_whitespace(column.cast(pa.string())))
        missing = missing_cells(text, self._words)
        self._word = self._word or next(filter(None, text.filter(pa.array(missing)).to_pylist()), "")
        text = text.filter(pa.array(~missing))
        if not len(text):
            return
        self._kinds.add("text")
        if self._most is None or len(self._texts) <= self._most:
            self._texts |= set((text if self._most is None else text[: self._most + 1]).to_pylist())
        self._add_numbers(text)
        if self._no_date is None:
            self._add_dates(text)
        self._add_forms(text)

    def _add_forms(self, text: pa.Array) -> None:
        read = {form: values for form in self._forms if (values := form.read(text)) is not None}
        self._forms = {form: self._forms[form] for form in read}
        for form, values in read.items():
            self._forms[form].add(values)
        if seconds := [*read.values()]:
            self._unclear = self._unclear or _first_match(text, seconds[0] != seconds[-1])

    def _add_numbers(self, text: pa.Array) -> None:
        numbers = [matches(text, Style(comma).pattern()) for comma in (False, True)]
        is_code = matches(text, _CODE) & (self._most is None)  # labels only
        self._no_number = self._no_number or _first_match(text, is_code | ~(numbers[0] | numbers[1]))
        for comma, fits in zip((False, True), numbers, strict=True):
            self._fits[comma] &= bool(fits.all())
            if self._fits[comma]:
                style = Style(comma)
                plain = style.plain(text)
                self._is_integer &= bool(matches(plain, WHOLE).all())
                if self._is_integer and self._most is not None:
                    self._integers_in_text = _extend(
                        self._integers_in_text, pc.utf8_slice_codeunits(plain, 0, 76).cast(pa.decimal256(76, 0))
                    )
                self._ranges[comma].add(style.numbers(text))
        if self._no_number is None:
            self._point = self._point or _first_match(text, _contains(text, "."))
            self._comma = self._comma or _first_match(text, _contains(text, ","))
            codes = sum(_contains(text, unit).astype(np.int64) << bit for bit, unit in enumerate(_UNITS))
            for code in np.flatnonzero(np.bincount(codes)):
                units = "".join(unit for bit, unit in enumerate(_UNITS) if code >> bit & 1)
                self._units.setdefault(units, text[int(np.argmax(codes == code))].as_py())

    def _add_dates(self, text: pa.Array) -> None:
        self._no_date = _first_match(text, ~_are_dates(text))
        if self._no_date is None:
            try:
                self._dates.add(_parse_dates(text))
                self._zoned |= set(numbers_of(pc.match_substring_regex(pc.utf8_slice_codeunits(text, 10), "[Z+-]")))
            except pa.ArrowException:  # for example 2026-02-30
                self._no_date = text[first_row(text, _parse_dates)].as_py()

    def reading(self) -> ColumnReading:
        """Decides how to convert the column.

        Raises `UserError` if the cells have no common type.
        """
        kinds = self._kinds - {"text"}
        if len(kinds) > 1:
            raise UserError(f"{self.place} holds numbers in some files and dates in others: use one of them")
        if not self._kinds:
            return ColumnReading("numbers", is_integer=True)
        self._check_integers()
        if "text" in self._kinds:
            return self._read_text(kinds, min(self._texts))
        return ColumnReading(kinds.pop(), narrow=not self._typed.needs_float64, sample=self._date)

    def _read_text(self, kinds: set[str], sample: str) -> ColumnReading:
        """Decides like `reading` for text, such as `sample`.

        Args:
            kinds: Kinds in pieces without text.
            sample: Text for messages.
        """
        if self._no_date is None and "numbers" not in kinds:
            sample += ", some with a time zone and the others read in UTC" * (len(self._zoned) > 1)
            return ColumnReading("seconds", narrow=not (self._dates | self._typed).needs_float64, sample=sample)
        if self._forms and "numbers" not in kinds:
            return self._read_form(sample)
        if "seconds" in kinds:
            raise UserError(f"{self.place} holds dates, and {self._no_date!r}, which is no date")
        style = self._find_style() if self._no_number is None else self._find_switch()
        if style is not None:
            spread = self._ranges[style.comma] | self._typed
            is_integer, narrow = self._is_integer and style.unit != "%", not spread.needs_float64
            return ColumnReading("numbers", style, narrow=narrow, is_integer=is_integer, sample=sample)
        if self._most is not None:
            self._check_categories(self._most)
        if kinds:
            raise UserError(f"{self.place} holds numbers in some files, and {sample!r} in others")
        return ColumnReading("categories", categories=tuple(sorted(self._texts)), word=self._word)

    def _check_categories(self, most: int) -> None:
        self._check_outsiders("number", self._no_number)
        self._check_outsiders("date", self._no_date)
        if len(self._texts) > most:
            raise UserError(
                f"{self.place} is text with more than {most} different values, and at most {most} become "
                "columns of 0 and 1"
            )

    def _read_form(self, sample: str) -> ColumnReading:
        """Returns the reading for dates in another form than ISO 8601.

        Raises `UserError` if day and month, or the centuries of years, are unclear.
        """
        form, span = next(iter(self._forms.items()))
        if len(self._forms) > 1 and self._unclear is not None:
            dates = [str(one.seconds(pa.array([self._unclear])).astype("M8[s]")[0])[:10] for one in self._forms]
            raise UserError(
                f"{self.place} holds {self._unclear!r}, which may be {' or '.join(dates)}: write dates as {dates[0]}"
            )
        if "%y" in form.day and span.high >= UNCLEAR_CENTURY:
            year = str(np.datetime64(int(span.high), "s"))[2:4]
            raise UserError(
                f"{self.place} holds dates of the year {year}, which may be 19{year} or 20{year}: write all four digits"
            )
        return ColumnReading(form.kind, narrow=not (span | self._typed).needs_float64, sample=sample, form=form)

    def _check_integers(self) -> None:
        """Raises `UserError` if float64 cannot distinguish the column's integers."""
        in_text = self._integers_in_text if self._is_integer and self._no_number is None else None
        ends = [*(self._integers or ()), *(in_text or ())]
        if not ends:
            return
        low, high = min(ends), max(ends)
        largest = max(-low, high)
        if largest > 2**53 and np.spacing(float(largest)) > _TOLERANCE * (high - low) > 0:
            raise UserError(
                f"{self.place} holds whole numbers from {low} to {high}, which float64 cannot distinguish: subtract {low}"
            )

    def _find_switch(self) -> Style | None:
        """Returns the format of true and false, or None for other text."""
        is_switch = self._most is not None and matches(pa.array(self._texts, pa.string()), _SWITCH).all()
        return Style(False, is_switch=True) if is_switch else None

    def _find_style(self) -> Style | None:
        """Returns the number format, or None for class names without one.

        Raises `UserError` for an ambiguous format.
        """
        fits = [comma for comma in (False, True) if self._fits[comma]]
        if not (why := self._why_ambiguous(fits)):
            mark = MARKS[0] if fits[0] else MARKS[1] if len(fits) == 2 and self._point is not None else ""
            return Style(fits[0], next(iter(self._units)), mark=mark)
        if self._most is None:
            return None
        raise UserError(f"{self.place} {why}")

    def _why_ambiguous(self, fits: Sequence[bool]) -> str:
        """Describes why numbers have no single format, or returns "".

        Args:
            fits: Whether the decimal mark is a comma, for each mark that fits all.
        """
        if not fits:
            return (
                "spells numbers with a decimal point in some cells, and with a decimal comma in others: use one of them"
            )
        if len(self._units) > 1:
            first, second, *_ = sorted(self._units.values(), key=lambda cell: not set(cell) & set(_UNITS))
            return f"mixes units, such as {first!r} and {second!r}: use one unit"
        if len(fits) == 2 and self._comma is not None:
            values = [Style(comma).numbers(pa.array([self._comma]))[0] for comma in (False, True)]
            return (
                f"holds {self._comma!r}, which may be {values[0]:g} or {values[1]:g}: write the numbers with a decimal "
                "point, and without separators of thousands"
            )
        return ""

    @property
    def decimal_comma(self) -> str:
        """A cell with a decimal comma, or "" unless all cells are such numbers."""
        return self._comma or "" if self._no_number is None and not self._fits[False] and self._fits[True] else ""

    def check_points(self, comma: str) -> None:
        """Raises `UserError` for points that may separate thousands.

        Args:
            comma: A cell of the same table with a decimal comma.
        """
        if self._no_number is None and all(self._fits.values()) and self._point is not None:
            values = [Style(is_comma).numbers(pa.array([self._point]))[0] for is_comma in (False, True)]
            raise UserError(
                f"{self.place} holds {self._point!r}, which may be {values[0]:.10g} or {values[1]:.10g}, because {comma!r} in "
                "another column has a decimal comma: write all numbers with a decimal point, and without separators of thousands"
            )

    def _check_outsiders(self, form: str, word: str | None) -> None:
        """Raises `UserError` if most texts are numbers or dates, but not all."""
        text = pa.array(sorted(self._texts), pa.string())
        numbers = matches(text, Style(False).pattern()) | matches(text, Style(True).pattern())
        fits = numbers if form == "number" else _are_dates(text)
        if form == "date" and len(text):
            fits = max([fits, *(~np.isnan(one.seconds(text)) for one in FORMS)], key=np.count_nonzero)
            word = _first_match(text, ~fits) or word
        if word is not None and fits.any() and 2 * fits.sum() >= len(text):
            raise UserError(
                f"{self.place} holds {form}s, but {quote(word)} is neither a {form} nor a word for a missing value: leave a "
                f"cell without a {form} empty, or list it in missing=[WORD, ...] (dataset.missing)"
            )


@dataclass(slots=True)
class _NumberRange:
    """The range of some numbers, and their rounding error in float32."""

    low: float = np.inf
    high: float = -np.inf
    error: float = 0.0  # largest rounding error in float32
    merges: bool = False  # whether float32 changes a whole number

    def add(self, values: npt.NDArray[np.float64]) -> None:
        values = values[np.isfinite(values)]
        if len(values):
            with np.errstate(over="ignore"):  # infinite values are rejected when the numbers are read
                errors = np.abs(values - values.astype(np.float32))
            self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
            self.error = max(self.error, errors.max())
            self.merges |= bool(errors[values == np.floor(values)].any())

    def __or__(self, other: _NumberRange) -> _NumberRange:
        ends = min(self.low, other.low), max(self.high, other.high)
        return _NumberRange(*ends, max(self.error, other.error), self.merges or other.merges)

    @property
    def needs_float64(self) -> bool:
        """Whether float32 would lose information that a model may use.

        The answer does not depend on how the column is divided into pieces.
        """
        return self.merges or self.error > _TOLERANCE * (self.high - self.low) > 0


def is_text(kind: pa.DataType) -> bool:
    """Checks whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def is_listed(kind: pa.DataType) -> bool:
    """Checks whether a type is a list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Checks whether a type is numeric, boolean or null."""
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(fits(kind) for fits in known)


def typed_numbers(column: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
    """Returns numbers, or dates, times and durations in seconds, with NaN for null."""
    kind, per_second = column.type, 1.0
    if pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
        per_second = 1 / DAY
    elif pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        per_second = UNITS[kind.unit]
        column = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    numbers = np.asarray(numbers_of(column.cast(pa.float64(), safe=False)), np.float64)
    return numbers / per_second


def matches(text: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    return numbers_of(pc.match_substring_regex(text, pattern))


def _extend(ends: tuple[int, int] | None, column: pa.Array) -> tuple[int, int]:
    """Returns the minimum and maximum of integers, and of those of earlier pieces."""
    found = [*map(int, pc.min_max(column).as_py().values()), *(ends or ())]
    return min(found), max(found)


def _contains(text: pa.Array, part: str) -> npt.NDArray[np.bool_]:
    return numbers_of(pc.match_substring(text, part))


def _are_dates(text: pa.Array) -> npt.NDArray[np.bool_]:
    return matches(text, DATE) | matches(text, ZONED)


def _first_match(text: pa.Array, wanted: npt.NDArray[np.bool_]) -> str | None:
    return text[int(np.argmax(wanted))].as_py() if wanted.any() else None


def _parse_dates(text: pa.Array) -> npt.NDArray[np.float64]:  # [rows]
    """Parses ISO 8601 dates as seconds since 1970, in UTC unless they name a zone."""
    zoned, seconds = matches(text, ZONED), np.empty(len(text))
    for some, kind in ((zoned, pa.timestamp("us", "UTC")), (~zoned, pa.timestamp("us"))):
        seconds[some] = typed_numbers(text.filter(pa.array(some)).cast(kind))
    return seconds
