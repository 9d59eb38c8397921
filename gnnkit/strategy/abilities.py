"""A strategy's declarations: its data, its steps, and optional abilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Reads:
    """The data that a strategy reads. By default, a rank's shard of any layout.

    The leader prepares exactly this data for each rank, and layouts that cannot
    provide it are refused before anything is read.

    Examples:
        >>> from gnnkit.strategy import Reads
        >>> Reads(sampler=True, graph=True).along_nodes  # so `partition.grid` is 1d
        True
    """

    sampler: bool = False  # True: requires `worker.sampler`. False: rejects a sampler
    graph: bool = False  # True: requires `worker.graph`, one mapped copy for all ranks of a host
    one_column: bool = False  # True: requires all in-edges of a node at its owner, as with partition.grid=1d
    # True: requires shards with the owned nodes' in-edges and features, which owners
    # send to other ranks (`worker.fetches`).
    from_owners: bool = False
    all_edges: bool = False  # True: every batch uses all edges

    @property
    def along_nodes(self) -> bool:
        """Whether all data of a node is stored in one place, so there is no grid."""
        return self.graph or self.one_column or self.from_owners


@dataclass(frozen=True, slots=True)
class Steps:
    """How a strategy's steps depend on each other.

    The declaration decides which synchronisations, checkpoints and restarts a run may
    combine with the strategy. The defaults suit a strategy if its batches all
    synchronise and it keeps no state.
    """

    only_synchronise: bool = True  # whether every batch's `update` is "synchronise"
    drift: bool = False  # whether parameters differ between ranks between synchronisations
    keep_state: bool = False  # whether `state_dict` differs between ranks
    keep_sums: bool = False  # whether sums over constant input rows are cached
    exchange: bool = False  # True: every step exchanges rows, so all ranks meet in it, with any synchronisation


@dataclass(frozen=True, kw_only=True)
class Ability:
    """A feature's requirement on the strategy, besides batches of nodes.

    A strategy lists one instance of each supported kind in `supports`.

    A feature that needs more than batches of nodes, such as learned rows, is refused
    for a strategy that does not list its ability. So a strategy that predates a feature
    stays correct.

    Examples:
        >>> from gnnkit.strategy import Relations
        >>> from gnnkit.strategy.vertex_centric import VertexCentric
        >>> VertexCentric().ability(Relations) is not None
        True
    """

    lacking: ClassVar[str] = "cannot do this"  # why a strategy without the ability is rejected, following its name
    but: str | None = None  # why the chosen options do not support it, replacing `lacking`. None: they do


@dataclass(frozen=True)
class SparseRows(Ability):
    """A batch's `x` is sparse if the features are, as `Worker.features.input_rows`.

    For other strategies, `input_rows=sparse` is refused, and `input_rows=auto` gives
    dense rows.
    """

    lacking = "reads dense rows"


@dataclass(frozen=True)
class GatheredRows(Ability):
    """Batches gather features in the background, possibly from mapped files.

    Features may then be larger than memory: `features.place=mapped`.
    """

    lacking = "gathers no rows in the background"


@dataclass(frozen=True)
class RowsOnDisk(Ability):
    """Batches announce their rows in advance, so features may be on disk.

    Required by `features.place=disk`, which reads the rows of later batches while one
    is computed.
    """

    lacking = "the rows that this strategy gathers are not known ahead: use features.place=mapped"


@dataclass(frozen=True)
class LastingRows(Ability):
    """Batches have the same rows in each epoch: `FeatureStore.lasting_rows`.

    A first layer that multiplies them may then read them from disk.
    """

    lacking = (
        "with these options reads its rows once, before it trains, and keeps them in memory: choose "
        "strategy=individual_sample, or leave the section out"
    )


@dataclass(frozen=True)
class LearnedInputs(Ability):
    """Batches contain the `nodes` of their input rows, so rows may be learned.

    Required by `inputs=learned`, which looks up and updates one embedding per node.
    """

    lacking = "provides batches that do not name the nodes of their input rows"


@dataclass(frozen=True)
class Relations(Ability):
    """Adjacencies have edge types: `aggregate_relations`.

    If the model has `inverse`, the graph of a strategy that draws or cuts batches has
    the inverse edges (`Worker.inverse_edges`).
    """

    lacking = "provides edges without types"


@dataclass(frozen=True)
class ByTime(Ability):
    """Seeds see earlier edges only: batches are sampled with `times`.

    A strategy passes `Worker.seed_times` to the sampler.
    """

    lacking = (
        "samples regardless of each seed's time: use strategy=individual_sample or joint_sample, or sampler.time=none"
    )


@dataclass(frozen=True)
class JoinedLayers(Ability):
    """A batch's layers can be merged into one graph: `engine.as_one_graph`.

    Required by modules of `(x, edge_index)` in mini-batches, because these read the
    same edges in every layer.
    """

    by_owners: bool = False  # True: each rank holds its owned nodes' in-edges, sampled once
    lacking = (
        "reads one edge_index in all layers, and workers share the batches of this strategy layer by layer: use "
        "strategy=vertex_centric or individual_sample, or write forward(x, adjacencies)"
    )


@dataclass(frozen=True)
class EdgeTask(Ability):
    """Batches may be pairs of rows, drawn from `worker.rows`.

    Required by link prediction and by tasks on labelled edges. `Batch.rows` are then
    pairs.
    """

    lacking = "this strategy provides rows of nodes only: choose another strategy"
    # The edges predicted in an epoch: all of them, or a random share
    # `supervision_share`.
    predicts: Literal["all", "share"]


@dataclass(frozen=True)
class MovableWork(Ability):
    """Work can be moved away from a slow worker, between two epochs.

    Declare `MovableNodes` or `MovableSeeds`, which name what is moved.
    """

    lacking = "has no other division of the work"


@dataclass(frozen=True)
class MovableNodes(MovableWork):
    """Nodes can be moved: `close`, then `setup` with a smaller shard.

    Required by `leader.rebalance` for strategies that process owned nodes.
    """


@dataclass(frozen=True)
class MovableSeeds(MovableWork):
    """A step's seeds can be redistributed: the strategy is a `SeedDealer`.

    Required by `leader.rebalance` for strategies that sample.
    """


class SeedDealer(Protocol):
    """A strategy whose seeds can be redistributed.

    `leader.rebalance` calls it to give a straggler fewer seeds per step. Results then
    depend on timing, but each epoch still covers each seed once.
    """

    def deal(self, shares: Sequence[float]) -> None:
        """Changes the shares of a step's seeds, from the next epoch on.

        The set of seeds in a step does not change.

        Args:
            shares: [world_size] each worker's share, with sum 1.
        """
