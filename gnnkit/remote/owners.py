"""Who owns a node, and records that travel to owners and back."""

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
class Sent:
    """The bytes and messages that one rank sent to each rank, itself left out."""

    num_bytes: Ids  # [world_size]
    num_messages: Ids  # [world_size]

    @classmethod
    def nothing(cls, world_size: int) -> Sent:
        """Counts from zero on."""
        return cls(np.zeros(world_size, np.int64), np.zeros(world_size, np.int64))

    def add(self, me: int, sizes: Sequence[int]) -> None:
        """Adds one message to each rank, unless the message is empty.

        Args:
            me: This rank.
            sizes: [world_size] bytes of each message.
        """
        away = np.array(sizes, np.int64)
        away[me] = 0
        self.num_bytes += away
        self.num_messages += away > 0

    def record(self, tally: Tally, me: int) -> None:
        """Counts the bytes in a tally, for messages without rows.

        Args:
            tally: Counts.
            me: This rank.
        """
        none = [0] * len(self.num_bytes)
        tally.record(Exchange("fetch", 0, 0), me, range(len(none)), none, none, self.num_bytes.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """The owner of every node.

    Takes one byte a node on up to 256 ranks. Nothing else here grows with the whole
    graph.
    """

    rank_of: Ids  # [num_nodes] unsigned

    @classmethod
    def of(cls, shard: Shard, comm: Communicator) -> Owners:
        """Collects what every rank owns. Collective."""
        rank_of = np.zeros(shard.num_nodes, np.min_scalar_type(comm.world_size - 1))
        for rank, owned in enumerate(to_all(comm, shard.owned.astype(np.int64))):
            rank_of[owned] = rank
        return cls(rank_of)

    def split(self, nodes: Ids, num_ranks: int) -> ByOwner:
        """Orders nodes by owner, and keeps their order within each owner."""
        ranks = self.rank_of[nodes]
        order = np.argsort(ranks, kind="stable")
        return ByOwner(nodes[order], order, np.bincount(ranks, minlength=num_ranks))


@dataclass(frozen=True, slots=True, eq=False)
class ByOwner:
    """Nodes in order of owner."""

    nodes: Ids  # [num_nodes] global ids by owner
    order: Ids  # [num_nodes] place of each node before
    counts: Ids  # [world_size] nodes of each owner

    def parts(self) -> list[Ids]:  # [world_size] arrays
        """Returns the nodes of each owner."""
        return np.split(self.nodes, np.cumsum(self.counts)[:-1])

    def restored(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:  # [num_nodes, ...]
        """Puts values by owner [num_nodes, ...] in the order from before."""
        result = np.empty_like(values)
        result[self.order] = values
        return result


def as_bytes(values: npt.NDArray[Any]) -> Bytes:  # [num_bytes]
    """Views an array, or a copy in order, as bytes."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def swap(comm: Communicator, parts: Sequence[Bytes], sent: Sent | None = None) -> list[Bytes]:
    """Sends bytes to every rank, and returns the bytes of every rank. Collective.

    The numbers of bytes go ahead, 8 bytes to each rank.

    Args:
        comm: The ranks.
        parts: [world_size] bytes for each rank.
        sent: Counts the messages. Default: nobody counts.
    """
    sizes, ones = [len(part) for part in parts], [1] * comm.world_size
    expected: list[int] = comm.all_to_all(torch.tensor(sizes, device=comm.device), ones, ones).tolist()
    out = torch.from_numpy(np.concatenate(parts)).to(comm.device)
    received = comm.all_to_all(out, sizes, expected).cpu().numpy()
    if sent is not None:
        sent.add(comm.rank, sizes)
    return np.split(received, np.cumsum(expected)[:-1])


def to_all(comm: Communicator, values: npt.NDArray[Any], sent: Sent | None = None) -> list[npt.NDArray[Any]]:
    """Returns the values of every rank, by rank. Collective.

    Args:
        comm: The ranks.
        values: [k, ...] of this rank. k may differ between ranks, but not the type or
            the other axes.
        sent: Counts the messages. Default: nobody counts.
    """
    received = swap(comm, [as_bytes(values)] * comm.world_size, sent)
    return [part.view(values.dtype).reshape(-1, *values.shape[1:]) for part in received]
