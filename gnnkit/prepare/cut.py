"""Data set -> partition -> the files that each rank reads.

Runs once, in a process of its own, before the ranks read.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.documents import parse_json
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph
from gnnkit.launch.phases import phase
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.neighbours import Crossing
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import cut_all, uncut
from gnnkit.plan.choose import Decision, describe, shape
from gnnkit.prepare import picture
from gnnkit.prepare.inputs import check_types, load, named, with_inputs, with_kept, with_names
from gnnkit.prepare.kept import Kept, content, fingerprint, kept_partition, link_files
from gnnkit.prepare.run_partition import keep, rebalanced
from gnnkit.prepare.trained import as_read
from gnnkit.remote.features import round_rows
from gnnkit.result.folder import COORDINATION, PREPARED, SOURCE
from gnnkit.sampler.links import Links
from gnnkit.storage import passing, save_arrays
from gnnkit.store.parts import GRAPH, LINKS, ROUNDED, WHOLE, Parts, Reads, without_edges, without_features
from gnnkit.task import Task

_SPELT = {"train": "training", "val": "validation"}  # splits, for people


@dataclass(frozen=True, slots=True)
class Prepared:
    """Facts about the data cut for a run. Plain values, for JSON."""

    grid: list[int]  # rows, columns, slices
    balance: dict[str, float]
    why: str
    summary: str  # for people
    fingerprint: str  # of the graph
    class_names: list[str] | None  # of the user, by class
    peers: list[list[int]]  # of each rank: ranks whose nodes share an edge with its nodes
    seconds: Mapping[str, float] = field(default_factory=dict)  # of the preparation, by phase
    store: str | None = None  # the folder whose parts the ranks read. None: the run folder
    reads: Reads = "shard"  # of a store
    dense: bool = False  # of a store: whether ranks read features with their zeros
    num_nodes: int = 0
    num_edges: int = 0
    num_classes: int = 0  # as `Graph.num_classes`
    edge_cut: int = 0  # edges between nodes of two ranks
    place: str = "mapped"  # of the rows of features: memory, mapped or disk
    cache: int = 0  # bytes of rows that each rank keeps, where rows stay on disk

    @property
    def remote_edges(self) -> float:
        """The share of edges that lead from a node of another rank."""
        return self.edge_cut / max(self.num_edges, 1)

    def parts(self, folder: Path) -> Parts:
        """Returns where the ranks read. `folder` is the run folder."""
        store = None if self.store is None else Path(self.store)
        return Parts(folder / PREPARED, store, self.reads, self.dense)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Needs:
    """The data that the ranks of a job read."""

    trains: bool  # what the task reads, which needs labels
    graph: bool  # one mapped copy of the whole graph for all ranks of a host
    reference: bool  # also the shard of one rank with the whole graph
    features: bool = True  # whether the copy of the graph has features. False: shards have features and edges
    sparse: bool = False  # whether strategy and model read sparse features
    shard_edges: bool = False  # whether shards have edges also beside a copy of the whole graph
    owned_edges: bool = False  # whether the owner of a node must hold all in-edges
    recut: bool = False  # whether the leader may cut the graph again while the ranks train
    inputs: bool = True  # whether a model reads input rows. A program need not
    reads_disk: bool = False  # whether batches gather rows of features, which so may lie in memory or on disk
    rows_last: bool = False  # whether batches have the same rows in each epoch, which are in memory or on disk
    may_stay: bool = False  # whether rows of features may stay on disk
    untyped_model: str | None = None  # name of a model that reads no types. None: types are read, or ignored

    @property
    def shares_all(self) -> bool:
        """Whether ranks train from the copy alone. Shards then say who owns what."""
        return self.graph and self.features


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is to be prepared for the ranks of a run."""

    settings: Settings  # without any `auto`
    needs: Needs
    folder: Path  # the run folder
    graph: Graph | None = None  # instead of the data set


def read(settings: Settings, graph: Graph) -> tuple[Graph, Links | None]:
    """Returns the graph that trains, and the edges to predict, as the task says."""
    task: Task = settings.task.create()
    prepared, links = task.prepare(graph)
    needed = [SPLITS[name] for name in settings.job.splits]
    if links is None and not np.isin(prepared.split, needed).any():
        raise UserError(no_split(settings, labelled=bool(prepared.labelled.any())))
    return with_inputs(prepared, settings.inputs), links


def no_split(settings: Settings, *, labelled: bool) -> str:
    """Says which split is missing, and what to do."""
    what = " or ".join(_SPELT.get(name, name) for name in settings.job.splits)
    if labelled:
        way = "dataset.split=[0.6,0.2,0.2] or Graph.draw_split draws one"
    else:
        way = "no node has a label, and task=link_prediction needs none"
    return f"dataset: no node is in the {what} split: {way}"


