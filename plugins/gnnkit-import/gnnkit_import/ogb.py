"""OGB folders, read in pieces. Labels and splits are read at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gnnkit_formats.ogb import OgbGraph
from gnnkit_formats.pieces import Rows

from gnnkit.graph.zipped import Arrays
from gnnkit.utils.checks import Array
from gnnkit_import.csv_source import NumberSource
from gnnkit_import.zipped import ZippedArrays


class OgbPieces(OgbGraph):
    """An OGB folder whose edges and features are streamed."""

    opens = ZippedArrays

    def array_ends(self, data: Arrays, step: int) -> Iterator[tuple[Array, Array]]:
        assert isinstance(data, ZippedArrays)
        ends = data.rows("edge_index")
        count = ends.shape[1]
        if ends.by_column:  # source and destination of an edge are adjacent
            return ((pairs[::2], pairs[1::2]) for pairs in ends.flat(2 * step))
        return zip(ends.flat(step, 0, count), ends.flat(step, count, 2 * count), strict=True)

    def numbers(self, path: Path) -> Rows:
        return NumberSource(path, self.root)
