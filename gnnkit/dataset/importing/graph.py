"""A graph in pieces -> the folder that `Graph.save` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnkit.crew import ALONE, Crew
from gnnkit.dataset.base import blame, warn_of_one_way
from gnnkit.dataset.importing import edges as of_edges
from gnnkit.dataset.importing.edges import Buckets, Columns
from gnnkit.dataset.importing.nodes import write_nodes
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.pieces import GraphPieces, Room
from gnnkit.graph import Graph
from gnnkit.storage import write_meta

_META = (
    "class_names",
    "feature_names",
    "category_of",
    "edge_feature_names",
    "edge_category_of",
    "edge_type_names",
    "node_types",
)
_RECORDS = "records"  # folder of the buckets, in the folder where an import works


def import_graph(
    graph: GraphPieces,
    work: Path,
    room: Room,
    journal: Journal,
    teller: Teller,
    *,
    gaps: bool = True,
    crew: Crew = ALONE,
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
        crew: processes that share the passes over edges. The bytes are the same for any
            number of these.
    """
    target = work / "graph"
    target.mkdir(parents=True, exist_ok=True)
    with blame(f"dataset.root={graph.root}"):
        if journal["imported"] is None:
            _import(graph, work, target, room, journal, teller, gaps, crew)
    if graph.symmetrize is None and crew.leads:
        warn_of_one_way(Graph.trusted(target).csc)
    return target


def _import(
    graph: GraphPieces, work: Path, target: Path, room: Room, journal: Journal, teller: Teller, gaps: bool, crew: Crew
) -> None:
    own, num_nodes = room.of(crew.size), graph.open(room)
    found, count = of_edges.count(graph, num_nodes, own, journal, teller, crew)
    if journal["nodes"] is None:
        journal.write(nodes=crew.lead(lambda: write_nodes(graph, count, target, room, teller, gaps=gaps)))
    if journal["sorted"] is None:
        if graph.in_order and not graph.symmetrize:
            crew.lead(lambda: of_edges.append(graph, found, count, target, room, teller))
        else:
            _sort(graph, found, count, work / _RECORDS, target, own, journal, teller, crew)
        journal.write(sorted=True)

    def finish() -> None:
        shutil.rmtree(work / _RECORDS, ignore_errors=True)
        texts = graph.edge_category_of(found.names)
        edge_names = {"edge_feature_names": found.names, "edge_category_of": texts, "edge_type_names": found.relations}
        known = {**journal["nodes"], **edge_names}
        types = {key: value for key, value in known["types"].items() if key != "relations" or not graph.symmetrize}
        write_meta(target, {name: known.get(name) for name in _META} | types)

    crew.lead(finish)
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
    crew: Crew,
) -> None:
    buckets = Buckets.of(found, count, room)
    records.mkdir(exist_ok=True)
    kinds = of_edges.kinds_of(found, count, bool(graph.symmetrize))
    with Columns(records, kinds) as columns:
        of_edges.scatter(graph, found, buckets, columns, room, journal, teller, crew)
    with Columns(records, kinds) as columns:  # opened anew, to read what other hosts have written
        of_edges.sort(found, buckets, columns, target, room, journal, teller, crew, graph.duplicates)
