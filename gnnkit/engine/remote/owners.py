"""Node ownership, and records exchanged with owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.exchange.tally import Exchange, Tally
from gnnkit.graph import Ids
from gnnkit.partition.shard import Shard

Bytes = npt.NDArray[np.uint8]


@dataclass(eq=False)
class MessageCounter:
    """Bytes and messages sent by one rank to each other rank."""

    num_bytes: Ids  # [world_size]
    num_messages: Ids  # [world_size]

    @classmethod
    def zeros(cls, world_size: int) -> MessageCounter:
        """Returns counters of zero."""
        return cls(np.zeros(world_size, np.int64), np.zeros(world_size, np.int64))

    def add(self, me: int, sizes: Sequence[int]) -> None:
        """Counts one message to each rank, except empty ones.

        Args:
            me: This rank.
            sizes: [world_size] bytes of each message.
        """
        away = np.array(sizes, np.int64)
        away[me] = 0
        self.num_bytes += away
        self.num_messages += away > 0

    def record(self, tally: Tally, me: int) -> None:
        """Records the bytes of messages without rows.

        Args:
            tally: The record.
            me: This rank.
        """
        none = np.zeros_like(self.num_bytes)
        record_fetch(tally, me, 0, none, none, self.num_bytes)


def record_fetch(tally: Tally, me: int, width: int, num_sent: Ids, num_received: Ids, num_bytes: Ids) -> None:
    """Records the rows that ranks have fetched from each other.

    Args:
        tally: The record.
        me: This rank.
        width: Numbers per row.
        num_sent: [world_size] rows sent to each rank.
        num_received: [world_size] rows received from each rank.
        num_bytes: [world_size] bytes sent to each rank.
    """
    words = (num_sent * width).tolist(), (num_received * width).tolist()
    tally.record(Exchange("fetch", 0, width), me, range(len(num_sent)), *words, num_bytes.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """Every node's owner.

    Needs one byte per node on up to 256 ranks, which is the only memory here that grows
    with the complete graph.
    """

    rank_of: Ids  # [num_nodes] unsigned

    @classmethod
    def of(cls, shard: Shard, comm: Communicator) -> Owners:
        """Gathers every rank's owned nodes. Collective."""
        rank_of = np.zeros(shard.num_nodes, np.min_scalar_type(comm.world_size - 1))
        for rank, owned_nodes in enumerate(to_all(comm, shard.owned.astype(np.int64))):
            rank_of[owned_nodes] = rank
        return cls(rank_of)

    def split(self, nodes: Ids, num_ranks: int) -> ByOwner:
        """Sorts nodes by owner, stably."""
        ranks = self.rank_of[nodes]
        order = np.argsort(ranks, kind="stable")
        return ByOwner(nodes[order], order, np.bincount(ranks, minlength=num_ranks))


@dataclass(frozen=True, slots=True, eq=False)
class ByOwner:
    """Nodes sorted by owner."""

    nodes: Ids  # [num_nodes] global ids by owner
    order: Ids  # [num_nodes] original position of each node
    counts: Ids  # [world_size] number of nodes per owner

    def parts(self) -> list[Ids]:  # [world_size] arrays
        """Returns each owner's nodes."""
        return np.split(self.nodes, np.cumsum(self.counts)[:-1])

    def parts_of(self, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:  # [world_size] arrays
        """Splits the nodes' values [num_nodes, ...] by owner."""
        return np.split(values[self.order], np.cumsum(self.counts)[:-1])

    def restore_order(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:  # [num_nodes, ...]
        """Returns values sorted by owner [num_nodes, ...] to the original order."""
        result = np.empty_like(values)
        result[self.order] = values
        return result


def as_bytes(values: npt.NDArray[Any]) -> Bytes:  # [num_bytes]
    """Views an array as bytes, or a copy if it is not contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def swap(comm: Communicator, parts: Sequence[Bytes], counter: MessageCounter | None = None) -> list[Bytes]:
    """Sends bytes to every rank, and returns every rank's bytes. Collective.

    The numbers of bytes are sent first, with 8 bytes to each rank.

    Args:
        comm: The ranks.
        parts: [world_size] bytes for each rank.
        counter: Counter of messages, or None.
    """
    sizes, ones = [len(part) for part in parts], [1] * comm.world_size
    peer_sizes: list[int] = comm.all_to_all(torch.tensor(sizes, device=comm.device), ones, ones).tolist()
    out = torch.from_numpy(np.concatenate(parts)).to(comm.device)
    payload = comm.all_to_all(out, sizes, peer_sizes).cpu().numpy()
    if counter is not None:
        counter.add(comm.rank, sizes)
    return np.split(payload, np.cumsum(peer_sizes)[:-1])


def swap_rows(
    comm: Communicator, parts: Sequence[npt.NDArray[Any]], counter: MessageCounter | None = None
) -> list[npt.NDArray[Any]]:
    """Sends equally typed arrays [k] to every rank, like `swap`. Collective."""
    return [part.view(parts[0].dtype) for part in swap(comm, [as_bytes(part) for part in parts], counter)]


def to_all(
    comm: Communicator, values: npt.NDArray[Any], counter: MessageCounter | None = None
) -> list[npt.NDArray[Any]]:
    """Returns the values of every rank, by rank. Collective.

    Args:
        comm: The ranks.
        values: [k, ...] this rank's values. Only k may differ between ranks.
        counter: Counter of messages, or None.
    """
    payloads = swap(comm, [as_bytes(values)] * comm.world_size, counter)
    return [part.view(values.dtype).reshape(-1, *values.shape[1:]) for part in payloads]
