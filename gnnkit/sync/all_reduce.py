"""All-reduce."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from gnnkit.comm.average import from_vector, to_vector
from gnnkit.sync.base import GradientSync, gradients, trained


class AllReduce(GradientSync):
    """Adds up all gradients on every rank, which then makes the same update.

    Ranks that are processes leave this to Lightning's DDP, which overlaps the sum with
    the backward pass.
    """

    ddp = True

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        grads = gradients(trained(module))
        from_vector(self.comm.all_reduce(to_vector(grads)), grads)
        optimizer.step()
