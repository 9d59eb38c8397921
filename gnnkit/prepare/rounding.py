"""Feature rows rounded to 16 or 8 bits per number, and the rounding's error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gnnkit.engine.remote.features import round_rows
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, PackedFeatures
from gnnkit.prepare.transform import Numbers
from gnnkit.utils.checks import Array, rows_at_once

_STEPS = 255  # number of 8-bit steps between a column's minimum and maximum
_REMEDY = "remove features.dtype, or scale the column (features.scale)"


class Rounding:
    """Rounds rows piece by piece, and measures the errors.

    In 8 bits, columns of integers that span up to 255 have steps of 1 and stay exact.
    The scale does not depend on the order of rows.
    """

    form: PackedFeatures  # [0, width] scale of all rows

    def __init__(self, pieces: Iterable[Floats], kind: str, form: PackedFeatures | None = None) -> None:
        """Reads all rows to choose the scale. There must be at least one.

        Args:
            pieces: [k, width] each.
            kind: The value of features.dtype.
            form: Features that determine the scale. If None, chosen by the rows'
                ranges.
        """
        self._low, self._high, self._deviation, self._are_whole = _measure_columns(pieces)
        width = len(self._low)
        self.form = self._form(kind) if form is None else form
        self._error, self._num_bytes, self._raw_bytes = np.zeros(width), 0, 0
        self._least, self._largest = np.full(width, np.inf), np.full(width, -np.inf)  # after rounding

    def _form(self, kind: str) -> PackedFeatures:  # [0, width]
        if kind == "bf16":
            return PackedFeatures(np.empty((0, len(self._low)), np.uint16))
        span = self._high - self._low
        exact = (self._are_whole & (span <= _STEPS)) | (span == 0)
        scale = np.where(exact, 1, span / _STEPS).astype(np.float32)
        return PackedFeatures(np.empty((0, len(span)), np.uint8), scale, self._low.astype(np.float32))

    def apply(self, rows: Floats) -> Array:  # [k, width]
        """Returns the stored form of rows."""
        bits = round_rows(rows) if self.form.scale is None else self._quantise(rows)
        if len(rows):
            numbers = np.asarray(self.form.with_rows(bits), np.float64)
            with np.errstate(invalid="ignore"):
                self._error = np.maximum(self._error, np.abs(numbers - rows).max(0))
            self._least, self._largest = (
                np.minimum(self._least, numbers.min(0)),
                np.maximum(self._largest, numbers.max(0)),
            )
        self._num_bytes, self._raw_bytes = self._num_bytes + bits.nbytes, self._raw_bytes + rows.nbytes
        return bits

    def _quantise(self, rows: Floats) -> Array:  # [k, width] uint8
        scale, offset = self.form.scale, self.form.offset
        assert scale is not None
        assert offset is not None
        steps = (np.asarray(rows, np.float64) - offset) / np.where(scale > 0, scale, 1)
        bits: Array = np.clip(np.rint(steps), 0, _STEPS).astype(np.uint8)
        return bits

    def describe(self, names: Sequence[str] | None) -> str:
        """Returns a line on the saved bytes and the largest error.

        Raises `UserError` if a column's numbers become equal or overflow.
        """
        kind, low, high = self.form.name, self._low, self._high
        labels = [repr(name) for name in names] if names else [str(column) for column in range(len(low))]
        for column in np.flatnonzero(~np.isfinite(self._least) | ~np.isfinite(self._largest)):
            raise UserError(f"features.dtype={kind}: column {labels[column]} is too large for it: {_REMEDY}")
        varies = low < high
        for column in np.flatnonzero(varies & (self._least == self._largest)):
            raise UserError(
                f"features.dtype={kind}: the numbers of column {labels[column]}, {low[column]:.9g} to "
                f"{high[column]:.9g}, become equal: {_REMEDY}"
            )
        share = np.divide(self._error, self._deviation, out=np.zeros(len(varies)), where=varies)
        worst = int(share.argmax())
        line = (
            f"features: {kind}, {self._num_bytes / 1e6:.3g} MB of {self._raw_bytes / 1e6:.3g} MB, a number is off by "
            f"{share[worst]:.2g} deviations of its column at most (column {labels[worst]}; features.dtype={kind})"
        )
        inexact = np.flatnonzero(self._are_whole & (self._error > 0))
        if len(inexact):
            line += (
                f"; whole numbers, such as ids, are not exact in {len(inexact)} columns, such as {labels[inexact[0]]}"
            )
        return line


def _measure_columns(
    pieces: Iterable[Floats],
) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:  # [width] each
    """Computes each column's minimum, maximum and standard deviation.

    Also marks columns that contain only integers.
    """
    count, ranges, first = 0, None, None
    sums, squares = np.zeros(()), np.zeros(())
    for piece in pieces:
        rows = np.asarray(piece, np.float64)
        if not len(rows):
            continue
        first = rows[0].copy() if first is None else first
        offsets = rows - first  # avoids a loss of precision in squares of numbers far from 0
        count, sums, squares = count + len(rows), sums + offsets.sum(0), squares + np.square(offsets).sum(0)
        low, high, are_whole = rows.min(0), rows.max(0), (rows == np.floor(rows)).all(0)
        if ranges is not None:
            low, high, are_whole = np.minimum(low, ranges[0]), np.maximum(high, ranges[1]), are_whole & ranges[2]
        ranges = low, high, are_whole
    assert ranges is not None, "no rows"
    deviation = np.sqrt(np.maximum(squares / count - np.square(sums / count), 0))
    return ranges[0], ranges[1], deviation, ranges[2]


def round_features(graph: Graph, kind: str) -> tuple[Graph, list[str]]:
    """Rounds a graph's dense features. Also returns a line that describes the errors.

    A store's features that are already rounded in this way stay as they are. Raises
    `UserError` if they are rounded in another way.

    Args:
        graph: The graph, with the features that models read.
        kind: The value of features.dtype.
    """
    rows = graph.features
    if isinstance(rows, PackedFeatures) and rows.name != kind:
        raise UserError(
            f"features.dtype={kind}: the store has features.dtype={rows.name}: remove the key, or use the original data set"
        )
    if isinstance(rows, PackedFeatures) or not all(rows.shape):
        return graph, []
    dense = np.asarray(rows)
    rounding = Rounding((piece for _, piece in _split_rows(dense)), kind)
    bits = np.empty(dense.shape, rounding.form.kept.dtype)
    for place, piece in _split_rows(dense):
        bits[place] = rounding.apply(piece)
    return graph.evolve(features=rounding.form.with_rows(bits)), [rounding.describe(graph.feature_names)]


def _split_rows(rows: Floats) -> Iterator[tuple[slice, Floats]]:
    step = rows_at_once(rows.shape[1])
    for first in range(0, len(rows), step):
        place = slice(first, first + step)
        yield place, rows[place]
