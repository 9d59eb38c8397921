"""Reader for Open Graph Benchmark (OGB) folders, without the package `ogb`.

That package uses pickle, and fails on newer torch releases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from gnnkit.dataset.base import Dataset
from gnnkit.errors import UserError
from gnnkit.graph.cells import is_consecutive, narrow_text
from gnnkit.graph.features import features_of
from gnnkit.graph.graph import Graph
from gnnkit.graph.split import Split
from gnnkit.graph.times import to_unit
from gnnkit.graph.types import Floats
from gnnkit.utils.checks import Array, ids, one_line
from gnnkit.utils.documents import check_regular
from gnnkit.utils.ranges import local_path, unknown
from gnnkit_formats.attributes import warn_unread
from gnnkit_formats.npz import Arrays
from gnnkit_formats.pieces import (
    EdgePiece,
    GraphPieces,
    InMemory,
    NodeFields,
    Room,
    Rows,
    WholeArrays,
    join_pieces,
    list_positions,
    read_whole,
)
from gnnkit_formats.values import is_text

# Whether `ogb` adds the reverse of each edge, according to its master table.
_INVERSE = {"ogbn_arxiv": False, "ogbn_papers100M": False, "ogbn_products": True, "ogbn_proteins": True}
_NODES, _EDGES = "num-node-list", "num-edge-list"
YEAR = "node_year"  # of a paper's publication
_READ = {"edge", "node-feat", "edge-feat", "node-label", YEAR, _NODES, _EDGES}
_KEYS = {"edge_index", "node_feat", "edge_feat", YEAR, "num_nodes_list", "num_edges_list"}
_PARTS = {"train": Split.TRAIN, "valid": Split.VAL, "test": Split.TEST}


class Ogb(Dataset):
    """A folder downloaded by the package `ogb`, such as `dataset/ogbn_arxiv`.

    See `Graph.from_ogb`. The package itself is not required.
    """

    def __init__(
        self,
        root: str,
        split: str | None = None,
        add_inverse_edge: bool | None = None,
        symmetrize: bool = False,
        row_normalize: bool = False,
    ) -> None:
        """Creates the data set.

        Args:
            root: The folder that contains `raw` and `split`.
            split: Folder in `split`. Default: the only one.
            add_inverse_edge: Also add each edge reversed. Default: as `ogb` does for
                this name.
            symmetrize: Add missing reverse edges, as most models for ogbn-arxiv do.
                Default: no.
            row_normalize: Divide each node's features by their sum. Default: no.
        """
        self.root = local_path("dataset.root", root)
        self.split = split
        self.add_inverse_edge = add_inverse_edge
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        return read_whole(OgbGraph(self))


def from_ogb(folder: Path, split: str | None, add_inverse_edge: bool | None) -> Graph:
    """Implements `Graph.from_ogb`."""
    return join_pieces(OgbGraph(Ogb(str(folder), split, add_inverse_edge)))


class OgbGraph(GraphPieces):
    """An OGB folder with tables or arrays, each of which is read at once."""

    opens: type[WholeArrays] = WholeArrays

    def __init__(self, dataset: Ogb) -> None:
        super().__init__(dataset.root)
        self._dataset, self._raw = dataset, dataset.root / "raw"
        self.symmetrize, self.row_normalize = dataset.symmetrize, dataset.row_normalize

    @property
    def files(self) -> Sequence[Path]:
        _ = self._inverse  # looks at the folder
        paths = [path for name in ("raw", "split", "mapping") for path in (self.root / name).rglob("*")]
        return sorted(path for path in paths if path.is_file())

    @cached_property
    def _inverse(self) -> bool:
        """Whether to add each edge's reverse. Checks the folder's kind."""
        name, inverse = self.root.resolve().name.replace("-", "_"), self._dataset.add_inverse_edge
        _check_folder(self.root, name)
        if inverse is None and name not in _INVERSE:
            raise UserError(
                f"{name} is none of {', '.join(_INVERSE)}: set add_inverse_edge=true if raw contains each undirected edge once, else add_inverse_edge=false"
            )
        return _INVERSE[name] if inverse is None else inverse

    @cached_property
    def _data(self) -> WholeArrays | None:
        """Opens the arrays. Returns None for a folder with tables."""
        if not (self._raw / "data.npz").exists():
            return None
        data = self.opens(self._raw / "data.npz")
        _check_arrays(self._raw, data)
        return data

    @cached_property
    def _tables(self) -> set[str]:
        """The names of the tables. Warns about those that are not read."""
        names = {path.name.removesuffix(".csv.gz") for path in self._raw.glob("*.csv.gz")}
        warn_unread(f"{self._raw}", names - _READ)
        return names

    def open(self, room: Room) -> int:
        _ = self._inverse  # looks at the folder
        counts = read_numbers(self._raw / f"{_NODES}.csv.gz") if self._data is None else self._data["num_nodes_list"]
        if counts.size != 1:
            raise UserError(f"{self._raw} holds {counts.size} graphs: graph labels are unsupported, only node labels")
        return int(counts.item())

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        step, place = max(rows // 2 if self._inverse else rows, 1), str(self._raw)
        first, features = 0, self._rows("edge-feat", "edge_feat")
        for ends, rows_read in itertools.zip_longest(
            self._ends(step), () if features is None else features.pieces(step)
        ):
            if ends is None or (features is not None and len(ends[0]) != (0 if rows_read is None else len(rows_read))):
                raise UserError(f"{place}: the number of edges differs from the number of edge feature rows")
            src, dst = ids("src", ends[0]), ids("dst", ends[1])
            columns = None if rows_read is None else features_of("edge_features", rows_read, len(src))
            if self._inverse:
                # Each reverse follows its edge, as in ogb.
                src, dst = (np.stack(ends, 1).ravel() for ends in ((src, dst), (dst, src)))
                columns = None if columns is None else np.repeat(columns, 2, axis=0)
            yield EdgePiece(place, src, dst, None, columns, list_positions(first, len(src)))
            first += len(src)

    def _ends(self, step: int) -> Iterator[tuple[Array, Array]]:
        if self._data is not None:
            return self.array_ends(self._data, step)
        table = self.numbers(self._raw / "edge.csv.gz")
        if table.shape[1] != 2:
            raise UserError(
                f"{self._raw / 'edge.csv.gz'} has {table.shape[1]} columns, expected source and destination"
            )
        return ((rows[:, 0], rows[:, 1]) for rows in table.pieces(step))

    def array_ends(self, data: Arrays, step: int) -> Iterator[tuple[Array, Array]]:
        """Yields sources and destinations of a folder with arrays."""
        del step
        yield tuple(data["edge_index"])

    def _rows(self, table: str, array: str) -> Rows | None:
        """Opens an optional table, or else an array."""
        if self._data is not None:
            return self._data.rows(array) if array in self._data else None
        return self.numbers(self._raw / f"{table}.csv.gz") if table in self._tables else None

    def numbers(self, path: Path) -> Rows:
        """Opens a table of numbers."""
        return InMemory(read_numbers(path))

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        if self._data is None:
            labels = read_numbers(self._raw / "node-label.csv.gz")
            years = read_numbers(self._raw / f"{YEAR}.csv.gz") if YEAR in self._tables else None
        else:
            years = self._data.optional(YEAR)
            with Arrays(self._raw / "node-label.npz") as arrays:
                labels = arrays["node_label"]
        labels, mapping = _read_labels(labels), self.root / "mapping"
        return NodeFields(
            labels,
            _read_split(self.root / "split", self._dataset.split, num_nodes),
            _read_class_names(mapping, labels),
            _read_mapping(mapping, "nodeidx2*", num_nodes),
            node_time=None if years is None else to_unit("node_year", years, None),
        )

    def features(self, room: Room) -> Iterator[Floats] | None:
        rows = self._rows("node-feat", "node_feat")
        return None if rows is None else rows.pieces(room.rows(int(np.prod(rows.shape[1:]))))


def _check_folder(folder: Path, name: str) -> None:
    """Raises `UserError` for unsupported kinds of folders."""
    raw = folder / "raw"
    for kind, what in (("ogbg", "labels of graphs"), ("ogbl", "pairs of edges kept with pickle")):
        if name.startswith(kind):
            raise UserError(f"{folder} holds {what}, which are unsupported: only data sets of nodes (ogbn) are read")
    if not raw.is_dir():
        raise UserError(f"{folder} has no folder raw: give the folder of one data set, such as dataset/ogbn_arxiv")
    if (raw / "relations").exists() or (raw / "triplet-type-list.csv.gz").exists():
        raise UserError(f"{folder} has several types of nodes or edges, which are not supported yet")


def _check_arrays(raw: Path, data: Arrays) -> None:
    """Checks the shape of `edge_index`, and warns about unread arrays."""
    with data.open("edge_index") as (_, (shape, _, _)):
        pass
    warn_unread(f"{raw / 'data.npz'}", set(data.names) - _KEYS)
    if len(shape) != 2 or shape[0] != 2:
        raise UserError(f"{raw / 'data.npz'}: edge_index has shape {list(shape)}, expected [2, num_edges]")


def _read_labels(stored: Array) -> Array:
    """Reads one class per node, NaN if unlabelled, or several columns of 0 and 1."""
    labels = stored[:, 0] if stored.ndim == 2 and stored.shape[1] == 1 else stored
    if labels.ndim == 2:
        return labels if labels.dtype.kind in "iu" else labels.astype(np.int64)
    return np.where(np.isnan(labels), -1, labels).astype(np.int64) if labels.dtype.kind == "f" else labels


def _read_split(folder: Path, name: str | None, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
    """Reads the node ids of each part of the split."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if name is None and len(names) == 1:
        name = names[0]
    if name is None:
        raise UserError(f"choose one of the splits with split=NAME, there are: {', '.join(names) or 'none'}")
    if name not in names:
        raise unknown(f"split={name}", name, names)
    split = np.zeros(num_nodes, np.int8)
    for part, value in _PARTS.items():
        path = folder / name / f"{part}.csv.gz"
        nodes = read_numbers(path).ravel()
        if nodes.dtype.kind not in "iu" or np.any((nodes < 0) | (nodes >= num_nodes)):
            raise UserError(f"{path} contains ids outside the nodes 0..{num_nodes - 1}")
        if np.any(split[nodes]):
            raise UserError(f"{path}: node {nodes[split[nodes] != 0][0]} is in another part of the split too")
        split[nodes] = value
    return split


