"""Partitions a data set and writes the files that each rank reads.

Runs once, in a separate process, before the ranks start reading.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.engine.remote.features import round_rows
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph, labelled
from gnnkit.graph.edge_order import in_listed_order
from gnnkit.graph.inverse_edges import with_inverse_edges
from gnnkit.launch.phases import phase, warnings_in_lines
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.neighbours import Crossing
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import cut_all, uncut
from gnnkit.partition.store.parts import (
    GRAPH,
    LATER,
    LINKS,
    ROUNDED,
    WHOLE,
    RankParts,
    Reads,
    without_edges,
    without_features,
)
from gnnkit.prepare import picture
from gnnkit.prepare.assign import Decision, describe, shape
from gnnkit.prepare.inputs import (
    check_implied_task,
    check_relation,
    check_types,
    describe_repeated,
    load,
    named,
    with_inputs,
    with_kept,
    with_names,
)
from gnnkit.prepare.kept import Kept, content, fingerprint, kept_partition, link_files
from gnnkit.prepare.run_partition import keep, rebalanced
from gnnkit.prepare.times import (
    create_task,
    describe_sampled,
    describe_times,
    describe_visible,
    sampling_rule,
    visible_graphs,
)
from gnnkit.prepare.trained import as_read
from gnnkit.result.folder import COORDINATION, PREPARED, SOURCE
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.utils.documents import Json, parse_json
from gnnkit.utils.ranges import one_line
from gnnkit.utils.storage import passing, save_arrays

_SPLIT_NAMES = {"train": "training", "val": "validation"}  # names of splits in messages


@dataclass(frozen=True, slots=True)
class Prepared:
    """Facts about a run's prepared data, as plain values for JSON.

    Each fact is a field, which later steps replace. `summary` writes the sentences.
    """

    grid: list[int]  # rows, columns, slices
    balance: dict[str, float]  # maximum over mean of the workers' shares, by name
    why: str  # the reason for the layout
    sizes: list[str]  # lines on the graph and the layout
    fingerprint: str  # the graph's fingerprint
    class_names: list[str] | None  # [num_classes] the user's names
    peers: list[list[int]]  # for each rank, the ranks whose nodes share an edge with its nodes
    seconds: Mapping[str, float] = field(default_factory=dict)  # duration of each preparation phase
    store: str | None = None  # folder whose parts the ranks read. None: the run folder
    reads: Reads = "shard"  # which parts of a store the ranks read
    dense: bool = False  # whether ranks convert a store's sparse features to dense ones
    num_nodes: int = 0
    num_edges: int = 0
    num_classes: int = 0  # as `Graph.num_classes`
    edge_cut: int = 0  # number of edges between nodes on different ranks
    schema: Json | None = None  # `Schema.as_plain`. None: a store of an earlier version
    place: str = "mapped"  # where feature rows are: memory, mapped or disk
    cache: int = 0  # bytes of rows that each rank caches, if rows stay on disk
    relations: list[str] | None = None  # names of the relations, inverse ones last. None: there is one
    inverse_edges: bool = False  # whether the reverse of each edge was added, with relations of its own
    origin: str = ""  # line on the store that is read
    notes: list[str] = field(default_factory=list)  # further lines, on inputs, files and the cache

    @property
    def summary(self) -> str:
        """The lines that are printed and reported."""
        origin = [self.origin] if self.origin else []
        return "\n".join([*origin, *self.sizes, self.why, *self._balance_lines, *self.notes])

    @property
    def _balance_lines(self) -> list[str]:
        if "edges" not in self.balance or self.grid == [1, 1, 1]:
            return []
        texts = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in self.balance.items())
        # Above this, another partition is suggested.
        advice = "; partition=hash divides training nodes evenly" if self.balance["train_nodes"] >= 1.5 else ""
        return [f"max/mean: {texts}{advice}"]

    def with_notes(self, *lines: str) -> Prepared:
        """Returns the facts with further lines."""
        return replace(self, notes=[*self.notes, *lines])

    @property
    def remote_edges(self) -> float:
        """The share of edges with a source on another rank."""
        return self.edge_cut / max(self.num_edges, 1)

    def parts(self, folder: Path) -> RankParts:
        """Returns the parts that the ranks read. `folder` is the run folder."""
        store = None if self.store is None else Path(self.store)
        return RankParts(folder / PREPARED, store, self.reads, self.dense)

    def to_dict(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Needs:
    """The data that a job's ranks read."""

    trains: bool  # whether the job reads the task's inputs, including labels
    graph: bool  # whether the ranks on a host share one mapped copy of the complete graph
    reference: bool  # whether the complete graph is also saved as one rank's shard
    features: bool = True  # whether the shared graph has features. If not, shards have features and edges
    sparse: bool = False  # whether strategy and model support sparse features
    shard_edges: bool = False  # whether shards have edges even if the complete graph is shared
    owned_edges: bool = False  # whether a node's owner must hold all its in-edges
    recut: bool = False  # whether the leader may change the partition during training
    inputs: bool = True  # whether a model reads input rows. Graph programs may not
    reads_disk: bool = False  # whether batches gather feature rows, so the rows may be in memory or on disk
    rows_last: bool = False  # whether batches read the same rows in each epoch, in memory or from disk
    may_stay: bool = False  # whether feature rows may stay on disk
    inverse_edges: bool = False  # whether batches of a relational model contain the reverse of each edge
    edge_order: bool = False  # whether a model reads a node's in-edges in the order of the user's edge list
    ordered_layer: str | None = None  # a layer whose result depends on this order, or None
    untyped_model: str | None = None  # name of a model that reads no types. None: types are read, or ignored
    relational: bool = False  # whether a model reads edge types, and so predicts edges of one relation

    @property
    def shares_all(self) -> bool:
        """Whether ranks read only the shared graph, and shards define ownership."""
        return self.graph and self.features


