"""job=partition: cuts, reports the quality, and writes the store that runs read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader import cut, picture
from gnnkit.leader.choose import Decision, describe
from gnnkit.leader.folder import INPUTS
from gnnkit.leader.inputs import IDS, load, named, with_inputs, with_kept, with_names
from gnnkit.leader.kept import Kept, content, kept_partition, origin
from gnnkit.leader.result import Result, versions
from gnnkit.leader.stored import KEYS
from gnnkit.leader.trained import as_read
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.sampler.links import Links
from gnnkit.settings import AUTO, Settings
from gnnkit.store import FILE, Manifest
from gnnkit.store.manifest import PARTS, files_of
from gnnkit.store.parts import GRAPH, LINKS
from gnnkit.task import Task


def partition(settings: Settings, folder: Path, graph: Graph | None = None) -> Result:
    """Measures the partition, and writes the store and the partition into the folder.

    Args:
        settings: The configuration.
        folder: The run folder.
        graph: Instead of the data set.
    """
    figures = run_in_child(_cut, settings, folder, graph, patience=Patience.of(settings.timeout))
    return Result("partition", figures, figures.pop("summary"))


def unchanged(settings: Settings, folder: Path, graph: Graph | None) -> Result | None:
    """Returns the result of the store in a folder, if the same job has written it.

    The same job has the same keys that shape parts, and the same data. Files are the
    same by size and time.
    """
    if not (folder / FILE).is_file():
        return None
    manifest = Manifest.load(folder)
    if manifest.asked != _asked(settings, graph):
        return None
    return Result("partition", manifest.quality, f"{folder} holds this store already, and its data are unchanged")


def _cut(settings: Settings, folder: Path, graph: Graph | None) -> dict[str, Any]:
    asked, found = _asked(settings, graph), with_names(settings, graph)
    try:
        whole, links, told = _trained(settings, found, folder)
        why_not = None
    except UserError as error:  # a graph that is measured, and that no run trains on so far
        whole, links, told = named(load(settings, found), folder), None, []
        why_not = str(error)
    kept = Kept(settings.cache, whole)
    chosen = kept_partition(kept, settings)
    saved = None if why_not else (_saved(shard, folder) for shard in cut_all(whole, chosen))
    quality = measure(whole, chosen, saved)
    quality.save(folder / "partition")
    if why_not is None:
        _save_shared(settings, whole, links, folder)
        _manifest(settings, asked, found, whole, links, quality, folder).save(folder)
        told = [*told, f"store: dataset=store dataset.root={folder} trains from it"]
    else:
        told = [f"store: none is written, as no run would read it: {why_not}"]
    why = [] if settings.decided is None else [settings.decided["why"]]
    lines = [*describe(whole, settings, quality.partition), *why, *quality.table(), *told, *kept.notes]
    return {"summary": "\n".join(lines), **quality.to_dict()}


def _trained(settings: Settings, graph: Graph, folder: Path) -> tuple[Graph, Links | None, list[str]]:
    """Returns the graph as runs read it, the edges to predict, and lines for people.

    Features stay sparse where these may be, as ranks that read dense rows fill in the
    zeros of their own.
    """
    task: Task = settings.task.create()
    graph, told = as_read(settings, graph, folder)
    graph, links = task.prepare(named(load(settings, graph), folder))
    if settings.inputs != "features":
        graph = with_inputs(graph, settings.inputs)
    graph, lines = with_kept(graph, settings.input_rows, sparse=True)
    return graph, links, [*told, *lines]


def _saved(shard: Shard, folder: Path) -> Shard:
    shard.save(folder / PARTS / str(shard.rank))
    return shard


def _save_shared(settings: Settings, graph: Graph, links: Links | None, folder: Path) -> None:
    """Saves what all ranks read: the edges to predict, and the graph of a strategy."""
    if links is not None:
        links.save(folder / PARTS / LINKS)
    if settings.strategy.name != AUTO and settings.create_strategy().reads_graph:
        graph.save(folder / PARTS / GRAPH)


def _manifest(
    settings: Settings,
    asked: str,
    found: Graph,
    graph: Graph,
    links: Links | None,
    quality: Quality,
    folder: Path,
) -> Manifest:
    """Describes a store whose parts are written.

    Args:
        settings: The configuration.
        asked: From `_asked`.
        found: The graph of the data set.
        graph: The graph that was cut.
        links: The edges to predict.
        quality: The measured partition.
        folder: The store.
    """
    decision = Decision.of(settings, graph, quality, most=-1)
    return Manifest(
        asked=asked,
        source=settings.dataset.name,
        keys={key: settings.composed[key] for key in KEYS},
        counts=_counts(graph),
        schema={
            "node_types": None if found.node_types is None else [list(each) for each in found.node_types],
            "edge_types": None if graph.edge_type_names is None else list(graph.edge_type_names),
        },
        prepared=cut.described(settings, graph, quality, decision).to_dict(),
        quality=quality.to_dict(),
        coordination=cut.coordination(quality, decision),
        picture=picture.describe(graph, quality.partition),
        inputs=json.loads((folder / INPUTS).read_bytes()),
        holds={
            "graph": (folder / PARTS / GRAPH).exists(),
            "links": links is not None,
            "sparse": isinstance(graph.features, SparseFeatures),
            "node_ids": found.node_ids is not None,
            "vertex_cut": quality.partition.edge_cell is not None,
        },
        files=files_of(folder, IDS),
    )


def _counts(graph: Graph) -> dict[str, int]:
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.features.shape[1],
        "classes": graph.num_classes,
        "labelled": int(np.count_nonzero(graph.labelled)),
        **{split.name.lower(): int(np.count_nonzero(graph.split == split)) for split in Split if split},
    }


def _asked(settings: Settings, graph: Graph | None) -> str:
    """Hashes the keys that shape parts, and what tells the data apart."""
    data: Any = content(graph) if graph is not None else [asdict(settings.dataset), origin(settings.dataset)]
    keys: Mapping[str, Any] = {key: settings.composed[key] for key in (*KEYS, "strategy", "seed")}
    asked = [keys, data, origin(settings.partition.nodes), versions()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
