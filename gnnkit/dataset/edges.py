"""A user's own graph: a folder of tables and arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from gnnkit.checks import one_line, whole
from gnnkit.dataset.base import Dataset, blame
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Floats, Graph, Ids, Labels
from gnnkit.storage import Array, check_regular, read_npy

_MAX_COLUMNS = 16_384  # of a table. Wider features belong into features.npy
_MAX_HEADER = 1 << 24  # bytes of a CSV's line of names that are looked at
_Types = dict[str, pa.DataType]


class EdgeFolder(Dataset):
    """A graph of your own: a folder of tables and arrays.

    Only the edges are needed.

    `edges.csv`, `edges.parquet` or `edges.npy` has columns `src`, `dst` and optionally
    `weight`. Further columns must be numeric and are edge features. An .npy is
    [2, num_edges], or has these named fields.

    `nodes.csv` or `nodes.parquet` has a column `id` of whole numbers or text. A column
    `label` holds class numbers or names, empty or -1 for none. Decimal fractions are
    numbers to predict, empty for none. A name may join several with semicolons, as in
    `a;b`, which `task=multilabel` reads as two classes. A column `split` holds train,
    val, test, none or nothing. Both are optional. Further columns must be numeric and
    are features. Nodes are numbered in the order of this table, or by `sort_ids` in
    ascending order of the ids. Without the table, ids are 0, 1, ... and there are no
    labels.

    `features.npy` is [num_nodes, width], `coordinates.npy` [num_nodes, 2 or 3].
    `labels.npy` may take the place of the column `label`, in any form of
    `Graph.labels`.

    CSV files start with a line of names. Errors count rows from 0, after this line.
    Tables have at most 16,384 columns.
    """

    def __init__(
        self,
        root: str,
        symmetrize: bool = False,
        row_normalize: bool = False,
        num_nodes: int | None = None,
        sort_ids: bool = False,
    ) -> None:
        """Keeps the options.

        Args:
            root: the folder.
            symmetrize: add the reverse edges that are missing. Default: no.
            row_normalize: divide each node's features by the sum. Default: no.
            num_nodes: number of nodes, if no table holds the nodes. Default: the number
                of rows of features.npy, or else one more than the largest id. An id of
                1,000,000 or more is then refused if there are fewer than id / 16 edges.
            sort_ids: number the nodes in ascending order of the ids, whole numbers by
                value and text by code points. Default: in the order of the table.
        """
        self.root = Path(root)
        self.num_nodes = None if num_nodes is None else whole("dataset.num_nodes", num_nodes, 1)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize
        self.sort_ids = sort_ids

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = self._read()
        graph = graph.symmetrize() if self.symmetrize else graph
        return graph.row_normalize() if self.row_normalize else graph

    def _read(self) -> Graph:
        if not self.root.is_dir():
            raise UserError("is not a folder")
        path = _file(self.root, "nodes", ("csv", "parquet"))
        nodes = _Table(path) if path else None
        if nodes is None and self.sort_ids:
            raise UserError("holds no nodes.csv or nodes.parquet, whose ids dataset.sort_ids=true would sort")
        if path and self.num_nodes is not None:
            raise UserError(f"{path.name} says how many nodes there are, so dataset.num_nodes={self.num_nodes} must go")
        ids = nodes.ids() if nodes else None
        path = _file(self.root, "edges", ("csv", "parquet", "npy"))
        if path is None:
            raise UserError("holds no edges.csv, edges.parquet or edges.npy")
        # Ids that are text must not be read as numbers. Numbers are checked below.
        edges = _Table(path, {"src": ids.type, "dst": ids.type} if ids is not None and _is_text(ids.type) else {})
        labels, class_names = self._labels(nodes)
        graph = Graph.from_edges(
            edges.positions("src", ids),
            edges.positions("dst", ids),
            self.num_nodes if ids is None else len(ids),
            features=self._features(nodes),
            labels=labels,
            split=nodes.splits() if nodes else None,
            weight=edges.numbers("weight") if "weight" in edges.names else None,
            edge_features=edges.other_numbers(("src", "dst", "weight")),
            coordinates=self._array("coordinates"),
            class_names=class_names,
        )
        if ids is None or not self.sort_ids:
            return graph
        named = replace(graph, node_ids=np.array(ids.to_pylist()) if _is_text(ids.type) else ids.to_numpy())
        return named.renumber(pc.sort_indices(ids).to_numpy())

    def _features(self, nodes: _Table | None) -> Array | None:
        array = self._array("features")
        columns = nodes.other_numbers(("id", "label", "split")) if nodes else None
        if nodes and columns is not None and array is not None:
            raise UserError(f"features.npy and {nodes.path.name} both hold features")
        return array if columns is None else columns

    def _labels(self, nodes: _Table | None) -> tuple[Labels | None, list[str] | None]:
        array = self._array("labels")
        labels, names = nodes.labels() if nodes else (None, None)
        if nodes and labels is not None and array is not None:
            raise UserError(f"labels.npy and {nodes.path.name} both hold labels")
        return (array, None) if labels is None else (labels, names)

    def _array(self, name: str) -> Array | None:
        path = self.root / f"{name}.npy"
        return read_npy(path) if _exists(path) else None


class _Table:
    """The columns of a file. Errors name file, column and row."""

    def __init__(self, path: Path, types: _Types | None = None) -> None:
        """Reads the file. `types` fixes the types of some columns."""
        self.path = path
        check_regular(path)
        try:
            self._table = _READERS[path.suffix](path, types or {})
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path.name}: {one_line(error)}") from error
        self.names: list[str] = self._table.column_names
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise UserError(f"{path.name} has two columns {name!r}")
            seen.add(name)

    def ids(self) -> pa.Array:  # [num_nodes] int64 or string, distinct
        column = self._column("id")
        if not len(column):
            raise UserError(f"{self.path.name} has no rows")
        if pa.types.is_integer(column.type):
            ids = self._cast("id", pa.int64())
        elif _is_text(column.type):
            ids = column.cast(pa.string())
        else:
            raise UserError(f"{self._place('id')} holds {column.type}, expected whole numbers or text")
        self._refuse_nulls("id", ids)
        first = pc.index_in(ids, value_set=ids).to_numpy()
        self._refuse("id", first != np.arange(len(ids)), ids, "occurs a second time")
        return ids

    def positions(self, name: str, ids: pa.Array | None) -> Ids:  # [rows]
        """Finds the position in `ids` of each entry of a column.

        Without `ids`, entries are positions.
        """
        column = self._cast(name, pa.int64() if ids is None else ids.type)
        self._refuse_nulls(name, column)
        if ids is None:
            return np.asarray(column.to_numpy())
        found = pc.index_in(column, value_set=ids)
        self._refuse(name, found.is_null().to_numpy(zero_copy_only=False), column, "is no id of a node")
        return np.asarray(found.to_numpy())

    def labels(self) -> tuple[Labels | None, list[str] | None]:
        """Reads class numbers [num_nodes], -1 for none, and names of text classes.

        Reads floating-point numbers as they are, NaN for none.
        """
        if "label" not in self.names:
            return None, None
        column = self._column("label")
        if _is_text(column.type):
            column = column.cast(pa.string())
            names = sorted(set(pc.unique(column).to_pylist()) - {"", None})
            return pc.index_in(column, value_set=pa.array(names, pa.string())).fill_null(-1).to_numpy(), names
        if pa.types.is_floating(column.type):
            return column.to_numpy(zero_copy_only=False), None
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise UserError(f"{self._place('label')} holds {column.type}, expected numbers or text")
        labels = self._cast("label", pa.int64()).fill_null(-1)
        self._refuse("label", labels.to_numpy() < -1, labels, "is no class and not -1")
        return labels.to_numpy(), None

    def splits(self) -> npt.NDArray[np.int8] | None:  # [num_nodes]
        if "split" not in self.names:
            return None
        words = self._cast("split", pa.string()).fill_null("")
        found = pc.index_in(words, value_set=pa.array(SPLITS, pa.string()))
        bad = found.is_null().to_numpy(zero_copy_only=False)
        self._refuse("split", bad, words, "is none of train, val, test, none")
        return np.asarray(np.array(list(SPLITS.values()), np.int8)[found.to_numpy()])

    def numbers(self, name: str) -> Floats:  # [rows] finite
        column = self._column(name)
        kind = column.type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or not len(column)
        ):
            raise UserError(f"{self._place(name)} holds {kind}, expected numbers")
        self._refuse_nulls(name, column)
        values = column.cast(pa.float64()) if not pa.types.is_floating(kind) else column
        numbers = values.to_numpy()
        self._refuse(name, ~np.isfinite(numbers), values, "is not finite")
        return np.asarray(numbers)

    def other_numbers(self, known: tuple[str, ...]) -> Floats | None:  # [rows, columns] float32
        """Reads all columns but the known ones. Returns None if there are no others."""
        others = [name for name in self.names if name not in known]
        if not others:
            return None
        numbers = np.empty((self._table.num_rows, len(others)), np.float32)
        for column, name in enumerate(others):
            exact = self.numbers(name)
            with np.errstate(over="ignore"):  # found below
                numbers[:, column] = exact
            self._refuse(name, ~np.isfinite(numbers[:, column]), exact, "is too large for float32")
        return numbers

    def _column(self, name: str) -> pa.Array:
        if name not in self.names:
            shown = [*map(repr, self.names[:20]), *(["..."] if len(self.names) > 20 else [])]
            raise UserError(f"{self.path.name} has no column {name!r}, only {', '.join(shown)}")
        column = self._table.column(name)
        return (column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column).combine_chunks()

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self._column(name)
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            row = _first_misfit(column, kind)
            raise UserError(f"{self._place(name)}, row {row}: {column[row].as_py()!r} is no {kind}") from error

    def _refuse_nulls(self, name: str, column: pa.Array) -> None:
        self._refuse(name, column.is_null().to_numpy(zero_copy_only=False), None, "is empty")

    def _refuse(self, name: str, bad: npt.NDArray[np.bool_], column: pa.Array | Floats | None, why: str) -> None:
        """Raises `UserError` with the first bad row, the value and `why`.

        Args:
            name: Name of the column.
            bad: [rows] whether a row is bad.
            column: Values of the rows, or None.
            why: End of the message.
        """
        rows = np.flatnonzero(bad)
        if len(rows):
            value = "" if column is None else f"{_plain(column[int(rows[0])])!r} "
            raise UserError(f"{self._place(name)}, row {rows[0]}: {value}{why}")

    def _place(self, name: str) -> str:
        return f"{self.path.name}, column {name!r}"


def _file(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    paths = [path for suffix in suffixes if _exists(path := folder / f"{name}.{suffix}")]
    if len(paths) > 1:
        raise UserError(f"holds both {paths[0].name} and {paths[1].name}")
    return paths[0] if paths else None


def _exists(path: Path) -> bool:
    """Says whether there is a file or a link of this name, even a broken link."""
    return path.exists() or path.is_symlink()


def _plain(value: Any) -> object:
    """Returns the Python object of an entry of a column or an array."""
    return value.as_py() if isinstance(value, pa.Scalar) else value.item()


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    """Finds the first row that cannot be cast, by bisection. There must be one."""
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


def _check_width(path: Path, num_columns: int) -> None:
    """Refuses a table whose columns would take minutes to read."""
    if num_columns > _MAX_COLUMNS:
        raise UserError(
            f"{path.name} has {num_columns} columns or more, at most {_MAX_COLUMNS} are read: "
            "put wide features into features.npy"
        )


def _read_csv(path: Path, types: _Types) -> pa.Table:
    with path.open("rb") as file:
        _check_width(path, file.readline(_MAX_HEADER).count(b",") + 1)
    return pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))


def _read_parquet(path: Path, _: _Types) -> pa.Table:
    _check_width(path, pyarrow.parquet.read_metadata(path).num_columns)
    return pyarrow.parquet.read_table(path)


def _read_array(path: Path, _: _Types) -> pa.Table:
    array = read_npy(path)
    if array.dtype.names:
        return pa.table({name: np.ascontiguousarray(array[name]) for name in array.dtype.names})
    if array.ndim != 2 or len(array) != 2:
        raise UserError(f"{path.name} has shape {list(array.shape)}, expected [2, num_edges] or named fields")
    return pa.table({"src": np.ascontiguousarray(array[0]), "dst": np.ascontiguousarray(array[1])})


_READERS: dict[str, Callable[[Path, _Types], Any]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".npy": _read_array,
}
