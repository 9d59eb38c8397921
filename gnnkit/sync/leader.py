"""Through the leader."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from gnnkit.errors import UserError
from gnnkit.sync.base import GradientSync, gradients, trained

LEADER = 0


class Leader(GradientSync):
    """Rank 0 collects the gradients, holds the optimiser's state alone, updates, and sends out the new parameters, which overwrite
    those of workers that drifted. Choose it where the optimiser's state should exist once.

    `average="weighted"` is the sum of the gradients, exact; `"mean"` is the unweighted mean of the own mean gradients of the
    ranks that have rows.
    """

    def __init__(self, average: Literal["weighted", "mean"] = "weighted") -> None:
        if average not in ("weighted", "mean"):
            raise UserError(f"average={average} must be weighted or mean")
        self.average = average
        self.exact = average == "weighted"

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        parameters = trained(module)
        own = gradients(parameters)
        total = self._collect(parameters_to_vector(own), share)
        if total is None:
            optimizer.state.clear()  # of local iterations, or of a checkpoint
        else:
            vector_to_parameters(total, own)
            optimizer.step()
        values = parameters_to_vector(parameters).detach()
        vector_to_parameters(self.comm.broadcast(values, src=LEADER), parameters)

    def _collect(self, gradient: Tensor, share: float) -> Tensor | None:  # [num_parameters]
        """The gradient to apply, on the leader."""
        if self.average == "mean":
            gradient = torch.cat([gradient / share if share else gradient, gradient.new_tensor([float(share > 0)])])
        rows = self.comm.gather(gradient[None], dst=LEADER)
        if not rows:
            return None
        total = torch.cat(rows).sum(0)
        return total if self.average == "weighted" else total[:-1] / total[-1].clamp(min=1)
