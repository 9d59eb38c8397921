"""A graph in pieces -> the folder that `Graph.save` writes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from gnnkit_formats.pieces import GraphPieces, Room

from gnnkit.dataset.base import blame, warn_of_one_way
from gnnkit.graph import Graph
from gnnkit.graph.graph import NAME_FIELDS, TIME_FACTS
from gnnkit.graph.times import TIME_FIELDS, warn_units
from gnnkit.utils.storage import write_meta
from gnnkit_import.count import Counted, count_edges
from gnnkit_import.nodes import write_nodes
from gnnkit_import.passes import ALONE, ImportRun, WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter
from gnnkit_import.sort import Buckets, BucketSort, append_edges, open_records

_RECORDS = "records"  # folder of the buckets in the import's folder


def import_graph(
    graph: GraphPieces,
    work: Path,
    room: Room,
    journal: Journal,
    reporter: ProgressReporter,
    *,
    gaps: bool = True,
    group: WorkGroup = ALONE,
) -> Path:
    """Writes a graph in bounded memory.

    Continues from an earlier call's files in `work`. Returns the graph's folder, for
    `Graph.load`, with the same bytes as `Dataset.load().save` would write. Raises
    `UserError` with file and place for bad data.

    Args:
        work: where temporary files and the graph are written.
        room: memory and threads.
        journal: of `work`.
        gaps: whether feature cells may be empty. They are 0 in the graph, and its
            `missing` lists them. False: they raise `UserError`.
        group: processes that share the passes over edges. Their number does not change
            the bytes.
    """
    target = work / "graph"
    target.mkdir(parents=True, exist_ok=True)
    with blame(f"dataset.root={graph.root}"):
        if journal["imported"] is None:
            _import(ImportRun(graph, target, room.of(group.size), journal, reporter, group), work, room, gaps)
    imported = Graph.trusted(target, features=False)
    warn_units({name: getattr(imported, name) for name in TIME_FIELDS}, imported.time_unit)
    if graph.symmetrize is None:
        warn_of_one_way(imported.csc)
    return target


def _import(run: ImportRun, work: Path, room: Room, gaps: bool) -> None:
    """Runs the passes that the journal does not list. `room` covers all processes."""
    graph, journal = run.graph, run.journal
    counted = count_edges(run, graph.open(room))
    if journal["nodes"] is None:
        journal.write(nodes=write_nodes(replace(run, room=room), counted.num_nodes, gaps=gaps))
    if journal["sorted"] is None:
        if graph.in_order and not graph.symmetrize:
            append_edges(run, counted)
        else:
            _sort(run, counted, work / _RECORDS)
        journal.write(sorted=True)
    shutil.rmtree(work / _RECORDS, ignore_errors=True)
    summary = counted.summary
    meta = {
        **journal["nodes"],
        "edge_feature_names": summary.names,
        "edge_category_of": graph.edge_category_of(summary.names),
        "edge_type_names": summary.relations,
    }
    types = {key: value for key, value in meta["types"].items() if key != "relations" or not graph.symmetrize}
    write_meta(run.folder, {name: meta.get(name) for name in (*NAME_FIELDS, *TIME_FACTS, "node_types")} | types)
    journal.write(imported=True)


def _sort(run: ImportRun, counted: Counted, folder: Path) -> None:
    summary, num_nodes = counted.summary, counted.num_nodes
    buckets = Buckets.of(summary, num_nodes, run.room)
    folder.mkdir(exist_ok=True)
    with open_records(folder, summary, num_nodes, bool(run.graph.symmetrize)) as records:
        edges = BucketSort(run, counted, buckets, records)
        edges.scatter()
        edges.sort()