@dataclass(frozen=True, slots=True)
class Preparation:
    """A request to prepare a run's data."""

    settings: Settings  # with every `auto` resolved
    needs: Needs
    folder: Path  # the run folder
    graph: Graph | None = None  # replaces the data set


def read(settings: Settings, graph: Graph, *, relational: bool, rule: str = "none") -> tuple[Graph, TaskRows]:
    """Returns the training graph and the rows to predict, as the task defines them.

    Args:
        settings: The run's settings.
        graph: The graph with all edges.
        relational: Whether the model reads edge types.
        rule: `Sampler.time`. With times, all edges pass messages after their times.
    """
    task = create_task(settings)
    check_implied_task(settings, graph)
    try:
        with warnings_in_lines(settings.dataset.name):
            prepared, rows = task.prepare(graph) if rule == "none" else task.prepare_by_time(graph)
    except UserError:
        if settings.job.needs_labels and task.labels_nodes and not graph.labelled.any():
            raise UserError(no_split(settings, labelled=False, edges=graph.edge_labels is not None)) from None
        raise
    if relational:
        check_relation(graph.schema, rows)
    label, split, _ = rows.values(prepared)
    if not (rows.drawn or np.isin(split, [SPLITS[name] for name in settings.job.splits]).any()):
        has_labels, edges = bool(labelled(label).any()), graph.edge_labels is not None
        raise UserError(no_split(settings, labelled=has_labels, noun=task.noun, edges=edges))
    return with_inputs(prepared, settings.inputs), rows


def no_split(settings: Settings, *, labelled: bool, noun: str = "node", edges: bool = False) -> str:
    """Returns a message that names the missing split and a remedy.

    Args:
        settings: The run's settings.
        labelled: Whether what the task predicts has labels.
        noun: What the task predicts.
        edges: Whether edges have labels.
    """
    what = " or ".join(_SPLIT_NAMES.get(name, name) for name in settings.job.splits)
    if labelled:
        draws = "draw_edge_split" if noun == "edge" else "draw_split"
        way = f"dataset.split=[0.6,0.2,0.2] or Graph.{draws} draws one"
    elif edges:
        way = "only edges have labels, which task=edge_classification or edge_regression predicts"
    else:
        way = "no node has a label (a column label, data.y or labels=), and task=link_prediction needs none"
    return f"dataset: no {noun} is in the {what} split: {way}"


def prepare(asked: Preparation) -> Json:
    """Partitions the graph and writes the files that the ranks read.

    Returns the fields of `Prepared`.
    """
    settings, needs, folder, begun = asked.settings, asked.needs, asked.folder, time.monotonic()
    phase(f"reading dataset={settings.dataset.name}")
    graph, rows, lines = _read_graph(asked, rule := sampling_rule(settings))
    later = visible_graphs(graph) if needs.trains and not rows.pairs and rule == "none" else {}
    lines += describe_visible(later, graph.time_unit, settings)
    graph = later.pop("train", graph)
    cache, read_at = Kept(settings.cache, graph), time.monotonic()
    phase(f"partitioning {graph.num_nodes:,} nodes and {graph.num_edges:,} edges for {settings.workers} workers")
    shifted, note = rebalanced(settings, graph.num_nodes)
    partition = kept_partition(cache, settings) if shifted is None else shifted
    partitioned_at = time.monotonic()
    if partition.edge_cell is not None:
        check_owned(asked)
    phase("cutting")
    target = folder / PREPARED
    with passing():
        prepared = _recall_shards(asked, cache, partition)
        rows.save(target / LINKS)
        _save_later(later, needs, partition, target)
        if needs.recut:
            graph.save(target / SOURCE)
        if needs.reference:
            save_whole(graph, needs, target)
    if needs.recut or shifted is not None:
        keep(folder, settings, partition, changed=shifted is not None)
    if settings.draws_report:
        picture.save(graph, partition, folder)
    times = np.diff([begun, read_at, partitioned_at, time.monotonic()]).tolist()
    seconds = dict(zip(("reading", "partitioning", "cutting"), times, strict=True))
    digest = fingerprint(graph, rows) if rows.pairs else prepared.fingerprint
    names = graph.edge_type_names and list(graph.edge_type_names)
    facts = {"relations": names, "inverse_edges": needs.inverse_edges, "seconds": seconds}
    prepared = prepared.with_notes(*map(one_line, lines), *note, *cache.notes)
    return replace(prepared, fingerprint=digest, **facts).to_dict()  # type: ignore[arg-type]


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
            for shard in cut_all(graph, replace(partition, edge_cell=None)):
                replace(shard, features=shard.features[:0]).save(folder / str(shard.rank))


