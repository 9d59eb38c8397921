"""All-reduce."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from gnnkit.sync.base import GradientSync


class AllReduce(GradientSync):
    """Every rank adds up all gradients and makes the same update. Ranks that are processes leave this to Lightning's DDP, which
    overlaps it with the backward pass."""

    def step(self, module: nn.Module, optimizer: Optimizer) -> None:
        parameters = [p for p in module.parameters() if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        vector_to_parameters(self.comm.all_reduce(parameters_to_vector(gradients)), gradients)
        optimizer.step()
