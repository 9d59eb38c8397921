"""Synchronisation by all-reduce."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from gnnkit.comm.agreement import from_vector, to_vector
from gnnkit.sync.base import GradientSync, gradients, trained


class AllReduce(GradientSync):
    """Sums all gradients on every rank. All ranks then apply the same update.

    If ranks are processes, Lightning's DDP computes the sum and overlaps it with the
    backward pass.
    """

    ddp = True

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        grads = gradients(trained(module))
        from_vector(self.comm.all_reduce(to_vector(grads)), grads)
        optimizer.step()
