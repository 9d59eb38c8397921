"""A folder of tables -> a store, in bounded memory."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.dataset.importing.edges import Room
from gnnkit.dataset.importing.graph import import_graph
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph
from gnnkit.launch.phases import phase, say
from gnnkit.launch.progress import progress
from gnnkit.leader.choose import describe
from gnnkit.leader.folder import PARTITION, WORK
from gnnkit.leader.inputs import IDS, check_width, degree_features
from gnnkit.leader.machine import available_memory
from gnnkit.leader.scale import Scale, choose
from gnnkit.leader.storing import manifest
from gnnkit.leader.trained import Inputs
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import make_grid
from gnnkit.partition.pieces import EDGE_BYTES, NODE_BYTES, write_shards
from gnnkit.partition.quality import measure
from gnnkit.ranges import one_line
from gnnkit.rows import Rows
from gnnkit.settings import AUTO, Settings
from gnnkit.storage import forget_pages, whole_folder
from gnnkit.store.manifest import PARTS
from gnnkit.store.parts import GRAPH
from gnnkit.task import Task

SHARE = 0.5  # of the memory at hand, where none is given
DATA = 0.6  # of the memory that is given, for data. The rest is for the program and its copies
_ROW_BYTES = 1 << 24  # bytes of features that are made at once


def write(settings: Settings, folder: Path, asked: str) -> dict[str, Any]:
    """Writes the store of a folder of tables, or goes on to write it.

    Returns figures, and a summary for people.

    Args:
        settings: The configuration.
        folder: The run folder, which becomes the store.
        asked: Tells this job and its data apart from others.
    """
    given = settings.memory or int(SHARE * available_memory())
    room, work = Room(int(DATA * given), settings.threads * settings.workers), folder / WORK
    work.mkdir(exist_ok=True)
    journal = Journal(work, asked)
    if journal.changed:
        say(f"{work}: an earlier import read other data or keys: starts over")
        shutil.rmtree(work)
        work.mkdir()
    elif journal["counted"] is not None:
        say(f"{work}: goes on from what an earlier import has finished")
    try:
        phase(f"importing {settings.dataset.create().root} with {given / 2**30:.2g} GiB of memory")
        found = import_graph(settings.dataset.create(), work, room, journal, Teller(sign=progress))
        lines = _store(settings, folder, found, room, asked)
    except OSError as error:
        where = error.filename or folder
        raise UserError(
            one_line(f"{where}: {error.strerror}: the same command goes on from what is finished, once this is mended")
        ) from error
    shutil.rmtree(work)
    return lines


def _store(settings: Settings, folder: Path, found: Path, room: Room, asked: str) -> dict[str, Any]:
    """Makes the imported graph in `found` a store."""
    raw = Graph.trusted(found)
    if raw.num_nodes * NODE_BYTES > room.memory:
        raise UserError(
            f"memory={room.memory / DATA:.0f}: parts of {raw.num_nodes:,} nodes need "
            f"{int(raw.num_nodes * NODE_BYTES / DATA):,} bytes: give more"
        )
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    graph, told = _as_read(settings, folder, found, raw)
    phase(f"cutting {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    chosen = settings.partition
    grid = make_grid(chosen.grid, settings.workers, chosen.replication)
    partition: Partition = chosen.nodes.create().assign(_without_edges(raw), grid)
    shards = write_shards(graph, partition, folder / PARTS, max(room.memory // EDGE_BYTES, 1))
    quality = measure(graph, partition, shards)
    quality.save(folder / PARTITION)
    if settings.strategy.name != AUTO and not settings.create_strategy().reads_graph:
        shutil.rmtree(folder / PARTS / GRAPH)
    phase("writing the manifest")
    manifest(settings, asked, raw, graph, None, quality, folder).save(folder)
    lines = [*describe(graph, settings, partition), *quality.table(), *told]
    lines.append(f"store: dataset=store dataset.root={folder} trains from it")
    return {"summary": "\n".join(lines), **quality.to_dict()}


def _without_edges(raw: Graph) -> Graph:
    """Returns the nodes with labels and splits alone."""
    return Graph(
        CSC(np.zeros(raw.num_nodes + 1, np.int64), np.empty(0, np.int32)),
        np.empty((raw.num_nodes, 0), np.float32),
        raw.labels,
        raw.split,
        class_names=raw.class_names,
    )


def _as_read(settings: Settings, folder: Path, found: Path, raw: Graph) -> tuple[Graph, list[str]]:
    """Writes the whole graph as runs read it: features, labels and names.

    Returns it, mapped, and lines for people.
    """
    scale, why = Scale("none"), ""
    if settings.inputs == "features":
        scale, why = choose(raw, settings.features.scale)
        forget_pages(np.asarray(raw.features))
    replace(Inputs.of(raw, settings.inputs), scale=scale).save(folder)
    task: Task = settings.task.create()
    read, _ = task.prepare(_without_edges(raw))
    if settings.inputs == "features":
        check_width(raw.features.shape[1])
    names: dict[str, Any] = {"class_names": None if read.class_names is None else list(read.class_names)}
    names |= dict.fromkeys(("feature_names", "edge_feature_names", "edge_type_names", "node_types"))
    with whole_folder(folder / PARTS / GRAPH, names) as target:
        for path in sorted(found.glob("*.npy")):
            if path.stem not in ("features", "labels", "node_ids"):
                _link(path, target / path.name)
        np.save(target / "labels.npy", read.labels, allow_pickle=False)
        _write_inputs(settings, scale, raw, found, target)
    if (found / IDS).exists():
        _link(found / IDS, folder / IDS)
    return Graph.trusted(folder / PARTS / GRAPH), [why] if why else []


def _write_inputs(settings: Settings, scale: Scale, raw: Graph, found: Path, target: Path) -> None:
    """Writes the features that models read."""
    path = target / "features.npy"
    if settings.inputs == "learned":
        return Rows(path, np.float32, (0,), raw.num_nodes).finish()
    if settings.inputs == "degree":
        return np.save(path, degree_features(raw), allow_pickle=False)
    if scale.kind == "none":
        return _link(found / path.name, path)
    features = np.asarray(raw.features)
    rows = Rows(path, features.dtype, features.shape[1:])
    step = max(_ROW_BYTES // max(features[:1].nbytes, 1), 1)
    for first in range(0, len(features), step):
        rows.append(scale.rows(features[first : first + step]))
        forget_pages(features)
        progress("writing features")
    return rows.finish()


def _link(source: Path, target: Path) -> None:
    """Gives a file a second name, or copies it where the disk has no links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
