"""Learned input rows, stored at each node's owner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.engine.remote.features import FeatureStore
from gnnkit.engine.remote.owners import Owners, record_fetch, swap_rows
from gnnkit.exchange.tally import Tally
from gnnkit.graph import Ids
from gnnkit.kernels.dropout import derive, uniform
from gnnkit.partition.shard import Shard


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRequest:
    """The routes of rows from their owners, and of gradients back."""

    order: Tensor  # [num_rows] int64 position of each received row, sorted by owner
    num_received: list[int]  # [world_size] rows received from each owner
    places: Tensor  # [num_sent] int64 owned rows to send, sorted by requesting rank
    num_sent: list[int]  # [world_size] rows sent to each rank
    is_own: bool  # whether all owned rows are requested once, by this rank and in order


class LearnedRows(FeatureStore):
    """Learned rows of all nodes. Every rank stores the rows of its owned nodes.

    Initial rows depend only on seed and global id, so they are the same for every
    layout. Their numbers have mean 0 and a configurable standard deviation. All methods
    that exchange rows are collective.
    """

    def __init__(
        self,
        shard: Shard,
        width: int,
        comm: Communicator,
        dtype: torch.dtype,
        seed: int,
        scale: float | None = None,
    ) -> None:
        """Initialises the rows. Collective.

        Args:
            shard: The nodes that this rank owns.
            width: Numbers per row.
            comm: The ranks.
            dtype: Type of the rows.
            seed: Seed of the run.
            scale: Standard deviation of the numbers. Default: 1 / sqrt(width).
        """
        self.width, self._comm, self._owned = width, comm, shard.owned.astype(np.int64)
        self._owners = Owners.of(shard, comm)
        ids = torch.from_numpy(self._owned).to(comm.device)
        bound = 3**0.5 * (width**-0.5 if scale is None else scale)  # of the uniform distribution
        first = (2 * uniform(ids, width, derive(seed, 7)).to(dtype) - 1) * bound
        self.owned = nn.Parameter(first)  # [num_owned, width]

    def rows(self, ids: Ids) -> Tensor:
        return self.send(self.ask(ids))

    def ask(self, ids: Ids) -> LearnedRequest:
        """Requests rows from the nodes' owners. Collective.

        `ids` are [num_rows] distinct global ids.
        """
        split = self._owners.split(ids.astype(np.int64), self._comm.world_size)
        peer_requests = swap_rows(self._comm, split.parts())
        places, device = np.searchsorted(self._owned, np.concatenate(peer_requests)), self.owned.device
        is_own = len(places) == len(ids) and np.array_equal(ids, self._owned)
        order, out = torch.from_numpy(split.order).to(device), torch.from_numpy(places).to(device)
        return LearnedRequest(order, split.counts.tolist(), out, [len(part) for part in peer_requests], is_own)

    def send(self, request: LearnedRequest) -> Tensor:  # [num_rows, width]
        """Returns the current requested rows, in the requested order. Collective."""
        if request.is_own:
            return self._comm.all_to_all(self.owned.detach(), request.num_sent, request.num_received)
        received_rows = self._comm.all_to_all(
            self.owned.detach()[request.places], request.num_sent, request.num_received
        )
        rows = torch.empty_like(received_rows)
        rows[request.order] = received_rows
        return rows

    def collect(self, request: LearnedRequest, gradient: Tensor) -> Tensor:  # [num_owned, width]
        """Sums the gradients of owned rows, in order of rank. Collective.

        Returns a dense tensor if all owned rows were read, by this rank only.

        Args:
            request: The rows that this rank has read.
            gradient: [num_rows, width] their gradient.
        """
        if request.is_own:
            return self._comm.all_to_all(gradient, request.num_received, request.num_sent)
        received_grads = self._comm.all_to_all(gradient[request.order], request.num_received, request.num_sent)
        read, position = torch.unique(request.places, return_inverse=True)
        total = received_grads.new_zeros(len(read), self.width)
        parts = zip(torch.split(received_grads, request.num_sent), torch.split(position, request.num_sent), strict=True)
        for rows, places in parts:
            total[places] += rows  # a rank requests a row only once
        return torch.sparse_coo_tensor(read[None], total, self.owned.shape, is_coalesced=True, check_invariants=False)

    def record(self, request: LearnedRequest, tally: Tally) -> None:
        """Records the exchanged rows and gradients, in words and bytes."""
        size = self.width * self.owned.element_size()
        num_received, num_sent = (np.array(counts, np.int64) for counts in (request.num_received, request.num_sent))
        record_fetch(tally, self._comm.rank, self.width, num_sent, num_received, num_received * 8 + num_sent * size)
        record_fetch(tally, self._comm.rank, self.width, num_received, num_sent, num_received * size)
