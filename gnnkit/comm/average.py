"""How far the workers' parameters drifted, and their weighted average.

This is no gradient synchronisation.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gnnkit.comm.base import Communicator


def drift(module: nn.Module, comm: Communicator) -> float:
    """Finds the largest difference of a parameter between two ranks.

    Collective. The same on all ranks.
    """
    rows = comm.gather(parameters_to_vector(module.parameters()).detach()[None])
    largest = torch.zeros(1, dtype=torch.float64, device=comm.device)
    if rows:
        values = torch.cat(rows)
        largest[0] = (values.amax(0) - values.amin(0)).max()
    return float(comm.broadcast(largest, src=0))


def average_parameters(module: nn.Module, comm: Communicator, weight: float) -> None:
    """Replaces the parameters by the ranks' weighted mean. Collective.

    The result has the same bits on all ranks.

    Args:
        module: The parameters of this rank, replaced in place.
        comm: The run's ranks.
        weight: The weight of this rank, its number of training nodes.
    """
    values = parameters_to_vector(module.parameters()).detach()
    total = comm.all_reduce(torch.tensor([weight], dtype=values.dtype, device=values.device))
    vector_to_parameters(comm.all_reduce(values * weight) / total, module.parameters())
