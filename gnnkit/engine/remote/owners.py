"""Node ownership, and records and sums exchanged with owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.exchange.tally import Exchange, Tally
from gnnkit.graph import Floats, Ids
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Fanouts

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
        """Counts the messages to other ranks that are not empty.

        The sizes that `swap` sends first are not counted.

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
    """Records the rows that this rank has sent and received.

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

    nodes: Ids  # [n] global ids by owner
    order: Ids  # [n] original position of each node
    counts: Ids  # [world_size] number of nodes per owner

    def parts(self) -> list[Ids]:  # [world_size] arrays
        """Returns each owner's nodes."""
        return np.split(self.nodes, np.cumsum(self.counts)[:-1])

    def parts_of(self, values: npt.NDArray[np.generic]) -> list[npt.NDArray[np.generic]]:  # [world_size] arrays
        """Splits the nodes' values [n, ...] by owner."""
        return np.split(values[self.order], np.cumsum(self.counts)[:-1])

    def restore_order(self, values: npt.NDArray[np.generic]) -> npt.NDArray[Any]:  # [n, ...]
        """Returns values sorted by owner [n, ...] to the original order."""
        result = np.empty_like(values)
        result[self.order] = values
        return result


def as_bytes(values: npt.NDArray[np.generic]) -> Bytes:  # [num_bytes]
    """Returns an array's bytes, without a copy if it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def swap(comm: Communicator, parts: Sequence[Bytes], counter: MessageCounter | None = None) -> list[Bytes]:
    """Sends `parts[r]` to each rank r, and returns what each rank sent. Collective.

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
    comm: Communicator, parts: Sequence[npt.NDArray[np.generic]], counter: MessageCounter | None = None
) -> list[npt.NDArray[Any]]:
    """Like `swap`, for arrays [k] of one type. Collective."""
    return [part.view(parts[0].dtype) for part in swap(comm, [as_bytes(part) for part in parts], counter)]


def to_all(
    comm: Communicator, values: npt.NDArray[np.generic], counter: MessageCounter | None = None
) -> list[npt.NDArray[Any]]:
    """Returns the values of every rank, by rank. Collective.

    Args:
        comm: The ranks.
        values: [k, ...] this rank's values. Only k may differ between ranks.
        counter: Counter of messages, or None.
    """
    payloads = swap(comm, [as_bytes(values)] * comm.world_size, counter)
    return [part.view(values.dtype).reshape(-1, *values.shape[1:]) for part in payloads]


class SourceSums:
    """Exchanges values between the sources of held edges and their owners.

    Every method is collective.
    """

    def __init__(self, shard: Shard, owners: Owners, comm: Communicator) -> None:
        """Sends every owner the sources that this rank holds.

        Args:
            shard: This rank's nodes and edges, in a grid with one column.
            owners: Every node's owner.
            comm: The ranks.
        """
        self.shard, self.comm = shard, comm
        self._split = owners.split(shard.sources.astype(np.int64), comm.world_size)
        self._places = [np.searchsorted(shard.owned, part) for part in swap_rows(comm, self._split.parts())]

    def collect(self, values: npt.NDArray[np.generic]) -> npt.NDArray[Any]:  # [num_sources] -> [num_owned]
        """Sums the values of every owned node, in order of rank."""
        total = np.zeros(len(self.shard.owned), values.dtype)
        for places, part in zip(self._places, swap_rows(self.comm, self._split.parts_of(values)), strict=True):
            total[places] += part  # a rank lists a source only once
        return total

    def spread(self, values: npt.NDArray[np.generic]) -> npt.NDArray[Any]:  # [num_owned] -> [num_sources]
        """Returns the owners' values for the held sources."""
        return self._split.restore_order(
            np.concatenate(swap_rows(self.comm, [values[places] for places in self._places]))
        )

    def out_edges(self) -> Ids:  # [num_owned] int64
        """Counts the owned nodes' out-edges."""
        counts = np.bincount(self.shard.csc.indices, minlength=len(self.shard.sources))
        return self.collect(counts.astype(np.int64))

    def inclusion(self, fanouts: Fanouts, first: Floats) -> Floats:  # [num_owned] float64
        """Estimates the probability that a node is in a batch (SALIENT++, MLSys 2023).

        If draws are independent, node v is in hop h with probability p_h(v) = 1 - prod
        over the edges v -> u of (1 - min(1, k_h / d_u) p_{h-1}(u)).

        Args:
            fanouts: [num_hops] draws k_h.
            first: [num_owned] probability p_0 of each owned node to be a seed.
        """
        csc, hop_prob = self.shard.csc, first.astype(np.float64)
        degree = self.shard.num_in_edges
        absent = np.log1p(-np.minimum(hop_prob, _MAX_PROBABILITY))
        for fanout in fanouts:
            draw_prob = np.minimum(1, (degree if fanout < 0 else fanout) / np.maximum(degree, 1)) * hop_prob
            log_miss = np.repeat(np.log1p(-np.minimum(draw_prob, _MAX_PROBABILITY)), degree)
            log_miss = self.collect(np.bincount(csc.indices, log_miss, len(self.shard.sources)).astype(np.float64))
            hop_prob, absent = -np.expm1(log_miss), absent + log_miss
        return -np.expm1(absent)


_MAX_PROBABILITY = 1 - 1e-12  # largest probability p for which log(1 - p) is computed
