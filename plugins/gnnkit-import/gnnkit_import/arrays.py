"""Data sets in arrays, read in pieces: saved graphs and .npz files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gnnkit_formats.npz import BAD_ZIP
from gnnkit_formats.pieces import COLUMNS, EdgePiece, GraphPieces, NodeFields, Room, Rows, WholeArrays, pieces_of

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids
from gnnkit.graph.csc import read_weights
from gnnkit.graph.edge_columns import RULES
from gnnkit.graph.features import features_of
from gnnkit.graph.times import TIME_FIELDS, read_time_fields, to_unit
from gnnkit.graph.types import edge_positions_of, set_fields
from gnnkit.utils.checks import Array, ids, int64s, integers
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import forget_pages, load_arrays

if TYPE_CHECKING:
    from gnnkit_formats.npz import Npz

    from gnnkit.dataset.saved import Saved

_ALTERNATIVE = "use job=partition dataset={}"
_TO_PREDICT = dict.fromkeys(("val_edges", "test_edges"), "edges to predict")


class ZippedArrays(WholeArrays):
    """The arrays of an .npz file, which may exceed memory."""

    def rows(self, name: str) -> ZippedRows:
        with self.open(name) as (file, (shape, by_column, dtype)):
            return ZippedRows(self.file, name, shape, dtype, by_column, file.tell())


@dataclass(frozen=True, slots=True)
class ZippedRows:
    """An array in an .npz file that is decompressed while it is read."""

    file: zipfile.ZipFile
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool  # whether the file is in Fortran order
    begin: int  # byte offset of the numbers

    def flat(self, step: int, first: int = 0, last: int | None = None) -> Iterator[Array]:
        """Yields the numbers `first` to `last` in file order, `step` at a time.

        Yields one empty piece if there are none. Raises `UserError` for a damaged file.
        """
        last, size = math.prod(self.shape) if last is None else last, self.dtype.itemsize
        try:
            with self.file.open(f"{self.name}.npy") as file:
                file.seek(self.begin + first * size)
                for begin in range(first, max(last, first + 1), step):
                    count = min(step, last - begin)
                    data = file.read(count * size)
                    if len(data) < count * size:
                        raise UserError(f"{self.name} is truncated")
                    numbers = np.frombuffer(data, self.dtype)
                    yield numbers.astype(self.dtype.newbyteorder("="), copy=False)
        except (*BAD_ZIP, OSError) as error:
            raise UserError(f"{self.name} cannot be read: {error}") from error

    def pieces(self, step: int) -> Iterator[Array]:
        """Yields all rows, `step` at a time, or one empty piece if there are none."""
        if self.by_column and len(self.shape) > 1:
            raise UserError(f"{self.name} is stored by column, and cannot be read by rows")
        width = math.prod(self.shape[1:])
        if not self.shape[0] or not width:
            yield np.empty(self.shape, self.dtype)
            return
        for some in self.flat(step * width):
            yield some.reshape(-1, *self.shape[1:])


@dataclass(frozen=True, slots=True)
class Mapped:
    """A memory-mapped array. Pages are released after they were read."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def pieces(self, step: int) -> Iterator[Array]:
        for first in range(0, max(len(self.array), 1), step):
            yield self.array[first : first + step]
            forget_pages(self.array)


