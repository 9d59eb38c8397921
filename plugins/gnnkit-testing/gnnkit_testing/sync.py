"""The contract of gradient synchronisation."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.threads import Threads
from gnnkit.sync.base import GradientSync
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.ranks import TIMEOUT, assert_close

STEPS = 3
SHARES = (0.5, 0.3, 0.2, 0.0)  # of the rows, by rank. The last rank has no rows and no gradient


def check_sync(make: Callable[[], GradientSync]) -> None:
    """Checks three steps of SGD with momentum on four ranks.

    The ranks have unequal shares of rows. Servers are additional ranks. An exact
    synchronisation must reach one process's parameters. Others may change the gradient,
    as signSGD does: if all ranks' mean gradients are equal, all ranks must reach equal
    parameters, and descend. A synchronisation without lockstep must end with finite
    parameters.
    """
    check_maker(make, GradientSync)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    first = parameters_to_vector(model.parameters()).detach()
    lockstep, exact = make().lockstep, make().exact and make().lockstep
    for alike in (True, False):
        results = Threads.run(
            functools.partial(_on_rank, make, model, alike), len(SHARES) + make().servers, timeout=TIMEOUT
        )
        reference = _expected_parameters(model, alike)
        for rank, parameters in enumerate(results[: len(SHARES)]):
            assert parameters is not None
            assert results[0] is not None
            assert bool(parameters.isfinite().all()), f"rank {rank} comes to parameters that are not finite"
            name = f"parameters of rank {rank} after {'equal' if alike else 'different'} gradients"
            if exact:
                assert_close(parameters, reference, f"{name}, against one process")
            elif alike and lockstep:
                assert_close(parameters, results[0], f"{name}, against rank 0")
                assert (parameters - first) @ (reference - first) > 0, f"rank {rank} goes uphill after equal gradients"


def _on_rank(make: Callable[[], GradientSync], model: nn.Module, alike: bool, world: Communicator) -> Tensor | None:
    """Trains on a worker and returns its parameters. Serves on a server."""
    with world.mailbox() as mailbox:
        if world.rank >= len(SHARES):
            make().serve(mailbox, len(SHARES))
            return None
        return _train(make(), copy.deepcopy(model), alike, world.split(range(len(SHARES))), mailbox)


def _train(sync: GradientSync, module: nn.Module, alike: bool, comm: Communicator, mailbox: Mailbox) -> Tensor:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    sync.setup(module, comm, mailbox)
    share = SHARES[comm.rank]
    for step in range(STEPS):
        optimizer.zero_grad()
        if share:
            for place, parameter in enumerate(module.parameters()):
                parameter.grad = share * _mean_gradient(parameter, comm.rank, step, place, alike)
        sync.step(module, optimizer, share)
    sync.settle(module, optimizer)
    sync.close()
    return parameters_to_vector(module.parameters()).detach()


def _expected_parameters(model: nn.Module, alike: bool) -> Tensor:  # [num_parameters]
    """Takes the steps on one process, with the weighted mean gradient."""
    module = copy.deepcopy(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        for place, parameter in enumerate(module.parameters()):
            parts = (s * _mean_gradient(parameter, rank, step, place, alike) for rank, s in enumerate(SHARES))
            parameter.grad = torch.stack(list(parts)).sum(0)
        optimizer.step()
    return parameters_to_vector(module.parameters()).detach()


def _mean_gradient(parameter: Tensor, rank: int, step: int, place: int, alike: bool) -> Tensor:
    """Returns an arbitrary mean gradient over a rank's rows."""
    seed = 100 * step + 10 * place + (0 if alike else rank)
    return torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=parameter.dtype)
