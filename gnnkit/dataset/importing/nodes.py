"""What belongs to nodes: ids, labels, splits, and features written in a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit import checks
from gnnkit.checks import Array
from gnnkit.dataset.base import with_split
from gnnkit.dataset.edges import EdgeFolder
from gnnkit.dataset.importing.edges import Room
from gnnkit.dataset.importing.progress import Teller
from gnnkit.dataset.importing.sources import CsvSource, Source
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Labels
from gnnkit.graph.features import normalized
from gnnkit.graph.ids import IdTable
from gnnkit.graph.table import Table, as_ids, is_text, labels_of_words, narrowed
from gnnkit.rows import Rows
from gnnkit.storage import check_regular, forget_pages, read_npy

_ID_BYTES = 64  # of an id that is a number, while ids are read and found
_NODE_BYTES = 40  # of labels and splits, while these are checked and drawn
_PIECE = 1 << 16  # rows that are read at once, at most
_CELLS = 1 << 20  # numbers that are read at once, at most


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a graph, without features."""

    count: int | None  # None: one more than the largest id of an edge
    ids: IdTable | None  # None: ids are the numbers of nodes
    node_ids: pa.Array | None  # of the user, where these are not 0, 1, ...


def read_ids(folder: EdgeFolder, source: Source | None, room: Room) -> Nodes:
    """Reads the ids of a table of nodes, which must fit memory."""
    if source is None:
        return Nodes(_rows_of_features(folder) if folder.num_nodes is None else folder.num_nodes, None, None)
    folder.asked("id", source.names, source.title)
    parts, size, rows = [], 0, 0
    types = {folder.id: pa.string()} if isinstance(source, CsvSource) else None
    for piece in source.pieces(_PIECE, [folder.id], types):
        column = piece.plain(folder.id)
        parts.append(column)
        rows += len(column)
        size += 2 * (column.nbytes + _ID_BYTES * len(column))  # as they are read, and in the table that finds them
        if size > room.memory:
            raise room.too_little(f"{source.title} has more ids than that, {rows:,} of them so far", size)
    column = pa.chunked_array(parts, parts[0].type if parts else pa.null())
    if isinstance(source, CsvSource):
        column = narrowed(column)
    ids = Table(source.title, pa.table({folder.id: column})).ids(folder.id)
    if not is_text(ids.type) and np.array_equal(ids.to_numpy(), np.arange(len(ids))):
        return Nodes(len(ids), None, None)
    return Nodes(len(ids), IdTable(ids, room.threads), ids)


def _rows_of_features(folder: EdgeFolder) -> int | None:
    path = folder.root / "features.npy"
    return len(read_npy(path)) if path.exists() and read_npy(path).ndim else None


def write_ids(nodes: Nodes, target: Path) -> None:
    """Writes the user's ids of nodes, as an array of numbers or of text."""
    ids = nodes.node_ids
    if ids is None:
        return
    if not is_text(ids.type):
        np.save(target, as_ids(ids), allow_pickle=False)  # type: ignore[arg-type]
        return
    rows = Rows(target, f"U{max(pc.max(pc.utf8_length(ids)).as_py(), 1)}")
    for first in range(0, len(ids), _PIECE):
        rows.append(np.array(ids.slice(first, _PIECE).to_pylist(), rows.dtype))
    rows.finish()


def read_labels(folder: EdgeFolder, source: Source | None, count: int, room: Room) -> Graph:
    """Returns a graph of all nodes without edges and features, with a split.

    Raises `UserError` for labels and splits that do not fit.
    """
    if count * _NODE_BYTES > room.memory:
        raise room.too_little(f"{count:,} nodes have more labels and splits than that", count * _NODE_BYTES)
    given, names = folder.array("labels"), None
    labels: Labels | None = None
    split: Array | None = None
    if source is not None:
        labels, names = _labels(folder, source)
        split = _split(source)
    if labels is not None and given is not None and source is not None:
        raise UserError(f"labels.npy and {source.title} both hold labels")
    labels = given if labels is None else labels
    graph = Graph(
        CSC(np.zeros(count + 1, np.int64), np.empty(0, np.int32)),
        features=np.empty((count, 0), np.float32),
        labels=np.full(count, -1) if labels is None else checks.array("labels", labels),
        split=np.zeros(count, np.int8) if split is None else split,
        class_names=None if names is None else tuple(names),
    )
    return with_split(graph, folder.split, folder.seed)


