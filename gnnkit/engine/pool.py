"""Statistics over the rows of a layer on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.exchange.route import Demand
from gnnkit.exchange.tally import Tally


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The rows of one layer on all ranks, in which each node counts once.

    Waiting for other ranks counts as exchange. Sums have no words, as gradients.
    """

    comm: Communicator | None = None  # None: the rows of this rank are all that count
    tally: Tally = field(default_factory=Tally)
    weight: Tensor | None = None  # [num_rows, 1] share of each row in its node. None: 1 each
    lasts: bool = True  # False: ranks do not meet in this pass, so running statistics stay

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [num_rows, f] -> [f], scalar
        """Returns the mean over all rows, and their number, or 1 where there are none.

        Collective, in forward and backward. Equal bits on all ranks.
        """
        ones = x.new_ones(len(x), 1) if self.weight is None else self.weight.to(x.dtype)
        sums = self._sum(torch.cat([x if self.weight is None else x * ones, ones], 1).sum(0))
        count = sums[-1].detach().clamp(min=1)
        return sums[:-1] / count, count

    def _sum(self, own: Tensor) -> Tensor:
        if self.comm is None:
            return own
        total: Tensor = _AllSum.apply(own, self.comm, self.tally)
        return total


class _AllSum(Function):
    """Adds up a tensor of each rank. The sum is equal on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, tally: Tally) -> Tensor:
        ctx.comm, ctx.tally = comm, tally
        with tally.timed():
            return comm.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        with ctx.tally.timed():
            return ctx.comm.all_reduce(grad.clone()), None, None


def pool_of(pool: Pool, ids: Tensor) -> Pool:
    """Returns the pool for rows of which several ranks may have copies. Collective.

    Raises `UserError` where the run may go on without a rank.

    Args:
        pool: The ranks.
        ids: [num_rows] distinct int64 global ids of this rank's rows.
    """
    if pool.comm is None or pool.comm.world_size == 1:
        return pool
    if pool.comm.goes_on:
        raise UserError(
            "sync.on_lost=continue: batch normalisation reads rows of all workers, so each step needs every worker: use "
            "model.norm=layer (gnnkit.nn.LayerNorm), or sync.on_lost=stop"
        )
    with pool.tally.timed():
        return replace(pool, weight=1 / copies(ids, pool.comm)[:, None].double())


def copies(ids: Tensor, comm: Communicator) -> Tensor:  # [num_rows] -> [num_rows] int64
    """Counts the ranks that have a row of each node. Collective.

    Each node is counted on the rank of its id modulo the number of ranks.

    Args:
        ids: [num_rows] distinct int64 global ids of this rank's rows.
        comm: The ranks.
    """
    place = ids % comm.world_size
    order = torch.argsort(place, stable=True)
    demand = Demand.of(ids[order].cpu().numpy(), place[order].cpu().numpy(), comm)
    _, node, count = torch.unique(demand.asked, return_inverse=True, return_counts=True)
    result = torch.empty_like(ids)
    result[order] = comm.all_to_all(count[node], demand.asked_counts, demand.counts)
    return result