def _read_class_names(folder: Path, labels: Array) -> list[str] | None:
    """Reads the class names. Returns None unless every class has a distinct one."""
    if labels.ndim != 1 or not len(labels):
        return None
    names = _read_mapping(folder, "labelidx2*", int(labels.max(initial=-1)) + 1)
    texts = None if names is None else [str(name) for name in names]
    return texts if texts is not None and len(set(texts)) == len(texts) else None


def _read_mapping(folder: Path, pattern: str, count: int) -> Array | None:  # [count]
    """Reads an optional table that maps 0, 1, ... to values."""
    paths = sorted(folder.glob(f"{pattern}.csv.gz"))
    if len(paths) != 1:
        return None
    table = _read_csv(paths[0], as_text=True)
    if table.num_columns != 2 or table.num_rows < count:
        return None
    numbers, values = (narrow_text(column).combine_chunks()[:count] for column in table.columns)
    if not is_consecutive(numbers, 0):
        return None
    return np.array(values.to_pylist(), np.str_) if is_text(values.type) else np.asarray(values.to_numpy())


def read_numbers(path: Path) -> Array:  # [rows, columns]
    """Reads a table of numbers without a header."""
    table = _read_csv(path, as_text=False)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
            raise UserError(f"{path}: column {name[1:]} holds {column.type}, expected numbers")
    is_integer = all(pa.types.is_integer(column.type) and not column.null_count for column in table.columns)
    rows = np.empty((table.num_rows, table.num_columns), np.int64 if is_integer else np.float32)
    for place, column in enumerate(table.columns):
        rows[:, place] = column.cast(pa.int64() if is_integer else pa.float32()).to_numpy()
    return rows


def _read_csv(path: Path, *, as_text: bool) -> pa.Table:
    """Reads a CSV file: text with a header line, or numbers without."""
    check_regular(path)
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=not as_text)
    try:
        reader = pyarrow.csv.open_csv(str(path), read_options=options) if as_text else None
        kinds = dict.fromkeys([] if reader is None else reader.schema.names, pa.string())
        convert = pyarrow.csv.ConvertOptions(column_types=kinds)
        return pyarrow.csv.read_csv(str(path), read_options=options, convert_options=convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return pa.table({})
        raise UserError(f"{path}: {one_line(error)}") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error
