"""A user's own graph: a folder of tables and arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from gnnkit.checks import one_line, whole
from gnnkit.dataset.base import Dataset, blame, finished, name_list, with_split
from gnnkit.dataset.encoding import check_encoding, check_utf8, open_bytes
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.documents import check_regular
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Labels, read_shares
from gnnkit.graph.column_table import require
from gnnkit.graph.duplicates import DUPLICATES, FIRST, JOIN, KEEP, node_hint, without_duplicates
from gnnkit.graph.feature_columns import find_readings, warn_readings
from gnnkit.graph.features import replace_nan
from gnnkit.graph.id_columns import as_ids, joined_ids
from gnnkit.graph.ids import narrow_text
from gnnkit.graph.index_columns import common_index, warn_index
from gnnkit.graph.label_columns import read_labels
from gnnkit.graph.labels import check_signs
from gnnkit.graph.missing import read_missing
from gnnkit.graph.table import Table
from gnnkit.graph.values import is_text
from gnnkit.ranges import local_path, one_of, shown
from gnnkit.storage import Array, read_npy

_MAX_COLUMNS = 16_384  # of a table. Wider features belong into features.npy
_MAX_HEADER = 1 << 24  # bytes of a CSV's line of names that are looked at
TABLES = ("csv", "csv.gz", "parquet", "npy")  # of a table of edges
NODES = ("csv", "csv.gz", "parquet")  # of the table of nodes
ARRAYS = ("features", "labels", "split", "coordinates")  # .npy files, with a row for each node
LEFT_OUT = ": dataset.ignore=[{}] leaves the column out"  # the cure for a column
_NAMED = 8  # tables that a message names
ONE = ""  # name of a table of all relations
_PART = re.compile(r"(part[-._]|data_)\d.*\.parquet")  # names of parts that Spark, Dask and DuckDB give
_DONE = "_SUCCESS"  # file that Spark leaves in a folder of parts
_UNREAD = re.compile(r".*\.(csv\.\w+|tsv|txt|jsonl?|feather|arrow|orc|xlsx|npy)(\.\w+)?")  # tables in other forms
RENAME = "rename the column to read it"  # the cure for an index that is left out
_Types = dict[str, pa.DataType]


class EdgeFolder(Dataset):
    """A graph of your own: a folder of tables and arrays.

    Only the edges are needed.

    `edges.csv`, `edges.parquet` or `edges.npy` has columns `src`, `dst` and optionally
    `weight` and `type`, the name or the number of the edge's relation. Further columns
    are edge features, read as those of nodes but without missing cells. An .npy is
    [2, num_edges] or [num_edges, 2] (of two edges the former), or has these named
    fields. Instead, a folder `edges` may hold one such file for each relation, under
    the name of the relation and all with the same columns.

    `edges.parquet` and `nodes.parquet` may be folders of parts, as Spark, Dask and
    DuckDB write these. So may `edges`, where it has a file `_SUCCESS`, or all its files
    have names such as `part-0.parquet` and `data_0.parquet`. Parts are read in the
    order of the numbers in their names.

    `nodes.csv` or `nodes.parquet` has a column `id` of whole numbers or text. A column
    `label` holds class numbers or names, empty or -1 for none. Decimal fractions are
    numbers to predict, empty for none. A name may join several with semicolons, as in
    `a;b`, which `task=multilabel` reads as two classes. A column `split` holds train,
    val, test, none or nothing. Both are optional. Further columns are features:
    numbers, text that spells numbers ("1,5", "$1", "10%"), dates (as seconds since
    1970) and durations, or text with few values, of which each becomes a column. Words
    such as `unknown`, which the argument `missing` lists, stand for empty cells.
    `features.fill` says what takes their place, and that of NaN, in `features.npy` too.
    Nodes are numbered in the order of this table, or by `sort_ids` in ascending order
    of the ids. Without the table there are no labels, and ids are 0, 1, ..., or text,
    which then numbers the nodes in the order of code points.

    `features.npy` is [num_nodes, width], `coordinates.npy` [num_nodes, 2 or 3].
    `labels.npy` may take the place of the column `label`, in any form of
    `Graph.labels`, and `split.npy` that of the column `split`, names or codes for
    `Split.of`.

    The arguments `edges` and `nodes` name tables of other names, `src`, `dst`, `id` and
    `label` columns of other names, and `ignore` names columns of either table that are
    left out.

    Ids are whole numbers of 64 bits, floating-point numbers that are whole and below
    2^53, or text. Blanks around text do not count. Text and numbers match where the
    text is spelt as the number is, so `007` is not 7. Empty ids are refused, and so are
    words for a missing value. Columns that hold the index of a data frame are no
    features.

    CSV files are UTF-8 and start with a line of names. They may be compressed, as in
    `edges.csv.gz`. Errors count rows from 0, after the line of names. Tables have at
    most 16,384 columns.
    """

    def __init__(
        self,
        root: str,
        symmetrize: bool | None = None,
        row_normalize: bool = False,
        num_nodes: int | None = None,
        sort_ids: bool = False,
        split: Sequence[float] | None = None,
        seed: int = 0,
        edges: str | None = None,
        nodes: str | None = None,
        src: str = "src",
        dst: str = "dst",
        id: str = "id",
        label: str = "label",
        ignore: Sequence[str] = (),
        missing: Sequence[str] | None = None,
        duplicates: str = KEEP,
    ) -> None:
        """Keeps the options.

        Args:
            root: the folder.
            symmetrize: add the reverse edges that are missing. Default: no, with a
                warning where few edges have a reverse edge.
            row_normalize: divide each node's features by the sum. Default: no.
            num_nodes: number of nodes, if no table holds the nodes. Default: the number
                of rows of features.npy, or else one more than the largest id. An id of
                1,000,000 or more is then refused if there are fewer than id / 16 edges.
            sort_ids: number the nodes in ascending order of the ids, whole numbers by
                value and text by code points. Default: in the order of the table.
            split: shares of the labelled nodes that train, validate and test, for data
                without a split. Default: none is drawn.
            seed: of this draw.
            edges: your name of the table of edges, with its ending. Default: edges.csv,
                edges.parquet, edges.npy or a folder edges.
            nodes: your name of the table of nodes. Default: nodes.csv, nodes.parquet or
                a folder nodes.
            src: your name of the column `src`.
            dst: your name of the column `dst`.
            id: your name of the column `id`.
            label: your name of the column `label`.
            ignore: columns of nodes or of edges that are no features.
            missing: words that stand for a missing value in text, compared without case
                and surrounding blanks, in place of `#N/A`, `-`, `<NA>`, `?`, `missing`,
                `n/a`, `NA`, `nan`, `nil`, `none`, `null` and `unknown`. An empty cell
                is always missing.
            duplicates: what becomes of edges with the same ends and the same type.
                `keep` keeps each of them, as parallel edges. `refuse` refuses them.
                `first` keeps the first row, of edges and of nodes with the same id.
                `sum` and `mean` join the weights and the features of such edges, where
                an edge without a weight counts 1 in a sum. Nodes with the same id are
                refused but for `first`.
        """
        self.root = local_path("dataset.root", root)
        self.num_nodes = None if num_nodes is None else whole("dataset.num_nodes", num_nodes, 1)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize
        self.sort_ids = sort_ids
        self.split = None if split is None else read_shares("dataset.split", split)
        self.seed = whole("dataset.seed", seed, 0)
        self._tables = {"edges": edges, "nodes": nodes}
        for key, name in self._tables.items():
            if name is not None and Path(name).name != name:
                raise UserError(f"dataset.{key}={shown(name)} must be the name of a file or folder in dataset.root")
        self.ends, self.id, self.label = (src, dst), id, label
        self.ignore = name_list("dataset.ignore", ignore)
        self.missing = read_missing("dataset.missing", missing)
        self.duplicates = one_of("dataset.duplicates", duplicates, DUPLICATES)

    def in_pieces(self) -> GraphPieces:
        from gnnkit.dataset.importing.tables import TablePieces  # reads `EdgeFolder`

        return TablePieces(self)

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = with_split(self._read(), self.split, self.seed)
        return finished(graph, self.symmetrize, self.row_normalize)

    def _read(self) -> Graph:
        if not self.root.is_dir():
            raise UserError("is not a folder")
        path = self.table("nodes", NODES)
        nodes = _table(path, [self.id], self.missing, narrow=True) if path else None
        if nodes is None and self.sort_ids:
            raise UserError("holds no nodes.csv or nodes.parquet, whose ids dataset.sort_ids=true would sort")
        if path and self.num_nodes is not None:
            raise UserError(f"{path.name} says how many nodes there are, so dataset.num_nodes={self.num_nodes} must go")
        if nodes is not None:
            self.asked("id", nodes.names, nodes.name)
            nodes = nodes.first_rows(self.id) if self.duplicates == FIRST else nodes
        ids = None if nodes is None else nodes.ids(self.id, node_hint("dataset.duplicates", self.duplicates))
        # Ids that are text must not be read as numbers. Numbers are checked below.
        edges = self._edges(narrow=ids is None or not is_text(ids.type))
        for table in edges.values():
            for end in ("src", "dst"):
                self.asked(end, table.names, table.name)
        if nodes is None and all(table.is_text(end) for table in edges.values() for end in self.ends):
            ids = self._ids_of(edges)
        nodes, edges = self._without_ignored(nodes, edges)
        graph = without_duplicates(self._graph(edges, nodes, ids), self.duplicates, JOIN)
        return graph.renumber(pc.sort_indices(ids).to_numpy()) if self.sort_ids else graph

    def _graph(self, edges: dict[str, Table], nodes: Table | None, ids: pa.Array | None) -> Graph:
        labels, class_names = self._labels(nodes)
        features, names, category_of, missing = self._features(nodes)
        first, *_ = tables = list(edges.values())
        further = first.others(self.known_of_edges)
        readings = find_readings(first.name, tables, further, LEFT_OUT)
        rows = [table.use_readings(readings).rows(further) for table in tables]
        for table in (nodes, first):
            if table is not None:
                warn_readings(table.name, table.readings)
        types, type_names = first.types("type") if ONE in edges else _by_file(edges)
        return Graph.from_edges(
            np.concatenate([table.positions(self.ends[0], ids) for table in tables]),
            np.concatenate([table.positions(self.ends[1], ids) for table in tables]),
            self.num_nodes if ids is None else len(ids),
            features=features,
            labels=labels,
            one_class=True,
            split=self.either("split", nodes.splits("split") if nodes else None, nodes.name if nodes else ""),
            weight=np.concatenate([table.weights("weight") for table in tables]) if "weight" in first.names else None,
            edge_features=np.concatenate([each for each in rows if each is not None]) if further else None,
            feature_names=names,
            category_of=category_of,
            edge_feature_names=first.column_names(further),
            edge_category_of=first.category_of(further),
            edge_types=types,
            edge_type_names=type_names,
            coordinates=self.array("coordinates"),
            class_names=class_names,
            node_ids=None if ids is None else as_ids(ids),
            missing=missing,
        )

    def _ids_of(self, edges: dict[str, Table]) -> pa.Array | None:  # [num_nodes]
        """Collects the ids of nodes from edges whose ends are text, by code points.

        None for a CSV of numbers with a few words among them, which are then refused.
        """
        if any(table.name.endswith(".csv") and table.holds_numbers(self.ends) for table in edges.values()):
            return None
        arrays = [f"{name}.npy" for name in ARRAYS if _exists(self.root / f"{name}.npy")]
        if given := [*arrays, *([] if self.num_nodes is None else [f"dataset.num_nodes={self.num_nodes}"])]:
            raise UserError(f"ids of edges are text, and {given[0]} needs a table of nodes beside, with these ids")
        return joined_ids(list(edges.values()), self.ends)

    def asked(self, key: str, names: Sequence[str], table: str) -> None:
        """Raises `UserError` where the column of a key is missing.

        Args:
            key: src, dst, id or label.
            names: columns of the table.
            table: its name, for the message.
        """
        column = {"src": self.ends[0], "dst": self.ends[1], "id": self.id, "label": self.label}[key]
        require(table, names, column, f": dataset.{key}=COLUMN names yours")

    def check_ignored(self, names: Mapping[str, Sequence[str]]) -> None:
        """Raises `UserError` for a column to ignore that no table has.

        Args:
            names: columns by table.
        """
        for name in self.ignore:
            if not any(name in of_table for of_table in names.values()):
                held = " or ".join(list(names)[:2])
                raise UserError(f"dataset.ignore={shown(list(self.ignore))}: no column {name!r} in {held}")

    def _without_ignored(self, nodes: Table | None, edges: dict[str, Table]) -> tuple[Table | None, dict[str, Table]]:
        """Leaves columns out of all tables. Raises `UserError` where none has one."""
        tables = [*([] if nodes is None else [nodes]), *edges.values()]
        self.check_ignored({table.name: table.names for table in tables})
        links = {relation: table.without(self.ignore) for relation, table in edges.items()}
        index = common_index([table.index_columns(self.known_of_edges) for table in links.values()])
        warn_index(next(iter(links.values())).name, index, RENAME)
        links = {relation: table.without(index) for relation, table in links.items()}
        if nodes is None:
            return None, links
        nodes = nodes.without(self.ignore)
        index = nodes.index_columns(self.known_of_nodes)
        warn_index(nodes.name, index, RENAME)
        return nodes.without(index), links

    @property
    def known_of_edges(self) -> tuple[str, ...]:
        """The columns of edges that are no features."""
        return (*self.ends, "weight", "type")

    @property
    def known_of_nodes(self) -> tuple[str, ...]:
        """The columns of nodes that are no features."""
        return (self.id, self.label, "split")

    def _features(self, nodes: Table | None) -> tuple[Array | None, list[str] | None, list[str] | None, Array | None]:
        """Returns rows of features, names of columns and of texts, and empty cells."""
        array = self.array("features")
        columns = nodes.others(self.known_of_nodes) if nodes else []
        if nodes is None or not columns:
            rows, missing = (None, None) if array is None else replace_nan(array)
            return rows, None, None, missing
        if array is not None:
            raise UserError(f"features.npy and {nodes.name} both hold features")
        rows, missing = nodes.cells(columns)
        return rows, nodes.column_names(columns), nodes.category_of(columns), missing

    def _labels(self, nodes: Table | None) -> tuple[Labels | None, list[str] | None]:
        if self.label != "label" and nodes is not None:
            self.asked("label", nodes.names, nodes.name)
        labels, names = None, None
        if nodes is not None and self.label in nodes.names:
            labels, names = read_labels(lambda: [nodes], self.label)
        elif (array := self.array("labels")) is not None:
            check_signs(array)
        return self.either("labels", labels, nodes.name if nodes else ""), names

    def either(self, name: str, column: Array | None, table: str) -> Array | None:
        """Returns a column of the table of nodes, or else the .npy of this name.

        Args:
            name: labels or split.
            column: [num_nodes, ...], or None where the table has no such column.
            table: name of the table.
        """
        array = self.array(name)
        if array is not None and column is not None:
            raise UserError(f"{name}.npy and {table} both hold {'a split' if name == 'split' else name}")
        return array if column is None else column

    def array(self, name: str) -> Array | None:
        """Maps an .npy of the folder, if there is one of this name."""
        path = self.root / f"{name}.npy"
        return read_npy(path) if _exists(path) else None

    def _edges(self, *, narrow: bool) -> dict[str, Table]:
        return {
            relation: _table(path, self.ends, self.missing, narrow=narrow)
            for relation, path in self.tables_of_edges().items()
        }

    def tables_of_edges(self) -> dict[str, Path]:
        """Finds the tables of edges by relation, or one table under the name `ONE`."""
        path = self.table("edges", TABLES)
        if path is None:
            raise self._without_edges()
        if parts_of(path) or not path.is_dir():
            return {ONE: path}
        tables = sorted(each for each in path.iterdir() if form_of(each) in TABLES)
        if unread := sorted(each.name for each in path.iterdir() if _is_unread(each, TABLES)):
            raise UserError(f"holds {path.name}/{unread[0]}, which is not read, expected .{', .'.join(TABLES)}")
        relations = sorted({each.name.removesuffix(f".{form_of(each)}") for each in tables})
        if not relations:
            raise UserError(f"holds a folder {path.name} without .csv, .parquet or .npy files, one for each relation")
        if parts := [each.name for each in tables if _PART.fullmatch(each.name)]:
            raise UserError(
                f"holds a folder {path.name} with {parts[0]}, which is the name of a part, and with tables of other names: a "
                f"file {_DONE} there says that all are parts of one table, and other names that each is a relation"
            )
        found = {relation: _find_table(path, relation, TABLES) for relation in relations}
        return {relation: table for relation, table in found.items() if table is not None}

    def table(self, key: str, suffixes: tuple[str, ...]) -> Path | None:
        """Finds a table: its file, or the folder of its parts or of its relations.

        Raises `UserError` where there are two, and where there is none of a given name.

        Args:
            key: edges or nodes.
            suffixes: endings that its file may have.
        """
        given = self._tables[key]
        if given is None:
            path, folder = _find_table(self.root, key, suffixes), self.root / key
            if path not in (None, folder) and folder.is_dir() and key == "edges":
                raise UserError(f"holds both {path.name} and a folder edges")
            if path is None and folder.is_dir() and key == "edges":
                return folder
            if path is None and (unread := self._unread(key, suffixes)):
                read = ", ".join(f"{key}.{suffix}" for suffix in suffixes)
                raise UserError(f"holds {unread}, which is not read: write it as one of {read}")
            return path
        path = self.root / given
        if not _exists(path):
            raise UserError(f"holds no {given} that dataset.{key} names, only {self._held()}")
        if not path.is_dir() and form_of(path) not in suffixes:
            raise UserError(f"dataset.{key}={given} must end in .{', .'.join(suffixes)}")
        return path

    def _unread(self, key: str, forms: Sequence[str]) -> str | None:
        """Returns the name of a table of nodes or of edges in another form."""
        named = [each for each in self.root.glob(f"{key}.*") if _is_unread(each, forms)]
        folder = [self.root / key] if (self.root / key).is_dir() else []
        return min((each.name for each in (*named, *folder)), default=None)

    def _without_edges(self) -> UserError:
        """Makes the error for a folder without a table of edges."""
        return UserError(
            "holds no edges.csv, edges.parquet or edges.npy, and no folder edges: dataset.edges=NAME names yours, "
            f"dataset.nodes=NAME that of nodes, of {self._held()}"
        )

    def _held(self) -> str:
        """Names the tables of the folder."""
        names = sorted(each.name for each in self.root.iterdir() if each.is_dir() or form_of(each) in TABLES)
        return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "") if names else "no table"


def _by_file(edges: dict[str, Table]) -> tuple[Array, list[str]]:
    """Numbers the relations in order. Returns types of all edges, and names."""
    check_relations({table.name: table.names for table in edges.values()})
    return np.repeat(np.arange(len(edges)), [table.num_rows for table in edges.values()]), list(edges)


def check_relations(columns: Mapping[str, Sequence[str]]) -> None:
    """Raises `UserError` for a relation whose table has other columns than the first.

    Args:
        columns: names of columns by name of the table.
    """
    first, names = next(iter(columns.items()))
    for table, own in columns.items():
        if "type" in own:
            raise UserError(f"edges/{table} has a column 'type', which the name of the file says")
        if set(own) != set(names):
            raise UserError(
                f"edges/{table} has the columns {', '.join(own)}, and edges/{first} has {', '.join(names)}: all "
                "relations need the same"
            )


def form_of(path: Path) -> str:
    """Returns the ending of a table's name, such as `csv` and `csv.gz`."""
    return "csv.gz" if path.name.endswith(".csv.gz") else path.suffix[1:]


