"""Words that stand for a missing value, the same in every reader and every column."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.ranges import shown

# Compared without surrounding blanks and without case.
MISSING = ("", "#n/a", "-", "<na>", "?", "missing", "n/a", "na", "nan", "nil", "none", "null", "unknown")


def normalize(text: pa.Array) -> pa.Array:
    """Strips surrounding blanks, and turns case into lower case."""
    return pc.utf8_lower(pc.utf8_trim_whitespace(text))


def read_missing(key: str, value: object) -> tuple[str, ...]:
    """Reads a list of words for "missing", to which the empty cell always belongs.

    YAML reads the words null and nan as values, which stand for the words here. Raises
    `UserError` for other values than text.

    Args:
        key: the key or the argument, for the message.
        value: list of words. None: `MISSING`.
    """
    if value is None:
        return MISSING
    words = value if isinstance(value, list | tuple) else [value]
    spelt = [
        "null" if word is None else "nan" if isinstance(word, float) and math.isnan(word) else word for word in words
    ]
    plain = [word.strip().lower() for word in spelt if isinstance(word, str)]
    if not isinstance(value, list | tuple) or len(plain) < len(words):
        raise UserError(f"{key}={shown(value)} must be a list of words, such as [none,unknown]")
    return tuple(sorted({"", *plain}))


def missing_cells(column: pa.Array, words: Sequence[str] = MISSING) -> npt.NDArray[np.bool_]:  # [rows]
    """Marks the cells of a text column that are null or hold a word for "missing".

    Args:
        column: text.
        words: words for "missing", in lower case. Default: `MISSING`.
    """
    known = pc.is_in(normalize(column), value_set=pa.array(words, column.type))
    return np.asarray(pc.or_(pc.is_null(column), known).to_numpy(zero_copy_only=False))
