"""Comparison of the workers' joint model with their own models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule


class JointLoss:
    """Compares the saved model's training loss with that of the workers' own models.

    Dropout increases the latter, which are losses of the last local steps.
    """

    def __init__(self) -> None:
        self.ratio: float | None = None  # joint loss over own loss, in the last evaluation
        self._own: list[float] | None = None  # loss sum and number of rows of this rank's last local step

    def end_step(self, module: TrainingModule) -> None:
        """Stores the loss of a worker's own model."""
        batch = module.batch
        if self._own is None or batch.update not in ("conclude", "correct"):
            self._own = [float(module.local_loss) * batch.total, float(len(batch.rows))]

    def look(self, module: TrainingModule, losses: Tensor) -> None:
        """Compares the losses. Collective.

        Args:
            module: This rank's module, after a step.
            losses: [k] losses of this rank's training rows by the joint model.
        """
        comm = module.worker.comm
        sums = torch.tensor([float(losses.sum()), float(len(losses)), *(self._own or [0.0, 0.0])], dtype=torch.float64)
        joint, joint_rows, own, own_rows = comm.all_reduce(sums.to(comm.device)).tolist()
        if joint_rows and own_rows and own:
            self.ratio = (joint / joint_rows) / (own / own_rows)