def _is_unread(path: Path, forms: Sequence[str]) -> bool:
    """Returns whether a file is a table in another form than those that are read."""
    return form_of(path) not in forms and _UNREAD.fullmatch(path.name) is not None


def _table(path: Path, ids: Sequence[str], missing: Sequence[str], *, narrow: bool) -> Table:
    """Reads a file, or a folder of parts.

    Args:
        path: The file.
        ids: Columns of ids, which a CSV spells as text.
        missing: Words for missing values.
        narrow: Whether ids are numbers where all of a column are spelt as numbers.
    """
    try:
        if parts_of(path):
            parts = [_read_parquet(part) for part in parts_of(path)]
            return Table(path.name, pa.concat_tables(parts, promote_options="permissive"), 0, LEFT_OUT, missing)
        check_regular(path)
        form = form_of(path)
        if form not in ("csv", "csv.gz"):
            return Table(
                path.name, _read_parquet(path) if form == "parquet" else _read_array(path), 0, LEFT_OUT, missing
            )
        table = _read_csv(path, dict.fromkeys(ids, pa.string()))
        for name in ids if narrow else ():
            if table.column_names.count(name) == 1:
                table = table.set_column(table.column_names.index(name), name, narrow_text(table.column(name)))
        return Table(path.name, table, 0, LEFT_OUT, missing)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UserError(f"{path.name}: {one_line(error)}") from error