def _labels(folder: EdgeFolder, source: Source) -> tuple[Labels | None, list[str] | None]:
    """Reads the column of labels, of which text is read twice."""
    if folder.label != "label":
        folder.asked("label", source.names, source.title)
    if folder.label not in source.kept:
        return None, None
    kind = source.types()[folder.label]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind

    def pieces() -> Iterator[Table]:
        return source.pieces(_PIECE, [folder.label], {folder.label: kind})

    if not (is_text(kind) or pa.types.is_boolean(kind)):
        found = [labels for piece in pieces() if (labels := piece.labels(folder.label)[0]) is not None]
        return np.concatenate([*found, np.empty(0, found[0].dtype if found else np.int64)]), None
    words: set[str | None] = set()
    for piece in pieces():
        words |= set(pc.unique(piece.plain(folder.label).cast(pa.string())).to_pylist())
    names = sorted(word for word in words if word)
    return np.concatenate([labels_of_words(piece.plain(folder.label), names) for piece in pieces()]), names


def _split(source: Source) -> Array | None:
    if "split" not in source.kept:
        return None
    types = {"split": pa.string()} if isinstance(source, CsvSource) else None
    found = [split for piece in source.pieces(_PIECE, ["split"], types) if (split := piece.splits("split")) is not None]
    return np.concatenate([*found, np.empty(0, np.int8)])


def write_features(
    folder: EdgeFolder, source: Source | None, count: int, target: Path, teller: Teller
) -> tuple[int, list[str] | None]:
    """Writes the rows of features as models read these, some at a time.

    Returns the width, and the names of columns from a table.
    """
    columns = [] if source is None else [n for n in source.kept if n not in (folder.id, folder.label, "split")]
    path = folder.root / "features.npy"
    if source is not None and columns and path.exists():
        raise UserError(f"features.npy and {source.title} both hold features")
    if source is not None and (texts := [name for name in columns if is_text(source.types()[name])]):
        raise UserError(
            f"{source.title}, column {texts[0]!r} holds text, which job=import does not read: job=partition dataset=edges "
            f"does, and dataset.ignore=[{','.join(texts)}] leaves the column out"
        )
    teller.begin("writing features")
    if source is not None and columns:
        return _from_table(folder, source, columns, count, target, teller)
    if path.exists() or path.is_symlink():
        return copy_rows("features", path, count, target, teller, folder.row_normalize), None
    Rows(target, np.float32, (0,), count).finish()
    return 0, None


def _from_table(
    folder: EdgeFolder, source: Source, columns: list[str], count: int, target: Path, teller: Teller
) -> tuple[int, list[str] | None]:
    rows: Rows | None = None
    names: list[str] | None = None
    kinds = source.types()
    step = max(min(_PIECE, _CELLS // len(columns)), 1)
    for piece in source.pieces(step, columns, {name: kinds[name] for name in columns}):
        values = piece.rows(columns)
        assert values is not None
        if rows is None:
            rows, names = Rows(target, np.float32, values.shape[1:]), piece.column_names(columns)
            width = values.shape[1]
        if values.shape[1] != width:
            raise UserError(f"{piece.name}: lists have {values.shape[1]} numbers in some rows, and {width} in others")
        rows.append(normalized(values) if folder.row_normalize else values)
        teller.tell(rows.num_rows, count, "rows")
    assert rows is not None
    rows.finish()
    return width, names


def copy_rows(name: str, path: Path, count: int, target: Path, teller: Teller, normalize: bool = False) -> int:
    """Copies an array of rows as `Graph` reads it. Returns the width."""
    check_regular(path)
    given = read_npy(path)
    if given.ndim != 2 or len(given) != count:
        checks.numbers(name, given, (count, None))  # raises
    rows: Rows | None = None
    step = max(_CELLS // max(given.shape[1], 1), 1)
    for first in range(0, max(count, 1), step):
        values = checks.numbers(name, given[first : first + step], (None, None))
        checks.check_finite(name, values, bound=checks.FLOAT32_MAX, first=first)
        rows = rows or Rows(target, values.dtype, values.shape[1:])
        rows.append(normalized(values) if normalize else values)
        forget_pages(given)
        teller.tell(rows.num_rows, count, "rows")
    assert rows is not None
    rows.finish()
    return int(given.shape[1])
