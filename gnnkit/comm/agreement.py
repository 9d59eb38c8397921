"""Comparison of the ranks' values and models, and the weighted average of models."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gnnkit.comm.base import LEADER, Communicator
from gnnkit.errors import UserError


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


_MISSING = "nothing"
_LONGEST = 200  # maximum characters of a value in a message


def agree(comm: Communicator, identity: Mapping[str, str], remedy: str = "") -> None:
    """Raises `UserError` on all ranks unless they have the same identity. Collective.

    The leader compares. The message names the first key that differs, with the ranks
    and their values.

    Args:
        identity: This rank's values, by configuration key or name.
        remedy: The message's last part: what to do.
    """
    records = comm.gather_json(dict(identity), dst=LEADER)
    problem = comm.share(difference(records) if records else None, src=LEADER)
    if problem is not None:
        _part(comm)
        raise UserError(problem + remedy)


def difference(identities: Sequence[Mapping[str, str] | None]) -> str | None:
    """Returns a message about the first key that differs, or None.

    Args:
        identities: Each rank's values, by configuration key or name. None for a lost
            rank.
    """
    identity_by_rank = {rank: identity for rank, identity in enumerate(identities) if identity is not None}
    for key in dict.fromkeys(key for identity in identity_by_rank.values() for key in identity):
        ranks: dict[str, list[int]] = {}
        for rank, identity in identity_by_rank.items():
            ranks.setdefault(identity.get(key, _MISSING), []).append(rank)
        if len(ranks) > 1:
            values = ", ".join(f"{_format_ranks(holders)} {key}={_shorten(value)}" for value, holders in ranks.items())
            return f"{key} must be the same on all ranks: {values}"
    return None


def _part(comm: Communicator) -> None:
    """Waits until every rank has the leader's answer, so that none leaves early."""
    with contextlib.suppress(RuntimeError):
        comm.all_reduce(torch.zeros(1, device=comm.device))


def _format_ranks(ranks: Sequence[int]) -> str:
    """Formats ascending ranks, such as `ranks 0-2, 5 have`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs)
    return f"ranks {text} have" if len(ranks) > 1 else f"rank {text} has"


def _shorten(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