def _find_table(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    """Finds the file of a table, or the folder of its parts.

    Raises `UserError` where there are two.
    """
    paths = [path for suffix in suffixes if _exists(path := folder / f"{name}.{suffix}")]
    if parts_of(folder / name):
        paths.append(folder / name)
    if len(paths) > 1:
        raise UserError(f"holds both {paths[0].name} and {paths[1].name}")
    return paths[0] if paths else None


def parts_of(path: Path) -> list[Path]:
    """Lists the parts of a table, by the numbers in their names.

    None for a file, and for a folder of relations.
    """
    if not path.is_dir() or path.suffix not in ("", ".parquet"):
        return []
    parts = [each for each in path.iterdir() if each.suffix == ".parquet" and each.name[0] not in "._"]
    named = path.suffix == ".parquet" or (path / _DONE).exists() or all(_PART.fullmatch(part.name) for part in parts)
    return sorted(parts, key=_by_number) if named else []


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Orders names so that `part.2` is before `part.10`."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", path.name)]


def _exists(path: Path) -> bool:
    """Says whether there is a file or a link of this name, even a broken link."""
    return path.exists() or path.is_symlink()


def check_width(name: str, num_columns: int) -> None:
    """Refuses a table whose columns would take minutes to read."""
    if num_columns > _MAX_COLUMNS:
        raise UserError(
            f"{name} has {num_columns} columns or more, at most {_MAX_COLUMNS} are read: "
            "put wide features into features.npy"
        )


