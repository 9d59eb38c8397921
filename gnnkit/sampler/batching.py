"""Which seeds each rank computes at each step of an epoch, and what a seed costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import CSC, Floats, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """The batches of all ranks: every seed is in one of them, and all ranks make the same number of steps.

    In whole steps each rank has as many seeds (or groups of them); what is left over is divided evenly in one last step, in
    which the higher ranks have one less, or an empty batch.
    """

    order: npt.NDArray[np.int64]  # [num_seeds] positions of the seeds: step by step, in each step rank by rank
    bounds: npt.NDArray[
        np.int64
    ]  # [num_steps, world_size + 1] where the batch of each rank begins, and the last one ends

    @property
    def num_steps(self) -> int:
        return len(self.bounds)

    @property
    def world_size(self) -> int:
        return int(self.bounds.shape[1]) - 1

    def batch(self, step: int, rank: int) -> npt.NDArray[np.int64]:
        """The positions of the seeds of `rank` at `step`."""
        return self.order[self.bounds[step, rank] : self.bounds[step, rank + 1]]

    def of_rank(self, rank: int) -> tuple[npt.NDArray[np.int64], list[int]]:
        """All batches of `rank` one after the other, and where each begins and the last ends [num_steps + 1]."""
        begins, ends = self.bounds[:, rank], self.bounds[:, rank + 1]
        own = [self.order[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return np.concatenate([self.order[:0], *own]), [0, *np.cumsum(ends - begins).tolist()]

    def loads(self, costs: Floats) -> npt.NDArray[np.float64]:  # [num_steps, world_size]
        """What each rank computes at each step, where the seeds cost `costs` [num_seeds]."""
        ranks = range(self.world_size)
        loads = [[costs[self.batch(step, rank)].sum() for rank in ranks] for step in range(self.num_steps)]
        return np.array(loads, np.float64).reshape(self.num_steps, self.world_size)


def plan_epoch(
    seeds: Ids,  # [num_seeds] distinct
    batch_size: int,
    *,
    world_size: int = 1,
    key: int | None = 0,
    costs: Floats | None = None,  # [num_seeds] finite
    groups: Ids | None = None,  # [num_seeds]
    window: int = 8,
    drop_last: bool = False,
) -> Epoch:
    """Cuts `seeds` into batches, shuffled by `key` or, where it is None, in the order given.

    The shuffled order follows from the key and the set of seeds. With `costs` the batches of each `window` of steps, of
    all ranks, get seeds of nearly the same total cost (longest processing time first, with equal counts). The seeds of a
    window and their numbers per batch stay as they were and a seed is equally likely in each of its batches, so
    gradients stay unbiased; with a window of 1 the ranks together compute the same seeds at each step as without.
    `drop_last` leaves out the seeds that do not fill a step. Seeds of one of `groups` stay together, and all of this is
    then said of groups: a batch has `batch_size` of them. Raises `ValueError` for sizes below 1 and costs that are not
    finite.
    """
    for name, size in (("batch_size", batch_size), ("world_size", world_size), ("window", window)):
        if size < 1:
            raise ValueError(f"{name}={size} must be at least 1")
    ids = np.ascontiguousarray(seeds, np.int64)
    for name, values in (("costs", costs), ("groups", groups)):
        if values is not None and len(values) != len(ids):
            raise ValueError(f"{name} has {len(values)} entries, expected one for each of {len(ids)} seeds")
    if groups is not None:
        ids, group = np.unique(np.ascontiguousarray(groups, np.int64), return_inverse=True)
        costs = None if costs is None else np.bincount(group, costs, len(ids)).astype(np.float64)
    order = np.arange(len(ids)) if key is None else _core.shuffled_order(ids, key)
    if drop_last:
        order = order[: len(ids) // (batch_size * world_size) * batch_size * world_size]
    if costs is not None:
        shuffled = np.ascontiguousarray(costs, np.float64)[order]
        order = order[_core.even_order(shuffled, world_size, batch_size, window, key or 0)]
    bounds = _bounds(len(order), batch_size, world_size)
    if groups is None:
        return Epoch(order, bounds)
    sizes = np.bincount(group, minlength=len(ids))
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])
    begins = np.concatenate([[0], np.cumsum(sizes[order])])
    return Epoch(np.concatenate([order[:0], *(members[g] for g in order)]), begins[bounds])


def _bounds(count: int, batch_size: int, world_size: int) -> npt.NDArray[np.int64]:  # [num_steps, world_size + 1]
    per_step, ranks = batch_size * world_size, np.arange(world_size + 1)
    num_whole, rest = divmod(count, per_step)
    whole = np.arange(num_whole)[:, None] * per_step + ranks * batch_size
    share, extra = divmod(rest, world_size)
    last = num_whole * per_step + ranks * share + np.minimum(ranks, extra)
    return np.concatenate([whole, last[None]]) if rest else whole


def tree_sizes(
    graph: CSC, seeds: Ids, fanouts: Sequence[int], *, replace: bool = False, threads: int = 1
) -> npt.NDArray[np.float64]:  # [num_seeds]
    """Expected number of edges in the tree that uniform sampling draws for each seed: what a seed costs.

    A node with d in-edges draws s = min(fanout, d) of them at its hop (the fanout if d > 0, with replacement; all where
    the fanout is -1), so its tree has `t = s (1 + mean of its sources' t at the next hop)` edges. Exact for a seed alone;
    in a batch a node that recurs is expanded once, so batches have fewer edges, nearly in proportion. One linear pass
    over the graph per hop but the first and the last. Raises `ValueError` for seeds out of range.
    """
    ids = np.ascontiguousarray(seeds, np.int64)
    return _core.tree_sizes(graph.indptr, graph.indices, list(fanouts), replace, ids, threads)
