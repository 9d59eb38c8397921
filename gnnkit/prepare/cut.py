"""Partitions a data set and writes the files that each rank reads.

Runs once, in a separate process, before the ranks start reading.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.engine.remote.features import round_rows
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Schema
from gnnkit.launch.progress import phase
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Crossing, measure
from gnnkit.partition.shard import uncut
from gnnkit.partition.store.parts import GRAPH, LATER, LINKS, ROUNDED, WHOLE, without_edges, without_features
from gnnkit.prepare.facts import (
    Needs,
    Preparation,
    Prepared,
    coordination,
    create_facts,
    describe_shards,
    why_fetched,
    why_shared,
)
from gnnkit.prepare.inputs import check_types, with_names
from gnnkit.prepare.kept import ResultCache, content, fingerprint, kept_partition, link_files
from gnnkit.prepare.run_partition import Decision, keep, load_rebalanced, save_picture, save_shards
from gnnkit.prepare.steps import describe_visible, prepare_graph, sampling_rule, visible_graphs
from gnnkit.result.result import COORDINATION, PREPARED, SOURCE
from gnnkit.utils.documents import Json, parse_json
from gnnkit.utils.ranges import one_line
from gnnkit.utils.storage import passing, save_arrays


def prepare(request: Preparation) -> Json:
    """Partitions the graph and writes the files that the ranks read.

    Returns the fields of `Prepared`.
    """
    settings, needs, folder, start = request.settings, request.needs, request.folder, time.monotonic()
    phase(f"reading dataset={settings.dataset.name}")
    named_graph = with_names(settings, request.graph)
    check_model(settings, needs, named_graph.schema, named_graph.feature_names)
    draft = prepare_graph(settings, needs, named_graph, folder)
    graph, rows = draft.graph, draft.rows
    by_split = needs.trains and not rows.pairs and sampling_rule(settings) == "none"
    later = visible_graphs(graph) if by_split else {}
    lines = [*draft.notes, *describe_visible(later, graph.time_unit, settings)]
    graph = later.pop("train", graph)
    cache, read_at = ResultCache(settings.cache, graph), time.monotonic()
    phase(f"partitioning {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    recut, note = load_rebalanced(settings, graph.num_nodes)
    partition = kept_partition(cache, settings) if recut is None else recut
    partitioned_at = time.monotonic()
    if partition.edge_cell is not None:
        check_owned(request)
    phase("cutting")
    target = folder / PREPARED
    with passing():
        facts = _recall_shards(request, cache, partition)
        rows.save(target / LINKS)
        _save_later(later, needs, partition, target)
        save_whole(graph, needs, target)
    if needs.recut or recut is not None:
        keep(folder, settings, partition, is_recut=recut is not None)
    if settings.draws_report:
        save_picture(graph, partition, folder)
    times = np.diff([start, read_at, partitioned_at, time.monotonic()]).tolist()
    seconds = dict(zip(("reading", "partitioning", "cutting"), times, strict=True))
    return replace(
        facts.with_notes(*map(one_line, lines), *note, *cache.notes),
        fingerprint=fingerprint(graph, rows) if rows.pairs else cache.fingerprint,
        relations=None if graph.edge_type_names is None else list(graph.edge_type_names),
        inverse_edges=needs.model.inverse_edges,
        seconds=seconds,
    ).to_dict()


def check_model(settings: Settings, needs: Needs, types: Schema, names: Sequence[str] | None) -> None:
    """Raises `UserError` if the model ignores types, or refuses its input columns.

    Args:
        settings: The run's settings.
        needs: The data that ranks read.
        types: The graph's types.
        names: Names of the feature columns, if they have any.
    """
    check_types(needs.model.untyped_model, types)
    plugin = None if settings.model.origin == "Python" else settings.model.load()
    if (check := getattr(plugin, "check_columns", None)) is not None:
        check(names or () if settings.inputs == "features" else ())


def _save_later(graphs: Mapping[str, Graph], needs: Needs, partition: Partition, target: Path) -> None:
    """Saves the graphs that evaluate, without features."""
    if graphs and needs.recut:
        raise UserError(
            "leader.rebalance=true: val and test are evaluated on later edges than those that train, which are not moved; "
            "use leader.rebalance=false"
        )
    for split, graph in graphs.items():
        folder = target / LATER / split
        if needs.reference:
            save_whole(without_features(graph), needs, folder)
        if needs.graph:
            without_features(graph).save(folder / GRAPH)
        if not needs.shares_all or needs.shard_edges:
            save_shards(graph, replace(partition, edge_cell=None), folder, has_rows=False)


def check_owned(request: Preparation) -> None:
    """Raises `UserError` if owners need all in-edges of their nodes.

    To be called for partitions that may place edges on other ranks.
    """
    settings = request.settings
    if request.needs.owned_edges:
        raise UserError(
            f"partition={settings.partition.nodes.name} with partition.border={settings.partition.border} holds edges away "
            f"from the owners of their nodes, and with strategy={settings.strategy.name} owners read all in-edges: use a "
            "partitioner of nodes and partition.border=none or min_words"
        )


def save_whole(graph: Graph, needs: Needs, target: Path) -> None:
    """Saves the full graph for rebalancing, and as one rank's shard for job=verify."""
    if needs.recut:
        graph.save(target / SOURCE)
    if needs.reference:
        uncut(without_edges(graph) if needs.shares_all else graph).save(target / WHOLE)


