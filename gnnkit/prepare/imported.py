"""An imported graph -> a store, in bounded memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.config.settings import AUTO, Settings
from gnnkit.dataset.pieces import Room
from gnnkit.graph import CSC, Floats, Graph, PackedFeatures, feature_arrays
from gnnkit.graph.features import DENSE, PACKED, SCALES
from gnnkit.launch.phases import phase
from gnnkit.launch.progress import progress
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.grid import Grid, make_grid
from gnnkit.partition.pieces import NODE_BYTES, edge_bytes, least_memory, write_shards
from gnnkit.partition.quality import measure
from gnnkit.partition.shard import Shard
from gnnkit.plan.choose import describe
from gnnkit.prepare.categories import check
from gnnkit.prepare.fill import Fill, told
from gnnkit.prepare.importing import crew_of, members_of, room_of
from gnnkit.prepare.inputs import IDS, check_width, degree_features
from gnnkit.prepare.kept import link_file
from gnnkit.prepare.packed import Columns, Packer
from gnnkit.prepare.scale import Scale, choose, told_of_edges
from gnnkit.prepare.storing import manifest, of_ranges
from gnnkit.prepare.trained import Inputs
from gnnkit.result.folder import INPUTS, PARTITION
from gnnkit.rows import Rows
from gnnkit.storage import forget_pages, load_arrays, save_array, whole_folder, write_atomically
from gnnkit.store.manifest import PARTS, Digests, Manifest
from gnnkit.store.parts import GRAPH
from gnnkit.task import Task

_MOST_PIECE = 1 << 20  # edges that are cut at once
_ROW_BYTES = 1 << 24  # bytes of features that are made at once


def store(settings: Settings, folder: Path, found: Path, asked: str) -> dict[str, Any]:
    """Makes an imported graph a store. Returns figures, and a summary for people.

    Args:
        settings: The configuration.
        folder: The run folder, which becomes the store.
        found: The folder of the graph.
        asked: Tells the job and its data apart from others.
    """
    raw = Graph.trusted(found)
    room = room_of(settings)
    each = edge_bytes(raw)
    needed = least_memory(raw.num_nodes, each)
    if needed > room.memory:
        raise room.too_little(f"parts of {raw.num_nodes:,} nodes need more than that", needed)
    crew = crew_of(min(members_of(settings, room), room.memory // needed), settings, folder)
    own = room.of(crew.size)
    edges = min((own.memory - raw.num_nodes * NODE_BYTES) // each, _MOST_PIECE)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    graph, told, rounded = _as_read(settings, folder, found, raw)
    phase(f"cutting {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    chosen = settings.partition
    grid = make_grid(chosen.grid, settings.workers, chosen.replication)
    partition = _assigned(chosen.nodes.create(), raw, graph, grid, room)
    holds_graph = settings.strategy.name == AUTO or settings.create_strategy().reads.graph
    rows = not (holds_graph and of_ranges(graph, partition))
    with Digests() as digests:
        if holds_graph:
            digests.add(folder / PARTS / GRAPH)
        for shard in write_shards(graph, partition, folder / PARTS, edges, rows=rows, crew=crew, threads=own.threads):
            digests.add(folder / PARTS / str(shard.rank))
        quality = measure(graph, partition, threads=room.threads)
        quality.save(folder / PARTITION)
        if not holds_graph:
            shutil.rmtree(folder / PARTS / GRAPH)
        phase("writing the manifest")
        store = settings.dataset.create().store_folder
        source = settings.dataset.name if store is None else Manifest.load(store).source
        whole = manifest(settings, asked, raw, graph, None, quality, folder, rounded, rows, digests)
    replace(whole, source=source).save(folder)
    shutil.rmtree(found.parent)
    lines = [*describe(graph, settings, partition), *quality.table(), *told]
    lines.append(f"store: dataset=store dataset.root={folder} trains from it")
    return {"summary": "\n".join(lines), **quality.to_dict()}


def _assigned(partitioner: Partitioner, raw: Graph, graph: Graph, grid: Grid, room: Room) -> Partition:
    """Cuts the nodes, with the mapped edges where the partitioner reads these.

    Raises `UserError` for too little memory.
    """
    if not partitioner.reads_edges:
        return partitioner.assign(_without_edges(raw), grid)
    if (needed := partitioner.stream_bytes(graph.num_nodes)) > room.memory:
        raise room.too_little(f"{type(partitioner).__name__} of {graph.num_nodes:,} nodes needs more than that", needed)
    found = partitioner.assign(graph, grid)
    forget_pages(graph.csc.indices)
    return found


def _without_edges(raw: Graph) -> Graph:
    """Returns the nodes with labels and splits alone."""
    return Graph(
        CSC(np.zeros(raw.num_nodes + 1, np.int64), np.empty(0, np.int32)),
        np.empty((raw.num_nodes, 0), np.float32),
        raw.labels,
        raw.split,
        class_names=raw.class_names,
    )


def _as_read(settings: Settings, folder: Path, found: Path, raw: Graph) -> tuple[Graph, list[str], str]:
    """Writes the whole graph as runs read it: features, labels and names.

    Returns it, mapped, lines for people, and a line if features are rounded. A store
    keeps what models know of its columns, and its rows are as models read these.
    """
    scale, lines, store = Scale("none"), list[str](), settings.dataset.create().store_folder
    if store is not None:
        write_atomically(folder / INPUTS, (store / INPUTS).read_bytes())
    else:
        known, fill = Inputs.of(raw, settings.inputs), Fill()
        if settings.inputs == "features":
            lines += check(raw, settings.features.text)
            fill = Fill.of(raw, settings.features.fill)
            lines = [*told(raw, fill), *lines]
            raw, found = _filled(raw, fill, found)
            scale, why = choose(raw, settings.features.scale)
            lines += [*([why] if why else []), *scale.clipped(raw)]
            forget_pages(np.asarray(raw.features))
        lines += told_of_edges(raw)
        replace(known, scale=scale, fill=fill, text=settings.features.text).save(folder)
    task: Task = settings.task.create()
    read, _ = task.prepare(_without_edges(raw))
    if settings.inputs == "features":
        check_width(raw.features.shape[1])
    names: dict[str, Any] = {"class_names": None if read.class_names is None else list(read.class_names)}
    names |= dict.fromkeys(("feature_names", "category_of", "edge_feature_names", "edge_category_of"))
    names["edge_type_names"] = None if raw.edge_type_names is None else list(raw.edge_type_names)
    names["node_types"] = raw.node_types
    with whole_folder(folder / PARTS / GRAPH, names) as target:
        for path in sorted(found.glob("*.npy")):
            if path.stem not in ("features", "missing", "labels", "node_ids"):
                link_file(path, target / path.name)
        save_array(target / "labels.npy", read.labels)
        dtype, rounded = settings.features.dtype, ""
        if dtype == "as_is":
            _write_inputs(settings.inputs if store is None else "features", scale, raw, found, target)
        else:
            rounded = _write_rounded(dtype, store, scale, raw, target)
    if (found / IDS).exists():
        (folder / IDS).unlink(missing_ok=True)
        link_file(found / IDS, folder / IDS)
    return Graph.trusted(folder / PARTS / GRAPH), [*lines, *([rounded] if rounded else [])], rounded


def _filled(raw: Graph, fill: Fill, found: Path) -> tuple[Graph, Path]:
    """Returns the graph without empty cells and dropped columns, and its folder.

    Writes another folder where there are any.
    """
    fill.check(raw)
    if raw.missing is None and not fill.dropped:
        return raw, found
    features, missing = np.asarray(raw.features), np.empty((0, 2), np.int64) if raw.missing is None else raw.missing
    names, texts = fill.left(raw.feature_names), fill.left(raw.category_of)
    meta = {**load_arrays(found)[1], "feature_names": names, "category_of": texts}
    with whole_folder(found.parent / "filled", meta) as target:
        for path in sorted(found.glob("*.npy")):
            if path.stem not in ("features", "missing"):
                link_file(path, target / path.name)
        rows = Rows(target / f"{DENSE}.npy", features.dtype, (features.shape[1] - len(fill.dropped or ()),))
        step = max(_ROW_BYTES // max(features[:1].nbytes, 1), 1)
        for first in range(0, len(features), step):
            low, high = np.searchsorted(missing[:, 0], [first, first + step])
            rows.append(fill.rows(features[first : first + step], missing[low:high] - np.array([first, 0])))
            forget_pages(features)
            progress("filling empty cells")
        rows.finish()
    return Graph.trusted(found.parent / "filled"), found.parent / "filled"


def _write_inputs(inputs: str, scale: Scale, raw: Graph, found: Path, target: Path) -> None:
    """Writes the features that models read. `inputs` is the configuration key."""
    path = target / f"{DENSE}.npy"
    if inputs == "learned":
        return Rows(path, np.float32, (0,), raw.num_nodes).finish()
    if inputs == "degree":
        return save_array(path, degree_features(raw))
    if scale.kind == "none":
        return link_file(found / path.name, path)
    features = np.asarray(raw.features)
    rows = Rows(path, features.dtype, features.shape[1:])
    for some in _scaled(raw, scale):
        rows.append(some)
    return rows.finish()


def _write_rounded(kind: str, store: Path | None, scale: Scale, raw: Graph, target: Path) -> str:
    """Writes features as features.dtype says, and returns a line for people.

    Args:
        kind: The key.
        store: The store that is cut anew, whose scale stays. None: other data.
        scale: Of the rows that models read.
        raw: The mapped graph.
        target: The folder of the graph.
    """
    known = None if store is None else Shard.trusted(store / PARTS / "0").features
    columns = Columns.of(_scaled(raw, scale))
    packer = Packer(columns, known[:0] if isinstance(known, PackedFeatures) else columns.form(kind))
    rows = Rows(target / f"{PACKED}.npy", packer.form.kept.dtype, packer.form.shape[1:])
    for some in _scaled(raw, scale):
        rows.append(packer.pack(some))
    rows.finish()
    for name, values in feature_arrays(packer.form).items():
        if name in SCALES:
            save_array(target / f"{name}.npy", values)
    told = packer.told(raw.feature_names)
    return told if store is None else Manifest.load(store).packed


def _scaled(raw: Graph, scale: Scale) -> Iterator[Floats]:
    """Yields the rows that models read, some at a time."""
    features = np.asarray(raw.features)
    step = max(_ROW_BYTES // max(features[:1].nbytes, 1), 1)
    for first in range(0, len(features), step):
        yield scale.rows(features[first : first + step])
        forget_pages(features)
        progress("writing features")
