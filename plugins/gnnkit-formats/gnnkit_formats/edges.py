"""A user's graph in a folder with tables and arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.dataset.base import Dataset, name_list, warn_unlabelled
from gnnkit.errors import UserError
from gnnkit.graph import Graph, read_split
from gnnkit.graph.cells import read_missing
from gnnkit.graph.labels import settle_labels
from gnnkit.graph.types import Fields
from gnnkit.graph.unfit_columns import IgnorableColumns, UnfitColumns
from gnnkit.utils.checks import whole
from gnnkit.utils.ranges import local_path, one_of, shown, switch
from gnnkit.utils.storage import Array, read_npy
from gnnkit_formats.column_table import CSV_FORMS, require
from gnnkit_formats.columns import Columns, TableInMemory
from gnnkit_formats.duplicates import DUPLICATES, FIRST, KEEP
from gnnkit_formats.id_columns import USERS_AND_ITEMS
from gnnkit_formats.pieces import Room, read_whole
from gnnkit_formats.table_files import (
    PART_NAME,
    PARTS_MARKER,
    file_exists,
    find_table,
    form_of,
    is_unsupported,
    parts_of,
    read_table,
)
from gnnkit_formats.table_graph import (
    ONE,
    GraphTables,
    TableGraph,
    TableNames,
    leave_out_index,
    list_unfit,
)

NODES = (*CSV_FORMS, "parquet")  # formats of a node table
TABLES = (*NODES, "npy")  # formats of an edge table
ARRAYS = ("features", "labels", "split", "coordinates")  # .npy files with one row per node
_ENDS = ("src", "dst")  # default columns of an edge's ends
_NAMED = 8  # tables listed in a message
NUMBERS_HINT = "; use dataset.num_nodes=N if all numbers from 0 to N-1 are nodes"
RENAME_HINT = "rename the column to read it"  # hint appended to the warning about a skipped index column
_ONE_WAY = (
    "dataset.bipartite=true: dataset.symmetrize=true would add edges from items to users to the relation; remove it, "
    "because relational models read edges in both directions"
)


class EdgeFolder(Dataset):
    """A user's graph: a folder with tables and arrays. Only edges are required.

    `edges.csv`, `edges.parquet` or `edges.npy` has columns `src` and `dst`, and
    optionally `weight` and `type`, the name or number of the edge's relation. Other
    columns are edge features. They are read like node features, but must not have
    missing cells. An .npy file has shape [2, num_edges] or [num_edges, 2] (2 x 2 is
    read as the former), or these named fields. Instead, a folder `edges` may hold one
    file per relation. The file name is the relation's name, and all files have the same
    columns.

    `edges.parquet` and `nodes.parquet` may be folders of parts, as Spark, Dask and
    DuckDB write them. So may `edges` if it contains a file `_SUCCESS` or if all file
    names look like `part-0.parquet` or `data_0.parquet`. Parts are read in numerical
    order.

    `nodes.csv` or `nodes.parquet` has a column `id` of integers or text. The optional
    column `label` holds class numbers or names, empty or -1 for unlabelled nodes. If a
    number has leading zeros, such as 01, all are names. Decimal fractions are
    regression targets, empty if unlabelled. A name may join several classes with
    semicolons, such as `a;b`, which `task=multilabel` reads as two classes. The
    optional column `split` holds train, val, test, none or an empty cell. Instead,
    `train_mask`, `val_mask` and `test_mask` may hold true and false. Other columns are
    features: numbers, numbers written as text ("1,5", "$1", "10%"), dates (as seconds
    since 1970), durations, or text with few distinct values, each of which becomes a
    column. Words such as `unknown`, listed in the argument `missing`, count as empty
    cells. `features.fill` replaces empty cells and NaN, in `features.npy` too.

    Nodes are numbered in table order, or in ascending id order with `sort_ids`. Without
    a node table there are no labels, and the distinct ids of edges are the nodes:
    integers in ascending order, text in code point order. With `num_nodes` or an array
    of nodes, integers are node numbers 0, 1, ...

    `features.npy` has shape [num_nodes, width], `coordinates.npy` [num_nodes, 2 or 3].
    `labels.npy` may replace the column `label`, in any format that `Graph.labels`
    accepts. `split.npy` may replace the column `split`, with names or codes for
    `Split.of`.

    In a table with users and items, both columns' ids are separate, and become two
    node types, named after the columns. Columns `user` and `item`, `user_id` and
    `item_id`, or `userId` and `itemId` are recognised; otherwise set `bipartite`.

    The arguments `edges` and `nodes` name other files, and `src`, `dst`, `id` and
    `label` other columns. `ignore` lists columns of either table that are skipped.

    Ids are 64-bit integers, integral floating-point numbers below 2^53, or text. Blanks
    around text are ignored. Text matches a number only if it is written like the
    number, so `007` is not 7. Empty ids and words for missing values are rejected.
    Index columns of data frames are not features.

    CSV files are UTF-8 with a header line, and may be compressed, such as
    `edges.csv.gz`. Cells are divided by commas, tabs (also in `edges.tsv`) or
    semicolons, as the header is. A last name `comma_separated_list_of_features` stands
    for all further cells, as in the files of the Temporal Graph Benchmark. Errors count
    rows from 0 after the header. Tables have at most 16,384 columns.

    Args:
        root: The folder.
        symmetrize: Add missing reverse edges. Default: no, with a warning if few edges
            have a reverse edge.
        row_normalize: Divide each node's features by their sum. Default: no.
        num_nodes: Number of nodes, if there is no node table and ids are 0 to
            num_nodes - 1. Default: the number of rows of features.npy, or else the
            number of distinct ids.
        sort_ids: Number nodes in ascending id order, integers by value and text by code
            points. Default: in table order.
        split: Shares of the labelled nodes for training, validation and test, if the
            data has no split. Or `{by: time, shares: [0.7,0.15,0.15]}`, or by time with
            `borders: [2020-01-31,2020-06-30]`, the times of the first validation and
            the first test row, which also split edges. Default: no split is drawn.
        seed: Seed of this split.
        edges: File name of the edge table. Default: edges.csv, edges.parquet, edges.npy
            or a folder edges.
        nodes: File name of the node table. Default: nodes.csv, nodes.parquet or a
            folder nodes.
        src: Name of the column `src`.
        dst: Name of the column `dst`.
        id: Name of the column `id`.
        label: Name of the column `label`.
        time: Column of times, of one table or both: integers, also as 1.0, or dates,
            which are read exactly and are no features. Two names if the tables differ.
            Default: a column of integers or dates that is named `time`, `timestamp`,
            `t` or similarly. `[]` reads none.
        ignore: Columns of either table that are not features.
        missing: Words that mark missing values in text, ignoring case and surrounding
            blanks, and numbers that mark them in all columns. They replace the default:
            `#N/A`, `-`, `<NA>`, `?`, `\\N`, `missing`, `n/a`, `NA`, `nan`, `nil`,
            `none`, `null` and `unknown`. Empty cells are always missing.
        duplicates: How to handle edges with the same ends and type. `keep` keeps them
            as parallel edges. `refuse` raises an error. `first` keeps the first row,
            for nodes with the same id too. `sum` and `mean` combine weights and
            features, and an edge without weight counts as 1 in a sum. Without `first`,
            duplicate node ids are an error.
        edge_label: Column of labels of edges, read like `label`, for
            `task=edge_classification` and `task=edge_regression`. A column `split` of
            the edge table then divides the edges. Default: edges have no labels.
        bipartite: Whether sources and destinations are two node types, whose ids are
            separate, and there is no node table. Default: for columns of users and
            items, with a hint if no source is a destination, and an error if integer
            ids of columns that name different things overlap.
    """

    def __init__(
        self,
        root: str,
        symmetrize: bool | None = None,
        row_normalize: bool = False,
        num_nodes: int | None = None,
        sort_ids: bool = False,
        split: Sequence[float] | Mapping[str, Any] | None = None,
        seed: int = 0,
        edges: str | None = None,
        nodes: str | None = None,
        src: str = "src",
        dst: str = "dst",
        id: str = "id",
        label: str = "label",
        time: str | Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        missing: Sequence[str | float] | None = None,
        duplicates: str = KEEP,
        bipartite: bool | None = None,
        edge_label: str | None = None,
    ) -> None:
        self.edge_label = edge_label
        self.bipartite = None if bipartite is None else switch("dataset.bipartite", bipartite)
        if bipartite and symmetrize:
            raise UserError(_ONE_WAY)
        self.root = local_path("dataset.root", root)
        self.num_nodes = None if num_nodes is None else whole("dataset.num_nodes", num_nodes, 1)
        self.symmetrize, self.row_normalize, self.sort_ids = symmetrize, row_normalize, sort_ids
        self.split = read_split("dataset.split", split)
        self.seed = whole("dataset.seed", seed, 0)
        self._tables = {"edges": edges, "nodes": nodes}
        for key, name in self._tables.items():
            if name is not None and Path(name).name != name:
                raise UserError(f"dataset.{key}={shown(name)} must be the name of a file or folder in dataset.root")
        self.ends, self.id, self.label = (src, dst), id, label
        self.time = None if time is None else name_list("dataset.time", time)
        self.ignore = name_list("dataset.ignore", ignore)
        self.missing = read_missing("dataset.missing", missing)
        self.duplicates = one_of("dataset.duplicates", duplicates, DUPLICATES)

    def load(self) -> Graph:
        return read_whole(FolderGraph(self))

    def check_ignored(self, names: Mapping[str, Sequence[str]]) -> None:
        """Raises `UserError` for an ignored column that no table has.

        Args:
            names: Columns of each table.
        """
        for name in self.ignore:
            if not any(name in of_table for of_table in names.values()):
                held = " or ".join(list(names)[:2])
                raise UserError(f"dataset.ignore={shown(list(self.ignore))}: no column {name!r} in {held}")

    def array(self, name: str) -> Array | None:
        """Maps an .npy file from the folder, or returns None."""
        path = self.root / f"{name}.npy"
        return read_npy(path) if file_exists(path) else None

    def user_and_item(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Returns the id columns of users and items, if they are read without a key.

        Args:
            names: The table's columns.
        """
        if self.ends != _ENDS or not set(names).isdisjoint(_ENDS):
            return None
        return next((pair for pair in USERS_AND_ITEMS if set(names).issuperset(pair)), None)

    def edge_tables(self) -> dict[str, Path]:
        """Returns edge tables by relation, or a single table under the name `ONE`."""
        path = self.table("edges", TABLES)
        if path is None:
            raise UserError(
                "holds no edges.csv, edges.parquet or edges.npy, and no folder edges; use dataset.edges=NAME and "
                f"dataset.nodes=NAME to select from {self._list_tables()}"
            )
        return {ONE: path} if parts_of(path) or not path.is_dir() else self._tables_by_relation(path)

    def _tables_by_relation(self, path: Path) -> dict[str, Path]:
        """Returns a folder's tables, with one table per relation."""
        tables = sorted(file for file in path.iterdir() if form_of(file) in TABLES)
        if unread := sorted(file.name for file in path.iterdir() if is_unsupported(file, TABLES)):
            raise UserError(f"holds {path.name}/{unread[0]}, whose format is unsupported; use .{', .'.join(TABLES)}")
        relations = sorted({file.name.removesuffix(f".{form_of(file)}") for file in tables})
        if not relations:
            raise UserError(f"the folder {path.name} holds no .csv, .parquet or .npy file; expected one per relation")
        if parts := [file.name for file in tables if PART_NAME.fullmatch(file.name)]:
            raise UserError(
                f"the folder {path.name} mixes parts, such as {parts[0]}, with other tables; add a file {PARTS_MARKER} if "
                "all are parts of one table, or rename the parts if each table is a relation"
            )
        files = {relation: find_table(path, relation, TABLES) for relation in relations}
        return {relation: file for relation, file in files.items() if file is not None}

    def table(self, key: str, suffixes: tuple[str, ...]) -> Path | None:
        """Returns a table's file, or the folder of its parts or relations, or None.

        Raises `UserError` if there are two, or if a configured file is missing.

        Args:
            key: edges or nodes.
            suffixes: Supported file endings.
        """
        file_name = self._tables[key]
        if file_name is None:
            path, folder = find_table(self.root, key, suffixes), self.root / key
            if path not in (None, folder) and folder.is_dir() and key == "edges":
                raise UserError(f"holds both {path.name} and a folder edges: remove or rename one of them")
            if path is None and folder.is_dir() and key == "edges":
                return folder
            if path is None and (unread := self._find_unsupported(key, suffixes)):
                read = ", ".join(f"{key}.{suffix}" for suffix in suffixes)
                raise UserError(f"holds {unread}, whose format is unsupported; use {read}")
            return path
        path = self.root / file_name
        if not file_exists(path):
            raise UserError(f"dataset.{key}={file_name}: no such file in dataset.root, which has {self._list_tables()}")
        if not path.is_dir() and form_of(path) not in suffixes:
            raise UserError(f"dataset.{key}={file_name} must end in .{', .'.join(suffixes)}")
        return path

    def _find_unsupported(self, key: str, forms: Sequence[str]) -> str | None:
        """Names a node or edge table in an unsupported format."""
        named = [file for file in self.root.glob(f"{key}.*") if is_unsupported(file, forms)]
        folder = [self.root / key] if (self.root / key).is_dir() else []
        return min((path.name for path in (*named, *folder)), default=None)

    def _list_tables(self) -> str:
        """Lists the folder's tables."""
        names = sorted(path.name for path in self.root.iterdir() if path.is_dir() or form_of(path) in TABLES)
        if not names and (files := sorted(path.name for path in self.root.iterdir())):
            return f"no table; rename {files[0]} to edges.csv or edges.tsv, with names of columns in its first line"
        return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "") if names else "no table"


