"""All-reduce."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from gnnkit.sync.base import GradientSync, gradients, trained


class AllReduce(GradientSync):
    """Adds up all gradients on every rank, which then makes the same update.

    Ranks that are processes leave this to Lightning's DDP, which overlaps the sum with
    the backward pass.
    """

    ddp = True

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        own = gradients(trained(module))
        vector_to_parameters(self.comm.all_reduce(parameters_to_vector(own)), own)
        optimizer.step()
