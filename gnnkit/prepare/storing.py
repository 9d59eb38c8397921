"""Partitions a graph in memory and writes it as a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import AUTO, Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.graph.edge_order import in_listed_order
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import cut_all
from gnnkit.partition.store.manifest import PARTS, Digests, Manifest, shaping
from gnnkit.partition.store.pairs import without_pairs
from gnnkit.partition.store.parts import GRAPH, LINKS
from gnnkit.prepare import cut, picture
from gnnkit.prepare.assign import Decision, describe
from gnnkit.prepare.inputs import IDS, check_implied_task, load, named, with_inputs, with_kept, with_names
from gnnkit.prepare.kept import Kept, fingerprint, kept_partition
from gnnkit.prepare.times import create_task, describe_sampled, describe_store, describe_times, sampling_rule
from gnnkit.prepare.trained import as_read
from gnnkit.result.folder import INPUTS, PARTITION
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.utils.documents import Json, read_object


def write(settings: Settings, folder: Path, graph: Graph | None, asked: str) -> Json:
    """Writes a store and its partition. Returns the partition's figures and a summary.

    If no run could train on the graph as configured, it is only measured, and the
    summary states why.

    `folder` becomes the store. `graph` replaces the data set. `asked` identifies both.
    """
    named_graph = with_names(settings, graph)
    try:
        prepared_graph, rows_to_predict, notes, rounded = _read_graph(settings, named_graph, folder)
        rounded = rounded or _rounding_of_store(settings, graph)
        why_not = None
    except UserError as error:  # measure the graph although no run can train on it
        prepared_graph, rows_to_predict, notes, rounded = named(load(settings, named_graph), folder), NODES, [], ""
        why_not = str(error)
    cache = Kept(settings.cache, prepared_graph)
    chosen = kept_partition(cache, settings)
    holds_graph = settings.strategy.name != AUTO and settings.create_strategy().reads.graph
    rows = not (holds_graph and of_ranges(prepared_graph, chosen))
    if why_not is None:
        _save_shards(prepared_graph, chosen, folder, rows)
    quality = measure(prepared_graph, chosen)
    quality.save(folder / PARTITION)
    if why_not is None:
        rows_to_predict.save(folder / PARTS / LINKS)
        if holds_graph:
            prepared_graph.save(folder / PARTS / GRAPH)
        with Digests() as digests:
            contents = manifest(
                settings, asked, named_graph, prepared_graph, rows_to_predict, quality, folder, rounded, rows, digests
            )
            contents.save(folder)
        notes = [*notes, f"store: dataset=store dataset.root={folder} trains from it"]
    else:
        notes = [f"store: none is written, as no run would read it: {why_not}"]
    why = [] if settings.decided is None else [settings.decided["why"]]
    lines = [*describe(prepared_graph, settings, quality.partition), *why, *quality.table(), *notes, *cache.notes]
    return {"summary": "\n".join(lines), **quality.to_dict()}


def _read_graph(settings: Settings, graph: Graph, folder: Path) -> tuple[Graph, TaskRows, list[str], str]:
    """Returns the graph as runs read it, the rows to predict, and lines.

    The last result is the line on rounding, if any. Features may stay sparse, because
    ranks that need dense rows convert them.
    """
    task = create_task(settings)
    graph, input_lines = as_read(settings, graph, folder)
    check_implied_task(settings, graph)
    complete, rule = named(load(settings, graph), folder), sampling_rule(settings)
    graph, rows = task.prepare(complete) if rule == "none" else task.prepare_by_time(complete)
    graph = graph.evolve(time_borders=None)  # edges are split now
    input_lines = [*input_lines, *describe_times(complete, graph, rows)]
    if settings.inputs != "features":
        graph = with_inputs(graph, settings.inputs)
    graph, lines = with_kept(graph, settings.input_rows, True, settings.features.dtype)
    rounded = "" if settings.features.dtype == "as_is" else "".join(lines)
    if rule == "none":
        return graph, rows, [*input_lines, *([] if rows.pairs else describe_store(graph)), *lines], rounded
    sampled = describe_sampled(graph, rows, rule)
    return *rows.arrange(in_listed_order(graph), rule), [*input_lines, *sampled, *lines], rounded


def _rounding_of_store(settings: Settings, graph: Graph | None) -> str:
    """Returns the line on rounding of the store that is read, if any."""
    store = None if graph is not None else settings.dataset.create().store_folder
    return "" if store is None else Manifest.load(store).packed


def _save_shards(graph: Graph, partition: Partition, folder: Path, rows: bool) -> None:
    for shard in cut_all(graph, partition):
        saved_shard = shard if rows else replace(shard, features=shard.features[:0])
        saved_shard.save(folder / PARTS / str(shard.rank))


def of_ranges(graph: Graph, partition: Partition) -> bool:
    """Returns whether each part's feature rows are a contiguous range of the graph's.

    If the store holds the graph, its parts then need no rows.
    """
    owners = partition.node_rank
    return not isinstance(graph.features, SparseFeatures) and bool((owners[1:] >= owners[:-1]).all())


def manifest(
    settings: Settings,
    asked: str,
    named_graph: Graph,
    graph: Graph,
    rows_to_predict: TaskRows,
    quality: Quality,
    folder: Path,
    packed: str,
    rows: bool,
    digests: Digests,
) -> Manifest:
    """Creates the manifest of a store after its parts are written.

    `named_graph` is the data set's graph, with names. `packed` reports rounded
    features. Without `rows`, parts use ranges of the graph's rows.
    """
    decision = Decision.of(settings, quality)
    contents = Manifest(
        asked=asked,
        source=settings.dataset.name,
        keys=shaping(settings.cut),
        counts=_count_items(graph),
        schema=_schema_of(named_graph, graph),
        prepared=replace(
            cut.described(settings, graph, quality, decision),
            schema=None,  # the store has its own
            fingerprint=fingerprint(graph, rows_to_predict),
        ).to_dict(),
        quality=quality.to_dict(),
        coordination=cut.coordination(quality, decision),
        picture=picture.describe(graph, quality.partition),
        inputs=read_object(folder / INPUTS),
        holds={
            "graph": (folder / PARTS / GRAPH).exists(),
            "rows": rows,
            "links": (folder / PARTS / LINKS).exists(),
            "sparse": isinstance(graph.features, SparseFeatures),
            "node_ids": named_graph.node_ids is not None,
            "vertex_cut": quality.partition.edge_cell is not None,
            f"time_{sampling_rule(settings)}": True,
        },
        files={},
        packed=packed,
    )
    return replace(without_pairs(contents, folder), files=digests.files_of(folder, IDS))


def _schema_of(named_graph: Graph, graph: Graph) -> Json:
    return {
        "node_types": None if named_graph.node_types is None else [list(pair) for pair in named_graph.node_types],
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
