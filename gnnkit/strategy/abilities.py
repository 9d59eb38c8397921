"""What a strategy reads, how its steps follow each other, and what else it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Reads:
    """What a strategy reads of the data. Else the shard of a rank, of any layout."""

    sampler: bool = False  # True: needs `worker.sampler`. False: a sampler is refused
    graph: bool = False  # True: needs `worker.graph`, one mapped copy for all ranks of a host
    one_column: bool = False  # True: needs every in-edge of a node with its owner, as partition.grid=1d cuts
    # True: needs shards with all in-edges and features of the owned nodes. Owners send
    # these features: `worker.fetches`.
    from_owners: bool = False
    all_edges: bool = False  # True: every batch reads all edges

    @property
    def along_nodes(self) -> bool:
        """Whether the data of a node are in one place, so that there is no grid."""
        return self.graph or self.one_column or self.from_owners


@dataclass(frozen=True, slots=True)
class Steps:
    """How the steps of a strategy follow each other."""

    only_synchronise: bool = True  # whether `update` of every batch is "synchronise"
    drift: bool = False  # whether ranks hold different parameters between synchronisations
    keep_state: bool = False  # whether `state_dict` differs between ranks
    keep_sums: bool = False  # whether the sums over input rows that stay as they are are kept
    exchange: bool = False  # True: every step exchanges rows, so all ranks meet there, whatever synchronises
    repeatable: bool = True  # False: batches depend on time


@dataclass(frozen=True, kw_only=True)
class Ability:
    """What a feature of gnnkit asks of a strategy, beside batches of nodes.

    A strategy has one of each kind in `supports` that it has thought of.
    """

    lacking: ClassVar[str] = "cannot do this"  # why a strategy is refused without the ability, after its name
    but: str | None = None  # why not with the chosen options, instead of `lacking`. None: the strategy can


@dataclass(frozen=True)
class SparseRows(Ability):
    """`x` of a batch is sparse where features are, as `Worker.features.input_rows`."""

    lacking = "reads dense rows"


@dataclass(frozen=True)
class GatheredRows(Ability):
    """Batches gather features in the background, which may lie in mapped files."""

    lacking = "gathers no rows in the background"


@dataclass(frozen=True)
class RowsOnDisk(Ability):
    """Batches announce their rows ahead, which so may lie on disk. `foresee_reads`."""

    lacking = "the rows that this strategy gathers are not known ahead: use features.place=mapped"


@dataclass(frozen=True)
class LastingRows(Ability):
    """Batches have the same rows in each epoch, and a first layer that multiplies these
    may read them from disk: `FeatureStore.lasting_rows`.
    """

    lacking = (
        "with these options reads its rows once, before it trains, and keeps them in memory: choose "
        "strategy=individual_sample, or leave the section out"
    )


@dataclass(frozen=True)
class LearnedInputs(Ability):
    """Batches name the `nodes` of their input rows, so that the rows may be learned."""

    lacking = "hands out batches that do not name the nodes of their input rows"


@dataclass(frozen=True)
class Relations(Ability):
    """Adjacencies have the types of edges: `aggregate_relations`."""

    lacking = "hands out edges without types"


@dataclass(frozen=True)
class JoinedLayers(Ability):
    """The edges of all layers of a batch make one graph: `engine.as_one_graph`."""

    by_owners: bool = False  # True: each rank has the in-edges of its own nodes, drawn once
    lacking = (
        "reads one edge_index in all layers, and workers share the batches of this strategy layer by layer: use "
        "strategy=vertex_centric or individual_sample, or list the layers in gnnkit.model.pyg.PyG([...])"
    )


@dataclass(frozen=True)
class EdgeTask(Ability):
    """Batches may be pairs of rows, drawn from `worker.links`."""

    lacking = "this strategy hands out rows of nodes only: choose another strategy"
    # The edges that batches predict: all edges once in an epoch, or the share
    # `supervision_share`, drawn anew in each epoch.
    predicts: Literal["all", "share"]


@dataclass(frozen=True)
class MovableWork(Ability):
    """Work moves away from a slow worker, between two epochs."""

    lacking = "has no other division of the work"


@dataclass(frozen=True)
class MovableNodes(MovableWork):
    """Nodes move: `close`, and `setup` with a shard of fewer nodes."""


@dataclass(frozen=True)
class MovableSeeds(MovableWork):
    """Seeds of a step are dealt out in other shares: `deal`."""
