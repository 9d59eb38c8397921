"""Partitions an imported graph and writes it as a store, in bounded memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from gnnkit_formats.pieces import Room

from gnnkit.config.settings import AUTO, Settings
from gnnkit.graph import CSC, Floats, Graph, PackedFeatures, feature_arrays
from gnnkit.graph.features import DENSE, PACKED, SCALES
from gnnkit.graph.schema import read_types
from gnnkit.launch.phases import phase
from gnnkit.launch.progress import progress
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.grid import Grid, make_grid
from gnnkit.partition.quality import measure
from gnnkit.partition.shard import Shard
from gnnkit.partition.store.manifest import PARTS, Digests, Manifest
from gnnkit.partition.store.parts import GRAPH
from gnnkit.prepare.assign import describe
from gnnkit.prepare.columns import NumericTable
from gnnkit.prepare.inputs import IDS, check_implied_task, check_width, degree_rows, learned_tables
from gnnkit.prepare.kept import link_file
from gnnkit.prepare.rounding import Rounding
from gnnkit.prepare.storing import manifest, of_ranges
from gnnkit.prepare.times import describe_store
from gnnkit.prepare.trained import Inputs, fit
from gnnkit.prepare.transform import InputRows, warn_of_edges
from gnnkit.result.folder import INPUTS, PARTITION
from gnnkit.sampler.targets import NODES
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import forget_pages, save_array, whole_folder, write_atomically
from gnnkit_import.npy_writer import NpyWriter
from gnnkit_import.run import group_of, num_processes, room_of
from gnnkit_import.shards import NODE_BYTES, edge_bytes, least_memory, write_shards
from gnnkit_import.work_group import WorkGroup

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
    graph, lines, rounded = _write_graph(settings, folder, imported, raw)
    phase(f"cutting {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    chosen = settings.partition
    grid = make_grid(chosen.grid, settings.workers, chosen.replication)
    partition = _assign_nodes(chosen.nodes.create(), raw, graph, grid, room)
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
        contents = manifest(settings, key, raw, graph, NODES, quality, folder, rounded, rows, digests)
    _save_manifest(settings, contents, folder)
    shutil.rmtree(imported.parent)
    lines = [*describe(graph, settings, partition), *quality.table(), *describe_store(graph), *lines]
    lines.append(f"store: dataset=store dataset.root={folder} trains from it")
    return {"summary": "\n".join(lines), **quality.to_dict()}


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


def _save_manifest(settings: Settings, contents: Manifest, folder: Path) -> None:
    """Writes the manifest. A repartitioned store keeps the name of its source."""
    store = settings.dataset.create().store_folder
    source = settings.dataset.name if store is None else Manifest.load(store).source
    replace(contents, source=source).save(folder)


def _assign_nodes(partitioner: Partitioner, raw: Graph, graph: Graph, grid: Grid, room: Room) -> Partition:
    """Partitions the nodes, reading the mapped edges if the partitioner needs them.

    Raises `UserError` if memory is insufficient.
    """
    if not partitioner.reads_edges:
        return partitioner.assign(_drop_edges(raw), grid)
    if (needed := partitioner.stream_bytes(graph.num_nodes)) > room.memory:
        raise room.too_little(f"{type(partitioner).__name__} of {graph.num_nodes:,} nodes needs more than that", needed)
    partition = partitioner.assign(graph, grid)
    forget_pages(graph.csc.indices)
    return partition


def _drop_edges(raw: Graph) -> Graph:
    """Returns a graph with the labels and splits only."""
    return Graph(
        CSC(np.zeros(raw.num_nodes + 1, np.int64), np.empty(0, np.int32)),
        np.empty((raw.num_nodes, 0), np.float32),
        raw.labels,
        raw.split,
        class_names=raw.class_names,
    )


def _write_graph(settings: Settings, folder: Path, imported: Path, raw: Graph) -> tuple[Graph, list[str], str]:
    """Writes the full graph as runs read it: features, labels and names.

    Returns the mapped graph, lines of description, and a line on rounding, if any. If
    the source is a store, the facts about its columns are copied and its rows are not
    transformed again.
    """
    rows, lines, store = InputRows(NumericTable.of_nodes(raw)), list[str](), settings.dataset.create().store_folder
    if store is not None:
        write_atomically(folder / INPUTS, (store / INPUTS).read_bytes())
    else:
        transform, rows, lines = fit(settings, raw)
        forget_pages(np.asarray(raw.features))
        lines += warn_of_edges(raw)
        facts = replace(Inputs.of(raw, settings.inputs), scale=transform.scale, fill=transform.fill)
        replace(facts, text=settings.features.text).save(folder)
    check_implied_task(settings, raw)
    read, _ = settings.task.create().prepare(_drop_edges(raw))
    if settings.inputs == "features":
        check_width(rows.shape[1])
    names: Json = {"class_names": None if read.class_names is None else list(read.class_names)}
    names |= dict.fromkeys(("feature_names", "category_of", "edge_feature_names", "edge_category_of"))
    names["edge_type_names"] = None if raw.edge_type_names is None else list(raw.edge_type_names)
    names |= {
        "edge_class_names": None,
        "date_columns": raw.date_columns,
        "time_unit": raw.time_unit,
        "time_borders": None,
    }
    names["node_types"] = raw.node_types
    names |= _schema_fields(raw, settings.inputs, rows.shape[1])
    with whole_folder(folder / PARTS / GRAPH, names) as target:
        for path in sorted(imported.glob("*.npy")):
            if path.stem not in ("features", "missing", "labels", "node_ids"):
                link_file(path, target / path.name)
        save_array(target / "labels.npy", read.labels)
        dtype, rounded = settings.features.dtype, ""
        if dtype == "as_is":
            _write_inputs(settings.inputs if store is None else "features", rows, raw, imported, target)
        else:
            rounded = _write_rounded(dtype, store, rows, rows.names, target)
    if (imported / IDS).exists():
        (folder / IDS).unlink(missing_ok=True)
        link_file(imported / IDS, folder / IDS)
    return Graph.trusted(folder / PARTS / GRAPH), [*lines, *([rounded] if rounded else [])], rounded


def _schema_fields(raw: Graph, inputs: str, width: int) -> Json:
    """Returns the fields of `Schema` and of the graph's feature tables and relations.

    Args:
        width: Number of feature columns if `inputs` is "features".
    """
    tables = {"features": raw.feature_tables, "learned": learned_tables(raw)}.get(inputs)
    further = {"feature_tables": tables, "relations": raw.relations}
    fitting = read_types(further, raw.node_types, raw.edge_type_names, 0 if inputs == "learned" else width)
    return replace(raw.schema, **fitting).to_dict()


def _write_inputs(inputs: str, rows: InputRows, raw: Graph, imported: Path, target: Path) -> None:
    """Writes the models' input features. `inputs` is the configuration key."""
    path = target / f"{DENSE}.npy"
    if inputs == "learned":
        return NpyWriter(path, np.float32, (0,), raw.num_nodes).finish()
    if inputs == "degree":
        return save_array(path, degree_rows(np.diff(raw.csc.indptr)))
    if rows.is_raw:
        return link_file(imported / path.name, path)
    file = NpyWriter(path, rows.dtype, rows.shape[1:])
    for piece in _read_pieces(rows):
        file.append(piece)
    return file.finish()


def _write_rounded(kind: str, store: Path | None, rows: InputRows, names: Sequence[str] | None, target: Path) -> str:
    """Writes rounded features, and returns a line on the rounding.

    Args:
        store: The source store. Its scale is reused. If None, the source is other data.
        rows: [num_nodes, width] input rows.
        names: [width] column names.
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
    line = rounding.describe(names)
    return line if store is None else Manifest.load(store).packed


def _read_pieces(rows: InputRows) -> Iterator[Floats]:
    """Yields the input rows in pieces."""
    for piece in rows.pieces(max(_ROW_BYTES // max(rows[:1].nbytes, 1), 1)):
        yield piece
        progress("writing features")
