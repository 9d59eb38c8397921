"""A strategy hands out batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, Tally
from gnnkit.partition.shard import Shard


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """One rank's part of the run, as strategies see it."""

    comm: Communicator
    shard: Shard
    dtype: torch.dtype
    seed: int

    @property
    def device(self) -> torch.device:
        return self.comm.device


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one rank computes in one step."""

    x: Tensor  # [num_src, width] input rows
    adjacencies: Sequence[Adjacency]  # one for each layer of the model
    rows: Tensor  # [k] int64, the output rows that the loss reads
    labels: Tensor  # [k] int64
    total: int  # sum of k over all ranks: the loss is a sum divided by it, so gradients of ranks add up
    synchronise: bool = True  # False: no exchange; the rank steps its own parameters, and `total` counts its own rows

    @property
    def share(self) -> float:
        """This rank's part of the rows that the loss reads."""
        return len(self.rows) / max(self.total, 1)


class ExecutionStrategy(ABC):
    """Decides which batches a rank gets and what is exchanged while they are computed.

    Every method is collective: all ranks call it, with the same epoch, and get the same number of batches, empty ones
    included. Equal worker, seed and epoch give equal batches.
    """

    traffic: Tally
    local_iterations: int = 1  # batches from one synchronisation to the next; above 1 parameters of ranks differ
    equals_one_process: bool = False  # whether the result is that of one rank with the whole graph
    final_average: bool = True  # whether the ranks' parameters are averaged at the end, where they differ

    @abstractmethod
    def setup(self, worker: Worker, model: nn.Module) -> None:
        """Builds what lasts for the whole run. The model says `num_layers` and whether it wants `self_loops`."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Batch]:
        """The steps of one epoch."""

    @abstractmethod
    def evaluation(self) -> Batch:
        """A batch whose output is the logits of all owned nodes, exactly; `rows` are those with labels."""

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs besides parameters and optimiser to go on where it is; kept where `local_iterations` > 1."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Goes on from there, on the same shard. Called after `setup`."""
