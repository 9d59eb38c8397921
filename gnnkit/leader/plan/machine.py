"""A machine model, and the formula that estimates an epoch on it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnkit.comm import Communicator
from gnnkit.engine.adjacency import ShardAdjacency
from gnnkit.engine.engine import Engine
from gnnkit.engine.trial import Alone
from gnnkit.graph import CSC, Graph, Split
from gnnkit.kernels.products import fast_products
from gnnkit.leader.plan.layout import StepLoad, Timing
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard, cut

_ROWS, _WIDTH = 1 << 15, 64  # exchange for measuring bandwidth: 8 MiB of float32
_PRODUCT = 512  # rows and columns of the dense product
_REPEATS = 8


@dataclass(frozen=True, slots=True)
class MachineLink:
    """The connection between two ranks, under load from all ranks."""

    latency: float  # seconds per message, excluding its bytes
    bandwidth: float  # bytes per second that a rank receives while sending equally many

    def seconds(self, messages: float, num_bytes: float) -> float:
        return messages * self.latency + num_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Tried:
    """A single rank's measured step."""

    rank: int
    seconds: float
    memory: int  # bytes in addition to a process without data


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's characteristics, for the formula."""

    flops: float  # dense products, per second and rank. NaN: not measured
    within: MachineLink  # between ranks of the same host
    between: MachineLink  # between ranks of different hosts
    memory: float  # bytes available to all ranks of a host
    ranks_per_host: int  # number of consecutive ranks
    base: int  # bytes of a rank's process without data

    def timing(self, load: StepLoad, tried: Sequence[Tried], slowdown: float) -> Timing:
        """Estimates an epoch from counts and from measured steps of single ranks.

        Compute is the slowest measured rank's. Exchange is the busiest rank's: messages
        times latency, plus bytes divided by bandwidth. Compute and exchange do not
        overlap. Memory is the counted bytes, scaled by the largest ratio of measured to
        counted bytes, plus the buffers of the largest exchange.

        Args:
            load: The counts of a step.
            tried: The measured steps of the busiest ranks.
            slowdown: This machine's seconds per second of a measured step.
        """
        counts = (load.messages, load.received, load.far_messages, load.far_bytes)
        ratio = max(one.memory / max(load.tensors[one.rank], 1) for one in tried)
        grown = np.multiply(load.tensors, ratio) + load.buffers
        return Timing(
            compute=max(one.seconds for one in tried) * slowdown,
            exchange=max(map(self._exchange_seconds, *counts)),
            all_reduce=self._all_reduce_seconds(load.gradient, len(load.messages)),
            step=0.0,
            memory=(self.base + grown).astype(np.int64).tolist(),
            host_memory=float(np.sort(grown)[::-1][: self.ranks_per_host].sum()),
        )

    def _exchange_seconds(self, messages: float, num_bytes: float, far_messages: float, far_bytes: float) -> float:
        near = self.within.seconds(messages * (1 - far_messages), num_bytes * (1 - far_bytes))
        return near + self.between.seconds(messages * far_messages, num_bytes * far_bytes)

    def _all_reduce_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """Returns the seconds of a tree all-reduce over the slowest link."""
        rounds = 2 * math.ceil(math.log2(max(num_ranks, 1)))
        slowest = self.between if num_ranks > self.ranks_per_host else self.within
        return slowest.seconds(rounds, 2 * (1 - 1 / num_ranks) * num_bytes)


def best_of(work: Callable[[], Any], repeats: int = _REPEATS) -> float:
    """Returns the minimum seconds of several calls, after a warm-up call."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_flops(dtype: torch.dtype, device: torch.device) -> float:
    """Measures the FLOP/s of dense products with a rank's threads."""
    a, b = (torch.ones(_PRODUCT, _PRODUCT, dtype=dtype, device=device) for _ in range(2))
    with fast_products():
        return 2 * _PRODUCT**3 / best_of(lambda: _synchronize(a @ b))


def measure_exchange(comm: Communicator, dtype: torch.dtype) -> tuple[float, float]:
    """Measures the exchange of rows while all ranks exchange. Collective.

    Each rank aggregates rows of the next rank. The time of the same aggregation without
    communication is subtracted.

    Args:
        comm: A communicator with at least two ranks.
        dtype: The rows' dtype.

    Returns:
        Seconds per message, and bytes per second.
    """
    few, many = (_exchange_seconds(comm, dtype, rows) for rows in (1, _ROWS))
    size = _ROWS * _WIDTH * dtype.itemsize
    worst = comm.all_reduce(torch.tensor([few, max(many - few, 1e-9)], dtype=torch.float64, device=comm.device))
    few, more = (worst / comm.world_size).tolist()
    return max(few, 1e-7), size / more


def _exchange_seconds(comm: Communicator, dtype: torch.dtype, rows: int) -> float:
    shard = _ring(comm.rank, comm.world_size, rows)
    seconds = []
    with torch.no_grad():
        for ranks in (comm, Alone(comm.rank, comm.world_size)):
            engine = Engine(shard, ranks, dtype)
            (adjacency,) = ShardAdjacency.layers(engine, 1, 0)
            x = torch.ones(rows, _WIDTH, dtype=dtype, device=comm.device)
            seconds.append(best_of(lambda: _synchronize(adjacency.aggregate(x))))  # noqa: B023
            engine.close()
    return max(seconds[0] - seconds[1], 0.0)


def _ring(rank: int, num_ranks: int, rows: int) -> Shard:
    """Cuts a graph in which each node reads a node of the next rank."""
    n = rows * num_ranks
    csc = CSC(np.arange(n + 1), (np.arange(n) + rows) % n)
    graph = Graph(csc, np.zeros((n, 0), np.float32), np.zeros(n, np.int64), np.full(n, Split.TRAIN, np.int8))
    owner = np.repeat(np.arange(num_ranks, dtype=np.int32), rows)
    return cut(graph, Partition(owner, None, Grid(num_ranks, 1, 1)), rank)


def _synchronize(x: torch.Tensor) -> None:
    """Synchronises the GPU, if any."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