def _read_graph(asked: Preparation, rule: str) -> tuple[Graph, TaskRows, list[str]]:
    """Returns the graph as the ranks read it, the rows to predict, and summary lines.

    Args:
        asked: The request.
        rule: `Sampler.time`.
    """
    settings, needs = asked.settings, asked.needs
    named_graph = with_names(settings, asked.graph)
    check_types(needs.untyped_model, named_graph.schema)
    check_columns(settings, named_graph.feature_names)
    graph, input_lines = as_read(settings, named_graph, asked.folder)
    graph, rows = named(load(settings, graph), asked.folder), NODES
    task = create_task(settings)
    if needs.trains:
        complete = graph
        graph, rows = read(settings, graph, relational=needs.relational, rule=rule)
        input_lines = [*input_lines, *describe_times(complete, graph, rows, settings)]
    elif needs.inputs:
        if "predictions" in settings.write or not task.hides_edges:
            graph, rows = task.prepare_known(graph)
        graph = with_inputs(graph, settings.inputs)
    graph, lines = with_kept(graph, settings.input_rows, needs.sparse, settings.features.dtype)
    lines = [*rows.describe(), *lines]
    if needs.relational and settings.model.arguments.get("inverse"):
        lines = [*lines, *describe_repeated(graph)]
    if needs.inverse_edges:
        rows = rows.with_inverse_edges(graph.num_relations)
        graph = with_inverse_edges(graph)
        lines = [*lines, f"edges: {graph.num_edges // 2:,} inverse edges were added (model.inverse=true)"]
    if rule != "none":
        lines = [*lines, *describe_sampled(graph, rows, rule, trains=needs.trains)]
    graph = in_listed_order(graph) if needs.edge_order or rule != "none" else graph
    return *rows.arrange(graph, rule), [*input_lines, *lines]


def check_columns(settings: Settings, names: Sequence[str] | None) -> None:
    """Lets a model plugin refuse the names of its input columns, if they have any."""
    plugin = None if settings.model.origin == "Python" else settings.model.load()
    if (check := getattr(plugin, "check_columns", None)) is not None:
        check(names or () if settings.inputs == "features" else ())


def check_owned(asked: Preparation) -> None:
    """Raises `UserError` if owners need all in-edges of their nodes.

    To be called for partitions that may place edges on other ranks.
    """
    settings = asked.settings
    if asked.needs.owned_edges:
        raise UserError(
            f"partition={settings.partition.nodes.name} with partition.border={settings.partition.border} holds edges away "
            f"from the owners of their nodes, and with strategy={settings.strategy.name} owners read all in-edges: use a "
            "partitioner of nodes and partition.border=none or min_words"
        )


def save_whole(graph: Graph, needs: Needs, target: Path) -> None:
    """Saves the full graph as one rank's shard, for job=verify."""
    uncut(without_edges(graph) if needs.shares_all else graph).save(target / WHOLE)


def _recall_shards(asked: Preparation, cache: Kept, partition: Partition) -> Prepared:
    """Writes the shards into the run folder, or links cached ones there."""
    settings, needs, graph = asked.settings, asked.needs, cache.graph
    target, report = asked.folder / PREPARED, asked.folder / COORDINATION

    def make() -> Prepared:
        shutil.rmtree(target, ignore_errors=True)  # remove files of a cache entry that vanished during the copy
        if needs.shares_all:
            return _write_shared_graph(settings, graph, partition, target, edges=needs.shard_edges)
        prepared = _write_shards(settings, graph, partition, target, compares=needs.features)
        if needs.graph:
            without_features(graph).save(target / GRAPH)
        return prepared

    def write(prepared: Prepared, entry: Path) -> Json:
        link_files(target, entry / PREPARED)
        text = report.read_text(encoding="utf-8") if report.exists() else None
        return {"prepared": prepared.to_dict(), COORDINATION: text}

    def read(entry: Path, facts: Json) -> Prepared:
        link_files(entry / PREPARED, target)
        prepared, text = Prepared(**facts["prepared"]), facts[COORDINATION]
        if settings.decided is not None:  # the layout is the same, but the reason may differ
            why = settings.decided["why"]
            prepared = replace(prepared, why=_why_shared_by(settings) if needs.shares_all else why)
            text = text and _with_decision(text, why, settings.decided["layouts"])
        if text is not None:
            report.write_text(text, encoding="utf-8")
        return prepared

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


