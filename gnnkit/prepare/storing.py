"""A graph -> the store that runs read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.config.settings import AUTO, Settings
from gnnkit.documents import read_object
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.plan.choose import Decision, describe
from gnnkit.prepare import cut, picture
from gnnkit.prepare.inputs import IDS, load, named, with_inputs, with_kept, with_names
from gnnkit.prepare.kept import Kept, kept_partition
from gnnkit.prepare.trained import as_read
from gnnkit.result.folder import INPUTS, PARTITION
from gnnkit.sampler.links import Links
from gnnkit.store.manifest import PARTS, Digests, Manifest, shaping
from gnnkit.store.pairs import without_pairs
from gnnkit.store.parts import GRAPH, LINKS
from gnnkit.task import Task


def write(settings: Settings, folder: Path, graph: Graph | None, asked: str) -> dict[str, Any]:
    """Cuts the graph, and writes the store and the partition. Returns the figures.

    Only measures a graph that no run would train on as configured, and says so.

    Args:
        settings: The configuration.
        folder: The run folder, which becomes the store.
        graph: Instead of the data set.
        asked: Tells the job and its data apart from others.
    """
    found = with_names(settings, graph)
    try:
        whole, links, told, rounded = _trained(settings, found, folder)
        store = None if graph is not None else settings.dataset.create().store_folder
        if store is not None and not rounded:  # its rows are rounded already
            rounded = Manifest.load(store).packed
        why_not = None
    except UserError as error:  # a graph that is measured, and that no run trains on so far
        whole, links, told, rounded = named(load(settings, found), folder), None, [], ""
        why_not = str(error)
    kept = Kept(settings.cache, whole)
    chosen = kept_partition(kept, settings)
    holds_graph = settings.strategy.name != AUTO and settings.create_strategy().reads.graph
    rows = not (holds_graph and of_ranges(whole, chosen))
    if why_not is None:
        for shard in cut_all(whole, chosen):
            _save(shard, folder, rows)
    quality = measure(whole, chosen)
    quality.save(folder / PARTITION)
    if why_not is None:
        if links is not None:
            links.save(folder / PARTS / LINKS)
        if holds_graph:
            whole.save(folder / PARTS / GRAPH)
        with Digests() as digests:
            manifest(settings, asked, found, whole, links, quality, folder, rounded, rows, digests).save(folder)
        told = [*told, f"store: dataset=store dataset.root={folder} trains from it"]
    else:
        told = [f"store: none is written, as no run would read it: {why_not}"]
    why = [] if settings.decided is None else [settings.decided["why"]]
    lines = [*describe(whole, settings, quality.partition), *why, *quality.table(), *told, *kept.notes]
    return {"summary": "\n".join(lines), **quality.to_dict()}


def _trained(settings: Settings, graph: Graph, folder: Path) -> tuple[Graph, Links | None, list[str], str]:
    """Returns the graph as runs read it, the edges to predict, and lines for people.

    The last line, if any, says what rounding features saves and costs.

    Features stay sparse where these may be, as ranks that read dense rows fill in the
    zeros of their own.
    """
    task: Task = settings.task.create()
    graph, told = as_read(settings, graph, folder)
    graph, links = task.prepare(named(load(settings, graph), folder))
    if settings.inputs != "features":
        graph = with_inputs(graph, settings.inputs)
    graph, lines = with_kept(graph, settings.input_rows, True, settings.features.dtype)
    rounded = "" if settings.features.dtype == "as_is" else "".join(lines)
    return graph, links, [*told, *lines], rounded


def _save(shard: Shard, folder: Path, rows: bool) -> None:
    kept = shard if rows else replace(shard, features=shard.features[:0])
    kept.save(folder / PARTS / str(shard.rank))


def of_ranges(graph: Graph, partition: Partition) -> bool:
    """Says whether rows of each part are a range of the graph's, in one file.

    Parts of a store that holds the graph then need no rows of their own.
    """
    owners = partition.node_rank
    return not isinstance(graph.features, SparseFeatures) and bool((owners[1:] >= owners[:-1]).all())


def manifest(
    settings: Settings,
    asked: str,
    found: Graph,
    graph: Graph,
    links: Links | None,
    quality: Quality,
    folder: Path,
    packed: str,
    rows: bool,
    digests: Digests,
) -> Manifest:
    """Describes a store whose parts are written.

    Args:
        settings: The configuration.
        asked: As in `write`.
        found: The graph of the data set.
        graph: The graph that was cut.
        links: The edges to predict.
        quality: The measured partition.
        folder: The store.
        packed: What rounded features save and cost, for people.
        rows: Whether parts have rows of features. False: ranges of the graph's.
        digests: Of the files, some of which it has.
    """
    decision = Decision.of(settings, graph, quality, compares=False)
    whole = Manifest(
        asked=asked,
        source=settings.dataset.name,
        keys=shaping(settings.cut),
        counts=_counts(graph),
        schema={
            "node_types": None if found.node_types is None else [list(each) for each in found.node_types],
            "edge_types": None if graph.edge_type_names is None else list(graph.edge_type_names),
            **graph.schema.to_dict(),
        },
        prepared=cut.described(settings, graph, quality, decision).to_dict(),
        quality=quality.to_dict(),
        coordination=cut.coordination(quality, decision),
        picture=picture.describe(graph, quality.partition),
        inputs=read_object(folder / INPUTS),
        holds={
            "graph": (folder / PARTS / GRAPH).exists(),
            "rows": rows,
            "links": links is not None,
            "sparse": isinstance(graph.features, SparseFeatures),
            "node_ids": found.node_ids is not None,
            "vertex_cut": quality.partition.edge_cell is not None,
        },
        files={},
        packed=packed,
    )
    return replace(without_pairs(whole, folder), files=digests.files_of(folder, IDS))


def _counts(graph: Graph) -> dict[str, int]:
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.features.shape[1],
        "classes": graph.num_classes,
        "labelled": int(np.count_nonzero(graph.labelled)),
        **graph.split_sizes,
    }
