"""Partitions a graph in memory and writes it as a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import AUTO, Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.store.manifest import PARTS, Digests, Manifest, shaping
from gnnkit.partition.store.pairs import without_pairs
from gnnkit.partition.store.parts import GRAPH, LINKS
from gnnkit.prepare import picture
from gnnkit.prepare.assign import Decision, describe
from gnnkit.prepare.facts import Needs, coordination, describe_shards
from gnnkit.prepare.inputs import IDS, load, save_ids, with_names
from gnnkit.prepare.kept import ResultCache, fingerprint, kept_partition
from gnnkit.prepare.run_partition import save_shards
from gnnkit.prepare.steps import Draft, prepare_graph
from gnnkit.prepare.times import describe_store, sampling_rule
from gnnkit.result.folder import INPUTS, PARTITION
from gnnkit.utils.documents import Json, read_object

# Features may stay sparse, because ranks that need dense rows convert them.
_NEEDS = Needs(trains=True, graph=False, reference=False, sparse=True, for_store=True)


def write(settings: Settings, folder: Path, graph: Graph | None, key: str) -> Json:
    """Writes a store and its partition. Returns the partition's figures and a summary.

    If no run could train on the graph as configured, it is only measured, and the
    summary states why.

    Args:
        settings: The settings of job=partition.
        folder: The run folder, which becomes the store.
        graph: Replaces the data set.
        key: Identifies the job and its data.
    """
    named_graph = with_names(settings, graph)
    try:
        draft, reason = prepare_graph(settings, _NEEDS, named_graph, folder), None
    except UserError as error:  # measure the graph although no run can train on it
        draft, reason = Draft(save_ids(load(settings, named_graph), folder)), error
    graph = draft.graph.evolve(time_borders=None)  # edges are split now
    cache = ResultCache(settings.cache, graph)
    partition = kept_partition(cache, settings)
    quality = measure(graph, partition)
    quality.save(folder / PARTITION)
    if reason is not None:
        notes = [f"store: none is written, as no run would read it: {reason}", *cache.notes]
        return _report(settings, graph, quality, notes)
    holds_graph = settings.strategy.name != AUTO and settings.create_strategy().reads.graph
    has_rows = not (holds_graph and of_ranges(graph, partition))
    save_shards(graph, partition, folder / PARTS, has_rows=has_rows)
    draft.rows.save(folder / PARTS / LINKS)
    if holds_graph:
        graph.save(folder / PARTS / GRAPH)
    with Digests() as digests:
        draft = draft.then(graph)
        return finish_store(settings, key, draft, quality, folder, digests, has_rows=has_rows, notes=cache.notes)


def of_ranges(graph: Graph, partition: Partition) -> bool:
    """Returns whether each part's feature rows are a contiguous range of the graph's.

    If the store holds the graph, its parts then need no rows.
    """
    owners = partition.node_rank
    return not isinstance(graph.features, SparseFeatures) and bool((owners[1:] >= owners[:-1]).all())


def finish_store(
    settings: Settings,
    key: str,
    draft: Draft,
    quality: Quality,
    folder: Path,
    digests: Digests,
    *,
    has_rows: bool,
    source: str | None = None,
    notes: Sequence[str] = (),
) -> Json:
    """Writes the manifest of a store whose parts are written.

    Returns the partition's figures and a summary.

    Args:
        settings: The settings.
        key: Identifies the job and its data.
        draft: The partitioned graph.
        quality: The partition, and its figures.
        folder: The store.
        digests: Hashes of its files.
        has_rows: Whether parts have feature rows, or use ranges of the graph's.
        source: Name of the data. Default: the data set's.
        notes: Further lines.
    """
    graph, rule, decision = draft.graph, sampling_rule(settings), Decision.of(settings, quality)
    facts = replace(describe_shards(settings, graph, quality, decision), fingerprint=fingerprint(graph, draft.rows))
    manifest = Manifest(
        asked=key,
        source=source or settings.dataset.name,
        keys=shaping(settings.cut),
        counts=_count_items(graph),
        schema=_schema_of(graph),
        prepared=replace(facts, schema=None).to_dict(),  # the store has its own
        quality=quality.to_dict(),
        coordination=coordination(quality, decision),
        picture=picture.describe(graph, quality.partition),
        inputs=read_object(folder / INPUTS),
        holds=_list_contents(rule, graph, quality, folder, has_rows=has_rows),
        files={},
        packed=draft.rounding,
    )
    manifest = without_pairs(manifest, folder)
    replace(manifest, files=digests.files_of(folder, IDS)).save(folder)
    times = [] if draft.rows.pairs or rule != "none" else describe_store(graph)
    store_line = f"store: dataset=store dataset.root={folder} trains from it"
    return _report(settings, graph, quality, [*times, *draft.notes, store_line, *notes])


def _report(settings: Settings, graph: Graph, quality: Quality, notes: Sequence[str]) -> Json:
    """Returns the partition's figures, with a summary."""
    reasons = [] if settings.decided is None else [settings.decided["why"]]
    lines = [*describe(graph, settings, quality.partition), *reasons, *quality.table(), *notes]
    return {"summary": "\n".join(lines), **quality.to_dict()}


def _list_contents(rule: str, graph: Graph, quality: Quality, folder: Path, *, has_rows: bool) -> dict[str, bool]:
    return {
        "graph": (folder / PARTS / GRAPH).exists(),
        "rows": has_rows,
        "links": (folder / PARTS / LINKS).exists(),
        "sparse": isinstance(graph.features, SparseFeatures),
        "node_ids": (folder / IDS).exists(),
        "vertex_cut": quality.partition.edge_cell is not None,
        f"time_{rule}": True,
    }


def _schema_of(graph: Graph) -> Json:
    return {
        "node_types": None if graph.node_types is None else [list(pair) for pair in graph.node_types],
        "edge_types": None if graph.edge_type_names is None else list(graph.edge_type_names),
        **graph.schema.to_dict(),
        **({} if graph.time_unit is None else {"time_unit": graph.time_unit}),
    }


def _count_items(graph: Graph) -> dict[str, int]:
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.features.shape[1],
        "classes": graph.num_classes,
        "labelled": int(np.count_nonzero(graph.labelled)),
        **graph.split_sizes,
    }
