"""What both sides train, and what each of them remembers."""

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
    """One training run."""

    graph: Graph  # float64 features, dense
    partition: Partition
    model: nn.Module  # untrained, float64. Both sides train copies
    strategy: Callable[[], ExecutionStrategy] = VertexCentric
    sync: Callable[[], GradientSync] = AllReduce
    sampler: Sampler | None = None  # of all neighbours, where the strategy draws
    optimizer: str = "sgd"  # or adam, adamw
    lr: float = 0.5
    weight_decay: float = 0.0
    clip_norm: float | None = None
    accumulate: int = 1  # batches that make one step
    embedding: int | None = None  # numbers of a learned input row. None: input rows are features
    learned_decay: float = 0.0  # L2 penalty on learned rows
    sparse: bool = False  # whether the ranks keep features without their zeros
    epochs: int = 3
    seed: int = 3

    @property
    def samples(self) -> bool:
        """Whether a step computes the neighbourhood of some training nodes only."""
        return self.strategy().reads.sampler


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """What must be equal after an epoch."""

    losses: list[float]  # of each batch
    state: dict[str, Tensor]  # parameters and buffers by name
    logits: Tensor  # [num_nodes, num_classes] in evaluation
    rows: Tensor | None  # [num_nodes, embedding] learned


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The run on the ranks."""

    ranks: list[list[Epoch]]  # by rank. Losses and rows of all ranks are joined
    seeds: list[list[Tensor]]  # by epoch and batch: the nodes that the loss of all ranks read
    first_rows: Tensor | None  # [num_nodes, embedding] learned rows before the first step
