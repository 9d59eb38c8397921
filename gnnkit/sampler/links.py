"""The edges that a task predicts, and pairs of nodes without an edge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.checks import check_range
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Ids
from gnnkit.ranges import MAX_COUNT, real, shown, whole
from gnnkit.storage import load_arrays, save_arrays

_MAX_NODES = math.isqrt(2**63 - 1)  # the codes of all pairs fit into int64


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The edges that a task predicts. The edges that train are those of the graph.

    Pairs are rows of (source, destination).
    """

    num_nodes: int
    val: Ids  # [num_val, 2] edges that validate, no edges of the graph
    test: Ids  # [num_test, 2]
    training: Ids | None  # [num] int64 ascending codes of the edges that train, not drawn in training. None: all are
    known: Ids | None  # [num] int64 ascending codes of every edge, not drawn in evaluation. None: all are
    negatives: int  # pairs for each edge that trains
    eval_negatives: int  # pairs for each edge that is evaluated
    supervision_share: float  # of the edges that an epoch predicts, unless all
    seed: int  # of the pairs that evaluate
    given: bool = False  # whether the data set names `val` and `test`

    def save(self, folder: Path) -> None:
        """Writes the arrays into `folder`, whole or not at all."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_arrays(folder, arrays, {name: getattr(self, name) for name in _SCALARS})

    @classmethod
    def load(cls, folder: Path) -> Links:
        """Maps what was saved in `folder`, read-only.

        Raises `UserError` for a file that `save` has not written, and for pairs of an
        earlier gnnkit, which filtered training negatives by held-out edges too.
        """
        arrays, meta = load_arrays(folder)
        if "known" in arrays and "training" not in arrays:
            raise UserError(
                f"{folder}: an earlier gnnkit wrote the edges to predict, without the filter of training negatives; "
                "write the store again with job=partition, or start the run again in a new folder"
            )
        fields: dict[str, Any] = {name: arrays.get(name) for name in _ARRAYS}
        try:
            links = cls(**fields, **{name: meta[name] for name in _SCALARS})
            links.check()
        except KeyError as error:
            raise UserError(f"{folder} holds no {error.args[0]}") from error
        except ValueError as error:
            raise UserError(f"{folder}: {error}") from error
        return links

    def check(self) -> None:
        """Raises `UserError` for arrays and numbers out of range."""
        whole("num_nodes", self.num_nodes, 0, _MAX_NODES)
        for name in ("negatives", "eval_negatives"):
            whole(name, getattr(self, name), 0, MAX_COUNT)
        whole("seed", self.seed, 0, 2**64 - 1)
        real("supervision_share", self.supervision_share, 0, 1)
        if not isinstance(self.given, bool):
            raise UserError(f"given={shown(self.given)} must be true or false")
        for name in ("val", "test"):
            pairs = getattr(self, name)
            if pairs is None or pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2:
                raise UserError(f"{name} is not a table of integers with two columns")
            check_range(name, pairs.ravel(), 0, self.num_nodes)
        for name in ("training", "known"):
            filtered = getattr(self, name)
            if filtered is None:
                continue
            if filtered.dtype != np.int64 or filtered.ndim != 1 or np.any(np.diff(filtered) <= 0):
                raise UserError(f"{name} is not a list of int64 in ascending order")
            check_range(name, filtered, 0, self.num_nodes**2)

    def negative_pairs(
        self,
        pairs: Ids,
        ids: Ids,
        count: int,
        key: int,
        among: Ids | None = None,
        threads: int = 1,
        *,
        evaluates: bool = False,
    ) -> Ids:  # [k, count, 2]
        """Draws pairs of nodes for each edge, with another source or destination.

        Draws follow from the key and the id of the edge alone. Both ends are replaced
        equally often, by a node that is uniform over all nodes that give a pair. No
        pair is a loop. Pairs that evaluate are no edges at all. Pairs that train are
        no edges that train: training must not learn from its negatives which edges are
        held out. Raises `UserError` where no such pair is found.

        Args:
            pairs: [k, 2] edges.
            ids: [k] a number of each edge.
            count: Pairs for each edge.
            key: Key of all draws.
            among: [num_candidates] nodes that are drawn. None: all nodes.
            threads: Threads that draw. Default: 1.
            evaluates: Whether the pairs evaluate the model.
        """
        nodes, filtered = None if among is None else _int64(among), self.known if evaluates else self.training
        drawn_from = (_int64(pairs), _int64(ids), self.num_nodes, filtered, nodes, count, key % 2**64, threads)
        try:
            return _core.negative_pairs(*drawn_from).reshape(len(ids), count, 2)
        except UserError as error:
            config_key = "task.eval_negatives" if evaluates else "task.negatives"
            cure = "" if filtered is None else "; use task.filtered=false"
            raise UserError(f"{config_key}={count}: {error}{cure}") from error


_SCALARS = ("num_nodes", "negatives", "eval_negatives", "supervision_share", "seed", "given")
_ARRAYS = ("val", "test", "training", "known")


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


def chosen(pairs: Ids, num_nodes: int, key: int, threads: int = 1) -> npt.NDArray[np.float64]:  # [k]
    """Draws a number in [0, 1) for each pair [k, 2], for its reverse the same.

    Args:
        pairs: [k, 2] edges.
        num_nodes: Number of nodes of the graph.
        key: Key of all draws.
        threads: Threads that draw. Default: 1.
    """
    return _core.pair_draws(_int64(pairs), num_nodes, key % 2**64, threads)


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
    indptr, kept = _core.edges_without(block.indptr, block.indices, block.src_nodes, excluded, num_nodes)
    rest = block.with_edges(indptr, kept)
    if rest.weight is not None:
        return rest
    return replace(rest, weight=np.repeat(degree / np.maximum(np.diff(block.indptr), 1), np.diff(indptr)))


def _int64(ids: Ids) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(ids, np.int64)


def supervised(
    links: Links, pairs: Ids, ids: Ids, key: int, among: Ids | None = None, threads: int = 1
) -> tuple[Ids, npt.NDArray[np.float32]]:
    """Returns edges and drawn pairs without an edge, with the labels 1 and 0.

    Args:
        links: Says how many pairs.
        pairs: [k, 2] edges.
        ids: [k] a number of each edge.
        key: Key of all draws.
        among: [num_candidates] nodes that are drawn. None: all nodes.
        threads: Threads that draw. Default: 1.

    Returns:
        Pairs [k * (1 + negatives), 2] and labels [k * (1 + negatives)].
    """
    negative = links.negative_pairs(pairs, ids, links.negatives, key, among, threads).reshape(-1, 2)
    labels = np.zeros(len(pairs) + len(negative), np.float32)
    labels[: len(pairs)] = 1
    return np.concatenate([pairs, negative]), labels
