"""Whether the model of all workers loses what each of them has learned."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

LOSES = 1.25  # times the workers' own loss, above which the joint model has lost what these have learned
LEARNED = 0.1  # of the highest loss, below which all is learned, and ratios say nothing
PATIENCE = 2  # averages or evaluations, before the run says so
_TINY = 1e-9  # least loss that divides


class JointLoss:
    """Compares the loss of the model that would be saved with that of the workers' own.

    Where workers average their parameters, the loss of the first step from the average
    is compared with that of the last step before. Averaging degrades the model if the
    former is `LOSES` times as large, and `LOSES` times the least one after an average.
    Both losses are of training batches, so dropout raises both alike.

    At each evaluation the loss of the joint model on the training rows is compared
    with the last own loss, which dropout makes larger. This serves workers that step
    apart without ever having one model, and gives `ratio`.
    """

    def __init__(self) -> None:
        self.losing = 0  # averages and evaluations in which the joint model lost
        self.ratio: float | None = None  # of the last evaluation: loss of the joint model over the workers' own
        self.highest = 0.0  # loss of the joint model so far
        self._lowest = math.inf  # loss of the joint model in a first step
        self._from_mean = True  # whether all workers begin the step with one model
        self._own: list[float] | None = None  # sum of the loss, and rows, of this rank's last step of its own

    def step(self, module: TrainingModule) -> None:
        """Compares, in the first step from an average. Collective there.

        Args:
            module: The module of this rank, which has computed the loss of a step.
        """
        batch = module.batch
        loss = [float(module.local_loss) * batch.total, float(len(batch.rows))]
        if self._from_mean:
            joint, own = _means(module, loss, self._own or [0.0, 0.0])
            if joint is not None:
                self.highest = max(self.highest, joint)
                if own is not None and joint > max(LOSES * own, LOSES * self._lowest, LEARNED * self.highest):
                    self._count(module, joint / max(own, _TINY))
                self._lowest = min(self._lowest, joint)
        else:
            self._own = loss
        self._from_mean = batch.update == "average"

    def look(self, module: TrainingModule, losses: Tensor) -> None:
        """Compares, and says once that the joint model loses. Collective.

        Args:
            module: The module of this rank, after a step.
            losses: [k] losses of this rank's training rows by the joint model.
        """
        batch = module.batch
        latest = [float(module.local_loss) * batch.total, float(len(batch.rows))]
        joint, own = _means(module, [float(losses.sum()), float(len(losses))], self._own or latest)
        if joint is None or own is None:
            return
        self.highest = max(self.highest, joint)
        self.ratio = joint / max(own, _TINY)
        if self.ratio > LOSES and joint > LEARNED * self.highest:
            self._count(module, self.ratio)

    def _count(self, module: TrainingModule, ratio: float) -> None:
        """Counts a joint model that loses, and says so once."""
        self.losing += 1
        if self.losing == PATIENCE and module.worker.comm.rank == 0:
            cure = module.strategy.cure() if module.strategy.steps.drift else "sync=all_reduce"
            print(
                f"epoch {module.current_epoch + 1}: the model of all workers has {ratio:.1f} times the loss of the "
                f"workers' own on the training rows: workers drift apart, choose {cure}",
                file=sys.stderr,
                flush=True,
            )


def _means(module: TrainingModule, joint: list[float], own: list[float]) -> tuple[float | None, float | None]:
    """Returns mean losses over the rows of all ranks, None without. Collective.

    Args:
        module: The module of this rank.
        joint: Sum of the loss by the joint model, and rows, of this rank.
        own: The same by the worker's own model.
    """
    comm = module.worker.comm
    sums = comm.all_reduce(torch.tensor([*joint, *own], dtype=torch.float64).to(comm.device)).tolist()
    first, second = (total / rows if rows else None for total, rows in (sums[:2], sums[2:]))
    return first, second
