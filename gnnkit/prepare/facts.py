"""What ranks need of prepared data, the facts about it, and where rows are placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from gnnkit.config.settings import AUTO, Settings
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality
from gnnkit.partition.store.parts import GRAPH, RankParts, StoreParts
from gnnkit.prepare.run_partition import Decision, describe, shape
from gnnkit.result.result import PREPARED
from gnnkit.utils.documents import Json
from gnnkit.utils.memory import available_memory


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
    reads: StoreParts = "shard"  # which parts of a store the ranks read
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
class ModelNeeds:
    """The data that a model reads."""

    inputs: bool = True  # whether it reads input rows. Graph programs may not
    sparse: bool = False  # whether it and the strategy support sparse features
    relational: bool = False  # whether it reads edge types, and so predicts edges of one relation
    inverse_edges: bool = False  # whether it is relational, and its batches contain the reverse of each edge
    edge_order: bool = False  # whether it reads a node's in-edges in the order of the user's edge list
    ordered_layer: str | None = None  # a layer whose result depends on this order, or None
    untyped_model: str | None = None  # its name if it reads no types. None: types are read, or ignored


@dataclass(frozen=True, slots=True)
class Needs:
    """The data that a job's ranks read."""

    trains: bool  # whether the job reads the task's inputs, including labels
    graph: bool  # whether the ranks on a host share one mapped copy of the complete graph
    reference: bool  # whether the complete graph is also saved as one rank's shard
    features: bool = True  # whether the shared graph has features. If not, shards have features and edges
    shard_edges: bool = False  # whether shards have edges even if the complete graph is shared
    owned_edges: bool = False  # whether a node's owner must hold all its in-edges
    recut: bool = False  # whether the leader may change the partition during training
    # gathered: batches gather feature rows. fixed: batches of all epochs read the same
    # rows. Both may be in memory or on disk. None: rows are in mapped files.
    rows: Literal["gathered", "fixed"] | None = None
    may_stay: bool = False  # whether feature rows may stay on disk
    model: ModelNeeds = ModelNeeds()
    for_store: bool = False  # whether a store is written, from which any run may train

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


def create_facts(
    settings: Settings, graph: Graph, partition: Partition, balance: dict[str, float], reason: str
) -> Prepared:
    """Creates the facts about a partitioned graph, without fingerprint and cut.

    Args:
        settings: The run's settings.
        graph: The partitioned graph.
        partition: Its partition.
        balance: As for `Prepared`, like `reason`.
    """
    sizes, names = describe(graph, settings, partition), None if graph.class_names is None else list(graph.class_names)
    counts = {name: getattr(graph, name) for name in ("num_nodes", "num_edges", "num_classes")}
    plain = graph.schema.as_plain()
    return Prepared(shape(partition.grid), balance, reason, sizes, "", names, [], schema=plain, **counts)


def describe_shards(settings: Settings, graph: Graph, quality: Quality, decision: Decision) -> Prepared:
    """Creates the facts about shards that hold nodes and edges."""
    balance = {name: quality.balance()[name] for name in ("nodes", "edges", "train_nodes")}
    facts = create_facts(settings, graph, quality.partition, balance, decision.why)
    return replace(facts, peers=quality.neighbours, edge_cut=quality.edge_cut)


def coordination(quality: Quality, decision: Decision) -> Json:
    """Returns the content of `coordination.json`."""
    report = quality.to_dict()
    return {"decision": asdict(decision)} | {key: report[key] for key in ("regions", "peers")}


def why_shared(settings: Settings) -> str:
    """Explains a layout in which every rank reads the full graph."""
    return f"strategy={settings.strategy.name}: every rank reads the whole graph, and evaluates the nodes that it owns"


def why_fetched(settings: Settings) -> str:
    """Explains a layout in which ranks read all edges but own their feature rows."""
    return f"strategy={settings.strategy.name}: owners send rows to the ranks whose batches read these rows"


BASE = 400 << 20  # bytes of a process without data
_RANK = 50 << 20  # bytes of a rank's current batches
_PER_NODE = 6  # bytes per node and process: train masks, and page tables of mapped files
# Bytes of a cache per row, in addition to the row itself: slots, positions, and the
# batches that read the row next.
_PER_ROW = 52
_AHEAD = 8  # prefetched batches take 1/_AHEAD of the cache's size
_PER_EDGE = 1100  # bytes of an in-edge in an evaluation chunk, including the row that it reads
_WRITTEN = 64  # bytes per node on the leader if all nodes' rows are written


def place_features(request: Preparation, facts: Prepared) -> Prepared:
    """Chooses where feature rows are placed, and describes the reason.

    Raises `UserError` if the host has too little memory for the configured placement.
    """
    settings, needs, features = request.settings, request.needs, request.settings.features
    if needs.rows == "fixed":
        return _place_persistent_rows(request, facts)
    if needs.rows is None:
        return replace(facts, place="mapped")
    size, other_bytes, dense = _file_sizes(request, facts.parts(request.folder))
    free, ranks, programs = available_memory(), settings.workers_here, _process_bytes(request, facts)
    if programs > free:
        raise UserError(_memory_message(request, programs, free))
    room = free - other_bytes - programs
    place, reason = features.place, f"features.place={features.place}"
    if place == AUTO:
        place = "memory" if size <= room or not (needs.may_stay and dense) else "disk"
        reason = f"features.place=auto: {_format_bytes(size)} and {_format_bytes(max(room, 0))} are free for them"
    if place == "memory" and size > room and features.place != AUTO:
        raise UserError(
            f"features.place=memory: the features are {_format_bytes(size)}, and {_format_bytes(max(room, 0))} of memory are free "
            "for them: use features.place=disk"
        )
    if place != "disk":
        description = {"memory": "read into memory before the first step", "mapped": "mapped"}[place]
        return replace(facts, place=place).with_notes(f"features: {description} ({reason})")
    # Mapped edges may use half of the memory, and pages that do not fit are read again.
    memory = free - programs
    cache = _cache_bytes(request, size, (memory - min(other_bytes, memory / 2)) / ranks, facts)
    line = f"features: on disk, each worker keeps {_format_bytes(cache)} of them ({reason})"
    return replace(facts, place=place, cache=cache).with_notes(line)


