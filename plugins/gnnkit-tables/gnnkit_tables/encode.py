"""Columns of a table as numbers that a model reads."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.feature_columns import find_readings
from gnnkit_formats.table import Table
from gnnkit_formats.values import DATE, ZONED, is_text, matches

from gnnkit.errors import UserError
from gnnkit.graph.cells import missing_cells, numbers_of
from gnnkit.graph.types import Floats
from gnnkit.graph.unfit_columns import has_many_values
from gnnkit.prepare.transform import Scale

_CATEGORIES = 32  # most frequent values of a column that have a column of their own
_BUCKETS = 32  # columns of hashed text
_GRAM = 3  # characters of a hashed piece of text
# Endings of names of whole numbers that are categories
_CODES = re.compile(r"(^|[^A-Za-z])(id|code)$|(Id|ID|Code)$|(zip|post)code$")
# A number with a unit or a currency, as `find_readings` reads
_NUMBER = r"^\s*[^\d\s]?\s*[-+]?[\d., ]+([eE][-+]?\d+)?\s*[^\d\s]?\s*$"
_FEW = 0.01  # share of cells that are no numbers, below which they are empty
Mask = npt.NDArray[np.bool_]
Embed = Callable[[Sequence[str]], Floats]  # rows [num_texts, width] that depend on the texts alone


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Columns of numbers with names."""

    rows: Floats  # [num_rows, width] float32, finite
    names: tuple[str, ...]  # [width]
    sources: tuple[str, ...]  # [width] the table's column that each one encodes

    @classmethod
    def join(cls, parts: Sequence[Encoded], num_rows: int) -> Encoded:
        """Places columns side by side."""
        rows = [part.rows for part in parts] or [np.empty((num_rows, 0), np.float32)]
        return cls(
            np.concatenate(rows, axis=1),
            tuple(name for part in parts for name in part.names),
            tuple(name for part in parts for name in part.sources),
        )

    def select(self, places: Sequence[int]) -> Encoded:
        """Returns some of the columns."""
        names, sources = ([labels[place] for place in places] for labels in (self.names, self.sources))
        return Encoded(self.rows[:, places], tuple(names), tuple(sources))


def encode(table: Table, columns: Sequence[str], fits: Mask, embed: Embed) -> Encoded:
    """Encodes columns, with statistics of some rows only.

    Numbers and dates are scaled, text with few values has a column for each value, and
    other text is embedded. Columns that hold none of these are left out.

    Args:
        table: The rows.
        columns: Names of columns.
        fits: [num_rows] rows that determine scales and categories.
        embed: Function of the distinct texts of a column.
    """
    fits = fits if fits.any() else np.ones(table.num_rows, np.bool_)
    columns = columns if table.num_rows else ()
    parts = [part for name in columns for part in _encode_column(table, name, fits, embed)]
    return Encoded.join(parts, table.num_rows)


def scaled(numbers: Floats, names: Sequence[str], sources: Sequence[str], fits: Mask) -> Encoded:
    """Scales numbers, and adds a column that marks empty cells of each column.

    Numbers outside the range of the rows that fit become its ends, as in trees.

    Args:
        numbers: [num_rows, width] with NaN in empty cells.
        names: [width].
        sources: [width].
        fits: [num_rows] rows that determine means and deviations.
    """
    empty, places = np.isnan(numbers), np.flatnonzero(fits)
    counts = np.maximum((~empty[fits]).sum(0), 1)
    mean = np.where(empty[fits], 0, numbers[fits]).sum(0) / counts
    lowest, highest = (np.where(empty[fits], end, numbers[fits]) for end in (np.inf, -np.inf))
    mean = np.where(lowest.min(0) == highest.max(0), lowest.min(0), mean)  # without the sum's rounding error
    complete: Floats = np.where(empty, mean, numbers)
    complete = np.clip(complete, complete[places].min(0), complete[places].max(0))  # later rows may exceed the range
    scale = Scale.standard(complete, places).compress(complete, places)
    constant = np.array(scale.limit) == 0  # what remains of such a column is a rounding error
    rows = np.where(empty | constant, 0, scale.apply(complete)).astype(np.float32)
    marked: list[int] = np.flatnonzero(empty[fits].any(0)).tolist()
    return Encoded(
        np.concatenate([rows, empty[:, marked].astype(np.float32)], axis=1),
        (*names, *(f"{names[column]} is empty" for column in marked)),
        (*sources, *(sources[column] for column in marked)),
    )


