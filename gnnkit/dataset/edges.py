"""A user's own folder of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.dataset.base import Dataset, blame
from gnnkit.graph import Floats, Graph, Ids, Split
from gnnkit.storage import read_npy

_SPLITS = {"none": Split.NONE, "": Split.NONE, "train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST}


class EdgeFolder(Dataset):
    """Edges, nodes and features as tables: the way in for a graph of your own.

    `edges.csv`, `edges.parquet` (columns src, dst, optionally weight; every further column is an edge feature) or `edges.npy`
    [2, num_edges]. `nodes.csv` or `nodes.parquet` (optional: columns id, label, split; every further column is a feature): node
    ids may be any integers or strings, and nodes are numbered in the order of that table. Without it ids are 0, 1, ...
    `split` is train, val, test or none; an empty label or -1 is none. `features.npy` [num_nodes, width] (optional).
    """

    def __init__(self, root: str, symmetrize: bool = False, row_normalize: bool = False) -> None:
        self.root = Path(root)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            if not self.root.is_dir():
                raise ValueError("is not a folder")
            graph = self._read()
        graph = graph.symmetrize() if self.symmetrize else graph
        return graph.row_normalize() if self.row_normalize else graph

    def _read(self) -> Graph:
        nodes = _Table.find(self.root, "nodes")
        src, dst, weight, edge_features = self._edges()
        labels = split = features = None
        num_nodes = None
        if nodes is not None:
            ids = nodes.column("id")
            src, dst = _numbered(ids, src, "src", nodes.path), _numbered(ids, dst, "dst", nodes.path)
            num_nodes, labels, split = len(ids), nodes.labels(), nodes.splits()
            features = nodes.numbers(exclude=("id", "label", "split"))
        path = self.root / "features.npy"
        if path.exists():
            if features is not None:
                raise ValueError(f"{path.name} and {nodes and nodes.path.name} both hold features")
            features = read_npy(path)
            with blame(path.name):
                if features.ndim != 2 or (num_nodes is not None and len(features) != num_nodes):
                    raise ValueError(f"has shape {features.shape}, expected ({num_nodes or 'num_nodes'}, width)")
        return Graph.from_edges(
            src,
            dst,
            num_nodes,
            features=features,
            labels=labels,
            split=split,
            weight=weight,
            edge_features=edge_features,
        )

    def _edges(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats | None, Floats | None]:
        path = self.root / "edges.npy"
        if path.exists():
            array = read_npy(path)
            if array.ndim != 2 or len(array) != 2:
                raise ValueError(f"{path.name} has shape {array.shape}, expected (2, num_edges)")
            return array[0], array[1], None, None
        table = _Table.find(self.root, "edges")
        if table is None:
            raise ValueError("holds no edges.csv, edges.parquet or edges.npy")
        weight = table.number("weight") if "weight" in table.names else None
        return table.column("src"), table.column("dst"), weight, table.numbers(exclude=("src", "dst", "weight"))


class _Table:
    """A CSV or Parquet file, whose errors name it, the column and the row (0 is the first after the header)."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        self.path = path
        read = pyarrow.csv.read_csv if path.suffix == ".csv" else pyarrow.parquet.read_table
        try:
            self._table = read(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path.name}: {str(error).splitlines()[0]}") from None
        self.names: list[str] = self._table.column_names

    @classmethod
    def find(cls, folder: Path, stem: str) -> _Table | None:
        """The table of that name, in either format."""
        paths = [path for suffix in (".csv", ".parquet") if (path := folder / f"{stem}{suffix}").exists()]
        if len(paths) > 1:
            raise ValueError(f"holds both {paths[0].name} and {paths[1].name}")
        return cls(paths[0]) if paths else None

    def column(self, name: str) -> npt.NDArray[Any]:  # [num_rows]
        """The values, none missing."""
        if name not in self.names:
            raise ValueError(f"{self.path.name} has no column {name}; there are: {', '.join(self.names)}")
        column = self._table[name]
        if column.null_count:
            row = np.flatnonzero(np.asarray(column.is_null()))[0]
            raise ValueError(f"{self.path.name}: column {name}, row {row} is empty")
        return np.asarray(column)

    def number(self, name: str) -> Floats:  # [num_rows] float64
        """A column of finite numbers."""
        values = self.column(name)
        if values.dtype.kind not in "iufb":
            raise ValueError(f"{self.path.name}: column {name} holds {values.dtype}, expected numbers")
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise ValueError(f"{self.path.name}: column {name}, row {bad[0]} = {values[bad[0]]} is not finite")
        return values.astype(np.float64)

    def numbers(self, exclude: tuple[str, ...]) -> Floats | None:  # [num_rows, width] float32
        """All other columns; None if there is none."""
        names = [name for name in self.names if name not in exclude]
        return np.stack([self.number(name) for name in names], axis=1).astype(np.float32) if names else None

    def labels(self) -> Ids | None:  # [num_rows] int64
        """Whole numbers, -1 where the column is empty."""
        if "label" not in self.names:
            return None
        from pyarrow import types

        column = self._table["label"]
        if not (types.is_integer(column.type) or types.is_null(column.type)):
            raise ValueError(f"{self.path.name}: column label holds {column.type}, expected whole numbers")
        values = np.asarray(column.cast("int64").fill_null(-1))
        bad = np.flatnonzero(values < -1)
        if len(bad):
            raise ValueError(f"{self.path.name}: column label, row {bad[0]} = {values[bad[0]]} is below -1")
        return values

    def splits(self) -> npt.NDArray[np.int8] | None:  # [num_rows]
        """The words of column split."""
        if "split" not in self.names:
            return None
        words = self._table["split"].cast("string").fill_null("").to_pylist()
        for row, word in enumerate(words):
            if word not in _SPLITS:
                raise ValueError(
                    f"{self.path.name}: column split, row {row} = {word!r} is not train, val, test or none"
                )
        return np.array([_SPLITS[word] for word in words], np.int8)


def _numbered(ids: npt.NDArray[Any], ends: npt.NDArray[Any], name: str, path: Path) -> Ids:
    """The rows of the node table that edges name, by one sort of its ids."""
    if (ids.dtype.kind in "iu") != (ends.dtype.kind in "iu"):
        raise ValueError(f"column {name} of the edges holds {ends.dtype}, column id of {path.name} {ids.dtype}")
    ids, ends = (x if x.dtype.kind in "iu" else x.astype(str) for x in (ids, ends))
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise ValueError(f"{path.name}: column id, row {order[twice[0] + 1]} = {ordered[twice[0]]} is there twice")
    place = np.minimum(np.searchsorted(ordered, ends), max(len(ids) - 1, 0))
    unknown = np.flatnonzero(ordered[place] != ends) if len(ids) else np.arange(len(ends))
    if len(unknown):
        row = unknown[0]
        raise ValueError(f"edges: column {name}, row {row} = {ends[row]} is not an id of {path.name}")
    return order[place].astype(np.int64)