def check_header(path: Path) -> None:
    """Refuses a CSV with too many columns, and with names that are not UTF-8."""
    with open_bytes(path) as file:
        names = file.readline(_MAX_HEADER)
    check_width(path.name, names.count(b",") + 1)
    try:
        names.decode()
    except UnicodeDecodeError:
        check_utf8(path, path.name)


def check_shape(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Says whether an array has a row of sources and one of destinations.

    False: a row for each edge, or named fields. Raises `UserError` for another shape.
    """
    if dtype.names and len(shape) == 1:
        return False
    if dtype.names or len(shape) != 2 or 2 not in shape:
        raise UserError(f"{name} has shape {list(shape)}, expected [2, num_edges], [num_edges, 2] or named fields")
    return shape[0] == 2


def _read_csv(path: Path, types: _Types) -> pa.Table:
    check_encoding(path, path.name)
    check_header(path)
    try:
        table = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
    except pa.ArrowException:
        check_utf8(path, path.name)
        raise
    if any(map(pa.types.is_binary, table.schema.types)):  # which pyarrow makes of text that is not UTF-8
        check_utf8(path, path.name)
    return table


def _read_parquet(path: Path) -> pa.Table:
    check_width(path.name, pyarrow.parquet.read_metadata(path).num_columns)
    return pyarrow.parquet.read_table(path)


def _read_array(path: Path) -> pa.Table:
    array = read_npy(path)
    two_rows = check_shape(path.name, array.shape, array.dtype)
    if array.dtype.names:
        return pa.table({name: np.ascontiguousarray(array[name]) for name in array.dtype.names})
    array = array if two_rows else array.T
    return pa.table({"src": np.ascontiguousarray(array[0]), "dst": np.ascontiguousarray(array[1])})
