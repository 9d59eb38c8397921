"""A graph in pieces -> the folder that `Graph.save` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnkit.dataset.base import blame, warn_of_one_way
from gnnkit.dataset.importing import edges as of_edges
from gnnkit.dataset.importing.edges import Buckets, Columns
from gnnkit.dataset.importing.nodes import write_nodes
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.pieces import GraphPieces, Room
from gnnkit.graph import Graph
from gnnkit.storage import write_meta

_META = ("class_names", "feature_names", "category_of", "edge_feature_names", "edge_type_names", "node_types")
_RECORDS = "records"  # folder of the buckets, in the folder where an import works


def import_graph(
    graph: GraphPieces, work: Path, room: Room, journal: Journal, teller: Teller, *, gaps: bool = True
) -> Path:
    """Writes a graph in bounded memory.

    Goes on from what an earlier call has left in `work`. Returns the folder of the
    graph, for `Graph.load`, with the same bytes as `Dataset.load().save` would write.
    Raises `UserError` that names file and place for bad data.

    Args:
        graph: the pieces.
        work: where temporary files and the graph are written.
        room: memory and threads.
        journal: of `work`.
        teller: tells how far the import is.
        gaps: whether cells of features may be empty, and are 0 in the graph, whose
            `missing` lists them. Otherwise these are refused.
    """
    target = work / "graph"
    target.mkdir(parents=True, exist_ok=True)
    with blame(f"dataset.root={graph.root}"):
        if journal["imported"] is None:
            _import(graph, work, target, room, journal, teller, gaps)
    if graph.symmetrize is None:
        warn_of_one_way(Graph.trusted(target).csc)
    return target


def _import(
    graph: GraphPieces, work: Path, target: Path, room: Room, journal: Journal, teller: Teller, gaps: bool
) -> None:
    found, count = of_edges.count(graph, graph.open(room), room, journal, teller)
    if journal["nodes"] is None:
        journal.write(nodes=write_nodes(graph, count, target, room, teller, gaps=gaps))
    if not (journal["sorted"] or (0, 0, False))[2]:
        if graph.in_order and not graph.symmetrize:
            of_edges.append(graph, found, count, target, room, journal, teller)
        else:
            _sort(graph, found, count, work / _RECORDS, target, room, journal, teller)
    shutil.rmtree(work / _RECORDS, ignore_errors=True)
    known = {**journal["nodes"], "edge_feature_names": found.names, "edge_type_names": found.relations}
    write_meta(target, {name: known.get(name) for name in _META})
    journal.write(imported=True)


def _sort(
    graph: GraphPieces,
    found: of_edges.Counted,
    count: int,
    records: Path,
    target: Path,
    room: Room,
    journal: Journal,
    teller: Teller,
) -> None:
    buckets = Buckets.of(found, count, room)
    records.mkdir(exist_ok=True)
    columns = Columns(records, of_edges.kinds_of(found, count, bool(graph.symmetrize)))
    of_edges.scatter(graph, found, buckets, columns, room, journal, teller)
    of_edges.sort(found, buckets, columns, target, room, journal, teller)
    columns.close()
