"""Seconds and memory of a training step on a layout, from counts and a short trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnkit.graph import Ids
from gnnkit.plan.machine import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The work of a step on one layout. Arrays are by rank."""

    messages: Ids  # [world_size] sent
    received: Ids  # [world_size] bytes
    tensors: Ids  # [world_size] bytes that are counted: features, edges, parameters, activations
    buffers: Ids  # [world_size] bytes of rows under way, in the memory of sender and receiver
    gradient: int  # bytes of all parameters
    tried: Sequence[int]  # ranks whose shards were tried
    shares: Sequence[float]  # [len(tried)] of the work of each of these shards
    far_messages: Sequence[float]  # [world_size] share of the messages that go to other hosts
    far_bytes: Sequence[float]  # [world_size] share of the bytes that come from other hosts

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Load:
        """Reads what `to_dict` wrote."""
        arrays = {name: np.array(plain[name]) for name in ("messages", "received", "tensors", "buffers")}
        return cls(**{**plain, **arrays})

    def to_dict(self) -> dict[str, Any]:
        return {
            "messages": self.messages.tolist(),
            "received": self.received.tolist(),
            "tensors": self.tensors.tolist(),
            "buffers": self.buffers.tolist(),
            "gradient": self.gradient,
            "tried": list(self.tried),
            "shares": list(self.shares),
            "far_messages": list(self.far_messages),
            "far_bytes": list(self.far_bytes),
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """The slowest and the largest rank of a step."""

    compute: float  # seconds
    exchange: float  # seconds
    all_reduce: float  # seconds, of gradients
    step: float  # seconds of all else, whatever the layout
    memory: list[int]  # peak bytes of each rank's process
    host_memory: float  # bytes that all ranks of a host take beyond what they share

    @property
    def seconds(self) -> float:
        return self.compute + self.exchange + self.all_reduce + self.step

    def to_dict(self) -> dict[str, Any]:
        parts = {"compute": self.compute, "exchange": self.exchange, "all_reduce": self.all_reduce, "step": self.step}
        memory = {"memory": max(self.memory), "memory_per_rank": self.memory, "host_memory": self.host_memory}
        return {"seconds": self.seconds, "seconds_of": parts, **memory}


def predict(machine: Machine, load: Load, tried: Sequence[Sequence[float]], slowdown: float) -> Prediction:
    """Predicts one layout.

    Compute is the largest of the tried ranks. An exchange is that of the busiest rank,
    and no part of the exchange is hidden behind compute.

    Args:
        machine: The machine.
        load: The work of a step.
        tried: [len(load.tried), 2] seconds and bytes that each tried part took.
        slowdown: Seconds of the run by seconds of the trial, of all that ranks do.
    """
    num_ranks = len(load.messages)
    compute = max(seconds / share for (seconds, _), share in zip(tried, load.shares, strict=True))
    counts = (load.messages.tolist(), load.received.tolist(), load.far_messages, load.far_bytes)
    exchange = max(map(machine.exchange_seconds, *counts))
    all_reduce = machine.all_reduce_seconds(load.gradient, num_ranks)
    # Buffers of operations come on top of what is counted, in proportion.
    counted = (load.tensors[list(load.tried)] * load.shares).tolist()
    factor = max(taken / max(count, 1) for (_, taken), count in zip(tried, counted, strict=True))
    grown = load.tensors * factor + load.buffers
    here = np.sort(grown)[::-1][: machine.ranks_per_host]
    memory = (machine.base + grown).astype(np.int64).tolist()
    seconds = (compute * slowdown, exchange, all_reduce, machine.step * slowdown)
    return Prediction(*seconds, memory, float(here.sum()))