def _require(table: Columns, key: str, column: str) -> None:
    """Raises `UserError` if the column that a key names is missing."""
    require(table.title, table.kept, column, f"; use dataset.{key}=COLUMN for another name")


def check_relations(columns: Mapping[str, Sequence[str]]) -> None:
    """Raises `UserError` if two relations' tables have different columns.

    Args:
        columns: Column names of each table.
    """
    first, names = next(iter(columns.items()), ("", ()))
    for table, table_names in columns.items():
        if "type" in table_names:
            raise UserError(
                f"edges/{table} has a column 'type', but its file name already names the relation; remove the column"
            )
        if set(table_names) != set(names):
            raise UserError(
                f"edges/{table} has the columns {', '.join(table_names)}, but edges/{first} has {', '.join(names)}; "
                "all relations need the same columns"
            )


class FolderGraph(TableGraph):
    """The graph of an `EdgeFolder`. Its tables are read at once."""

    key, numbers_hint = "dataset.", NUMBERS_HINT

    def __init__(self, folder: EdgeFolder) -> None:
        super().__init__(folder.root, folder.duplicates)
        self.folder, self.bipartite, self.sort_ids = folder, folder.bipartite, folder.sort_ids
        self.symmetrize, self.row_normalize = folder.symmetrize, folder.row_normalize
        self.shares, self.seed = folder.split, folder.seed

    def open_tables(self) -> GraphTables:
        folder = self.folder
        if not self.root.is_dir():
            raise UserError("is not a folder")
        nodes, paths = self._open_nodes(), folder.edge_tables()
        ends, edges = self._open_edges(paths, nodes)
        sources = [*([] if nodes is None else [nodes]), *edges.values()]
        folder.check_ignored({source.title: source.names for source in sources})
        check_relations({source.title: source.kept for source in edges.values()} if ONE not in edges else {})
        first = next(iter(edges.values()))
        names = TableNames(ends, id=folder.id, label=folder.label, edge_label=folder.edge_label)
        names = names.with_times(first, nodes, folder.time, "dataset.time")
        leave_out_index(list(edges.values()), names.of_edges, RENAME_HINT)
        if nodes is not None:
            leave_out_index([nodes], names.of_nodes, RENAME_HINT)
        columns = [] if nodes is None else nodes.others(names.of_nodes)
        if nodes is not None and columns and file_exists(self.root / "features.npy"):
            raise UserError(
                f"features.npy and {nodes.title} both hold features: remove one, or list columns in dataset.ignore"
            )
        is_bipartite = self._is_bipartite(ends, edges, nodes)
        if is_bipartite and self.symmetrize is None:
            self.symmetrize = False
        return GraphTables(names, edges, nodes, first.others(names.of_edges), columns, is_bipartite)

    def _open_nodes(self) -> Columns | None:
        folder, path = self.folder, self.folder.table("nodes", NODES)
        if path is None:
            if folder.sort_ids:
                raise UserError("dataset.sort_ids=true needs nodes.csv or nodes.parquet")
            return None
        nodes = self._open(path, self.root, [folder.id], folder.label)
        if folder.num_nodes is not None:
            raise UserError(f"dataset.num_nodes={folder.num_nodes}: {path.name} already defines the nodes; remove it")
        _require(nodes, "id", folder.id)
        if folder.label != "label":
            _require(nodes, "label", folder.label)
        return nodes

    def _open_edges(
        self, paths: Mapping[str, Path], nodes: Columns | None
    ) -> tuple[tuple[str, str], dict[str, Columns]]:
        """Opens the edge tables. Returns also the columns of both ends."""
        folder = self.folder
        # Text ids must not be parsed as numbers. Numeric ids are checked later.
        narrow = nodes is None or not nodes.are_text([folder.id])

        def opened(ends: tuple[str, str]) -> dict[str, Columns]:
            return {
                name: self._open(path, self.root if name == ONE else path.parent, ends, folder.edge_label, narrow)
                for name, path in paths.items()
            }

        edges, ends = opened(folder.ends), folder.ends
        if (pair := folder.user_and_item(next(iter(edges.values())).names)) is not None:
            ends, edges = pair, opened(pair)  # reads ids as text first
        for source in edges.values():
            for end, column in zip(("src", "dst"), ends, strict=True):
                _require(source, end, column)
        first = next(iter(edges.values()))
        if folder.edge_label is not None and folder.edge_label not in first.kept:
            warn_unlabelled(first.title, folder.edge_label, first.kept)
        return ends, edges

    def _open(self, *args: Any) -> Columns:
        """Opens a table for the data set's keys. Arguments as of `open_table`."""
        table = self.open_table(*args)
        table.ignored, table.missing = self.folder.ignore, self.folder.missing
        return table

    def open_table(self, path: Path, root: Path, ids: Sequence[str], label: str | None, narrow: bool = True) -> Columns:
        """Opens a table. Arguments as of `read_table`.

        Args:
            root: Folder of the tables that messages name the file in.
        """
        del root
        table = read_table(path, ids, self.folder.missing, narrow=narrow, label=label)
        return TableInMemory(table.first_rows(*ids) if self.duplicates == FIRST and len(ids) == 1 else table)

    def _is_bipartite(self, ends: tuple[str, str], edges: Mapping[str, Columns], nodes: Columns | None) -> bool:
        """Returns whether sources and destinations are two node types."""
        several = [] if ONE in edges else ["several edge tables"]
        others = [*([] if nodes is None else [nodes.title]), *self.sized_by, *several]
        if self.bipartite and others:
            raise UserError(f"dataset.bipartite=true reads one edge table, but there is {others[0]}; use a HeteroData")
        if self.bipartite is not None or others or ends not in USERS_AND_ITEMS:
            return bool(self.bipartite)
        warnings.warn(
            f"the columns {' and '.join(ends)} are read as two node types with separate ids; use "
            "dataset.bipartite=false if they share ids",
            stacklevel=4,
        )
        return True

    @property
    def sized_by(self) -> Sequence[str]:
        arrays, count = [f"{name}.npy" for name in ARRAYS], self.folder.num_nodes
        named = [] if count is None else [f"dataset.num_nodes={count}"]
        return [*(name for name in arrays if file_exists(self.root / name)), *named]

    @property
    def implied_nodes(self) -> int | None:
        count = self.folder.num_nodes
        rows = self.folder.array("features") if count is None else None
        return count if rows is None or not rows.ndim else len(rows)

    @property
    def files(self) -> list[Path]:
        paths = [self.root / f"{name}.npy" for name in ARRAYS]
        return [*(path for path in paths if path.exists()), *super().files]

    @contextmanager
    def blame_unfit(self, *, is_nodes: bool) -> Iterator[None]:
        """Replaces an error about unfit columns by one that lists those of all tables.

        The error ends with a complete `dataset.ignore`.
        """
        del is_nodes
        try:
            yield
        except UnfitColumns as error:
            tables, edges = self.tables, list(self.tables.edges.values())
            columns = [name for name in (tables.names.weight, *tables.edge_features) if name in edges[0].kept]
            nodes = [] if tables.nodes is None else [tables.nodes]
            unfit = list_unfit(nodes, tables.node_features, is_nodes=True) if nodes else []
            if not (unfit := [*unfit, *list_unfit(edges, columns, is_nodes=False)]):
                raise
            raise IgnorableColumns(unfit, self.folder.ignore) from error

    def node_array(self, name: str, column: Array | None = None) -> Array | None:
        """Returns a column, or else the .npy array.

        Raises `UserError` if both exist.
        """
        array, nodes = self.folder.array(name), self.tables.nodes
        if array is None:
            return column
        if column is not None:
            title = "" if nodes is None else nodes.title
            raise UserError(f"{name}.npy and {title} both hold {'a split' if name == 'split' else name}")
        return settle_labels(array) if name == "labels" else array

    def features(self, room: Room) -> Iterator[Array] | None:
        if self._cells is not None or (rows := self.folder.array("features")) is None:
            return super().features(room)
        return iter([rows])

    def edge_labels(self) -> Fields:
        """Reads the labels of edges. New data need not have any."""
        tables, name = self.tables, self.folder.edge_label
        first = next(iter(tables.edges.values()))
        if name is None or name in first.kept:
            return super().edge_labels()
        return {"edge_labels": np.full(self.num_edges or 0, -1)}