def _encode_column(table: Table, name: str, fits: Mask, embed: Embed) -> Iterator[Encoded]:
    """Yields a column's encoding, or nothing if it holds no numbers, text or dates."""
    column = table.plain(name)
    if pa.types.is_integer(column.type) and _CODES.search(name):
        yield _categories(column.cast(pa.string()), name, fits, ("",))
        return
    if (outsiders := find_outsiders(table, name, fits)).any():
        column = pc.if_else(pa.array(outsiders), pa.scalar(None, column.type), column)
    part = Table(table.name, pa.table({name: column.filter(pa.array(fits))}), missing=table.missing)
    reading = None
    with suppress(UserError):
        reading = find_readings(table.name, [part], [name])[name]
    many = reading is not None and has_many_values(len(reading.categories), int(fits.sum()))
    if is_text(column.type) and (reading is None or many):
        yield _embedded(column, name, table.missing, embed)
    elif reading is not None and reading.kind == "categories":
        yield _categories(column.cast(pa.string()), name, fits, table.missing)
    elif reading is not None:
        with suppress(pa.ArrowException):  # lists
            numbers = np.asarray(reading.numbers(column, table.missing), np.float64)
            if len(numbers) == table.num_rows:
                yield scaled(np.where(np.isfinite(numbers), numbers, np.nan)[:, None], [name], [name], fits)


def find_outsiders(table: Table, name: str, fits: Mask) -> Mask:  # [num_rows]
    """Marks the few cells that are no numbers in text of numbers, and so with dates.

    Args:
        table: The rows.
        name: The column.
        fits: [num_rows] rows that decide what most cells are.
    """
    column = table.plain(name)
    if is_text(column.type):
        filled, text = ~missing_cells(column, table.missing), pc.utf8_trim_whitespace(column.fill_null(""))
        for form in (_NUMBER, f"{DATE}|{ZONED}"):
            outsiders = filled & ~matches(text, form)
            if outsiders[fits].sum() < _FEW * filled[fits].sum():
                return outsiders
    return np.zeros(len(column), np.bool_)


def _categories(text: pa.Array, name: str, fits: Mask, missing: Sequence[str]) -> Encoded:
    """Encodes the most frequent values, and all other values as one."""
    empty, text = missing_cells(text, missing), pc.utf8_trim_whitespace(text)
    counts = pc.value_counts(text.filter(pa.array(fits & ~empty))).to_pylist()
    frequent = sorted(counts, key=lambda entry: (-entry["counts"], entry["values"]))[:_CATEGORIES]
    values = sorted(entry["values"] for entry in frequent)
    places = numbers_of(pc.index_in(text, value_set=pa.array(values, text.type)).fill_null(-1))
    rows = (places[:, None] == np.arange(len(values))) & ~empty[:, None]
    names = (*(f"{name}={value}" for value in values), f"{name} is other", f"{name} is empty")
    rest = ~empty & ~rows.any(1)
    return Encoded(np.column_stack([rows, rest, empty]).astype(np.float32), names, (name,) * len(names))


def is_embedded(name: str) -> bool:
    """Returns whether a column is one of an embedding of text."""
    return name.rpartition("#")[2].isdigit()


def hash_text(texts: Sequence[str]) -> Floats:  # [num_texts, width]
    """Counts hashed pieces of each text in lower case, as `dataset.text=hashed`."""
    rows = np.zeros((len(texts), _BUCKETS), np.float32)
    for number, text in enumerate(texts):
        word = f" {text.strip().lower()} "
        for first in range(max(len(word) - _GRAM + 1, 1)):
            rows[number, zlib.crc32(word[first : first + _GRAM].encode()) % _BUCKETS] += 1
    return rows


def _embedded(column: pa.Array, name: str, missing: Sequence[str], embed: Embed) -> Encoded:
    """Returns embeddings of length 1, and zeros in empty cells."""
    values = pc.dictionary_encode(column.cast(pa.large_string()))
    texts = [*values.dictionary.to_pylist(), ""]  # the last one for empty cells
    rows = np.array(embed(texts), np.float32)
    if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
        raise UserError(
            f"dataset.text: column {name!r} has embeddings of shape {list(rows.shape)}, expected {len(texts)} rows of "
            "finite numbers; use another package, or dataset.text=hashed"
        )
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    rows = rows[numbers_of(values.indices.fill_null(len(texts) - 1))]
    rows[missing_cells(column, missing)] = 0
    return Encoded(rows, tuple(f"{name}#{place}" for place in range(rows.shape[1])), (name,) * rows.shape[1])