def _with_decision(text: str, why: str, layouts: object) -> str:
    """Replaces the reason for a layout in a cached coordination file."""
    coordination = parse_json(text, COORDINATION)
    coordination["decision"] |= {"why": why, "layouts": layouts}
    return json.dumps(coordination)


def _write_shards(settings: Settings, graph: Graph, partition: Partition, target: Path, *, compares: bool) -> Prepared:
    """Saves each rank's nodes and edges, and the planner's decision.

    Args:
        compares: Whether the number of words in a full-graph step explains the layout.
    """
    for shard in cut_all(graph, partition):
        shard.save(target / str(shard.rank))
    quality = measure(graph, partition)
    decision = Decision.of(settings, quality)
    if not compares and settings.decided is None:
        decision = replace(decision, why=why_fetched(settings))
    (target.parent / COORDINATION).write_text(json.dumps(coordination(quality, decision)), encoding="utf-8")
    return described(settings, graph, quality, decision)


def described(settings: Settings, graph: Graph, quality: Quality, decision: Decision) -> Prepared:
    """Describes shards that hold nodes and edges."""
    balance = {name: quality.balance()[name] for name in ("nodes", "edges", "train_nodes")}
    sizes = describe(graph, settings, quality.partition)
    prepared = _create_facts(graph, quality.partition.grid, quality.neighbours, balance, decision.why, sizes)
    return replace(prepared, edge_cut=quality.edge_cut)


def why_shared(settings: Settings) -> str:
    """Explains a layout in which every rank reads the full graph."""
    return f"strategy={settings.strategy.name}: every rank reads the whole graph, and evaluates the nodes that it owns"


def _why_shared_by(settings: Settings) -> str:
    """Explains a shared graph after the leader's decision, if there was one."""
    decided = [] if settings.decided is None else [settings.decided["why"]]
    return "; ".join([*decided, why_shared(settings)])


def why_fetched(settings: Settings) -> str:
    """Explains a layout in which ranks read all edges but own their feature rows."""
    return f"strategy={settings.strategy.name}: owners send rows to the ranks whose batches read these rows"


def rounds(settings: Settings) -> bool:
    """Returns whether batches read bfloat16 features that the graph does not store."""
    return settings.trainer.precision == "bf16-mixed" and settings.features.dtype != "bf16"


def save_rounded(settings: Settings, graph: Graph, target: Path) -> None:
    """Saves features in bfloat16 if all ranks' batches read them."""
    if rounds(settings):
        save_arrays(target / ROUNDED, {"features": round_rows(graph.features)}, {})


def _write_shared_graph(
    settings: Settings, graph: Graph, partition: Partition, target: Path, *, edges: bool
) -> Prepared:
    """Saves one shared copy of the graph, and the nodes that each rank owns.

    Args:
        edges: Whether shards also hold their nodes' in-edges.
    """
    graph.save(target / GRAPH)
    save_rounded(settings, graph, target)
    owned = without_features(graph) if edges else without_edges(graph)
    for shard in cut_all(owned, replace(partition, edge_cell=None)):
        shard.save(target / str(shard.rank))
    counts = np.bincount(partition.node_rank, minlength=partition.grid.world_size)
    balance = {"nodes": float(counts.max() / max(counts.mean(), 1e-9))}
    crossing, sizes = Crossing.of(graph, partition), describe(graph, settings, partition)
    prepared = _create_facts(graph, partition.grid, crossing.neighbours, balance, _why_shared_by(settings), sizes)
    return replace(prepared, edge_cut=crossing.count)


def _create_facts(
    graph: Graph, grid: Grid, peers: list[list[int]], balance: dict[str, float], why: str, sizes: list[str]
) -> Prepared:
    """Creates the facts about prepared data.

    Args:
        peers: For each rank, the ranks that share edges with it.
        balance: As for `Prepared`, like `why` and `sizes`.
    """
    names = None if graph.class_names is None else list(graph.class_names)
    prepared = Prepared(shape(grid), balance, why, sizes, fingerprint(graph), names, peers)
    return replace(
        prepared,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_classes=graph.num_classes,
        schema=graph.schema.as_plain(),
    )


def coordination(quality: Quality, decision: Decision) -> Json:
    """Returns the content of `coordination.json`."""
    report = quality.to_dict()
    return {"decision": asdict(decision)} | {key: report[key] for key in ("regions", "peers")}
