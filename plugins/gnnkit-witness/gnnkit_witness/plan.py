"""The training plan of both implementations, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from gnnkit.graph import Graph
from gnnkit.partition import Partition
from gnnkit.sampler import Sampler
from gnnkit.strategy import ExecutionStrategy
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import GradientSync


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A training run's configuration."""

    graph: Graph  # with dense float64 features
    partition: Partition
    model: nn.Module  # untrained, in float64. Both implementations train copies
    strategy: Callable[[], ExecutionStrategy] = VertexCentric
    sync: Callable[[], GradientSync] = AllReduce
    sampler: Sampler | None = None  # a sampler of all neighbours, if the strategy samples
    optimizer: str = "sgd"  # or adam, adamw
    lr: float = 0.5
    weight_decay: float = 0.0
    clip_norm: float | None = None
    accumulate: int = 1  # batches per step
    embedding: int | None = None  # width of learned input rows. None: input rows are features
    learned_decay: float = 0.0  # L2 penalty on learned rows
    sparse: bool = False  # whether the ranks store features as sparse rows
    epochs: int = 3
    seed: int = 3

    @property
    def samples(self) -> bool:
        """Whether a step computes only the neighbourhood of some training nodes."""
        return self.strategy().reads.sampler


@dataclass(frozen=True, slots=True, eq=False)
class EpochResult:
    """The values that must agree after an epoch."""

    losses: list[float]  # one per batch
    state: dict[str, Tensor]  # parameters and buffers by name
    logits: Tensor  # [num_nodes, num_classes] in evaluation
    rows: Tensor | None  # [num_nodes, embedding] learned rows


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The results of the ranks."""

    ranks: list[list[EpochResult]]  # by rank. Losses and rows are combined over ranks
    seeds: list[list[Tensor]]  # by epoch and batch: nodes in the loss, over all ranks
    first_rows: Tensor | None  # [num_nodes, embedding] learned rows before the first step