def _place_persistent_rows(request: Preparation, facts: Prepared) -> Prepared:
    """Chooses the placement of rows that are the same in each epoch.

    Each rank loads its rows into memory once, or reads them from disk in each pass.
    Activations need memory too, so large rows stay on disk.
    """
    settings, features = request.settings, request.settings.features
    size, _, dense = _file_sizes(request, facts.parts(request.folder))
    free, ranks = available_memory(), settings.workers_here
    host_size = size if request.needs.shares_all else size * ranks // settings.workers
    place, reason = features.place, f"features.place={features.place}"
    if place == AUTO:
        # Half of the free memory is left for activations.
        place = "disk" if request.needs.may_stay and dense and host_size > free * 0.5 else "memory"
        memory = f"{_format_bytes(free)} of memory are free"
        reason = f"features.place=auto: {_format_bytes(host_size)} of rows, and {memory}"
    if place != "disk":
        if host_size > free and features.place != AUTO:
            raise UserError(
                f"features.place=memory: the features are {_format_bytes(host_size)}, and {_format_bytes(free)} of memory are free: use "
                "features.place=disk"
            )
        return replace(facts, place="mapped")
    cache = _cache_bytes(request, size, free / ranks, facts)
    if features.cache is None:
        cache = min(cache, int(free / ranks * 0.1))
    line = f"features: on disk, each worker keeps {_format_bytes(cache)} of them and reads the others in each pass ({reason})"
    return replace(facts, place=place, cache=cache).with_notes(line)


def _process_bytes(request: Preparation, facts: Prepared) -> int:
    """Returns the memory of this host's processes in bytes, without cached rows."""
    settings, ranks = request.settings, request.settings.workers_here
    processes, nodes = min(settings.processes or ranks, ranks), facts.num_nodes
    num_bytes = processes * (BASE + _PER_NODE * nodes) + ranks * _RANK
    if not request.needs.shares_all:
        return num_bytes
    chunk = min(settings.trainer.evaluation_memory * 2**20, facts.num_edges * _PER_EDGE / settings.workers)
    outputs = nodes * (4 * max(facts.num_classes, 1) * ranks // settings.workers + _WRITTEN) if settings.write else 0
    return num_bytes + int(ranks * chunk) + outputs


def _memory_message(request: Preparation, programs: int, free: float) -> str:
    """Returns a message with the memory that a run needs, and ways to need less."""
    settings, ranks = request.settings, request.settings.workers_here
    processes, remedies = min(settings.processes or ranks, ranks), []
    if request.needs.shares_all:
        remedies = ["a smaller trainer.evaluation_memory", *(["write=[]"] if settings.write else [])]
    if processes > 1:
        remedies.append(f"fewer processes (workers=1 parts={settings.workers})")
    return (
        f"workers={processes}: the processes of this host need {_format_bytes(programs)} of memory in addition to features, and "
        f"{_format_bytes(free)} is free: use {', or '.join([*remedies, 'a machine with more'])}"
    )


def _cache_bytes(request: Preparation, size: int, room: float, facts: Prepared) -> int:
    """Returns the bytes of rows that each rank caches.

    Args:
        facts: Facts, which include the number of nodes.
    """
    limit, shares = request.settings.features.cache, request.needs.shares_all
    rank_size = size if shares else size // request.settings.workers
    row = max(size / max(facts.num_nodes, 1), 1)
    factor = 1 + _PER_ROW / row + 1 / _AHEAD  # bytes of a cache per byte of its rows
    num_bytes = max(int(min(room / 2 / factor, rank_size)), 0) if limit is None else min(limit, rank_size)
    if limit is not None and num_bytes * factor > room:
        raise UserError(
            f"features.cache={_format_bytes(limit)}: each worker on this host has {_format_bytes(max(room, 0))} of memory "
            f"for rows, and a cache takes {factor:.1f} bytes per byte of rows; use "
            f"features.cache={int(max(room, 0) / factor / 2e6)}MB or fewer workers"
        )
    return num_bytes


def _file_sizes(request: Preparation, parts: RankParts) -> tuple[int, int, bool]:
    """Sums the files that a host's ranks read: features, and all others.

    Also returns whether features are dense.
    """
    ranks = [str(rank) for rank in range(request.settings.workers)]
    holders = [GRAPH] if request.needs.shares_all or parts.of_ranges else ranks
    readers = [*ranks, GRAPH] if request.needs.graph else ranks
    sizes = {name: [(path.stem, path.stat().st_size) for path in parts.files(name)] for name in {*holders, *readers}}
    features = sum(size for name in holders for stem, size in sizes[name] if stem.startswith("feature"))
    other_bytes = sum(size for name in readers for stem, size in sizes[name] if not stem.startswith("feature"))
    return features, other_bytes, all(stem != "feature_width" for name in holders for stem, _ in sizes[name])


def _format_bytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB"
