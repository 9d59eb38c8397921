"""The edges that a task predicts, and pairs of nodes without an edge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Ids
from gnnkit.storage import load_arrays, save_arrays

_Words = npt.NDArray[np.uint64]
_GOLDEN, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_TRIES = 32  # of one end of a pair, then of the other end, then of both


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The edges that a task predicts. The edges that train are those of the graph.

    Pairs are rows of (source, destination).
    """

    num_nodes: int
    val: Ids  # [num_val, 2] edges that validate, no edges of the graph
    test: Ids  # [num_test, 2]
    known: Ids | None  # [num_known] int64 ascending codes of all edges, which are no negatives. None: any pair is
    negatives: int  # pairs for each edge that trains
    eval_negatives: int  # pairs for each edge that is evaluated
    supervision_share: float  # of the edges that an epoch predicts, unless all
    seed: int  # of the pairs that evaluate

    def save(self, folder: Path) -> None:
        """Writes the arrays into `folder`, whole or not at all."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_arrays(folder, arrays, {name: getattr(self, name) for name in _SCALARS})

    @classmethod
    def load(cls, folder: Path) -> Links:
        """Maps what was saved in `folder`, read-only."""
        arrays, meta = load_arrays(folder)
        given: dict[str, Any] = {name: arrays.get(name) for name in _ARRAYS}
        return cls(**given, **{name: meta[name] for name in _SCALARS})

    def negative_pairs(
        self, pairs: Ids, ids: Ids, count: int, key: int, among: Ids | None = None
    ) -> Ids:  # [k, count, 2]
        """Draws pairs of nodes for each edge, with another source or destination.

        Draws follow from the key and the id of the edge alone. No pair is a loop, or
        one of the known edges. Raises `UserError` where no such pair is found.

        Args:
            pairs: [k, 2] edges.
            ids: [k] a number of each edge.
            count: Pairs for each edge.
            key: Key of all draws.
            among: [num_candidates] nodes that are drawn. None: all nodes.
        """
        num_nodes = np.uint64(self.num_nodes if among is None else len(among))
        words = hashed(np.repeat(ids, count), key) + np.tile(np.arange(count, dtype=np.uint64), len(ids)) * _GOLDEN
        found = np.repeat(pairs.astype(np.int64), count, axis=0)
        edges, end = found.copy(), (_mix(words) & np.uint64(1)).astype(np.int64)
        open_, tried = np.arange(len(found)), 0
        while len(open_):
            if tried == 3 * _TRIES:
                raise UserError(
                    f"task.filtered=true: no pair without an edge was found for the edge {edges[open_[0]].tolist()}, "
                    "the graph is nearly complete: use task.filtered=false"
                )
            tried += 1
            drawn, other = (
                (_mix(words[open_] + _times(tried, word)) % num_nodes).astype(np.int64) for word in (_FIRST, _SECOND)
            )
            if among is not None:
                drawn, other = among[drawn].astype(np.int64), among[other].astype(np.int64)
            place = end[open_] if tried <= _TRIES else 1 - end[open_]
            found[open_] = edges[open_]
            found[open_, place] = drawn
            if tried > 2 * _TRIES:
                found[open_, 1 - place] = other
            open_ = open_[~self._serves(found[open_], edges[open_])]
        return found.reshape(len(ids), count, 2)

    def _serves(self, pairs: Ids, edges: Ids) -> npt.NDArray[np.bool_]:  # [k]
        serves = (pairs[:, 0] != pairs[:, 1]) & (pairs != edges).any(1)
        if self.known is None or not len(self.known):
            return np.asarray(serves | (self.num_nodes < 3))
        wanted = codes(pairs, self.num_nodes)
        place = np.minimum(np.searchsorted(self.known, wanted), len(self.known) - 1)
        return np.asarray(serves & (self.known[place] != wanted))


_SCALARS = ("num_nodes", "negatives", "eval_negatives", "supervision_share", "seed")
_ARRAYS = ("val", "test", "known")


def codes(pairs: Ids, num_nodes: int) -> npt.NDArray[np.int64]:  # [k]
    """Numbers ordered pairs of nodes [k, 2]."""
    return np.asarray(pairs[:, 1].astype(np.int64) * num_nodes + pairs[:, 0])


def unordered(pairs: Ids, num_nodes: int) -> npt.NDArray[np.int64]:  # [k]
    """Numbers pairs of nodes [k, 2], an edge and its reverse edge alike."""
    return codes(np.sort(pairs, axis=1), num_nodes)


def pairs_of(csc: CSC, edge_ids: Ids | None = None) -> Ids:  # [k, 2]
    """Returns source and destination of edges. Default: of all edges, in order."""
    if edge_ids is None:
        destinations = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        return np.stack([csc.indices.astype(np.int64), destinations], 1)
    destinations = np.searchsorted(csc.indptr, edge_ids, side="right") - 1
    return np.stack([csc.indices[edge_ids].astype(np.int64), destinations], 1)


def chosen(pairs: Ids, num_nodes: int, key: int) -> npt.NDArray[np.float64]:  # [k]
    """Draws a number in [0, 1) for each pair [k, 2], for its reverse the same.

    Args:
        pairs: [k, 2] edges.
        num_nodes: Number of nodes of the graph.
        key: Key of all draws.
    """
    return np.asarray((hashed(unordered(pairs, num_nodes), key) >> np.uint64(11)) * 2.0**-53, np.float64)


def hashed(ids: Ids, key: int) -> _Words:  # [k]
    """Hashes numbers [k] with a key."""
    return _mix(ids.astype(np.uint64) * _GOLDEN ^ np.uint64(_core.derive(key % 2**64, 0)))


def without_pairs(block: Block, degree: Ids, excluded: npt.NDArray[np.int64], num_nodes: int) -> Block:
    """Leaves out the edges of a block that join some pairs, in either direction.

    An edge that stays counts as often as before, so that sums estimate the sums over
    all in-edges that are not left out.

    Args:
        block: The block.
        degree: [num_dst] in-edges of each destination in the graph.
        excluded: [k] ascending numbers of `unordered` pairs.
        num_nodes: Number of nodes of the graph.
    """
    drawn = np.diff(block.indptr)
    rows = np.repeat(np.arange(block.num_dst), drawn)
    pairs = np.stack([block.src_nodes[block.indices], block.src_nodes[rows]], 1)
    kept = ~np.isin(unordered(pairs, num_nodes), excluded)
    weight = (degree / np.maximum(drawn, 1))[rows] if block.weight is None else block.weight
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(rows[kept], minlength=block.num_dst))])
    edge_ids = None if block.edge_ids is None else block.edge_ids[kept]
    return Block(indptr, block.indices[kept], block.src_nodes, edge_ids, weight[kept])


def _times(number: int, word: np.uint64) -> np.uint64:
    """Multiplies modulo 2^64."""
    return np.uint64(number * int(word) % 2**64)


def _mix(words: _Words) -> _Words:
    """Hashes 64-bit words (splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def supervised(
    links: Links, pairs: Ids, ids: Ids, key: int, among: Ids | None = None
) -> tuple[Ids, npt.NDArray[np.float32]]:
    """Returns edges and drawn pairs without an edge, with the labels 1 and 0.

    Args:
        links: Says how many pairs.
        pairs: [k, 2] edges.
        ids: [k] a number of each edge.
        key: Key of all draws.
        among: [num_candidates] nodes that are drawn. None: all nodes.

    Returns:
        Pairs [k * (1 + negatives), 2] and labels [k * (1 + negatives)].
    """
    negative = links.negative_pairs(pairs, ids, links.negatives, key, among).reshape(-1, 2)
    labels = np.zeros(len(pairs) + len(negative), np.float32)
    labels[: len(pairs)] = 1
    return np.concatenate([pairs, negative]), labels
