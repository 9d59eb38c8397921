"""One rank's part of a loader's epochs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gnnkit.errors import UserError
from gnnkit.sampler.batching import BatchSchedule
from gnnkit.utils.checks import whole


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