@dataclass(frozen=True, slots=True)
class Compressed:
    """Edges by destination. Only the row pointers are in memory."""

    place: str  # for messages
    indptr: Ids  # [num_nodes + 1] int64
    indices: Rows  # [num_edges]
    others: Mapping[str, Rows]  # weight, features, positions and types, keyed by `EdgePiece` field
    time_unit: str | None = None  # of times in arrays of dates

    def __post_init__(self) -> None:
        """Checks row pointers and column lengths."""
        begins = int64s("indptr", self.indptr)
        (num_edges,) = self.indices.shape if len(self.indices.shape) == 1 else (-1,)
        if not len(begins) or begins[0] or begins[-1] != num_edges or (len(begins) > 1 and np.diff(begins).min() < 0):
            raise UserError(f"{self.place}: indptr must ascend from 0 to the number of indices")
        for name, stream in self.others.items():
            if stream.shape[0] != num_edges:
                raise UserError(f"{self.place}: {name} has shape {list(stream.shape)}, expected {num_edges} rows")
        set_fields(self, indptr=begins)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.indptr[-1])

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        """Yields all edges in order. Without edges it yields one empty piece."""
        first, names = 0, list(self.others)
        streams = [self.indices, *self.others.values()]
        for indices, *others in zip(*(stream.pieces(rows) for stream in streams), strict=True):
            yield self._piece(first, indices, dict(zip(names, others, strict=True)))
            first += len(indices)

    def _piece(self, first: int, indices: Array, others: dict[str, Array]) -> EdgePiece:
        last = first + len(indices)
        low = int(np.searchsorted(self.indptr, first, side="right")) - 1
        high = int(np.searchsorted(self.indptr, last, side="left"))
        begins = np.clip(self.indptr[low : high + 1], first, last)
        ends = np.repeat(np.arange(low, high), np.diff(begins)) if last > first else np.empty(0, np.int64)
        src, dst = ids("indices", indices), ends
        features = others.get("features")
        return EdgePiece(
            self.place,
            src,
            dst,
            read_weights(others.get("weight"), len(src)),
            None if features is None else features_of("edge_features", features, len(src)),
            edge_positions_of(others.get("positions"), len(src)),
            integers("edge_types", types) if (types := others.get("types")) is not None else None,
            to_unit("edge_time", times, self.time_unit) if (times := others.get("time")) is not None else None,
        )


class CompressedPieces(GraphPieces):
    """A graph with `Compressed` edges."""

    @cached_property
    def _matrix(self) -> Compressed:
        """Opens the edges."""
        raise NotImplementedError

    def open(self, room: Room) -> int:
        return self._matrix.num_nodes

    @property
    def num_edges(self) -> int:
        return self._matrix.num_edges

    @property
    def edge_row(self) -> int:
        return 8 * sum(int(np.prod(stream.shape[1:])) for stream in self._matrix.others.values())

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        return self._matrix.edges(rows)


class SavedPieces(CompressedPieces):
    """A folder written by `Graph.save`."""

    in_order = has_gaps = True

    def __init__(self, dataset: Saved) -> None:
        super().__init__(dataset.root)
        self.symmetrize, self.row_normalize = dataset.symmetrize, dataset.row_normalize
        self.shares, self.seed = dataset.split, dataset.seed

    @property
    def files(self) -> Sequence[Path]:
        return sorted(path for path in self.root.iterdir() if path.suffix in (".npy", ".json"))

    @cached_property
    def _saved(self) -> tuple[dict[str, Array], Json]:
        arrays, meta = load_arrays(self.root)
        for name in ("indptr", "indices", "labels", "split"):
            if name not in arrays:
                raise UserError(f"holds no {name}")
        for name, what in {"feature_width": "sparse features", **_TO_PREDICT}.items():
            if name in arrays:
                raise UserError(f"holds {what}, which job=import does not support; {_ALTERNATIVE.format('saved')}")
        return arrays, meta

    @cached_property
    def _matrix(self) -> Compressed:
        return matrix_of(self._saved[0])

    def edge_feature_names(self) -> Sequence[str] | None:
        return self._saved[1].get("edge_feature_names")

    def edge_texts(self) -> Mapping[str, str]:
        meta = self._saved[1]
        pairs = zip(meta.get("edge_feature_names") or (), meta.get("edge_category_of") or (), strict=False)
        return {name: text for name, text in pairs if text}

    def edge_type_names(self) -> Sequence[str] | None:
        return self._saved[1].get("edge_type_names")

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        arrays, meta = self._saved
        return NodeFields(
            arrays["labels"],
            arrays["split"],
            meta.get("class_names"),
            arrays.get("node_ids"),
            arrays.get("coordinates"),
            meta.get("node_types"),
            meta.get("category_of"),
            one_class=True,
            types=stored_types(meta),
            node_time=arrays.get("node_time"),
        )

    @property
    def time_unit(self) -> str | None:  # type: ignore[override]
        return self._saved[1].get("time_unit")

    def column_forms(self) -> Sequence[str] | None:
        return self._saved[1].get("column_forms")

    def features(self, room: Room) -> Iterator[Floats]:
        arrays, first = self._saved[0], 0
        cells = arrays.get("missing")
        if cells is not None and (cells[1:, 0] < cells[:-1, 0]).any():
            cells = cells[np.argsort(cells[:, 0], kind="stable")]
        for rows in pieces_of(arrays["features"]):
            if cells is None:
                yield rows
                continue
            low, high = np.searchsorted(cells[:, 0], [first, first + len(rows)])
            empty = cells[low:high]
            gappy = rows.copy()
            gappy[empty[:, 0] - first, empty[:, 1]] = np.nan
            yield gappy
            first += len(rows)

    def feature_names(self) -> Sequence[str] | None:
        return self._saved[1].get("feature_names")


