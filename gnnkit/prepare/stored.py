"""Stores: written from a graph in memory, and read by the preparation of a run."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.config.settings import AUTO, Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.progress import phase
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.store.join import join_store
from gnnkit.partition.store.manifest import PARTS, Digests, Manifest, differing, shaping
from gnnkit.partition.store.pairs import with_pairs, without_pairs
from gnnkit.partition.store.parts import GRAPH, LINKS, StoreParts, without_features
from gnnkit.prepare import cut
from gnnkit.prepare.facts import (
    ModelNeeds,
    Needs,
    Preparation,
    Prepared,
    coordination,
    describe_shards,
    place_features,
    why_fetched,
    why_shared,
)
from gnnkit.prepare.inputs import IDS, check_relation, check_width, load, save_ids, with_names
from gnnkit.prepare.kept import ResultCache, fingerprint, kept_partition
from gnnkit.prepare.run_partition import (
    Decision,
    describe,
    draw_picture,
    keep,
    load_partition,
    load_rebalanced,
    save_shards,
)
from gnnkit.prepare.steps import Draft, describe_store, no_split, prepare_graph, sampling_rule
from gnnkit.prepare.trained import take_stored
from gnnkit.result.result import COORDINATION, INPUTS, PARTITION, PICTURE, PREPARED
from gnnkit.sampler.base import TIME_RULES
from gnnkit.sampler.links import load_rows
from gnnkit.utils.documents import Json, read_object
from gnnkit.utils.ranges import shown
from gnnkit.utils.storage import passing, write_atomically

_GRAPH = "a strategy that reads the whole graph"
RunInChild = Callable[..., Any]  # `run_in_child`, possibly extended by the caller


def prepare_run(request: Preparation, in_child: RunInChild = run_in_child) -> Prepared:
    """Prepares a run from its graph or store. `in_child` runs a function in a child."""
    root = None if request.graph is not None else request.settings.dataset.create().store_folder
    if root is None:
        return place_features(request, Prepared(**in_child(cut.prepare, request)))
    return place_features(request, _prepare_store(request, root, in_child))


def _prepare_store(request: Preparation, root: Path, in_child: RunInChild) -> Prepared:
    """Reads the manifest, and writes the files that the store does not have.

    Raises `UserError` if the run needs other parts than those in the store.
    """
    start = time.monotonic()
    phase(f"reading the manifest of {root}")
    manifest, settings, folder = with_pairs(Manifest.load(root), root), request.settings, request.folder
    _check_store(request, manifest, root)
    if request.needs.reference:
        phase(f"checking every byte of {root}")
        manifest.check_bytes(root)
    take_stored(settings, manifest.inputs, folder, root)
    (folder / PREPARED).mkdir(parents=True, exist_ok=True)
    missing = _find_missing(request, manifest)
    if missing:
        phase(f"reading all parts for {' and '.join(missing)}")
        in_child(_write_missing, request, root, missing)
    if manifest.holds["node_ids"]:
        shutil.copyfile(root / IDS, folder / IDS)
    if not request.needs.shares_all:
        write_atomically(folder / COORDINATION, json.dumps(manifest.coordination).encode())
    if settings.draws_report:
        write_atomically(folder / PICTURE, json.dumps(manifest.picture).encode())
    facts = _adapt_facts(request, manifest, root, missing)
    if request.needs.graph:
        phase("collecting degrees")
        facts.parts(folder).save_degrees(manifest.keys["workers"])
    return replace(facts, seconds={"reading": time.monotonic() - start, "partitioning": 0.0, "cutting": 0.0})


def _adapt_facts(request: Preparation, manifest: Manifest, root: Path, missing: Sequence[str]) -> Prepared:
    """Adapts the store's facts to the run's needs."""
    settings, needs = request.settings, request.needs
    facts, relations = Prepared(**manifest.prepared), manifest.schema["edge_types"]
    if needs.shares_all:
        facts = replace(facts, why=why_shared(settings), balance={"nodes": facts.balance["nodes"]})
    elif not needs.features:
        facts = replace(facts, why=why_fetched(settings))
    if manifest.packed and needs.model.inputs:
        facts = facts.with_notes(manifest.packed)
    read = f"all parts are read for {' and '.join(missing)}" if missing else "no graph is read"
    return replace(
        facts,
        **{f"num_{name}": manifest.counts[name] for name in ("nodes", "edges", "classes")},  # type: ignore[arg-type]
        relations=None if relations is None else list(relations),
        schema=manifest.types.as_plain(),
        origin=f"store: {root}, cut from dataset={manifest.source}: {read}",
        store=str(root.absolute()),
        reads=_select_parts(needs),
        dense=manifest.holds["sparse"] and not needs.model.sparse,
    )


def _select_parts(needs: Needs) -> StoreParts:
    if not needs.graph:
        return "shard"
    return "topology" if not needs.features else "both" if needs.shard_edges else "graph"


def _check_store(request: Preparation, manifest: Manifest, root: Path) -> None:
    """Raises `UserError` if the run needs other parts than those in the store."""
    settings, needs = request.settings, request.needs
    _check_order(request, manifest, root)
    for key, run_value, store_value in differing(settings.cut, manifest.keys, whole_task=manifest.holds["links"]):
        raise UserError(
            f"{key}={_format_value(run_value)}: the store {root} was cut with {key}={_format_value(store_value)}: remove the key, or write "
            "another store with job=partition"
        )
    if manifest.holds["vertex_cut"]:
        cut.check_owned(request)
    if manifest.holds["links"]:
        _check_links(request, manifest, root)
    is_split = manifest.holds["links"] or any(manifest.counts[split] for split in settings.job.splits)
    if needs.trains and not is_split:
        raise UserError(no_split(settings, has_labels=manifest.counts["labelled"] > 0))
    cut.check_model(settings, needs, manifest.types, manifest.inputs.get("features"))
    if needs.model.inverse_edges:
        raise UserError(
            f"model.inverse=true: the store {root} has no inverse edges, which batches and model=lightgcn need: use "
            "model.inverse=false, model=rgcn with strategy=vertex_centric, or the original data set"
        )
    if settings.inputs == "features" and needs.model.inputs:
        check_width(manifest.counts["features"])
    if settings.features.place == "disk" and manifest.holds["sparse"]:
        raise UserError(
            f"features.place=disk: the store {root} has sparse features: use features.place=mapped, or write the "
            "store with input_rows=dense"
        )
    partition, _ = load_rebalanced(settings, manifest.counts["nodes"])
    if partition is not None:
        raise UserError(
            f"trainer.resume={settings.trainer.resume}: this run was rebalanced, but the parts of {root} were not: "
            "use the original data set"
        )


def _check_order(request: Preparation, manifest: Manifest, root: Path) -> None:
    """Raises `UserError` if the run needs in-edges in another order."""
    if request.needs.model.ordered_layer is not None:
        raise UserError(
            f"model: {request.needs.model.ordered_layer} reads a node's in-edges in the order of the edge list, and the store {root} "
            'sorts them by source: use another data set than dataset=store, or aggr="mean", "sum" or "max"'
        )
    rule = sampling_rule(request.settings)
    store_rule = next((time_rule for time_rule in TIME_RULES if manifest.holds.get(f"time_{time_rule}")), TIME_RULES[0])
    if rule != store_rule:
        raise UserError(
            f"sampler.time={rule}: the store {root} holds its edges as for sampler.time={store_rule}: use this value, or write "
            f"another store with job=partition and sampler.time={rule}"
        )


def _check_links(request: Preparation, manifest: Manifest, root: Path) -> None:
    """Raises `UserError` if the run cannot use the store's held-out edges."""
    if not request.needs.trains:
        raise UserError(
            f"dataset.root={root}: parts of task={request.settings.task.name} do not contain the held-out edges, which "
            "this job reads: use the original data set"
        )
    if request.needs.model.relational:
        check_relation(manifest.types, load_rows(root / PARTS / LINKS))


