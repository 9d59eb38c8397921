"""Detects an averaged model that is worse than the workers' own models."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

LOSES = 1.25  # ratio to the workers' own loss above which the joint model is considered degraded
LEARNED = 0.1  # share of the highest loss below which ratios are not meaningful
PATIENCE = 2  # number of averages or evaluations before the warning
_TINY = 1e-9  # minimum divisor


class JointLoss:
    """Compares the saved model's loss with that of the workers' own models.

    If workers average parameters, the loss of the first step after an average is
    compared with that of the last step before it. Averaging degrades the model if the
    former is `LOSES` times as large as the latter and as the lowest loss after an
    average. Dropout affects both, because they are training losses.

    At each evaluation, the joint model's loss on the training rows is compared with the
    last local loss, which dropout increases. This also covers workers that never share
    a model, and determines `ratio`.
    """

    def __init__(self) -> None:
        self.losing = 0  # number of comparisons in which the joint model was degraded
        self.ratio: float | None = None  # joint loss over local loss, in the last evaluation
        self.highest = 0.0  # highest loss of the joint model
        self._lowest = math.inf  # lowest loss of the joint model in a first step
        self._from_mean = True  # whether the step starts from one model on all workers
        self._own: list[float] | None = None  # loss sum and number of rows of this rank's last local step

    def step(self, module: TrainingModule) -> None:
        """Compares losses in the first step after an average, which is collective.

        Args:
            module: This rank's module, which has computed a step's loss.
        """
        batch = module.batch
        loss = [float(module.local_loss) * batch.total, float(len(batch.rows))]
        if self._from_mean:
            joint, local = _means(module, loss, self._own or [0.0, 0.0])
            if joint is not None:
                self.highest = max(self.highest, joint)
                if local is not None and joint > max(LOSES * local, LOSES * self._lowest, LEARNED * self.highest):
                    self._count(module, joint / max(local, _TINY))
                self._lowest = min(self._lowest, joint)
        else:
            self._own = loss
        self._from_mean = batch.update == "average"

    def look(self, module: TrainingModule, losses: Tensor) -> None:
        """Compares losses, and warns once about a degraded joint model. Collective.

        Args:
            module: This rank's module, after a step.
            losses: [k] losses of this rank's training rows by the joint model.
        """
        batch = module.batch
        latest = [float(module.local_loss) * batch.total, float(len(batch.rows))]
        joint, local = _means(module, [float(losses.sum()), float(len(losses))], self._own or latest)
        if joint is None or local is None:
            return
        self.highest = max(self.highest, joint)
        self.ratio = joint / max(local, _TINY)
        if self.ratio > LOSES and joint > LEARNED * self.highest:
            self._count(module, self.ratio)

    def _count(self, module: TrainingModule, ratio: float) -> None:
        """Counts a degraded joint model, and warns once."""
        self.losing += 1
        if self.losing == PATIENCE and module.worker.comm.rank == 0:
            cure = module.strategy.cure() if module.strategy.steps.drift else "sync=all_reduce"
            print(
                f"epoch {module.current_epoch + 1}: the model of all workers has {ratio:.1f} times the loss of the "
                f"workers' own on the training rows: workers drift apart, choose {cure}",
                file=sys.stderr,
                flush=True,
            )


def _means(module: TrainingModule, joint: list[float], local: list[float]) -> tuple[float | None, float | None]:
    """Returns mean losses over all ranks' rows, None without rows. Collective.

    Args:
        module: This rank's module.
        joint: Loss sum and number of rows of this rank, by the joint model.
        local: Likewise, by the worker's own model.
    """
    comm = module.worker.comm
    sums = comm.all_reduce(torch.tensor([*joint, *local], dtype=torch.float64).to(comm.device)).tolist()
    first, second = (total / rows if rows else None for total, rows in (sums[:2], sums[2:]))
    return first, second
