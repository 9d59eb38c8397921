"""Synchronisation through the leader."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from gnnkit.ranges import one_of
from gnnkit.sync.base import GradientSync, gradients, trained

LEADER = 0


class Leader(GradientSync):
    """Collects the gradients at rank 0, which updates and sends out the new parameters.

    Rank 0 alone holds the optimiser's state. The new parameters overwrite the
    parameters of workers that drifted. Choose this sync where the optimiser's state
    should exist once.

    With `average="weighted"` gradients are summed, which is exact. With `"mean"` the
    ranks that have rows give the unweighted mean of their own mean gradients.
    """

    def __init__(self, average: Literal["weighted", "mean"] = "weighted") -> None:
        self.average = one_of("sync.average", average, ("weighted", "mean"))
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
        """Collects the gradient to apply, on the leader. Returns None elsewhere."""
        if self.average == "mean":
            gradient = torch.cat([gradient / share if share else gradient, gradient.new_tensor([float(share > 0)])])
        rows = self.comm.gather(gradient[None], dst=LEADER)
        if not rows:
            return None
        total = torch.cat(rows).sum(0)
        return total if self.average == "weighted" else total[:-1] / total[-1].clamp(min=1)
