"""The interface of gradient synchronisation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.agreement import average_parameters, from_vector, to_vector, weighted_mean
from gnnkit.errors import UserError
from gnnkit.utils.documents import Json

OnLost = Literal["stop", "continue"]


class GradientSync(ABC):
    """Computes the next parameters from all ranks' gradients.

    A rank's loss is the sum over its rows divided by the global number of rows, so the
    exact gradient is the sum of the ranks' gradients. The constructor's arguments are
    the keys of `sync`.

    Derive from it for a compressed, delayed or local method. The trainer calls
    `step` after each backward pass instead of the optimiser, so the sync decides when
    ranks communicate and who runs the optimiser. The attributes declare what other code
    may rely on.

    Examples:
        >>> from gnnkit.sync import GradientSync
        >>> from gnnkit.testing import check_sync
        >>> class Sum(GradientSync):
        ...     '''Adds the gradients of all ranks.'''
        ...     def step(self, module, optimizer, share):
        ...         for parameter in module.parameters():
        ...             if parameter.grad is None:
        ...                 parameter.grad = parameter.new_zeros(parameter.shape)
        ...             self.comm.all_reduce(parameter.grad)
        ...         optimizer.step()
        >>> check_sync(Sum)
    """

    lockstep: bool = True  # False: ranks step independently, and the result depends on timing
    collective: bool = True  # False: a step communicates with no or some ranks. All ranks take equally many steps
    ddp: ClassVar[bool] = False  # True: Lightning's DDP may replace `step`, with the same result
    exact: bool = True  # False: the gradient differs from one process's
    drifts: bool = False  # True: workers hold different parameters between steps
    steps_here: bool = True  # False: servers run the optimiser, with its class and settings
    finishes: bool = False  # whether `set_exact` makes inexact steps exact
    servers: int = 0  # additional ranks, which run `serve`. Equals the key `sync.servers`, or 0
    on_lost: OnLost = "stop"  # continue: training continues after losing a worker other than rank 0

    def setup(self, module: nn.Module, comm: Communicator, mailbox: Mailbox | None = None) -> None:
        """Called once on every worker, before the first step, with equal parameters.

        Args:
            mailbox: Connects all ranks, workers first, then servers. Only a sync with
                `servers` or without `lockstep` may require it.
        """
        self.comm = comm

    def serve(self, mailbox: Mailbox, num_workers: int) -> None:
        """Runs on each server until the workers have finished.

        Args:
            mailbox: Connects all ranks, workers first, then servers.
        """
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    @abstractmethod
    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        """Updates the parameters after the backward pass.

        Collective if `lockstep` and `collective`.

        Args:
            module: Its parameters hold this rank's gradients.
            share: This rank's share of the rows that the step's loss reads: the weight
                n_p / sum(n) in a weighted mean of the ranks' mean gradients. 0 if this
                rank has no rows, or if it alone skips the step.
        """

    def late_rows(self) -> tuple[str, int | None, GradientSync] | None:
        """Returns what replaces stale gradients in strategies that exchange rows.

        Workers that exchange rows in each step wait for each other, so late gradients
        alone would save no time. Late rows do. The values are the key that asks for it,
        the maximum staleness of rows in epochs (the strategy's, if None), and this sync
        with synchronous steps. Default: None.
        """
        return None

    def costs(self) -> str:
        """Returns the notice printed at the start of a run, from `approximate`.

        It is printed if several workers train. Default: "", for exact steps.
        """
        return ""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum of `x` over the workers. Collective if `lockstep`.

        The guard calls it to check whether all gradients of a step are finite.
        """
        return self.comm.all_reduce(x)

    def average_models(self, module: nn.Module, weight: float) -> None:
        """Replaces the parameters by the ranks' weighted mean, in place. Collective.

        Args:
            weight: This rank's weight in the mean.
        """
        average_parameters(module, self.comm, weight)

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replaces tensors by the ranks' weighted mean, in place. Collective.

        Args:
            tensors: Tensors of any shapes, which are equal on all ranks.
            weight: This rank's weight in the mean.
        """
        from_vector(weighted_mean(to_vector(tensors), self.comm, weight), tensors)

    def settle(self, module: nn.Module, optimizer: Optimizer) -> None:  # noqa: B027 - a no-op after synchronous steps
        """Distributes the newest parameters to every worker. Collective.

        Called before an evaluation, a checkpoint and the end of training. If
        `lockstep`, it must not change any parameter. The default does nothing, for a
        `step` that leaves the newest parameters on every worker.

        Args:
            module: Holds this rank's parameters, replaced in place.
        """

    def set_exact(self, module: nn.Module, exact: bool) -> None:  # noqa: B027
        """Makes later steps exact, or as configured. Collective.

        Called between two epochs, when all ranks hold equal parameters. The default
        does nothing, for a sync without `finishes`.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as of the last `settle`, for this rank's checkpoint.

        It consists of plain values and tensors. Parameters and optimiser state are
        saved separately.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Restores the state. This rank's parameters are restored already.

        Args:
            state: What `state_dict` returned on this rank.
        """

    def figures(self) -> Json:
        """Returns additional entries of `result.json`, on rank 0, after `settle`.

        Default: none.
        """
        return {}

    def close(self) -> None:  # noqa: B027 - most start no servers or threads
        """Stops servers and threads. Called on every worker, after the last step."""

    def finish(self, module: nn.Module, comm: Communicator, weight: float) -> None:
        """Averages the ranks' parameters into the one model that is saved. Collective.

        Called after `settle` if the ranks' parameters or buffers differ: at the end of
        training, and before each evaluation, so that metrics describe the saved model.
        Each rank's own parameters are restored after an evaluation.

        Args:
            module: Holds this rank's parameters and buffers, replaced in place.
            weight: This rank's weight, its number of training nodes.
        """
        average_parameters(module, comm, weight)


def trainable(module: nn.Module) -> list[Parameter]:
    """Returns the parameters that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def trained(module: nn.Module) -> list[Parameter]:
    """Returns the parameters that require gradients, setting missing gradients to zero.

    Raises `UserError` for a sparse gradient.

    Call it first in `GradientSync.step`, so that ranks without rows, or without a
    gradient for some parameters, exchange tensors of the same shapes.
    """
    parameters = trainable(module)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout != torch.strided:
            raise UserError("model: sparse gradients cannot be synchronised: remove sparse=True")
    return parameters


def gradients(parameters: list[Parameter]) -> list[Tensor]:
    """Returns the parameters' gradients in the same order.

    Parameters without a gradient are left out.
    """
    return [p.grad for p in parameters if p.grad is not None]
