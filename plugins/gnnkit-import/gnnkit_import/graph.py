"""A graph in pieces -> the folder that `Graph.save` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnkit_formats.pieces import GraphPieces, Room

from gnnkit.dataset.base import blame, warn_of_one_way
from gnnkit.graph import Graph
from gnnkit.graph.graph import NAME_FIELDS, TIME_FACTS
from gnnkit.graph.times import TIME_FIELDS, warn_units
from gnnkit.utils.storage import write_meta
from gnnkit_import.count import EdgeSummary, count_edges
from gnnkit_import.nodes import write_nodes
from gnnkit_import.passes import ImportRun
from gnnkit_import.progress import Journal, ProgressReporter
from gnnkit_import.scatter import Buckets, open_records, scatter_edges
from gnnkit_import.sort import BucketSort, append_edges
from gnnkit_import.work_group import ALONE, WorkGroup

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
    if group.is_leader:
        imported = Graph.trusted(target, features=False)
        warn_units({name: getattr(imported, name) for name in TIME_FIELDS}, imported.time_unit)
        if graph.symmetrize is None:
            warn_of_one_way(imported.csc)
    return target


def _import(run: ImportRun, work: Path, room: Room, gaps: bool) -> None:
    """Runs the passes that the journal does not list. `room` covers all processes."""
    graph, journal, group = run.graph, run.journal, run.group
    summary, num_nodes = count_edges(run, graph.open(room))
    if journal["nodes"] is None:
        names = group.run_on_leader(lambda: write_nodes(graph, num_nodes, run.folder, room, run.reporter, gaps=gaps))
        journal.write(nodes=names)
    if journal["sorted"] is None:
        if graph.in_order and not graph.symmetrize:
            group.run_on_leader(lambda: append_edges(run, summary, num_nodes))
        else:
            _sort(run, summary, num_nodes, work / _RECORDS)
        journal.write(sorted=True)

    group.wait()  # all have closed the records

    def finish() -> None:
        shutil.rmtree(work / _RECORDS, ignore_errors=True)
        meta = {
            **journal["nodes"],
            "edge_feature_names": summary.names,
            "edge_category_of": graph.edge_category_of(summary.names),
            "edge_type_names": summary.relations,
        }
        types = {key: value for key, value in meta["types"].items() if key != "relations" or not graph.symmetrize}
        write_meta(run.folder, {name: meta.get(name) for name in (*NAME_FIELDS, *TIME_FACTS, "node_types")} | types)

    group.run_on_leader(finish)
    journal.write(imported=True)


def _sort(run: ImportRun, summary: EdgeSummary, num_nodes: int, folder: Path) -> None:
    buckets, symmetrize = Buckets.of(summary, num_nodes, run.room), bool(run.graph.symmetrize)
    folder.mkdir(exist_ok=True)
    with open_records(folder, summary, num_nodes, symmetrize) as records:
        scatter_edges(run, summary, buckets, records)
    # Opened again, to read what other hosts have written.
    with open_records(folder, summary, num_nodes, symmetrize) as records:
        BucketSort(run, summary, buckets, records).write()
