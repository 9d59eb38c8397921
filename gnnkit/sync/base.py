"""When and how gradients meet."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gnnkit.comm import Communicator


class GradientSync(ABC):
    """From every rank's gradient to the next parameters.

    A rank's loss is its sum over the global number of rows, so the exact gradient is the sum of the ranks' gradients.
    """

    asynchronous = False  # True: the result depends on when ranks arrive
    exact = True  # False: not the gradient of one process

    def setup(self, module: nn.Module, comm: Communicator) -> None:
        """Called once on every rank, before the first step; all ranks hold equal parameters."""
        self.comm = comm

    @abstractmethod
    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        """After backward: updates the parameters. Collective.

        `share` is this rank's part of the rows that the step's loss reads: the weight n_p / sum of n in a weighted mean of the
        ranks' own mean gradients, which is the sum of their gradients.
        """


def trained(module: nn.Module) -> list[Parameter]:
    """The parameters that are trained, each with a gradient: zeros where none has reached it."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return parameters


def gradients(parameters: list[Parameter]) -> list[Tensor]:
    """Their gradients, in the same order."""
    return [p.grad for p in parameters if p.grad is not None]
