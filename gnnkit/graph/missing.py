"""Words for missing values, shared by all readers and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown

# Compared in lower case, without surrounding blanks. SQL dumps write \N for NULL.
MISSING = ("", "#n/a", "-", "<na>", "?", "\\n", "missing", "n/a", "na", "nan", "nil", "none", "null", "unknown")

FILLED_BY = "choose features.fill=mean (of the nodes that train), zero, or drop (columns with empty cells), or fill the cells"  # remedies for empty cells


def normalize(text: pa.Array) -> pa.Array:
    """Strips surrounding blanks, and converts to lower case."""
    return pc.utf8_lower(pc.utf8_trim_whitespace(text))


def quote(cell: object) -> str:
    """Quotes a cell for a message, with backslashes as in the file."""
    return repr(cell).replace("\\\\", "\\")


def read_missing(key: str, value: object) -> tuple[str, ...]:
    """Reads a list of words for missing values, and adds the empty cell.

    YAML parses the words null and nan as values, which are converted back. Raises
    `UserError` for values other than text.

    Args:
        key: Configuration key or argument, for the message.
        value: List of words. If None, `MISSING`.
    """
    if value is None:
        return MISSING
    words = value if isinstance(value, list | tuple) else [value]
    texts = [
        "null" if word is None else "nan" if isinstance(word, float) and math.isnan(word) else word for word in words
    ]
    plain = [word.strip().lower() for word in texts if isinstance(word, str)]
    if not isinstance(value, list | tuple) or len(plain) < len(words):
        raise UserError(f"{key}={shown(value)} must be a list of words, such as [none,unknown]")
    return tuple(sorted({"", *plain}))


def missing_cells(column: pa.Array, words: Sequence[str] = MISSING) -> npt.NDArray[np.bool_]:  # [rows]
    """Marks the cells of a text column that are null or a word for missing values.

    Args:
        column: Text cells.
        words: Words for missing values, in lower case.
    """
    is_missing_word = pc.is_in(normalize(column), value_set=pa.array(words, column.type))
    return np.asarray(pc.or_(pc.is_null(column), is_missing_word).to_numpy(zero_copy_only=False))
