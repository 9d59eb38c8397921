"""OGB folders, read in pieces. Labels and splits are read at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gnnkit_formats.ogb import (
    YEAR,
    add_inverse_edges,
    adds_inverse_edges,
    check_arrays,
    list_tables,
    read_node_fields,
    read_num_nodes,
    read_numbers,
)
from gnnkit_formats.pieces import EdgePiece, GraphPieces, NodeFields, Room, list_positions

from gnnkit.errors import UserError
from gnnkit.graph import Floats
from gnnkit.graph.features import features_of
from gnnkit.graph.times import to_unit
from gnnkit.utils.checks import Array, ids
from gnnkit_import.csv_source import NumberSource
from gnnkit_import.zipped import ZippedArrays

if TYPE_CHECKING:
    from gnnkit_formats.ogb import Ogb


class OgbPieces(GraphPieces):
    """An OGB folder with tables or arrays."""

    def __init__(self, dataset: Ogb) -> None:
        super().__init__(dataset.root)
        self._dataset, self._raw = dataset, dataset.root / "raw"
        self.symmetrize, self.row_normalize = dataset.symmetrize, dataset.row_normalize

    @property
    def files(self) -> Sequence[Path]:
        adds_inverse_edges(self.root, self._dataset.add_inverse_edge)  # looks at the folder
        paths = [path for name in ("raw", "split", "mapping") for path in (self.root / name).rglob("*")]
        return sorted(path for path in paths if path.is_file())

    @cached_property
    def _inverse(self) -> bool:
        return adds_inverse_edges(self.root, self._dataset.add_inverse_edge)

    @cached_property
    def _data(self) -> ZippedArrays | None:
        """Opens the arrays. Returns None for a folder with tables."""
        if not (self._raw / "data.npz").exists():
            return None
        data = ZippedArrays(self._raw / "data.npz")
        check_arrays(self._raw, data, data.rows("edge_index").shape)
        return data

    @cached_property
    def _tables(self) -> set[str]:
        return list_tables(self._raw)

    def open(self, room: Room) -> int:
        if self._data is not None:
            return read_num_nodes(self._raw, self._data["num_nodes_list"].ravel())
        return read_num_nodes(self._raw, read_numbers(self._raw / "num-node-list.csv.gz").ravel())

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        step, place = max(rows // 2 if self._inverse else rows, 1), str(self._raw)
        first = 0
        for ends, rows_read in itertools.zip_longest(self._ends(step), self._edge_features(step)):
            if ends is None or (
                self._has_edge_features and len(ends[0]) != (0 if rows_read is None else len(rows_read))
            ):
                raise UserError(f"{place}: the number of edges differs from the number of edge feature rows")
            src, dst = ids("src", ends[0]), ids("dst", ends[1])
            features = None if rows_read is None else features_of("edge_features", rows_read, len(src))
            if self._inverse:
                src, dst, features = add_inverse_edges(src, dst, features)
            yield EdgePiece(place, src, dst, None, features, list_positions(first, len(src)))
            first += len(src)

    def _ends(self, step: int) -> Iterator[tuple[Array, Array]]:
        if self._data is None:
            table = self._numbers("edge")
            if table.width != 2:
                raise UserError(
                    f"{self._raw / 'edge.csv.gz'} has {table.width} columns, expected source and destination"
                )
            return ((rows[:, 0], rows[:, 1]) for rows in table.pieces(step))
        ends = self._data.rows("edge_index")
        count = ends.shape[1]
        if ends.by_column:  # source and destination of an edge are adjacent
            return ((pairs[::2], pairs[1::2]) for pairs in ends.flat(2 * step))
        return zip(ends.flat(step, 0, count), ends.flat(step, count, 2 * count), strict=True)

    @property
    def _has_edge_features(self) -> bool:
        return "edge-feat" in self._tables if self._data is None else "edge_feat" in self._data

    def _edge_features(self, step: int) -> Iterator[Array]:
        """Yields the edge features, if there are any."""
        if not self._has_edge_features:
            return iter(())
        return (
            self._numbers("edge-feat").pieces(step) if self._data is None else self._data.rows("edge_feat").pieces(step)
        )

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        if self._data is None:
            labels = read_numbers(self._raw / "node-label.csv.gz")
        else:
            with ZippedArrays(self._raw / "node-label.npz") as arrays:
                labels = arrays["node_label"]
        years = self._years()
        return NodeFields(
            *read_node_fields(self.root, labels, self._dataset.split, num_nodes),
            node_time=None if years is None else to_unit("node_year", years, None),
        )

    def _years(self) -> Array | None:
        if self._data is not None:
            return self._data.optional(YEAR)
        return read_numbers(self._raw / f"{YEAR}.csv.gz") if YEAR in self._tables else None

    def features(self, room: Room) -> Iterator[Floats] | None:
        if self._data is not None:
            if "node_feat" not in self._data:
                return None
            rows = self._data.rows("node_feat")
            return rows.pieces(room.rows(int(np.prod(rows.shape[1:]))))
        if "node-feat" not in self._tables:
            return None
        table = self._numbers("node-feat")
        return table.pieces(room.rows(table.width))

    def _numbers(self, name: str) -> NumberSource:
        return NumberSource(self._raw / f"{name}.csv.gz", self.root)
