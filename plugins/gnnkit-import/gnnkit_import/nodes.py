"""Writes node data: ids, labels, splits, and features in a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.id_columns import as_ids
from gnnkit_formats.pieces import GraphPieces, NodeFields, Room, pieces_of
from gnnkit_formats.values import is_text

from gnnkit.dataset.base import with_split
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.features import FILLED_BY, normalized, replace_nan
from gnnkit.graph.schema import node_types_of
from gnnkit.graph.types import Fields, distinct_ids, names_of, node_ids_of
from gnnkit.utils import checks
from gnnkit.utils.checks import Array
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import forget_pages, save_array
from gnnkit_import.npy_writer import NpyWriter
from gnnkit_import.passes import ImportRun
from gnnkit_import.progress import ProgressReporter
from gnnkit_import.shards import least_memory

_PIECE = 1 << 16  # text ids written at once


def write_nodes(run: ImportRun, count: int, *, gaps: bool) -> Json:
    """Writes the node arrays. Returns class, column and type names.

    Raises `UserError` for inconsistent labels, splits and features, and without `gaps`
    for the first empty cell.
    """
    graph, target = run.graph, run.folder
    check_nodes(run.room, count)
    fields = graph.nodes(count, run.room)
    bare = _with_labels(graph, fields, count)
    save_array(target / "labels.npy", bare.labels)
    save_array(target / "split.npy", bare.split)
    if bare.node_time is not None:
        save_array(target / "node_time.npy", bare.node_time)
    _write_ids(fields.node_ids, count, target / "node_ids.npy")
    if fields.coordinates is not None:
        path = target / "coordinates.npy"
        width = _write_rows("coordinates", pieces_of(fields.coordinates), count, path, run.reporter)
        if width not in (2, 3):
            raise UserError(f"coordinates have {width} dimensions, expected 2 or 3")
    run.reporter.begin("writing features")
    width = _write_features(run, fields, count, gaps=gaps)
    names = names_of("feature_names", graph.feature_names(), width)
    return {
        "class_names": None if bare.class_names is None else list(bare.class_names),
        "feature_names": None if names is None else list(names),
        "category_of": None if fields.category_of is None else list(fields.category_of),
        "node_types": node_types_of(fields.node_types, count),
        "types": dict(fields.types),
        **({} if bare.time_unit is None else {"time_unit": bare.time_unit}),
        **({} if bare.column_forms is None else {"column_forms": list(bare.column_forms)}),
    }


def check_nodes(room: Room, count: int) -> None:
    """Raises `UserError` if the nodes do not fit into memory."""
    if (needed := least_memory(count)) > room.memory:
        raise room.too_little(f"labels, splits and parts of {count:,} nodes do not fit", needed)


def _with_labels(graph: GraphPieces, fields: NodeFields, count: int) -> Graph:
    """Returns a graph without edges and features, with checked labels and splits."""
    names = "labels", "split", "class_names", "node_time"
    values: Fields = {name: getattr(fields, name) for name in names}
    values |= {"time_unit": graph.time_unit, "column_forms": graph.column_forms()}
    bare = Graph.from_edges([], [], count, one_class=fields.one_class, **values)
    return with_split(bare, graph.shares, graph.seed)


def _write_features(run: ImportRun, fields: NodeFields, count: int, *, gaps: bool) -> int:
    """Writes features, and lists empty cells. Returns the width."""
    graph, target = run.graph, run.folder
    path, rows = target / "features.npy", graph.features(run.room)
    if rows is None:
        NpyWriter(path, np.float32, (0,), count).finish()
        return 0
    missing = NpyWriter(target / "missing.npy", np.int64, (2,))
    if graph.has_gaps:
        rows = _without_gaps(rows, missing, graph, None if gaps else fields.category_of or ())
    width = _write_rows("features", rows, count, path, run.reporter, graph.row_normalize)
    missing.finish()
    if not missing.num_rows:
        (target / "missing.npy").unlink()
    return width


def _write_ids(ids: Any, count: int, target: Path) -> None:
    """Writes the user's node ids as numbers or text."""
    if ids is None:
        return
    if not isinstance(ids, pa.Array):
        save_array(target, node_ids_of(distinct_ids(ids), count))  # type: ignore[arg-type]
        return
    if not is_text(ids.type):
        save_array(target, as_ids(ids))  # type: ignore[arg-type]
        return
    rows = NpyWriter(target, f"U{max(pc.max(pc.utf8_length(ids)).as_py(), 1)}")
    for first in range(0, len(ids), _PIECE):
        rows.append(np.array(ids.slice(first, _PIECE).to_pylist(), rows.dtype))
    rows.finish()


def _without_gaps(
    pieces: Iterable[Array], missing: NpyWriter, graph: GraphPieces, categories: Sequence[str] | None
) -> Iterator[Array]:
    """Yields rows with 0 in empty cells, and writes each such cell's row and column.

    Args:
        categories: None allows empty cells. Otherwise the text column of each feature,
            or nothing, for the `UserError` about the first empty cell.
    """
    first = 0
    for rows in pieces:
        filled, cells = replace_nan(rows)
        if cells is not None:
            if categories is not None:
                names, (row, column) = graph.feature_names(), cells[0].tolist()
                name = column if names is None else repr((categories and categories[column]) or names[column])
                raise UserError(f"features have an empty cell in column {name}, row {first + row}: {FILLED_BY}")
            missing.append(cells + np.array([first, 0]))
        first += len(rows)
        yield filled


def _write_rows(
    name: str, pieces: Iterable[Array], count: int, target: Path, reporter: ProgressReporter, normalize: bool = False
) -> int:
    """Checks and writes rows as `Graph` does, piece by piece. Returns the width."""
    rows: NpyWriter | None = None
    width = None
    for piece in pieces:
        if piece.ndim != 2:
            checks.numbers(name, piece, (count, None))  # raises
        values = checks.numbers(name, piece, (None, width))
        checks.check_finite(name, values, bound=checks.FLOAT32_MAX, first=0 if rows is None else rows.num_rows)
        if rows is None:
            width = values.shape[1]
            rows = NpyWriter(target, values.dtype, values.shape[1:])
        rows.append(normalized(values) if normalize else values)
        forget_pages(piece)
        reporter.update(rows.num_rows, count, "rows")
    if rows is None:
        raise UserError(f"{name} has no rows")
    if rows.num_rows != count:
        raise UserError(f"{name} has shape {[rows.num_rows, width]}, expected [{count}, any]")
    rows.finish()
    return int(width or 0)
