"""When and how gradients meet."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn
from torch.optim import Optimizer

from gnnkit.comm import Communicator


class GradientSync(ABC):
    """From every rank's gradient to the next parameters.

    A rank's loss is its sum over the global number of rows, so the exact gradient is the sum of the ranks' gradients.
    """

    def setup(self, module: nn.Module, comm: Communicator) -> None:
        """Called once on every rank, before the first step; all ranks hold equal parameters."""
        self.comm = comm

    @abstractmethod
    def step(self, module: nn.Module, optimizer: Optimizer) -> None:
        """After backward: updates the parameters. Collective; parameters are equal on all ranks afterwards."""