def prepare(asked: Preparation) -> dict[str, Any]:
    """Cuts the graph as the leader assigns it, and writes what every rank reads.

    Returns the fields of `Prepared`.
    """
    begun = time.monotonic()
    settings, needs, folder = asked.settings, asked.needs, asked.folder
    phase(f"reading dataset={settings.dataset.name}")
    named_graph = with_names(settings, asked.graph)
    check_types(needs.untyped_model, named_graph.schema)
    graph, told = as_read(settings, named_graph, folder)
    graph, links = named(load(settings, graph), folder), None
    if needs.trains:
        graph, links = read(settings, graph)
    elif needs.inputs:
        graph = with_inputs(graph, settings.inputs)
    graph, lines = with_kept(graph, settings.input_rows, needs.sparse, settings.features.dtype)
    kept, read_at = Kept(settings.cache, graph), time.monotonic()
    phase(f"partitioning {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    shifted, note = rebalanced(settings, graph.num_nodes)
    partition = kept_partition(kept, settings) if shifted is None else shifted
    partitioned_at = time.monotonic()
    if partition.edge_cell is not None:
        check_owned(asked)
    phase("cutting")
    target = folder / PREPARED
    with passing():
        prepared = _kept_shards(asked, kept, partition)
        if links is not None:
            links.save(target / LINKS)
        if needs.recut:
            graph.save(target / SOURCE)
        if needs.reference:
            save_whole(graph, needs, target)
    if needs.recut or shifted is not None:
        keep(folder, settings, partition, changed=shifted is not None)
    if settings.draws_report:
        picture.save(graph, partition, folder)
    summary = "\n".join([prepared.summary, *told, *lines, *note, *kept.notes])
    cut_at = time.monotonic()
    seconds = {"reading": read_at - begun, "partitioning": partitioned_at - read_at, "cutting": cut_at - partitioned_at}
    return replace(prepared, summary=summary, seconds=seconds).to_dict()


def check_owned(asked: Preparation) -> None:
    """Raises `UserError` where owners of nodes must hold all in-edges.

    For partitions whose edges may be away from these owners.
    """
    settings = asked.settings
    if asked.needs.owned_edges:
        raise UserError(
            f"partition={settings.partition.nodes.name} with partition.border={settings.partition.border} holds edges away "
            f"from the owners of their nodes, and with strategy={settings.strategy.name} owners read all in-edges: use a "
            "partitioner of nodes and partition.border=none or min_words"
        )


def save_whole(graph: Graph, needs: Needs, target: Path) -> None:
    """Saves the shard of one rank with the whole graph, for job=verify."""
    uncut(without_edges(graph) if needs.shares_all else graph).save(target / WHOLE)


def _kept_shards(asked: Preparation, kept: Kept, partition: Partition) -> Prepared:
    """Writes the shards into the run folder, or links those of an earlier run there."""
    settings, needs, graph = asked.settings, asked.needs, kept.graph
    target, report = asked.folder / PREPARED, asked.folder / COORDINATION

    def make() -> Prepared:
        shutil.rmtree(target, ignore_errors=True)  # half of an entry that has vanished
        if needs.shares_all:
            return _share(settings, graph, partition, target, edges=needs.shard_edges)
        prepared = _cut(settings, graph, partition, target, compares=needs.features)
        if needs.graph:
            without_features(graph).save(target / GRAPH)
        return prepared

    def write(prepared: Prepared, entry: Path) -> dict[str, Any]:
        link_files(target, entry / PREPARED)
        text = report.read_text(encoding="utf-8") if report.exists() else None
        why = None if settings.decided is None else settings.decided["why"]
        return {"prepared": prepared.to_dict(), COORDINATION: text, "decided": why}

    def read(entry: Path, facts: dict[str, Any]) -> Prepared:
        link_files(entry / PREPARED, target)
        found, text = Prepared(**facts["prepared"]), facts[COORDINATION]
        if settings.decided is not None:  # again, for the same layout
            why = settings.decided["why"]
            spelt = {name: getattr(found, name).replace(facts["decided"], why) for name in ("why", "summary")}
            found = replace(found, **spelt)
            if text is not None:
                coordination = parse_json(text, COORDINATION)
                coordination["decision"] |= {"why": why, "layouts": settings.decided["layouts"]}
                text = json.dumps(coordination)
        if text is not None:
            report.write_text(text, encoding="utf-8")
        return found

    depends = {
        "owners": content(partition),
        "workers": settings.workers,
        "partition": asdict(settings.partition),
        "strategy": settings.strategy.name,
        "precision": settings.trainer.precision,
        "needs": asdict(needs),
        "decided": settings.decided is not None,  # the reason for the layout is of this run
    }
    return kept.recall("shards", depends, make, write, read)


def _cut(settings: Settings, graph: Graph, partition: Partition, target: Path, *, compares: bool) -> Prepared:
    """Saves the nodes and edges of each rank, and the leader's decision.

    Args:
        settings: The configuration.
        graph: The graph.
        partition: The partition of the graph.
        target: The folder of the shards.
        compares: Whether the words of a full-graph step are the reason for the layout.
    """
    for shard in cut_all(graph, partition):
        shard.save(target / str(shard.rank))
    quality = measure(graph, partition)
    decision = Decision.of(settings, graph, quality)
    if not compares and settings.decided is None:
        decision = replace(decision, why=why_fetched(settings))
    (target.parent / COORDINATION).write_text(json.dumps(coordination(quality, decision)), encoding="utf-8")
    return described(settings, graph, quality, decision)


def described(settings: Settings, graph: Graph, quality: Quality, decision: Decision) -> Prepared:
    """Describes shards with nodes and edges.

    Args:
        settings: The configuration.
        graph: The graph.
        quality: The measured partition.
        decision: The reason for the layout.
    """
    balance = {name: quality.balance()[name] for name in ("nodes", "edges", "train_nodes")}
    spelt = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in balance.items())
    lines = [*describe(graph, settings, quality.partition), decision.why, f"max/mean: {spelt}"]
    found = _prepared(graph, quality.partition.grid, quality.neighbours, balance, decision.why, lines)
    return replace(found, edge_cut=quality.edge_cut)


