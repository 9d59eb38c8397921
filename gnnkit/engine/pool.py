"""Statistics over a layer's rows on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.exchange.route import Demand
from gnnkit.exchange.tally import Tally
from gnnkit.kernels.sums import linear_once


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """One layer's rows on all ranks, in which each node counts once.

    Time spent waiting for other ranks counts as exchange. Like gradients, sums do not
    count as exchanged words.
    """

    comm: Communicator | None = None  # None: only this rank's rows
    tally: Tally = field(default_factory=Tally)
    weight: Tensor | None = None  # [num_rows, 1] weight of each row, so that a node's copies add up to 1. None: 1 each
    has_copies: bool = False  # whether several ranks may have rows of a node
    lasts: bool = True  # False: ranks do not communicate in this pass, so running statistics do not change

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [num_rows, f] -> [f], scalar
        """Returns the mean over all rows, 0 without any, and the number of rows.

        Collective, in forward and backward. The result is bit-identical on all ranks.
        """
        ones = x.new_ones(len(x), 1) if self.weight is None else self.weight.to(x.dtype)
        sums = self._sum(torch.cat([x if self.weight is None else x * ones, ones], 1).sum(0))
        count = sums[-1].detach()
        return sums[:-1] / torch.where(count > 0, count, 1), count

    def _sum(self, local_sum: Tensor) -> Tensor:
        """Sums over the ranks. The result is the same on all of them."""
        comm, tally = self.comm, self.tally
        if comm is None:
            return local_sum

        def add_up(x: Tensor) -> Tensor:
            with tally.timed():
                return comm.all_reduce(x.clone())

        return linear_once(local_sum, add_up, add_up)


class Pools(Protocol):
    """Returns the object that computes statistics, as an `Adjacency` does."""

    def pool(self, num_rows: int) -> Pool: ...


def pool_of(pool: Pool, ids: Tensor) -> Pool:
    """Returns the pool for rows that may have copies on several ranks. Collective.

    Raises `UserError` if the run may continue without a rank.

    Args:
        pool: The ranks.
        ids: [num_rows] distinct int64 global ids of this rank's rows.
    """
    if pool.comm is None or pool.comm.world_size == 1 or not pool.has_copies:
        return pool
    if pool.comm.goes_on:
        raise UserError(
            "sync.on_lost=continue: batch normalisation reads rows of all workers, so each step needs every worker: use "
            "model.norm=layer (gnnkit.nn.LayerNorm), or sync.on_lost=stop"
        )
    with pool.tally.timed():
        return replace(pool, weight=1 / count_copies(ids, pool.comm)[:, None].double())


def count_copies(ids: Tensor, comm: Communicator) -> Tensor:  # [num_rows] -> [num_rows] int64
    """Counts the ranks that have a row of each node. Collective.

    Each node is counted on the rank given by its id modulo the number of ranks.

    Args:
        ids: [num_rows] distinct int64 global ids of this rank's rows.
        comm: The ranks.
    """
    place = ids % comm.world_size
    order = torch.argsort(place, stable=True)
    demand = Demand.of(ids[order].cpu().numpy(), place[order].cpu().numpy(), comm)
    _, node, count = torch.unique(demand.requested_ids, return_inverse=True, return_counts=True)
    result = torch.empty_like(ids)
    result[order] = comm.all_to_all(count[node], demand.requested_counts, demand.counts)
    return result
