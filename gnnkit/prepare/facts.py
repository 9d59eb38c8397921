"""What ranks need of prepared data, and the facts about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gnnkit.config.settings import Settings
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality
from gnnkit.partition.store.parts import RankParts, Reads
from gnnkit.prepare.assign import Decision, describe, shape
from gnnkit.result.folder import PREPARED
from gnnkit.utils.documents import Json


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
    facts = Prepared(shape(partition.grid), balance, reason, sizes, "", names, [])
    counts = {name: getattr(graph, name) for name in ("num_nodes", "num_edges", "num_classes")}
    return replace(facts, schema=graph.schema.as_plain(), **counts)


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
