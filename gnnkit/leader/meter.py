"""Measurement of a rank's synchronisations, and of its waits for a processor."""

# No `from __future__ import annotations`: DDP checks the annotations of a hook.

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.futures import Future, collect_all
from torch.nn.parallel import DistributedDataParallel

from gnnkit.comm import Communicator
from gnnkit.utils.documents import read_or_empty

_SCHEDULED = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds running, nanoseconds queued, time slices


def seconds_queued() -> float:
    """Returns the seconds that this thread has waited for a processor, 0 if unknown."""
    fields = read_or_empty(_SCHEDULED).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


class SyncMeter:
    """Measures a step's synchronisation, and the rank's gradient before it."""

    def __init__(self, comm: Communicator | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts without measurements.

        Args:
            comm: Sums DDP's gradients if it does so in rank order. Default: the process
                group sums them.
            clock: Returns seconds.
        """
        self._comm, self.clock = comm, clock
        self.reset()

    def reset(self) -> None:
        self.start, self.end, self.square_norm = 0.0, 0.0, 0.0
        self.finite = True  # whether the rank's gradient is finite
        self._buckets: list[tuple[Tensor, Future[Tensor]]] = []  # of this step, and their sums

    def look(self, gradient: Tensor) -> None:
        """Adds a part of the rank's gradient to the measurement."""
        square = float(gradient.square().sum())
        self.square_norm += square
        self.finite &= math.isfinite(square) or bool(torch.isfinite(gradient).all())  # squares may overflow

    @property
    def seconds(self) -> float:
        """Duration of the last synchronisation."""
        return max(self.end - self.start, 0.0)

    def hook(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Sums the ranks' gradients, where DDP would average them.

        The loss is already divided by the global number of rows. A process group sums
        each parameter separately, because a number's position in a buffer determines
        the order of the sum. DDP rebuilds the buckets after the first step, so the last
        bits of a resumed run would differ.
        """
        self.start = self.start or self.clock()
        buffer: Tensor = bucket.buffer()
        self.look(buffer)
        if self._comm is not None and self._comm.sums_in_order():
            self._buckets.append((buffer, Future()))
            if bucket.is_last():  # no rows are exchanged when the backward pass has ended
                Variable._execution_engine.queue_callback(self._sum_buckets)
            return self._buckets[-1][1]
        works = [dist.all_reduce(gradient, group=group, async_op=True) for gradient in bucket.gradients()]

        def done(_: Future[Any]) -> Tensor:
            self.end = self.clock()
            return buffer

        return collect_all([work.get_future() for work in works]).then(done)

    def _sum_buckets(self) -> None:
        """Sums the gradients of a step over the ranks."""
        assert self._comm is not None
        for buffer, total in self._buckets:
            total.set_result(self._comm.all_reduce(buffer))
        self._buckets.clear()
        self.end = self.clock()

    def average(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Averages the ranks' gradients with the same bits as DDP without a hook."""
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

        Other models are not changed, nor are models with a communication hook, because
        DDP accepts only one. On a GPU, the host's clock cannot measure the
        synchronisation.
        """
        if isinstance(model, DistributedDataParallel) and model.device_type == "cpu" and not model._comm_hooks:
            model.register_comm_hook(dist.group.WORLD, self.average)