def why_shared(settings: Settings) -> str:
    """Says for people what a layout is where ranks read the whole graph."""
    return f"strategy={settings.strategy.name}: every rank reads the whole graph, and evaluates the nodes that it owns"


def why_fetched(settings: Settings) -> str:
    """Says for people what a layout is where ranks read all edges, and own rows."""
    return f"strategy={settings.strategy.name}: owners send rows to the ranks whose batches read these rows"


def rounds(settings: Settings) -> bool:
    """Whether batches read features in bfloat16, and the graph keeps others."""
    return settings.trainer.precision == "bf16-mixed" and settings.features.dtype != "bf16"


def save_rounded(settings: Settings, graph: Graph, target: Path) -> None:
    """Saves features in bfloat16, where batches of all ranks read these."""
    if rounds(settings):
        save_arrays(target / ROUNDED, {"features": round_rows(graph.features)}, {})


def _share(settings: Settings, graph: Graph, partition: Partition, target: Path, *, edges: bool) -> Prepared:
    """Saves one copy of the graph for all ranks, and the nodes that each rank owns.

    Args:
        settings: The configuration.
        graph: The graph.
        partition: The partition of the graph.
        target: The folder of the shards.
        edges: Whether shards also have the in-edges of these nodes.
    """
    graph.save(target / GRAPH)
    save_rounded(settings, graph, target)
    owned = without_features(graph) if edges else without_edges(graph)
    for shard in cut_all(owned, replace(partition, edge_cell=None)):
        shard.save(target / str(shard.rank))
    counts = np.bincount(partition.node_rank, minlength=partition.grid.world_size)
    balance = {"nodes": float(counts.max() / max(counts.mean(), 1e-9))}
    why = why_shared(settings)
    why = why if settings.decided is None else f"{settings.decided['why']}; {why}"
    lines = [*describe(graph, settings, partition), why]
    crossing = Crossing.of(graph, partition)
    found = _prepared(graph, partition.grid, crossing.neighbours, balance, why, lines)
    return replace(found, edge_cut=crossing.count)


def _prepared(
    graph: Graph, grid: Grid, peers: list[list[int]], balance: dict[str, float], why: str, lines: Sequence[str]
) -> Prepared:
    """Describes the data that was cut.

    Args:
        graph: The graph.
        grid: Of the partition.
        peers: The ranks that share edges with each rank.
        balance: Largest over mean of the workers' shares, by name.
        why: The reason for the layout.
        lines: The description for people.
    """
    names = None if graph.class_names is None else list(graph.class_names)
    found = Prepared(shape(grid), balance, why, "\n".join(lines), fingerprint(graph), names, peers)
    return replace(found, num_nodes=graph.num_nodes, num_edges=graph.num_edges, num_classes=graph.num_classes)


def coordination(quality: Quality, decision: Decision) -> dict[str, Any]:
    """Returns what stands in `coordination.json`."""
    report = quality.to_dict()
    return {"decision": asdict(decision)} | {key: report[key] for key in ("regions", "peers")}