class NpzPieces(CompressedPieces):
    """An .npz file. Its arrays are decompressed while they are read."""

    in_order = True

    def __init__(self, dataset: Npz) -> None:
        super().__init__(dataset.root)
        self._dataset = dataset
        self.symmetrize, self.row_normalize = dataset.symmetrize, dataset.row_normalize
        self.shares, self.seed = dataset.shares, dataset.seed

    @property
    def files(self) -> Sequence[Path]:
        return [self.root]

    @cached_property
    def _fields(self) -> ZippedArrays:
        fields = ZippedArrays(self.root)
        for name, what in {**_TO_PREDICT, "adj_indptr": "edges by source"}.items():
            if name in fields:
                raise UserError(f"{name}: job=import does not support {what}; {_ALTERNATIVE.format('npz')}")
        if "x_indptr" in fields and "x" not in fields:
            raise UserError(f"x_indptr: job=import does not support sparse features; {_ALTERNATIVE.format('npz')}")
        return fields

    @cached_property
    def _matrix(self) -> Compressed:
        columns = {"weight": "weight", "time": "edge_time"}
        others = {field: self._fields.rows(name) for field, name in columns.items() if name in self._fields}
        edges = self._fields["indptr"], self._fields.rows("indices"), others
        return Compressed("indices", *edges, time_unit=self.time_unit)

    @cached_property
    def time_unit(self) -> str | None:  # type: ignore[override]
        kinds = {name: np.empty(0, self._fields.rows(name).dtype) for name in TIME_FIELDS if name in self._fields}
        unit: str | None = read_time_fields(kinds).get("time_unit")
        return unit

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        times = self._fields.optional("node_time")
        return NodeFields(
            self._fields.optional("y"),
            self._dataset.masks(self._fields, num_nodes),
            node_time=None if times is None else to_unit("node_time", times, self.time_unit),
        )

    def features(self, room: Room) -> Iterator[Floats]:
        rows = self._fields.rows("x")
        return rows.pieces(room.rows(int(np.prod(rows.shape[1:]))))


def matrix_of(arrays: Mapping[str, Array]) -> Compressed:
    """Returns a saved graph's edges as memory-mapped arrays."""
    files = {name: RULES[column].field for name, column in COLUMNS.items()}
    others = {name: Mapped(arrays[file]) for name, file in files.items() if file in arrays}
    return Compressed("indices", arrays["indptr"], Mapped(arrays["indices"]), others)


def stored_types(plain: Mapping[str, Any]) -> Json:
    """Selects the fields of `Schema.to_dict` from stored metadata."""
    return {key: plain[key] for key in ("feature_tables", "relations") if plain.get(key) is not None}
