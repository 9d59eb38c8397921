"""The seeds of each rank at each step of an epoch, and the cost of a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.checks import MAX_THREADS, array, int64s, whole
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.sampler.fanouts import Fanouts

_SIZES = {"batch_size": 2**31 - 1, "world_size": 2**16, "window": 2**16}  # their product fits 63 bits


_ORDER, _DRAWS = range(2)  # purposes of an epoch's keys


def order_key(seed: int, epoch: int) -> int:
    """Returns the key of the order of seeds. `seed` is 0 to 2^64 - 1."""
    return _core.derive(_core.derive(seed, epoch), _ORDER)


def draws_key(seed: int, epoch: int) -> int:
    """Returns the key of all draws of an epoch. Step i draws by `derive(key, i)`."""
    return _core.derive(_core.derive(seed, epoch), _DRAWS)


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """The batches of all ranks.

    Every seed is in one batch, and all ranks make the same number of steps.

    In whole steps all ranks have equal numbers of seeds, or of groups of seeds. One
    last step divides the rest evenly. The higher ranks then have one less, or an empty
    batch. With `repeat`, a rank whose batch would be empty has a seed of another rank
    instead.
    """

    order: npt.NDArray[np.int64]  # [num_seeds] positions of the seeds, by step, then by rank
    bounds: npt.NDArray[np.int64]  # [num_steps, world_size + 1] begin of each rank's batch, end of the last

    @property
    def num_steps(self) -> int:
        """Number of steps of each rank."""
        return len(self.bounds)

    @property
    def world_size(self) -> int:
        return int(self.bounds.shape[1]) - 1

    def batch(self, step: int, rank: int) -> npt.NDArray[np.int64]:
        """Returns the positions of the seeds of `rank` at `step`."""
        return self.order[self.bounds[step, rank] : self.bounds[step, rank + 1]]

    def of_rank(self, rank: int) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Joins all batches of `rank`.

        Also returns the begin of each batch and the end of the last [num_steps + 1].
        """
        begins, ends = self.bounds[:, rank], self.bounds[:, rank + 1]
        own = [self.order[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return np.concatenate([self.order[:0], *own]), [0, *np.cumsum(ends - begins).tolist()]

    def loads(self, costs: Floats) -> npt.NDArray[np.float64]:  # [num_steps, world_size]
        """Sums the costs [num_seeds] of the seeds of each rank at each step."""
        ranks = range(self.world_size)
        loads = [[costs[self.batch(step, rank)].sum() for rank in ranks] for step in range(self.num_steps)]
        return np.array(loads, np.float64).reshape(self.num_steps, self.world_size)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The rule that cuts the seeds of all ranks into the batches of every epoch.

    The constructor checks the numbers and raises `UserError` naming the argument.
    """

    seeds: npt.NDArray[np.int64]  # [num_seeds] distinct
    batch_size: int  # seeds or groups of each rank in a step
    world_size: int = 1
    batching: str = "plain"  # or balanced: batches of equal cost
    window: int = 8  # steps that share costs evenly
    shuffle: bool = True
    drop_last: bool = False  # leave out the seeds that do not fill a step
    groups: Ids | None = None  # [num_seeds] seeds of one group stay together
    shares: tuple[float, ...] | None = None  # [world_size] of the seeds of a step, sum 1. None: equal
    repeat: bool = False  # no batch is empty: the last step repeats seeds where ranks lack one

    def __post_init__(self) -> None:
        for name, most in _SIZES.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, most))
        if self.batching not in ("plain", "balanced"):
            raise UserError(f"batching={self.batching} must be plain or balanced")

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        num_units = len(self.seeds if self.groups is None else np.unique(self.groups))
        per_step = self.batch_size * self.world_size
        return num_units // per_step if self.drop_last else -(-num_units // per_step)

    def epoch(self, key: int, costs: Floats | None) -> Epoch:
        """Cuts the seeds into the batches of an epoch.

        Args:
            key: of the shuffle, 0 to 2^64 - 1.
            costs: [num_seeds] cost of each seed. Needed where batching is balanced.
        """
        return plan_epoch(
            self.seeds,
            self.batch_size,
            world_size=self.world_size,
            key=key if self.shuffle else None,
            costs=costs if self.batching == "balanced" else None,
            groups=self.groups,
            window=self.window,
            drop_last=self.drop_last,
            shares=self.shares,
            repeat=self.repeat,
        )

    def identity(self, costs: Floats | None) -> dict[str, Any]:
        """Names all values that the batches follow from, for JSON.

        `costs` [num_seeds] come from the user, or are None.
        """
        digest = hashlib.blake2b(self.seeds.tobytes(), digest_size=8)
        if costs is not None:
            digest.update(costs.tobytes())
        names = ("batch_size", "world_size", "batching", "window", "shuffle", "drop_last", "repeat")
        return {name: getattr(self, name) for name in names} | {"seeds": digest.hexdigest()}


def plan_epoch(
    seeds: Ids,
    batch_size: int,
    *,
    world_size: int = 1,
    key: int | None = 0,
    costs: Floats | None = None,
    groups: Ids | None = None,
    window: int = 8,
    drop_last: bool = False,
    shares: Sequence[float] | None = None,
    repeat: bool = False,
) -> Epoch:
    """Cuts seeds into batches.

    The shuffled order follows from the key and the set of seeds.

    With costs, the batches of each `window` of steps, of all ranks, get seeds of nearly
    the same total cost (longest processing time first, with equal counts). The seeds of
    a window stay, and so do the sizes of batches. A seed is equally likely in each
    batch of the window, so gradients stay unbiased. With a window of 1 the ranks
    together compute the same seeds at each step as without costs.

    With groups, the seeds of a group stay together, and all of this holds for groups.

    Raises `UserError` for sizes out of range and costs that are not finite.

    Args:
        seeds: [num_seeds] distinct ids.
        batch_size: seeds, or groups, of each rank in a step.
        world_size: number of ranks.
        key: of the shuffle, 0 to 2^64 - 1. None keeps the order given.
        costs: [num_seeds] finite cost of each seed. Default: batches are not evened
            out.
        groups: [num_seeds] group of each seed. Default: each seed is for itself.
        window: steps that share costs evenly.
        drop_last: leave out the seeds that do not fill a step.
        shares: [world_size] of the seeds of each step, with a sum of 1. Default: equal.
            The seeds of a step stay the same.
        repeat: whether a rank without a seed in the last step repeats a seed of that
            step. Only without shares.
    """
    for name, size in (("batch_size", batch_size), ("world_size", world_size), ("window", window)):
        whole(name, size, 1, _SIZES[name])
    units = _units(int64s("seeds", seeds), costs, groups)
    order = np.arange(len(units.ids)) if key is None else _core.shuffled_order(units.ids, key)
    if drop_last:
        order = order[: len(order) // (batch_size * world_size) * batch_size * world_size]
    if units.costs is not None:
        order = order[_core.even_order(units.costs[order], world_size, batch_size, window, key or 0)]
    bounds = bounds_of(len(order), batch_size, world_size, shares)
    if repeat and shares is None and len(order) - (first := int(bounds[-1:, 0].sum())) < world_size and len(order):
        # Seeds take turns, so the mean over the ranks is nearly that over the seeds.
        order = np.concatenate([order[:first], np.resize(order[first:], world_size)])
        bounds[-1] = first + np.arange(world_size + 1)
    return units.epoch(order, bounds)


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """The seeds, or the groups of seeds, that are dealt out as one."""

    ids: npt.NDArray[np.int64]  # [num_units] distinct
    costs: npt.NDArray[np.float64] | None  # [num_units]
    members: Sequence[npt.NDArray[np.int64]] | None  # [num_units] positions of the seeds. None: unit i is seed i

    def epoch(self, order: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> Epoch:
        """Replaces units by seeds, in the order and in the bounds of batches."""
        if self.members is None:
            return Epoch(order, bounds)
        chosen = [self.members[unit] for unit in order]
        begins = np.concatenate([[0], np.cumsum([len(seeds) for seeds in chosen])]).astype(np.int64)
        return Epoch(np.concatenate([order[:0], *chosen]), begins[bounds])


def _units(seeds: npt.NDArray[np.int64], costs: Floats | None, groups: Ids | None) -> _Units:
    priced = None if costs is None else check_costs("costs", costs, len(seeds))
    if groups is None:
        return _Units(seeds, priced, None)
    ids, group = np.unique(int64s("groups", groups, len(seeds)), return_inverse=True)
    ends = np.cumsum(np.bincount(group, minlength=len(ids)))
    members = np.split(np.argsort(group, kind="stable"), ends[:-1])
    if priced is not None:
        priced = np.bincount(group, priced, len(ids)).astype(np.float64)
    return _Units(ids, priced, members)


def check_costs(name: str, costs: npt.ArrayLike, num_seeds: int) -> npt.NDArray[np.float64]:  # [num_seeds]
    """Returns costs as float64.

    Raises `UserError` unless there is a number for each seed.

    Args:
        name: name of the argument, for the message.
        costs: [num_seeds] numbers.
        num_seeds: number of entries expected.
    """
    given = array(name, costs)
    if given.shape != (num_seeds,) or given.dtype.kind not in "fiub":
        shape = f"{given.dtype} of shape {list(given.shape)}"
        raise UserError(f"{name} must be a number for each of {num_seeds} seeds, got {shape}")
    return np.ascontiguousarray(given, np.float64)


def bounds_of(
    count: int, batch_size: int, world_size: int, shares: Sequence[float] | None = None
) -> npt.NDArray[np.int64]:  # [num_steps, world_size + 1]
    """Returns the bounds of batches, as in `Epoch.bounds`.

    Args:
        count: Seeds of all ranks, or groups of seeds.
        batch_size: Seeds of each rank in a step, on average over the ranks.
        world_size: Number of ranks.
        shares: [world_size] of the seeds of a step, with a sum of 1. Default: equal.
    """
    per_step, ranks = batch_size * world_size, np.arange(world_size + 1)
    if shares is not None:
        begins = np.arange(0, count, per_step)
        sizes = np.minimum(per_step, count - begins)
        ends = np.concatenate([[0.0], np.cumsum(shares)[:-1], [1.0]])
        bounds: npt.NDArray[np.int64] = begins[:, None] + np.floor(sizes[:, None] * ends + 0.5).astype(np.int64)
        return bounds
    num_whole, rest = divmod(count, per_step)
    whole = np.arange(num_whole)[:, None] * per_step + ranks * batch_size
    share, extra = divmod(rest, world_size)
    last = num_whole * per_step + ranks * share + np.minimum(ranks, extra)
    return np.concatenate([whole, last[None]]) if rest else whole


def tree_sizes(
    graph: CSC, seeds: Ids, fanouts: Sequence[int], *, replace: bool = False, threads: int = 1
) -> npt.NDArray[np.float64]:  # [num_seeds]
    """Computes the expected number of edges in the tree that uniform draws make.

    A node with d in-edges draws s = min(fanout, d) edges. With replacement, s is the
    fanout if d > 0. With a fanout of -1, s is d. So the tree has
    `t = s (1 + mean of the sources' t at the next hop)` edges. Exact for a seed alone.
    In a batch a node that recurs is expanded once, so batches have fewer edges, nearly
    in proportion. Takes one linear pass over the graph per hop but the first and the
    last. Raises `UserError` for seeds out of range.

    Args:
        graph: The graph.
        seeds: [num_seeds] node ids.
        fanouts: [num_hops] draws per node, from the seeds outward. -1: all.
        replace: whether draws are with replacement.
        threads: threads that compute.
    """
    draws = Fanouts.parse(fanouts, "fanouts").default
    threads = whole("threads", threads, 1, MAX_THREADS)
    return _core.tree_sizes(graph.indptr, graph.indices, draws, replace, int64s("seeds", seeds), threads)
