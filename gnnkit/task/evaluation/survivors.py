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
        self._adopted_ranks: frozenset[int] = frozenset()
        self._evaluation = make(worker)

    def read(
        self, model: nn.Module, figures: Callable[[Tensor, Worker], T], splits: Collection[str] | None = None
    ) -> T:
        while True:
            lost_ranks = self._comm.lost
            self._take_over(lost_ranks)
            features = super().read(model, figures)
            if self._comm.lost == lost_ranks:
                return features

    def _take_over(self, lost_ranks: frozenset[int]) -> None:
        if self._comm.rank == ROOT and lost_ranks != self._adopted_ranks:
            self._adopted_ranks = lost_ranks
            self.worker = replace(self.worker, shard=self._adopt(lost_ranks))
            self._evaluation = self._make(self.worker)

    def _logits(self, model: nn.Module) -> Tensor:
        outputs = self._evaluation.logits(model)
        self.worker = self._evaluation.worker
        return outputs
