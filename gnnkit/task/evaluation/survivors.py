"""Evaluation after ranks were lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from gnnkit.comm import Survivors
from gnnkit.partition.shard import Shard
from gnnkit.strategy import Worker
from gnnkit.task.evaluation.logits import Evaluation

T = TypeVar("T")
ROOT = 0


class SurvivorsEvaluation(Evaluation):
    """An evaluation in which rank 0 takes over lost ranks' nodes.

    Metrics therefore cover all nodes. If a rank is lost during an evaluation, the
    remaining ranks repeat it.
    """

    def __init__(
        self,
        worker: Worker,
        comm: Survivors,
        make: Callable[[Worker], Evaluation],
        adopt: Callable[[frozenset[int]], Shard],
    ) -> None:
        """Starts with this rank's nodes.

        Args:
            worker: The rank, which reads the complete graph.
            make: Creates the evaluation for a rank's nodes. Not collective.
            adopt: Returns rank 0's shard extended by other ranks' nodes.
        """
        self.worker, self._comm, self._make, self._adopt = worker, comm, make, adopt
        self._adopted: frozenset[int] = frozenset()
        self._own = make(worker)

    def read(
        self, model: nn.Module, figures: Callable[[Tensor, Worker], T], splits: Collection[str] | None = None
    ) -> T:
        while True:
            lost = self._comm.lost
            self._take_over(lost)
            features = super().read(model, figures)
            if self._comm.lost == lost:
                return features

    def _take_over(self, lost: frozenset[int]) -> None:
        if self._comm.rank == ROOT and lost != self._adopted:
            self._adopted = lost
            self.worker = replace(self.worker, shard=self._adopt(lost))
            self._own = self._make(self.worker)

    def _logits(self, model: nn.Module) -> Tensor:
        outputs = self._own.logits(model)
        self.worker = self._own.worker
        return outputs
