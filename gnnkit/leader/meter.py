"""Clocks of one rank: its synchronisations, and its waits for a processor."""

# No `from __future__ import annotations`: DDP reads the annotations of a hook.

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all
from torch.nn.parallel import DistributedDataParallel

from gnnkit.comm import sleep_until

_SCHEDULED = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds on a processor and in the queue, slices


def seconds_queued() -> float:
    """Returns how long this thread was ready and had no processor. 0 if unknown."""
    try:
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class SyncMeter:
    """The meter of a step's synchronisation, and of the rank's own gradient before."""

    def __init__(
        self,
        end_of_sum: Callable[[int], float] = lambda num_bytes: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts without measurements.

        Args:
            end_of_sum: The communicator's, for sums computed by DDP. Default: no link.
            clock: Returns seconds.
        """
        self._end_of_sum, self.clock = end_of_sum, clock
        self.reset()

    def reset(self) -> None:
        self.start, self.end, self.square_norm, self.drift = 0.0, 0.0, 0.0, 0.0
        self.finite = True  # the rank's own gradient

    def look(self, gradient: Tensor) -> None:
        """Takes in a part of the rank's own gradient."""
        square = float(gradient.square().sum())
        self.square_norm += square
        self.finite &= math.isfinite(square) or bool(torch.isfinite(gradient).all())  # squares may overflow

    @property
    def seconds(self) -> float:
        """Seconds of the last synchronisation."""
        return max(self.end - self.start, 0.0)

    def hook(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Adds up the ranks' gradients. DDP's own hook would average them.

        A rank's loss is divided by the global number of rows already. Each parameter
        has an all-reduce of its own, because the place of a number in a buffer decides
        the order of the sum. DDP orders the buckets anew after the first step, so the
        last bits of a resumed run would differ.

        Args:
            group: The process group.
            bucket: Gradients of some parameters.
        """
        self.start = self.start or self.clock()
        buffer: Tensor = bucket.buffer()
        self.look(buffer)
        due = self._end_of_sum(buffer.numel() * buffer.element_size())
        works = [dist.all_reduce(gradient, group=group, async_op=True) for gradient in bucket.gradients()]

        def done(_: Future[Any]) -> Tensor:
            sleep_until(due)
            self.end = self.clock()
            return buffer

        return collect_all([work.get_future() for work in works]).then(done)

    def average(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Averages the ranks' gradients as DDP does without a hook, bit for bit.

        Args:
            group: The process group.
            bucket: Gradients of some parameters.
        """
        self.start = self.start or self.clock()
        buffer: Tensor = bucket.buffer()
        buffer.mul_(1 / dist.get_world_size(group))
        work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None

        def done(future: Future[Any]) -> Tensor:
            self.end = self.clock()
            result: Tensor = future.value()[0]
            return result

        return work.get_future().then(done)

    def attach(self, model: object) -> None:
        """Measures the synchronisation of a user's DDP model on CPUs.

        Other models are left alone, as are models with a communication hook: DDP takes
        only one. On a GPU the synchronisation runs beside the host's clock.
        """
        if isinstance(model, DistributedDataParallel) and model.device_type == "cpu" and not model._comm_hooks:
            model.register_comm_hook(dist.group.WORLD, self.average)
