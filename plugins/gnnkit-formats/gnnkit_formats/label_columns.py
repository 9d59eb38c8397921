"""Readers for columns of labels, splits and edge types."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.cells import missing_cells, nulls_of, numbers_of, quote
from gnnkit.graph.labels import EMPTY, MAX_EXACT, settle_labels
from gnnkit.graph.split import SPLIT_NAMES, SPLITS, Split
from gnnkit.graph.types import Ids, Labels
from gnnkit_formats.id_columns import IdColumns
from gnnkit_formats.values import ColumnReading, Survey, is_text

_NO_DATES = ": write the date as a number, such as the year"
SPLIT = "split"  # column of edges that divides labelled ones
MASKS = tuple(f"{name}_mask" for name in SPLITS)  # PyG's names of three columns instead of it


class LabelColumns(IdColumns):
    """Reads node labels, splits and edge types."""

    def labels(self, name: str, reading: ColumnReading) -> Labels:  # [rows]
        """Reads integers or decimal fractions, with `EMPTY` or NaN if empty.

        Args:
            reading: How to read text and booleans, decided over all pieces of the
                table.
        """
        column = self.plain(name)
        if _has_words(column.type):
            return self._read_text_labels(name, _as_words(column), reading)
        if pa.types.is_decimal(column.type):
            column = self._cast(name, pa.int64() if column.type.scale == 0 else pa.float64())
        if pa.types.is_floating(column.type):
            numbers = numbers_of(column)
            self._reject(name, np.isinf(numbers), numbers, "is not finite")
            return numbers
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise UserError(
                f"{self._column_place(name)} holds {column.type}, expected numbers or text{_NO_DATES * pa.types.is_temporal(column.type)}"
            )
        numbers = numbers_of(self._cast(name, pa.int64()).fill_null(EMPTY))
        self._reject_inexact(name, np.where(numbers == EMPTY, 0, numbers), column)
        return numbers

    def _read_text_labels(self, name: str, text: pa.Array, reading: ColumnReading) -> Labels:
        if reading.kind == "seconds":
            raise UserError(
                f"{self._column_place(name)} holds dates such as {reading.sample!r}, expected classes or numbers{_NO_DATES}"
            )
        if reading.kind == "categories":
            return reading.places(text, self.missing)
        numbers = reading.numbers(text, self.missing)
        if not reading.is_integer:
            return numbers
        self._reject_inexact(name, numbers, text)
        return np.where(np.isnan(numbers), EMPTY, np.nan_to_num(numbers).astype(np.int64))

    def _reject_inexact(self, name: str, numbers: Labels, column: pa.Array) -> None:
        why = "is beyond 2^53, where float64 is no exact number"
        self._reject(name, np.abs(numbers) > MAX_EXACT, column.cast(pa.string()), why)

    def missing_words(self, name: str) -> list[str]:
        """Returns the cells of a text column that hold a word for a missing value."""
        column = self.plain(name)
        if not is_text(column.type):
            return []
        has_word = missing_cells(column, self.missing) & ~missing_cells(column, ("",))
        words: list[str] = column.filter(pa.array(has_word)).to_pylist()
        return words

    def splits(self, name: str) -> npt.NDArray[np.int8]:  # [rows]
        words = pc.utf8_trim_whitespace(self._cast(name, pa.string()).fill_null(""))
        words = pc.if_else(pa.array(missing_cells(words, self.missing)), "none", words)
        codes = pc.index_in(words, value_set=pa.array(SPLIT_NAMES, pa.string()))
        self._reject(name, nulls_of(codes), words, "is none of train, val, test, none: write one of these words")
        return np.asarray(np.array(list(SPLIT_NAMES.values()), np.int8)[numbers_of(codes)])

    def masks(self, names: Sequence[str]) -> npt.NDArray[np.int8]:  # [rows]
        """Reads a split from those of the columns `MASKS` that exist."""
        masks = [self._mask(name) if name in names else np.zeros(self.num_rows, np.bool_) for name in MASKS]
        self._reject(names[-1], np.sum(masks, axis=0) > 1, None, f"is in more than one of {', '.join(names)}")
        return Split.of_masks(*masks)

    def _mask(self, name: str) -> npt.NDArray[np.bool_]:  # [rows]
        words = pc.utf8_lower(pc.utf8_trim_whitespace(self._cast(name, pa.string()).fill_null("")))
        words = pc.if_else(pa.array(missing_cells(words, self.missing)), "false", words)
        codes = pc.index_in(words, value_set=pa.array(["false", "0", "0.0", "true", "1", "1.0"]))
        self._reject(name, nulls_of(codes), words, "is none of true, false, 1, 0")
        return numbers_of(codes) > 2

    def types(self, name: str, names: Sequence[str] | None) -> Ids:  # [rows]
        """Reads edge types: numbers, or positions in `names` if they are text."""
        if not self.is_text(name):
            return self.positions(name, None)
        column = pc.utf8_trim_whitespace(self.plain(name).cast(pa.string()))
        empty = pc.fill_null(pc.equal(column, ""), True)
        self._reject(name, empty.to_numpy(zero_copy_only=False), None, "is empty")
        codes = pc.index_in(column, value_set=pa.array(names, pa.string()))
        why = "appeared while the table was read: do not change the file during a run"
        self._reject(name, nulls_of(codes), column, why)
        return numbers_of(codes)


def read_labels(pieces: Callable[[], Iterable[LabelColumns]], name: str) -> tuple[Labels, list[str] | None]:
    """Reads a label column, and the class names if it is text.

    Text is read twice: first to decide whether it contains numbers. `settle_labels`
    decides whether integers are classes.

    Args:
        pieces: Yields the rows, in one or several tables.
    """
    survey, reading = None, ColumnReading("numbers")
    for piece in pieces():
        if not _has_words(piece.plain(name).type):
            break
        survey = survey or Survey(piece.name, name, words=piece.missing, most=None)
        survey.add(_as_words(piece.plain(name)))
    if survey is not None:
        reading = survey.reading()
    parts = [np.empty(0, np.int64)]
    num_missing, word = 0, None
    for piece in pieces():
        parts.append(piece.labels(name, reading))
        words = piece.missing_words(name)
        num_missing, word = num_missing + len(words), word or next(iter(words), None)
    if word is not None:
        warnings.warn(
            f"column {name!r}: {num_missing:,} rows have no label, because {quote(word)} and the like stand for a missing "
            "value, unless missing=[WORD, ...] (dataset.missing) lists other words",
            stacklevel=4,
        )
    labels = _without_fractions(name, np.concatenate(parts[1:] or parts))
    names = list(reading.categories) if reading.kind == "categories" else None
    return settle_labels(labels, names), names


def _without_fractions(name: str, labels: Labels) -> Labels:  # [rows]
    """Returns integers if some labels are empty, and the others are classes like 1.0.

    Pandas writes integers in this way if the column has an empty cell.
    """
    has_label = ~np.isnan(labels)
    known = labels[has_label]
    is_class = (known == np.rint(known)) & (known >= 0) & (known <= MAX_EXACT)  # -1 would be unlabelled
    if len(known) in (0, len(labels)) or not is_class.all():
        return labels
    warnings.warn(
        f"column {name!r}: {known[0]} and the like are read as integers, because other cells are empty: task=regression "
        "predicts numbers",
        stacklevel=5,
    )
    integers = np.full(len(labels), EMPTY)
    integers[has_label] = known.astype(np.int64)
    return integers


def _as_words(column: pa.Array) -> pa.Array:  # [rows] string
    """Returns labels as text. Pandas writes True where other libraries write true."""
    words = column.cast(pa.string())
    is_switch = pc.match_substring_regex(words, r"(?i)^\s*(?:true|false)\s*$").fill_null(False)
    return pc.if_else(is_switch, pc.utf8_lower(words), words) if pc.any(is_switch).as_py() else words


def _has_words(kind: pa.DataType) -> bool:
    """Checks whether labels of this type are read as text."""
    return is_text(kind) or pa.types.is_boolean(kind)