def _format_value(value: object) -> str:
    return "null" if value is None else shown(str(value).replace(" ", ""))


def _find_missing(request: Preparation, manifest: Manifest) -> list[str]:
    """Names the data that the ranks read and the store does not have."""
    settings, needs = request.settings, request.needs
    dense = manifest.holds["sparse"] and not needs.model.sparse and needs.features
    requirements = {
        _GRAPH: needs.graph and (dense or not manifest.holds["graph"]),
        "trainer.precision=bf16-mixed": cut.rounds(settings) and needs.shares_all,
        "job=verify": needs.reference,
        "leader.rebalance=true": needs.recut,
    }
    return [name for name, is_missing in requirements.items() if is_missing]


def _write_missing(request: Preparation, root: Path, missing: Sequence[str]) -> None:
    """Writes the data that `_find_missing` names."""
    settings, needs, folder = request.settings, request.needs, request.folder
    graph, target = join_store(root), folder / PREPARED
    if not needs.model.sparse and isinstance(graph.features, SparseFeatures):
        graph = graph.derive(features=np.asarray(graph.features))
    with passing():
        if _GRAPH in missing:
            (graph if needs.features else without_features(graph)).save(target / GRAPH)
        if needs.shares_all:
            cut.save_rounded(settings, graph, target)
        cut.save_whole(graph, needs, target)
    if needs.recut:
        keep(folder, settings, load_partition(root)[0], is_recut=False)


# Features may stay sparse, because ranks that need dense rows convert them.
_NEEDS = Needs(trains=True, graph=False, reference=False, model=ModelNeeds(sparse=True), for_store=True)


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
        picture=draw_picture(graph, quality.partition),
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
