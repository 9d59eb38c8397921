"""Each rank's seeds at each step of an epoch, and seed costs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids, RelationGroups
from gnnkit.graph.types import offsets_of
from gnnkit.sampler.fanouts import Fanouts, FanoutsLike
from gnnkit.utils.checks import MAX_THREADS, array, int64s, whole
from gnnkit.utils.documents import Json

_SIZES = {"batch_size": 2**31 - 1, "world_size": 2**16, "window": 2**16}  # maxima, whose product fits in 63 bits


_ORDER, _DRAWS = range(2)  # purposes of an epoch's keys


def order_key(seed: int, epoch: int) -> int:
    """Returns the key of the seed order. `seed` is 0 to 2^64 - 1."""
    return _core.derive(_core.derive(seed, epoch), _ORDER)


def draws_key(seed: int, epoch: int) -> int:
    """Returns the key of an epoch's draws. Step i uses `derive(key, i)`."""
    return _core.derive(_core.derive(seed, epoch), _DRAWS)


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """The batches of all ranks in one epoch.

    Every seed is in one batch, and all ranks make the same number of steps.

    In full steps, all ranks have equal numbers of seeds, or of seed groups. A last step
    distributes the remainder evenly, so higher ranks may have one seed fewer or an
    empty batch. With `repeat`, a rank whose batch would be empty gets another rank's
    seed instead.
    """

    order: npt.NDArray[np.int64]  # [num_seeds] seed positions, by step, then by rank
    bounds: npt.NDArray[np.int64]  # [num_steps, world_size + 1] start of each rank's batch, and end of the last

    @property
    def num_steps(self) -> int:
        """Number of steps of each rank."""
        return len(self.bounds)

    @property
    def world_size(self) -> int:
        return int(self.bounds.shape[1]) - 1

    def batch(self, step: int, rank: int) -> npt.NDArray[np.int64]:
        """Returns the seed positions of `rank` at `step`."""
        return self.order[self.bounds[step, rank] : self.bounds[step, rank + 1]]

    def of_rank(self, rank: int) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Concatenates all batches of `rank`.

        Also returns the start of each batch and the end of the last [num_steps + 1].
        """
        begins, ends = self.bounds[:, rank], self.bounds[:, rank + 1]
        batches = [self.order[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return np.concatenate([self.order[:0], *batches]), [0, *np.cumsum(ends - begins).tolist()]

    def loads(self, costs: Floats) -> npt.NDArray[np.float64]:  # [num_steps, world_size]
        """Sums the seed costs [num_seeds] of each rank at each step."""
        ranks = range(self.world_size)
        loads = [[costs[self.batch(step, rank)].sum() for rank in ranks] for step in range(self.num_steps)]
        return np.array(loads, np.float64).reshape(self.num_steps, self.world_size)


@dataclass(frozen=True, slots=True, eq=False)
class BatchSchedule:
    """Splits the seeds of all ranks into the batches of every epoch.

    The constructor checks the numbers and raises `UserError` with the argument's name.
    """

    seeds: npt.NDArray[np.int64]  # [num_seeds] distinct
    batch_size: int  # seeds or groups per rank and step
    world_size: int = 1
    batching: str = "plain"  # or balanced: batches of equal cost
    window: int = 8  # number of steps over which costs are balanced
    shuffle: bool = True
    drop_last: bool = False  # drop the seeds of an incomplete last step
    groups: Ids | None = None  # [num_seeds] seeds of a group stay together. None: seeds are independent
    shares: tuple[float, ...] | None = None  # [world_size] each rank's share of a step's seeds, sum 1. None: equal
    repeat: bool = False  # without shares, the last step repeats seeds so that no batch is empty

    def __post_init__(self) -> None:
        for name, limit in _SIZES.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, limit))
        if self.batching not in ("plain", "balanced"):
            raise UserError(f"batching={self.batching} must be plain or balanced")

    @property
    def num_steps(self) -> int:
        """Number of steps per epoch, the same on every rank."""
        num_units = len(self.seeds if self.groups is None else np.unique(self.groups))
        per_step = self.batch_size * self.world_size
        return num_units // per_step if self.drop_last else -(-num_units // per_step)

    def epoch(self, key: int, costs: Floats | None) -> Epoch:
        """Splits the seeds into an epoch's batches.

        The shuffled order depends only on the key and the set of seeds.

        With balanced batching, the batches of all ranks within each `window` of steps
        get nearly the same total cost (longest processing time first, with equal
        counts). Batch sizes and the seeds of a window do not change. A seed is equally
        likely to be in each batch of its window, so gradients stay unbiased. With a
        window of 1, the ranks together process the same seeds at each step as with
        plain batching.

        With groups, all of this holds for groups instead of seeds.

        Raises `UserError` if a cost is not finite.

        Args:
            key: Key of the shuffle, 0 to 2^64 - 1.
            costs: [num_seeds] seed costs, required for balanced batching.
        """
        units = _units(self.seeds, costs if self.batching == "balanced" else None, self.groups)
        per_step = self.batch_size * self.world_size
        order = _core.shuffled_order(units.ids, key) if self.shuffle else np.arange(len(units.ids))
        if self.drop_last:
            order = order[: len(order) // per_step * per_step]
        if units.costs is not None:
            key = key if self.shuffle else 0
            order = order[_core.even_order(units.costs[order], self.world_size, self.batch_size, self.window, key)]
        bounds = bounds_of(len(order), self.batch_size, self.world_size, self.shares)
        first = int(bounds[-1:, 0].sum())  # of the last step
        if self.repeat and self.shares is None and 0 < len(order) - first < self.world_size:
            # Seeds repeat cyclically, so the mean over ranks is close to the mean over
            # seeds.
            order = np.concatenate([order[:first], np.resize(order[first:], self.world_size)])
            bounds[-1] = first + np.arange(self.world_size + 1)
        return units.epoch(order, bounds)

    def identity(self, costs: Floats | None) -> Json:
        """Returns all values that determine the batches, for JSON.

        `costs` [num_seeds] are given by the user, or None.
        """
        digest = hashlib.blake2b(self.seeds.tobytes(), digest_size=8)
        if costs is not None:
            digest.update(costs.tobytes())
        names = ("batch_size", "world_size", "batching", "window", "shuffle", "drop_last", "repeat")
        return {name: getattr(self, name) for name in names} | {"seeds": digest.hexdigest()}


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """Seeds, or groups of seeds, that are assigned as units."""

    ids: npt.NDArray[np.int64]  # [num_units] distinct
    costs: npt.NDArray[np.float64] | None  # [num_units]
    members: Sequence[npt.NDArray[np.int64]] | None  # [num_units] positions of the seeds. None: unit i is seed i

    def epoch(self, order: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> Epoch:
        """Replaces units by their seeds, in the order and in the batch bounds."""
        if self.members is None:
            return Epoch(order, bounds)
        unit_seeds = [self.members[unit] for unit in order]
        begins = offsets_of([len(seeds) for seeds in unit_seeds])
        return Epoch(np.concatenate([order[:0], *unit_seeds]), begins[bounds])


def _units(seeds: npt.NDArray[np.int64], costs: Floats | None, groups: Ids | None) -> _Units:
    unit_costs = None if costs is None else check_costs("costs", costs, len(seeds))
    if groups is None:
        return _Units(seeds, unit_costs, None)
    ids, group = np.unique(int64s("groups", groups, len(seeds)), return_inverse=True)
    ends = np.cumsum(np.bincount(group, minlength=len(ids)))
    members = np.split(np.argsort(group, kind="stable"), ends[:-1])
    if unit_costs is not None:
        unit_costs = np.bincount(group, unit_costs, len(ids)).astype(np.float64)
    return _Units(ids, unit_costs, members)


def check_costs(name: str, costs: npt.ArrayLike, num_seeds: int) -> npt.NDArray[np.float64]:  # [num_seeds]
    """Returns costs as float64.

    Raises `UserError` unless there is a number for each seed.

    Args:
        name: Argument name, for the message.
        costs: [num_seeds] numbers.
        num_seeds: Expected number of entries.
    """
    numbers = array(name, costs)
    if numbers.shape != (num_seeds,) or numbers.dtype.kind not in "fiub":
        shape = f"{numbers.dtype} of shape {list(numbers.shape)}"
        raise UserError(f"{name} must be a number for each of {num_seeds} seeds, got {shape}")
    return np.ascontiguousarray(numbers, np.float64)


def bounds_of(
    count: int, batch_size: int, world_size: int, shares: Sequence[float] | None = None
) -> npt.NDArray[np.int64]:  # [num_steps, world_size + 1]
    """Returns batch bounds, as in `Epoch.bounds`.

    Args:
        count: Total number of seeds, or of groups, over all ranks.
        batch_size: Seeds per rank and step, on average over ranks.
        world_size: Number of ranks.
        shares: [world_size] each rank's share of a step's seeds, with sum 1. Default:
            equal.
    """
    per_step, ranks = batch_size * world_size, np.arange(world_size + 1)
    if shares is not None:
        begins = np.arange(0, count, per_step)
        sizes = np.minimum(per_step, count - begins)
        ends = np.concatenate([[0.0], np.cumsum(shares)[:-1], [1.0]])
        bounds: npt.NDArray[np.int64] = begins[:, None] + np.floor(sizes[:, None] * ends + 0.5).astype(np.int64)
        return bounds
    num_whole, remainder = divmod(count, per_step)
    full_steps = np.arange(num_whole)[:, None] * per_step + ranks * batch_size
    share, extra = divmod(remainder, world_size)
    last = num_whole * per_step + ranks * share + np.minimum(ranks, extra)
    return np.concatenate([full_steps, last[None]]) if remainder else full_steps


def tree_sizes(
    graph: CSC | RelationGroups, seeds: Ids, fanouts: FanoutsLike, *, replace: bool = False, threads: int = 1
) -> npt.NDArray[np.float64]:  # [num_seeds]
    """Computes the expected number of edges in each seed's tree of uniform draws.

    A node with d in-edges draws s = min(fanout, d) edges. With replacement, s is the
    fanout if d > 0. With a fanout of -1, s is d. The tree then has `t = s (1 + mean of
    the sources' t at the next hop)` edges. This is exact for a single seed. In a batch,
    a recurring node is expanded once, so batches have fewer edges, nearly in
    proportion. Each hop except the first and the last takes one linear pass over the
    graph. Raises `UserError` if a seed is out of range.

    Args:
        graph: The graph. With its relations, s and the mean are those of each relation,
            and t is the sum over relations.
        seeds: [num_seeds] node ids.
        fanouts: [num_hops] draws per node, from the seeds outward. -1: all.
        replace: Whether draws are with replacement.
        threads: Number of threads.
    """
    parsed_fanouts = Fanouts.parse(fanouts, "fanouts")
    if isinstance(graph, RelationGroups):
        return _tree_sizes_by_relation(graph, int64s("seeds", seeds), parsed_fanouts, replace)
    draws = parsed_fanouts.default
    threads = whole("threads", threads, 1, MAX_THREADS)
    return _core.tree_sizes(graph.indptr, graph.indices, draws, replace, int64s("seeds", seeds), threads)


def _tree_sizes_by_relation(
    rows: RelationGroups, seeds: Ids, fanouts: Fanouts, replace: bool
) -> npt.NDArray[np.float64]:  # [num_seeds]
    degree = np.diff(rows.starts)
    nodes, relation = np.divmod(rows.codes, rows.num_relations)
    sizes = np.zeros(rows.csc.num_nodes)
    for draws in reversed(fanouts.by_hop(rows.names)):
        of_group = np.array(draws, np.int64)[relation]
        num_draws = np.where(of_group < 0, degree, of_group if replace else np.minimum(of_group, degree))
        below = np.add.reduceat(sizes[rows.csc.indices], rows.starts[:-1]) if len(degree) else np.zeros(0)
        sizes = np.bincount(nodes, num_draws * (1 + below / degree), len(sizes)).astype(np.float64, copy=False)
    return sizes[seeds]


class Sharding:
    """A schedule whose epochs are split over ranks, and this process's rank.

    Without a rank, both numbers are those of `torch.distributed`'s default process
    group. They are read at each use, because a `Trainer` creates the group after its
    loaders.
    """

    def __init__(self, schedule: BatchSchedule, rank: int | None, world_size: int | None) -> None:
        """Checks the rank.

        Args:
            schedule: The schedule of one rank.
            rank: This rank. If None, from the process group.
            world_size: Number of ranks. If None, from the process group.
        """
        if (rank is None) != (world_size is None):
            raise UserError(
                f"rank={rank} with world_size={world_size}: pass both, or neither, which takes them from "
                "torch.distributed's default process group"
            )
        self._schedule, self._rank = schedule, rank
        if rank is None or world_size is None:
            return
        self._rank, self._schedule = whole("rank", rank, 0), replace(schedule, world_size=world_size)
        if self._rank >= self._schedule.world_size:
            raise UserError(f"rank={rank} is out of range for world_size={world_size}")

    @property
    def rank(self) -> int:
        """This process's rank."""
        return _group()[0] if self._rank is None else self._rank

    @property
    def schedule(self) -> BatchSchedule:
        """The schedule of all current ranks."""
        world_size = _group()[1] if self._rank is None else self._schedule.world_size
        if world_size != self._schedule.world_size:
            self._schedule = replace(self._schedule, world_size=world_size, shares=None)
        return self._schedule

    @property
    def source(self) -> str:
        """The origin of the number of ranks, for messages. Empty if it was passed."""
        return ", the size of torch.distributed's default process group" if self._rank is None else ""

    def deal(self, shares: Sequence[float]) -> None:
        """Distributes each step's seeds by shares, [world_size] with sum 1."""
        self._schedule = replace(self.schedule, shares=tuple(shares))


def _group() -> tuple[int, int]:
    """Returns the rank and the size of torch's default process group, or (0, 1)."""
    dist: Any = sys.modules.get("torch.distributed")  # without torch, there is no group
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0, 1
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0 and world_size > 1:
        _report(world_size)
    return rank, world_size


@cache  # once per process
def _report(world_size: int) -> None:
    print(
        f"Loader: each epoch's seeds are split over the {world_size} ranks of torch.distributed's default process "
        "group; pass rank=0, world_size=1 to a Loader for all seeds on every rank",
        file=sys.stderr,
        flush=True,
    )
