"""Computes each rank's words and messages from a step's exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit.exchange.tally import Exchange, Step
from gnnkit.graph import Ids
from gnnkit.partition.traffic import Traffic, column_shares


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """The words and messages of one training step."""

    words: dict[tuple[int, Step], Ids]  # (layer, step) -> [world_size] received
    messages: Ids  # [world_size] sent
    bytes_sent: Ids  # [world_size]

    def total(self, step: Step) -> Ids:  # [world_size]
        """Returns the words received in the exchanges of one kind."""
        return sum((words for (_, kind), words in self.words.items() if kind == step), np.zeros_like(self.messages))

    @property
    def received(self) -> Ids:  # [world_size]
        """Words received in all exchanges."""
        return sum(self.words.values(), np.zeros_like(self.messages))


def volume(traffic: Traffic, held_edges: Sequence[int], by_slice: Sequence[Sequence[Exchange]]) -> Volume:
    """Counts the words and messages of each rank in one step.

    Args:
        traffic: Rows exchanged between the shards, including added self-loops.
        held_edges: [world_size] number of edges per shard, including added self-loops.
        by_slice: [slices] the step's exchanges, in order, for a rank of each slice.
    """
    size = traffic.grid.world_size
    words: dict[tuple[int, Step], Ids] = {}
    messages, bytes_sent = np.zeros((2, size), np.int64)
    for rank in range(size):
        for exchange in by_slice[rank % traffic.grid.slices]:
            send, recv = _words(exchange, traffic, held_edges[rank], rank)
            totals = words.setdefault((exchange.layer, exchange.step), np.zeros(size, np.int64))
            totals[rank] += recv.sum()
            messages[rank] += np.count_nonzero(send)
            bytes_sent[rank] += exchange.itemsize * send.sum()
    return Volume(words, messages, bytes_sent)


def _words(exchange: Exchange, traffic: Traffic, held_edges: int, rank: int) -> tuple[Ids, Ids]:
    """Counts the words sent to and received from each rank of the plane or cell."""
    cell, place = divmod(rank, traffic.grid.slices)
    if exchange.kind in ("gather", "gather_back", "reduce", "reduce_back"):
        rows = traffic.gather_rows if exchange.kind.startswith("gather") else traffic.reduce_rows
        words = exchange.heads * exchange.width
        send, recv = rows[:, cell] * words, rows[cell] * words
        return (recv, send) if exchange.kind.endswith("back") else (send, recv)
    peers = np.delete(np.arange(traffic.grid.slices), place)
    if exchange.kind in ("add_up", "hand_out"):
        counts = column_shares(held_edges * exchange.width, traffic.grid.slices)
        mine = np.full(len(peers), counts[place])
        return (counts[peers], mine) if exchange.kind == "add_up" else (mine, counts[peers])
    num_owned = traffic.num_owned.reshape(-1, traffic.grid.slices)[cell]
    if exchange.kind in ("replicate", "add_rows"):
        outward, back = np.full(len(peers), num_owned[place]) * exchange.width, num_owned[peers] * exchange.width
        return (outward, back) if exchange.kind == "replicate" else (back, outward)
    shares = exchange.heads * column_shares(exchange.width, traffic.grid.slices)
    outward, back = num_owned[place] * shares[peers], num_owned[peers] * shares[place]
    return (outward, back) if exchange.kind == "cut" else (back, outward)
