"""When and how gradients meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.average import average_parameters, from_vector, to_vector, weighted_mean
from gnnkit.errors import UserError

OnLost = Literal["stop", "continue"]


class GradientSync(ABC):
    """From every rank's gradient to the next parameters.

    A rank's loss is its sum over the global number of rows, so the exact gradient is
    the sum of the ranks' gradients. Arguments of the constructor are the keys of
    `sync`.
    """

    lockstep: bool = True  # False: a rank steps when ready, and the result depends on time
    collective: bool = True  # False: a step meets some ranks at most. All ranks take the same steps all the same
    ddp: ClassVar[bool] = False  # True: Lightning's DDP may take the place of `step`, with the same result
    exact: bool = True  # False: not the gradient of one process
    drifts: bool = False  # True: workers hold different parameters between steps
    steps_here: bool = True  # False: servers step, with the optimiser's class and settings
    servers: int = 0  # ranks beyond the workers, which run `serve`. Always the key `sync.servers`, and 0 without
    on_lost: OnLost = "stop"  # continue: the others go on without a lost worker other than rank 0

    def setup(self, module: nn.Module, comm: Communicator, mailbox: Mailbox | None = None) -> None:
        """Called once on every worker, before the first step, with equal parameters.

        Args:
            module: The parameters.
            comm: The workers.
            mailbox: Letters between all ranks, workers first, servers after them. None
                where the caller brings none. Only a sync with `servers` or without
                `lockstep` may need one.
        """
        self.comm = comm

    def serve(self, mailbox: Mailbox, num_workers: int) -> None:
        """Serves the workers until they have ended, on a rank beyond the workers.

        Args:
            mailbox: Letters between all ranks, workers first, servers after them.
            num_workers: Number of workers.
        """
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    @abstractmethod
    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        """Updates the parameters after the backward pass.

        Collective, if `lockstep` and `collective`.

        Args:
            module: Its parameters hold this rank's gradients.
            optimizer: The optimiser of these parameters.
            share: This rank's part of the rows that the step's loss reads, which is the
                weight n_p / sum of n in a weighted mean of the ranks' own mean
                gradients. 0 where this rank has no rows, or leaves the step out alone.
        """

    def costs(self) -> str:
        """Returns the line of a step that is approximate, from `approximate`.

        The run begins with this line, where several workers train. Default: "", for
        steps that are exact.
        """
        return ""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum of `x` over the workers. Collective, where `lockstep`.

        For the guard, which asks whether all gradients of a step are finite.
        """
        return self.comm.all_reduce(x)

    def average_models(self, module: nn.Module, weight: float) -> None:
        """Replaces the parameters by the ranks' weighted mean. Collective.

        Args:
            module: The parameters of this rank, replaced in place.
            weight: The weight of this rank in the mean.
        """
        average_parameters(module, self.comm, weight)

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replaces tensors by the ranks' weighted mean. Collective.

        Args:
            tensors: Of any shapes, the same on all ranks, replaced in place.
            weight: The weight of this rank in the mean.
        """
        from_vector(weighted_mean(to_vector(tensors), self.comm, weight), tensors)

    def settle(self, module: nn.Module, optimizer: Optimizer) -> None:  # noqa: B027 - most are settled after each step
        """Brings the newest parameters to every worker. Collective.

        Called before an evaluation, a checkpoint and the end of training. Changes no
        bits where `lockstep`. Here nothing is to do, as every step leaves the newest
        parameters.

        Args:
            module: The parameters of this rank, replaced in place.
            optimizer: The optimiser of these parameters.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns what a later run goes on from, as of the last `settle`.

        Plain values and tensors, for the checkpoint of this rank. Parameters and the
        optimiser are saved elsewhere.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have none
        """Goes on from a state and from this rank's parameters, at the next step."""

    def figures(self) -> dict[str, Any]:
        """Returns further figures of `result.json`, on rank 0, after `settle`."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Ends servers and threads. Called on every worker, after the last step."""

    def finish(self, module: nn.Module, comm: Communicator, weight: float) -> None:
        """Brings ranks that differ to the one model that is saved. Collective.

        Called at the end of training, and before an evaluation, whose figures are of
        that model. Ranks get their own parameters back after an evaluation.

        Args:
            module: The parameters and buffers of this rank, replaced in place.
            comm: The run's ranks.
            weight: The weight of this rank: its number of training nodes. Without
                `trainer.final_average` 1 on rank 0, and 0 elsewhere.
        """
        average_parameters(module, comm, weight)


def trainable(module: nn.Module) -> list[Parameter]:
    """Lists the parameters that are trained."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def trained(module: nn.Module) -> list[Parameter]:
    """Lists the parameters that are trained, each with a gradient.

    A parameter that no gradient has reached gets zeros. Raises `UserError` for a sparse
    gradient.
    """
    parameters = trainable(module)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout != torch.strided:
            raise UserError("model: a gradient is sparse, which ranks do not add up: leave out sparse=True")
    return parameters


def gradients(parameters: list[Parameter]) -> list[Tensor]:
    """Lists the gradients of parameters, in the same order."""
    return [p.grad for p in parameters if p.grad is not None]
