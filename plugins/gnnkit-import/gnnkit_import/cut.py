"""Partitions an imported graph and writes it as a store, in bounded memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gnnkit_formats.pieces import Room

from gnnkit.config.settings import AUTO, Settings
from gnnkit.graph import Floats, Graph, PackedFeatures, feature_arrays
from gnnkit.graph.features import DENSE, PACKED, SCALES
from gnnkit.graph.graph import stored_facts
from gnnkit.launch.progress import phase, progress
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.grid import Grid, make_grid
from gnnkit.partition.quality import measure
from gnnkit.partition.shard import Shard
from gnnkit.partition.store.manifest import PARTS, Digests, Manifest
from gnnkit.partition.store.parts import GRAPH, without_edges
from gnnkit.prepare.columns import NumericTable
from gnnkit.prepare.inputs import IDS, Rounding, with_inputs
from gnnkit.prepare.kept import link_file
from gnnkit.prepare.steps import Draft, divide
from gnnkit.prepare.stored import finish_store, of_ranges
from gnnkit.prepare.trained import read_columns
from gnnkit.prepare.transform import InputRows
from gnnkit.result.result import INPUTS, PARTITION
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import forget_pages, save_array, whole_folder, write_atomically
from gnnkit_import.npy_writer import NpyWriter
from gnnkit_import.passes import WorkGroup
from gnnkit_import.run import group_of, num_processes, room_of
from gnnkit_import.shards import NODE_BYTES, edge_bytes, least_memory, write_shards

_MAX_PIECE = 1 << 20  # maximum number of edges partitioned at once
_ROW_BYTES = 1 << 24  # bytes of features written at once


def write_store(settings: Settings, folder: Path, imported: Path, key: str) -> Json:
    """Turns an imported graph into a store. Returns figures and a summary.

    Args:
        folder: The run folder, which becomes the store.
        imported: The folder of the imported graph.
        key: Identifies the job and its data.
    """
    raw, room = Graph.trusted(imported), room_of(settings)
    group, share, edges = _divide_memory(settings, folder, raw, room)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    draft = _write_graph(settings, folder, imported, raw)
    graph = draft.graph
    phase(f"cutting {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    section = settings.partition
    grid = make_grid(section.grid, settings.workers, section.replication)
    partition = _assign_nodes(section.nodes.create(), graph, grid, room)
    holds_graph = settings.strategy.name == AUTO or settings.create_strategy().reads.graph
    rows = not (holds_graph and of_ranges(graph, partition))
    with Digests() as digests:
        if holds_graph:
            digests.add(folder / PARTS / GRAPH)
        shards = write_shards(graph, partition, folder / PARTS, edges, rows=rows, group=group, threads=share.threads)
        for shard in shards:
            digests.add(folder / PARTS / str(shard.rank))
        quality = measure(graph, partition, threads=room.threads)
        quality.save(folder / PARTITION)
        if not holds_graph:
            shutil.rmtree(folder / PARTS / GRAPH)
        phase("writing the manifest")
        store = settings.dataset.create().store_folder
        source = None if store is None else Manifest.load(store).source
        figures = finish_store(settings, key, draft, quality, folder, digests, has_rows=rows, source=source)
    shutil.rmtree(imported.parent)
    return figures


def _divide_memory(settings: Settings, folder: Path, raw: Graph, room: Room) -> tuple[WorkGroup, Room, int]:
    """Returns the process group, each process's memory, and its edges per piece.

    Raises `UserError` if memory is insufficient.
    """
    bytes_per_edge = edge_bytes(raw)
    needed = least_memory(raw.num_nodes, bytes_per_edge)
    if needed > room.memory:
        raise room.too_little(f"parts of {raw.num_nodes:,} nodes need more than that", needed)
    group = group_of(min(num_processes(settings, room), room.memory // needed), settings, folder)
    share = room.of(group.size)
    return group, share, min((share.memory - raw.num_nodes * NODE_BYTES) // bytes_per_edge, _MAX_PIECE)


def _assign_nodes(partitioner: Partitioner, graph: Graph, grid: Grid, room: Room) -> Partition:
    """Partitions the nodes, reading the mapped edges if the partitioner needs them.

    Raises `UserError` if memory is insufficient.
    """
    if not partitioner.reads_edges:
        return partitioner.assign(without_edges(graph), grid)
    if (needed := partitioner.stream_bytes(graph.num_nodes)) > room.memory:
        raise room.too_little(f"{type(partitioner).__name__} of {graph.num_nodes:,} nodes needs more than that", needed)
    partition = partitioner.assign(graph, grid)
    forget_pages(graph.csc.indices)
    return partition


def _write_graph(settings: Settings, folder: Path, imported: Path, raw: Graph) -> Draft:
    """Writes the full graph as runs read it: features, labels and names.

    If the source is a store, the facts about its columns are copied and its rows are
    not transformed again.
    """
    store = settings.dataset.create().store_folder
    rows, notes = InputRows(NumericTable.of_nodes(raw)), list[str]()
    if store is not None:
        write_atomically(folder / INPUTS, (store / INPUTS).read_bytes())
    else:
        raw, rows, _, notes = read_columns(settings, raw, folder)
        forget_pages(np.asarray(raw.features))
    graph, _ = divide(settings, _with_rows(raw, rows), "none")
    if store is None or settings.inputs == "features":
        graph = with_inputs(graph, settings.inputs)
    rounding = ""
    with whole_folder(folder / PARTS / GRAPH, stored_facts(graph)) as target:
        for path in sorted(imported.glob("*.npy")):
            if path.stem not in ("features", "missing", "labels", "node_ids"):
                link_file(path, target / path.name)
        save_array(target / "labels.npy", graph.labels)
        if settings.features.dtype != "as_is":
            rounding = _write_rounded(settings.features.dtype, store, rows, target)
        elif store is None and settings.inputs != "features":
            save_array(target / f"{DENSE}.npy", np.asarray(graph.features))
        else:
            _write_rows(rows, imported, target)
    (folder / IDS).unlink(missing_ok=True)
    if (imported / IDS).exists():
        link_file(imported / IDS, folder / IDS)
    return Draft(Graph.trusted(folder / PARTS / GRAPH), notes=(*notes, *filter(None, [rounding])), rounding=rounding)


def _with_rows(raw: Graph, rows: InputRows) -> Graph:
    """Returns the graph without names of columns, with zeros in place of the rows."""
    zeros = np.broadcast_to(np.zeros((), rows.dtype), rows.shape)  # of which one is in memory
    names = dict.fromkeys(("feature_names", "category_of", "edge_feature_names", "edge_category_of", "missing"))
    return raw.derive(features=zeros, **names)


def _write_rows(rows: InputRows, imported: Path, target: Path) -> None:
    """Writes the models' input features."""
    path = target / f"{DENSE}.npy"
    if rows.is_raw:
        return link_file(imported / path.name, path)
    file = NpyWriter(path, rows.dtype, rows.shape[1:])
    for piece in _read_pieces(rows):
        file.append(piece)
    return file.finish()


def _write_rounded(kind: str, store: Path | None, rows: InputRows, target: Path) -> str:
    """Writes rounded features, and returns a line on the rounding.

    Args:
        store: The source store. Its scale is reused. If None, the source is other data.
        rows: [num_nodes, width] input rows.
    """
    stored = None if store is None else Shard.trusted(store / PARTS / "0").features
    rounding = Rounding(_read_pieces(rows), kind, stored[:0] if isinstance(stored, PackedFeatures) else None)
    file = NpyWriter(target / f"{PACKED}.npy", rounding.form.kept.dtype, rounding.form.shape[1:])
    for piece in _read_pieces(rows):
        file.append(rounding.apply(piece))
    file.finish()
    for name, values in feature_arrays(rounding.form).items():
        if name in SCALES:
            save_array(target / f"{name}.npy", values)
    line = rounding.describe(rows.names)
    return line if store is None else Manifest.load(store).packed


def _read_pieces(rows: InputRows) -> Iterator[Floats]:
    """Yields the input rows in pieces."""
    for piece in rows.pieces(max(_ROW_BYTES // max(rows[:1].nbytes, 1), 1)):
        yield piece
        progress("writing features")
