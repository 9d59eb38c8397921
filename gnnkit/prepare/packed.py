"""Rows of features rounded to 16 or 8 bits a number, and what the rounding costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnnkit.checks import Array
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, PackedFeatures
from gnnkit.prepare.scale import Numbers
from gnnkit.remote.features import round_rows

_STEPS = 255  # between the smallest and the largest number of a column, in 8 bits
_NUMBERS = 1 << 20  # that are rounded at once


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the rounding of columns depends on. Independent of the order of rows."""

    low: Numbers  # [width] smallest number
    high: Numbers  # [width]
    deviation: Numbers  # [width] of all rows
    whole: npt.NDArray[np.bool_]  # [width] whether all are whole numbers

    @classmethod
    def of(cls, pieces: Iterable[Floats]) -> Columns:
        """Looks at all rows, in pieces [k, width]. There must be one."""
        count, found, first = 0, None, None
        sums, squares = np.zeros(()), np.zeros(())
        for piece in pieces:
            rows = np.asarray(piece, np.float64)
            if not len(rows):
                continue
            first = rows[0].copy() if first is None else first
            moved = rows - first  # so that squares of numbers far from 0 lose no digits
            count, sums, squares = count + len(rows), sums + moved.sum(0), squares + np.square(moved).sum(0)
            own = rows.min(0), rows.max(0), (rows == np.floor(rows)).all(0)
            if found is not None:
                own = np.minimum(own[0], found[0]), np.maximum(own[1], found[1]), own[2] & found[2]
            found = own
        assert found is not None, "no rows"
        variance = np.maximum(squares / count - np.square(sums / count), 0)
        return cls(found[0], found[1], np.sqrt(variance), found[2])

    def form(self, kind: str) -> PackedFeatures:  # [0, width]
        """Returns packed features without a row, of the scale that rows get.

        Columns of whole numbers that span up to 255 have steps of 1, and stay exact.
        """
        width = len(self.low)
        if kind == "bf16":
            return PackedFeatures(np.empty((0, width), np.uint16))
        span = self.high - self.low
        exact = (self.whole & (span <= _STEPS)) | (span == 0)
        scale = np.where(exact, 1, span / _STEPS).astype(np.float32)
        return PackedFeatures(np.empty((0, width), np.uint8), scale, self.low.astype(np.float32))


class Packer:
    """Rounds rows piece by piece, and measures the errors."""

    def __init__(self, columns: Columns, form: PackedFeatures) -> None:
        """Begins with no rows.

        Args:
            columns: What all rows are like.
            form: Without rows, of the scale.
        """
        self.form, self._columns = form, columns
        self._error, self._bytes, self._given = np.zeros(len(columns.low)), 0, 0
        self._low, self._high = np.full(len(columns.low), np.inf), np.full(len(columns.low), -np.inf)

    def pack(self, rows: Floats) -> Array:  # [k, width] -> [k, width]
        """Returns rows as they are kept."""
        kept = round_rows(rows) if self.form.scale is None else self._stepped(rows)
        if len(rows):
            numbers = np.asarray(self.form.with_rows(kept), np.float64)
            with np.errstate(invalid="ignore"):
                self._error = np.maximum(self._error, np.abs(numbers - rows).max(0))
            self._low, self._high = np.minimum(self._low, numbers.min(0)), np.maximum(self._high, numbers.max(0))
        self._bytes, self._given = self._bytes + kept.nbytes, self._given + rows.nbytes
        return kept

    def _stepped(self, rows: Floats) -> Array:  # [k, width] uint8
        scale, offset = self.form.scale, self.form.offset
        assert scale is not None
        assert offset is not None
        steps = (np.asarray(rows, np.float64) - offset) / np.where(scale > 0, scale, 1)
        packed: Array = np.clip(np.rint(steps), 0, _STEPS).astype(np.uint8)
        return packed

    def told(self, names: Sequence[str] | None) -> str:
        """Says for people what the rounding saves and costs.

        Raises `UserError` for a column whose numbers become equal or too large.

        Args:
            names: Names of the columns, if there are any.
        """
        kind, columns = self.form.name, self._columns
        cure = "leave features.dtype out, or give the column another scale (features.scale)"
        spelt = [repr(name) for name in names] if names else [str(column) for column in range(len(columns.low))]
        for column in np.flatnonzero(~np.isfinite(self._low) | ~np.isfinite(self._high)):
            raise UserError(f"features.dtype={kind}: column {spelt[column]} is too large for it: {cure}")
        varied = columns.low < columns.high
        for column in np.flatnonzero(varied & (self._low == self._high)):
            raise UserError(
                f"features.dtype={kind}: the numbers of column {spelt[column]}, {columns.low[column]:.9g} to "
                f"{columns.high[column]:.9g}, become equal: {cure}"
            )
        share = np.divide(self._error, columns.deviation, out=np.zeros(len(varied)), where=varied)
        worst = int(share.argmax())
        inexact = np.flatnonzero(columns.whole & (self._error > 0))
        line = (
            f"features: {kind}, {self._bytes / 1e6:.3g} MB of {self._given / 1e6:.3g} MB, a number is off by "
            f"{share[worst]:.2g} deviations of its column at most (column {spelt[worst]}; features.dtype={kind})"
        )
        if len(inexact):
            line += (
                f"; whole numbers, such as ids, are not exact in {len(inexact)} columns, such as {spelt[inexact[0]]}"
            )
        return line


def packed(graph: Graph, kind: str) -> tuple[Graph, list[str]]:
    """Rounds dense features of a graph. Also returns a line for people.

    Features of a store that are rounded so already stay. Raises `UserError` for others.

    Args:
        graph: The graph, with the features that models read.
        kind: The value of features.dtype.
    """
    rows = graph.features
    if isinstance(rows, PackedFeatures) and rows.name != kind:
        raise UserError(
            f"features.dtype={kind}: the store keeps rows in {rows.name}: leave the key out, or name the data set itself"
        )
    if isinstance(rows, PackedFeatures) or not all(rows.shape):
        return graph, []
    dense = np.asarray(rows)
    columns = Columns.of(piece for _, piece in _pieces(dense))
    packer = Packer(columns, columns.form(kind))
    kept = np.empty(dense.shape, packer.form.kept.dtype)
    for place, piece in _pieces(dense):
        kept[place] = packer.pack(piece)
    told = packer.told(graph.feature_names)
    return replace(graph, features=packer.form.with_rows(kept)), [told]


def _pieces(rows: Floats) -> Iterator[tuple[slice, Floats]]:
    step = max(_NUMBERS // max(rows.shape[1], 1), 1)
    for first in range(0, len(rows), step):
        place = slice(first, first + step)
        yield place, rows[place]