def _recall_shards(request: Preparation, cache: ResultCache, partition: Partition) -> Prepared:
    """Writes the shards into the run folder, or links cached ones there."""
    settings, needs, graph = request.settings, request.needs, cache.graph
    target, report = request.folder / PREPARED, request.folder / COORDINATION

    def make() -> Prepared:
        shutil.rmtree(target, ignore_errors=True)  # remove files of a cache entry that vanished during the copy
        if needs.shares_all:
            return _write_shared_graph(settings, graph, partition, target, edges=needs.shard_edges)
        if needs.graph:
            without_features(graph).save(target / GRAPH)
        return _write_shards(settings, graph, partition, target, compares=needs.features)

    def write(shard_facts: Prepared, entry: Path) -> Json:
        link_files(target, entry / PREPARED)
        text = report.read_text(encoding="utf-8") if report.exists() else None
        return {"prepared": shard_facts.to_dict(), COORDINATION: text}

    def read(entry: Path, facts: Json) -> Prepared:
        link_files(entry / PREPARED, target)
        shard_facts, text = Prepared(**facts["prepared"]), facts[COORDINATION]
        if settings.decided is not None:  # the layout is the same, but the reason may differ
            reason = settings.decided["why"]
            shard_facts = replace(shard_facts, why=_why_shared_by(settings) if needs.shares_all else reason)
            text = text and _with_decision(text, reason, settings.decided["layouts"])
        if text is not None:
            report.write_text(text, encoding="utf-8")
        return shard_facts

    depends = {
        "owners": content(partition),
        "workers": settings.workers,
        "partition": asdict(settings.partition),
        "strategy": settings.strategy.name,
        "precision": settings.trainer.precision,
        "needs": asdict(needs),
        "decided": settings.decided is not None,  # the reason itself is replaced when an entry is read
    }
    return cache.recall("shards", depends, make, write, read)


def _with_decision(text: str, reason: str, layouts: object) -> str:
    """Replaces the reason for a layout in a cached coordination file."""
    coordination = parse_json(text, COORDINATION)
    coordination["decision"] |= {"why": reason, "layouts": layouts}
    return json.dumps(coordination)


def rounds(settings: Settings) -> bool:
    """Returns whether batches read bfloat16 features that the graph does not store."""
    return settings.trainer.precision == "bf16-mixed" and settings.features.dtype != "bf16"


def save_rounded(settings: Settings, graph: Graph, target: Path) -> None:
    """Saves features in bfloat16 if all ranks' batches read them."""
    if rounds(settings):
        save_arrays(target / ROUNDED, {"features": round_rows(graph.features)}, {})


def _write_shards(settings: Settings, graph: Graph, partition: Partition, target: Path, *, compares: bool) -> Prepared:
    """Saves each rank's nodes and edges, and the planner's decision.

    Args:
        compares: Whether the number of words in a full-graph step explains the layout.
    """
    save_shards(graph, partition, target)
    quality = measure(graph, partition)
    decision = Decision.of(settings, quality)
    if not compares and settings.decided is None:
        decision = replace(decision, why=why_fetched(settings))
    (target.parent / COORDINATION).write_text(json.dumps(coordination(quality, decision)), encoding="utf-8")
    return describe_shards(settings, graph, quality, decision)


def _why_shared_by(settings: Settings) -> str:
    """Explains a shared graph after the leader's decision, if there was one."""
    reasons = [] if settings.decided is None else [settings.decided["why"]]
    return "; ".join([*reasons, why_shared(settings)])


def _write_shared_graph(
    settings: Settings, graph: Graph, partition: Partition, target: Path, *, edges: bool
) -> Prepared:
    """Saves one shared copy of the graph, and the nodes that each rank owns.

    Args:
        edges: Whether shards also hold their nodes' in-edges.
    """
    graph.save(target / GRAPH)
    save_rounded(settings, graph, target)
    node_graph = without_features(graph) if edges else without_edges(graph)
    save_shards(node_graph, replace(partition, edge_cell=None), target)
    counts = np.bincount(partition.node_rank, minlength=partition.grid.world_size)
    balance = {"nodes": float(counts.max() / max(counts.mean(), 1e-9))}
    facts = create_facts(settings, graph, partition, balance, _why_shared_by(settings))
    crossing = Crossing.of(graph, partition)
    return replace(facts, peers=crossing.neighbours, edge_cut=crossing.count)
