"""A user's own graph: a folder of tables and arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from gnnkit.dataset.base import Dataset, blame
from gnnkit.graph import Floats, Graph, Ids, Split
from gnnkit.storage import Array, read_npy

_SPLITS = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST, "none": Split.NONE, "": Split.NONE}
_Types = dict[str, pa.DataType]


class EdgeFolder(Dataset):
    """A folder with the graph that you have.

    `nodes.csv` or `nodes.parquet`: one row per node, which is then known by its position; columns `id` (whole numbers or
    text), `label` (a class number, or text; empty or -1: none), `split` (train, val, test, none or empty), and numeric
    columns, which are the features unless there is `features.npy` [num_nodes, width].
    `edges.csv`, `edges.parquet` or `edges.npy`: columns `src`, `dst` (ids of nodes), `weight`, and numeric columns, which
    are edge features. An .npy is [num_edges, 2 or more], columns in this order, or has these named fields.
    `coordinates.npy` [num_nodes, 2 or 3]. Only `id`, `src`, `dst` and features are needed. CSV files start with a line of
    names. Errors count rows from 0, without that line.
    """

    def __init__(self, root: str, symmetrize: bool = False, row_normalize: bool = False) -> None:
        self.root = Path(root)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = self._read()
        graph = graph.symmetrize() if self.symmetrize else graph
        return graph.row_normalize() if self.row_normalize else graph

    def _read(self) -> Graph:
        nodes = _Table(_only_file(self.root, "nodes", ("csv", "parquet")))
        ids = nodes.ids()
        # Ids that are text must not be read as numbers; of numbers, those that are none are found below, with their row.
        types = {"src": ids.type, "dst": ids.type} if _is_text(ids.type) else {}
        edges = _Table(_only_file(self.root, "edges", ("csv", "parquet", "npy")), types)
        labels, class_names = nodes.labels()
        coordinates = self.root / "coordinates.npy"
        return Graph.from_edges(
            edges.positions("src", ids),
            edges.positions("dst", ids),
            len(ids),
            features=self._features(nodes),
            labels=labels,
            split=nodes.splits(),
            weight=edges.numbers("weight") if "weight" in edges.names else None,
            edge_features=edges.other_numbers(("src", "dst", "weight")),
            coordinates=read_npy(coordinates) if coordinates.exists() else None,
            class_names=class_names,
        )

    def _features(self, nodes: _Table) -> Array:
        path = self.root / "features.npy"
        columns = nodes.other_numbers(("id", "label", "split"))
        if columns is not None and path.exists():
            raise ValueError(f"features are in {path.name} and in columns of {nodes.path.name}: keep one of them")
        if columns is None and not path.exists():
            raise ValueError(f"no features: neither {path.name} nor numeric columns in {nodes.path.name}")
        return read_npy(path) if columns is None else columns


class _Table:
    """The columns of a file; errors name file, column and row."""

    def __init__(self, path: Path, types: _Types | None = None) -> None:
        self.path = path
        try:
            self._table = _READERS[path.suffix](path, types or {})
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path.name}: {error}") from None
        self.names: list[str] = self._table.column_names
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"{path.name} has two columns {name!r}")

    def ids(self) -> pa.Array:  # [num_nodes] int64 or string, distinct
        column = self._column("id")
        if not len(column):
            raise ValueError(f"{self.path.name} has no rows")
        if pa.types.is_integer(column.type):
            ids = self._cast("id", pa.int64())
        elif _is_text(column.type):
            ids = column.cast(pa.string())
        else:
            raise ValueError(f"{self._place('id')} holds {column.type}, expected whole numbers or text")
        self._refuse_nulls("id", ids)
        first = pc.index_in(ids, value_set=ids).to_numpy()
        self._refuse("id", first != np.arange(len(ids)), ids, "occurs a second time")
        return ids

    def positions(self, name: str, ids: pa.Array) -> Ids:  # [rows]
        """The position of each id of a column among the nodes."""
        column = self._cast(name, ids.type)
        self._refuse_nulls(name, column)
        found = pc.index_in(column, value_set=ids)
        self._refuse(name, found.is_null().to_numpy(zero_copy_only=False), column, "is no id of a node")
        return np.asarray(found.to_numpy())

    def labels(self) -> tuple[Ids | None, list[str] | None]:
        """Class numbers [num_nodes], -1 where there is none, and the names of the classes where labels are text."""
        if "label" not in self.names:
            return None, None
        column = self._column("label")
        if _is_text(column.type):
            column = column.cast(pa.string())
            names = sorted(set(pc.unique(column).to_pylist()) - {"", None})
            return pc.index_in(column, value_set=pa.array(names, pa.string())).fill_null(-1).to_numpy(), names
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise ValueError(f"{self._place('label')} holds {column.type}, expected whole numbers or text")
        labels = self._cast("label", pa.int64()).fill_null(-1)
        self._refuse("label", labels.to_numpy() < -1, labels, "is no class and not -1")
        return labels.to_numpy(), None

    def splits(self) -> npt.NDArray[np.int8] | None:  # [num_nodes]
        if "split" not in self.names:
            return None
        words = self._cast("split", pa.string()).fill_null("")
        found = pc.index_in(words, value_set=pa.array(_SPLITS, pa.string()))
        bad = found.is_null().to_numpy(zero_copy_only=False)
        self._refuse("split", bad, words, "is none of train, val, test, none")
        return np.asarray(np.array(list(_SPLITS.values()), np.int8)[found.to_numpy()])

    def numbers(self, name: str) -> Floats:  # [rows] finite
        column = self._column(name)
        kind = column.type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or not len(column)
        ):
            raise ValueError(f"{self._place(name)} holds {kind}, expected numbers")
        self._refuse_nulls(name, column)
        values = column.cast(pa.float64()) if not pa.types.is_floating(kind) else column
        numbers = values.to_numpy()
        self._refuse(name, ~np.isfinite(numbers), values, "is not finite")
        return np.asarray(numbers)

    def other_numbers(self, known: tuple[str, ...]) -> Floats | None:  # [rows, columns] float32
        """All columns but the known ones; None if there are no others."""
        others = [name for name in self.names if name not in known]
        if not others:
            return None
        numbers = np.empty((self._table.num_rows, len(others)), np.float32)
        for column, name in enumerate(others):
            numbers[:, column] = self.numbers(name)
        return numbers

    def _column(self, name: str) -> pa.Array:
        if name not in self.names:
            raise ValueError(f"{self.path.name} has no column {name!r}, only {', '.join(map(repr, self.names))}")
        column = self._table.column(name)
        return (column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column).combine_chunks()

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self._column(name)
        try:
            return column.cast(kind)
        except pa.ArrowException:
            row = _first_misfit(column, kind)
            raise ValueError(f"{self._place(name)}, row {row}: {column[row].as_py()!r} is no {kind}") from None

    def _refuse_nulls(self, name: str, column: pa.Array) -> None:
        self._refuse(name, column.is_null().to_numpy(zero_copy_only=False), None, "is empty")

    def _refuse(self, name: str, bad: npt.NDArray[np.bool_], column: pa.Array | None, why: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            value = "" if column is None else f"{column[int(rows[0])].as_py()!r} "
            raise ValueError(f"{self._place(name)}, row {rows[0]}: {value}{why}")

    def _place(self, name: str) -> str:
        return f"{self.path.name}, column {name!r}"


def _only_file(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path:
    if not folder.is_dir():
        raise ValueError("no such folder")
    paths = [path for suffix in suffixes if (path := folder / f"{name}.{suffix}").is_file()]
    if len(paths) != 1:
        found = " and ".join(path.name for path in paths) or "none"
        raise ValueError(f"needs one of {', '.join(f'{name}.{suffix}' for suffix in suffixes)}, found {found}")
    return paths[0]


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    """The first row that cannot be cast, by bisection; there must be one."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowException:
            high = middle
    return low


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _read_csv(path: Path, types: _Types) -> pa.Table:
    return pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))


def _read_parquet(path: Path, _: _Types) -> pa.Table:
    return pyarrow.parquet.read_table(path)


def _read_array(path: Path, _: _Types) -> pa.Table:
    array = read_npy(path)
    if array.dtype.names:
        return pa.table({name: np.ascontiguousarray(array[name]) for name in array.dtype.names})
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(f"{path.name} has shape {list(array.shape)}, expected [num_edges, 2 or more]")
    names = ["src", "dst", "weight", *(f"feature {number}" for number in range(array.shape[1] - 3))]
    return pa.table({name: np.ascontiguousarray(column) for name, column in zip(names, array.T, strict=False)})


_READERS: dict[str, Callable[[Path, _Types], Any]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".npy": _read_array,
}
