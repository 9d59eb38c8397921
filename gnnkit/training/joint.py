"""Whether the model of all workers loses what each of them has learned."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule

LOSES = 1.25  # times the loss of the workers' own models, above which the joint model has lost what these learned
LEARNED = 0.1  # of the highest loss, below which all is learned, and ratios say nothing
PATIENCE = 2  # evaluations, before the run says so


class JointLoss:
    """Compares the loss of the model that would be saved with that of the workers' own.

    On the training rows, at each evaluation, where workers may step apart. Own losses
    are those of the last step. Dropout there makes them larger, so what is told is
    rather too little.
    """

    def __init__(self) -> None:
        self.losing = 0  # evaluations in which the joint model lost
        self.ratio: float | None = None  # of the last evaluation: loss of the joint model over the workers' own
        self.highest = 0.0  # loss of the joint model so far

    def look(self, module: TrainingModule, losses: Tensor) -> None:
        """Compares, and says once that the joint model loses. Collective.

        Args:
            module: The module of this rank, after a step.
            losses: [k] losses of this rank's training rows by the joint model.
        """
        batch, comm = module.batch, module.worker.comm
        own = float(module.local_loss) * batch.total
        parts = torch.tensor([own, len(batch.rows), float(losses.sum()), len(losses)], dtype=torch.float64)
        own, own_rows, joint, rows = comm.all_reduce(parts.to(comm.device)).tolist()
        if not own_rows or not rows:
            return
        own, joint = own / own_rows, joint / rows
        self.highest = max(self.highest, joint)
        self.ratio = joint / max(own, 1e-9)
        if self.ratio <= LOSES or joint <= LEARNED * self.highest:
            return
        self.losing += 1
        if self.losing == PATIENCE and comm.rank == 0:
            cure = module.strategy.cure() if module.strategy.steps.drift else "sync=all_reduce"
            print(
                f"epoch {module.current_epoch + 1}: the model of all workers has {self.ratio:.1f} times the loss of the "
                f"workers' own on the training rows: workers drift apart, choose {cure}",
                file=sys.stderr,
                flush=True,
            )
