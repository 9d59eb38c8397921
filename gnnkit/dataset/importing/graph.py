"""A folder of tables -> the folder that `Graph.save` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnnkit.dataset.base import blame, warn_of_one_way
from gnnkit.dataset.edges import TABLES, EdgeFolder, find_table, parts_of
from gnnkit.dataset.importing import edges as of_edges
from gnnkit.dataset.importing import nodes as of_nodes
from gnnkit.dataset.importing.edges import Buckets, Columns, Counted, Ends, Room
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.importing.sources import ArraySource, CsvSource, ParquetSource, Source
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.fields import names_of
from gnnkit.storage import write_meta

_RECORDS = "records"  # folder of the buckets, in the folder where an import works


def import_graph(folder: EdgeFolder, work: Path, room: Room, journal: Journal, teller: Teller) -> Path:
    """Writes the graph of a folder of tables, in bounded memory.

    Goes on from what an earlier call has left in `work`. Returns the folder of the
    graph, for `Graph.load`, with the same bytes as `folder.load().save` would write.
    Raises `UserError` that names file and place for bad data.

    Args:
        folder: the tables.
        work: where temporary files and the graph are written.
        room: memory and threads.
        journal: of `work`.
        teller: tells how far the import is.
    """
    target = work / "graph"
    target.mkdir(parents=True, exist_ok=True)
    with blame(f"dataset.root={folder.root}"):
        if journal["imported"] is None:
            _import(folder, work, target, room, journal, teller)
    if folder.symmetrize is None:
        warn_of_one_way(Graph.trusted(target).csc)
    return target


def sources_of(folder: EdgeFolder) -> tuple[Source, Source | None]:
    """Opens the tables of edges and of nodes.

    Raises `UserError` for what is not read in pieces, with the way to read it.
    """
    root = folder.root
    if not root.is_dir():
        raise UserError("is not a folder")
    if folder.sort_ids:
        raise UserError("dataset.sort_ids=true: job=import numbers nodes in the order of their table: sort the table")
    path = find_table(root, "nodes", ("csv", "parquet"))
    nodes = None if path is None else _opened(path, root, {folder.id: pa.string()})
    if path and folder.num_nodes is not None:
        raise UserError(f"{path.name} says how many nodes there are, so dataset.num_nodes={folder.num_nodes} must go")
    path = find_table(root, "edges", TABLES)
    if path is None and (root / "edges").is_dir():
        raise UserError(
            "holds a folder edges with one table for each relation: job=partition dataset=edges reads it, and job=import "
            "reads parts of one table, with a file _SUCCESS or names such as part-0.parquet"
        )
    if path is None:
        raise UserError("holds no edges.csv, edges.parquet or edges.npy, and no folder edges")
    edges = _opened(path, root, {})
    for end in ("src", "dst"):
        folder.asked(end, edges.names, edges.title)
    for source in [edges] if nodes is None else [edges, nodes]:
        source.ignored = folder.ignore
    folder.check_ignored({source.title: source.names for source in ([edges] if nodes is None else [nodes, edges])})
    if "type" in edges.kept:
        raise UserError(f"{edges.title} has types of edges: job=partition dataset=edges reads these")
    return edges, nodes


def files_of(folder: EdgeFolder) -> list[Path]:
    """Lists the files that an import reads."""
    found = [folder.root / f"{name}.npy" for name in ("features", "labels", "coordinates")]
    for source in sources_of(folder):
        found += [] if source is None else source.files
    return [path for path in found if path.exists()]


def _opened(path: Path, root: Path, given: dict[str, pa.DataType]) -> Source:
    if parts := parts_of(path):
        return ParquetSource(parts, root)
    if path.is_dir():
        raise UserError(f"{path.name} is a folder without parts such as part-0.parquet")
    if path.suffix == ".npy":
        return ArraySource(path, root)
    return ParquetSource([path], root) if path.suffix == ".parquet" else CsvSource(path, root, given)


def _import(folder: EdgeFolder, work: Path, target: Path, room: Room, journal: Journal, teller: Teller) -> None:
    edges, table = sources_of(folder)
    nodes = of_nodes.read_ids(folder, table, room)
    ends = Ends(edges, folder.ends, nodes.ids, bool(folder.symmetrize), nodes.count)
    found, count = of_edges.count(ends, room, journal, teller)
    if journal["nodes"] is None:
        journal.write(nodes=_write_nodes(folder, table, nodes, count, target, room, teller))
    buckets, records = Buckets.of(found, count, room), work / _RECORDS
    if not (journal["sorted"] or (0, 0, False))[2]:
        records.mkdir(exist_ok=True)
        columns = Columns(records, of_edges.kinds_of(found, count, ends.symmetrize))
        of_edges.scatter(ends, found, buckets, columns, room, journal, teller)
        of_edges.sort(found, buckets, columns, target, room, journal, teller)
        columns.close()
    shutil.rmtree(records, ignore_errors=True)
    write_meta(target, {**journal["nodes"], **_edge_names(found), "node_types": None})
    journal.write(imported=True)


def _write_nodes(
    folder: EdgeFolder,
    table: Source | None,
    nodes: of_nodes.Nodes,
    count: int,
    target: Path,
    room: Room,
    teller: Teller,
) -> dict[str, list[str] | None]:
    """Writes the arrays of nodes. Returns names of classes and of columns."""
    graph = of_nodes.read_labels(folder, table, count, room)
    np.save(target / "labels.npy", graph.labels, allow_pickle=False)
    np.save(target / "split.npy", graph.split, allow_pickle=False)
    of_nodes.write_ids(nodes, target / "node_ids.npy")
    width, names = of_nodes.write_features(folder, table, count, target / "features.npy", teller)
    place = folder.root / "coordinates.npy"
    if place.exists() and of_nodes.copy_rows("coordinates", place, count, target / place.name, teller) not in (2, 3):
        raise UserError("coordinates.npy must have 2 or 3 columns")
    names_of("feature_names", names, width)
    classes = None if graph.class_names is None else list(graph.class_names)
    return {"class_names": classes, "feature_names": names, "category_of": None}


def _edge_names(found: Counted) -> dict[str, list[str] | None]:
    names_of("edge_feature_names", found.names, found.width or 0)
    return {"edge_feature_names": found.names, "edge_type_names": None}
