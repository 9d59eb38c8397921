"""Drift between the workers' models, and their weighted average."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gnnkit.comm.base import Communicator


def drift(module: nn.Module, comm: Communicator) -> float:
    """Returns the largest difference between two ranks' models, in any element.

    Covers parameters and saved floating-point buffers. Collective, and equal on all
    ranks.

    Use it to see how far local steps have moved the ranks' models apart: 0 means
    equal models.
    """
    rows = comm.gather(to_vector(saved_tensors(module)[0])[None])
    largest = torch.zeros(1, dtype=torch.float64, device=comm.device)
    if rows:
        values = torch.cat(rows)
        # Equal infinities count too, such as those of a mask.
        equal = torch.isclose(values, values[0], rtol=0, atol=0, equal_nan=True)
        largest[0] = torch.where(equal.all(0), 0, values.amax(0) - values.amin(0)).max()
    return float(comm.broadcast(largest, src=0))


def models_differ(module: nn.Module, comm: Communicator) -> bool:
    """Returns whether two ranks' models differ in any bit, from 8 bytes of each rank.

    Covers parameters and saved buffers. Collective, and equal on all ranks. Lost ranks
    do not count.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in itertools.chain(*saved_tensors(module)):
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digests = comm.all_gather(int.from_bytes(digest.digest(), "little", signed=True) | 1)  # 0 is of a lost rank
    return len(set(digests.tolist()) - {0}) > 1


@torch.no_grad()
def average_parameters(module: nn.Module, comm: Communicator, weight: float) -> None:
    """Replaces parameters and saved buffers by the ranks' weighted mean. Collective.

    The result is bitwise equal on all ranks. A rank of weight 0 has no influence.
    Integer buffers, such as counters, are taken from rank 0.

    Args:
        module: This rank's model, updated in place.
        comm: The run's ranks.
        weight: This rank's weight, its number of training nodes.
    """
    numbers, integer_tensors = saved_tensors(module)
    from_vector(weighted_mean(to_vector(numbers), comm, weight), numbers)
    for tensor in integer_tensors:
        tensor.copy_(comm.broadcast(tensor.detach().to(comm.device, torch.int64), src=0))


def weighted_mean(values: Tensor, comm: Communicator, weight: float) -> Tensor:  # [n]
    """Returns the ranks' weighted mean of `values`, bitwise equal on all ranks.

    A rank of weight 0 has no influence. Collective.
    """
    total = comm.all_reduce(torch.tensor([weight], dtype=values.dtype, device=values.device))
    return comm.all_reduce(values * weight if weight else torch.zeros_like(values)) / total


def saved_tensors(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Returns a saved model's floating-point tensors, and its other tensors.

    A tensor with two names is returned once.
    """
    state = module.state_dict(keep_vars=True).values()
    tensors = list({id(tensor): tensor for tensor in state if isinstance(tensor, Tensor)}.values())
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return floating, [tensor for tensor in tensors if not tensor.is_floating_point()]


def to_vector(tensors: Iterable[Tensor]) -> Tensor:  # [numbers of all tensors]
    """Concatenates copies of the tensors, which must be contiguous."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def from_vector(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Writes a vector from `to_vector` back into the tensors, in place."""
    for tensor, part in zip(tensors, torch.split(vector, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
