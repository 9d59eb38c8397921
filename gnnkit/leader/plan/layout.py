"""A layout's figures: exact counts, and the seconds and memory of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn

from gnnkit.engine.trial import Sizes
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.kernels.sparse_rows import PLACE_BYTES
from gnnkit.leader.plan.choose import shape, work_of
from gnnkit.leader.plan.step import program_step, reads_sparse_rows, step_activations, step_volume
from gnnkit.leader.plan.volume import Volume
from gnnkit.model.program import Program, is_iterated
from gnnkit.partition.quality import Quality
from gnnkit.utils.documents import Json

_COUNTS = ("grid", "words", "messages", "bytes_sent", "memory", "memory_of_busiest_rank", "balance", "work")
_Ranks = np.ndarray[Any, Any]  # [world_size]


@dataclass(frozen=True, slots=True)
class Timing:
    """The costs of an epoch: measured in a trial, or estimated for another machine."""

    compute: float  # seconds of the busiest rank
    exchange: float  # seconds, including waiting for slower ranks
    all_reduce: float  # seconds for gradients
    step: float  # seconds before the batch. 0 if estimated
    memory: list[int]  # [world_size] peak bytes of each rank's process
    host_memory: float  # bytes for all ranks of a host, excluding shared memory

    @property
    def seconds(self) -> float:
        """The epoch's total seconds."""
        return self.compute + self.exchange + self.all_reduce + self.step

    def to_dict(self) -> Json:
        return {
            "seconds": self.seconds,
            "seconds_of": {name: getattr(self, name) for name in ("compute", "exchange", "all_reduce", "step")},
            "memory_per_rank": self.memory,
            "host_memory": self.host_memory,
        }


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The exchanges and tensors of a step. Lists are indexed by rank."""

    messages: list[int]  # sent
    received: list[int]  # bytes
    tensors: list[int]  # counted bytes: features, edges, parameters, activations
    buffers: list[int]  # bytes sent and received in the largest exchange
    far_messages: list[float]  # share of the messages sent to other hosts
    far_bytes: list[float]  # share of the bytes received from other hosts
    gradient: int  # total bytes of the parameters

    def host_tensors(self, ranks_per_host: int) -> float:
        """Returns the counted bytes of the largest `ranks_per_host` ranks."""
        return float(np.sort(np.add(self.tensors, self.buffers))[::-1][:ranks_per_host].sum())


class RankCounts(TypedDict):
    """A count by rank, with its maximum and sum."""

    max: int
    total: int
    per_rank: list[int]  # [world_size]


class ReceivedWords(RankCounts):
    """Words received, also by the kind of exchange."""

    gathered: list[int]  # [world_size]
    reduced: list[int]  # [world_size]
    sliced: list[int]  # [world_size]


@dataclass(frozen=True, slots=True)
class LayoutFigures:
    """The figures of one layout. Words and messages exclude the first step."""

    grid: list[int]
    words: ReceivedWords
    messages: RankCounts
    bytes_sent: RankCounts
    counted_memory: int  # tensor bytes of the largest rank
    memory_of_busiest_rank: dict[str, int]  # `counted_memory` by purpose
    balance: dict[str, float]
    work: float  # counted work of the busiest ranks
    host_tensors: float  # counted bytes of a host's ranks
    timing: Timing | None = None  # None: not tried
    overrides: str | None = None  # overrides that select the layout

    @property
    def seconds(self) -> float | None:
        """Seconds per epoch, or None without a timing."""
        return None if self.timing is None else self.timing.seconds

    @property
    def memory(self) -> int:
        """Peak bytes of the largest rank, or counted bytes without a timing."""
        return self.counted_memory if self.timing is None else max(self.timing.memory)

    @property
    def host_memory(self) -> float:
        """Bytes for the ranks of a host, or counted bytes without a timing."""
        return self.host_tensors if self.timing is None else self.timing.host_memory

    def to_dict(self) -> Json:
        """Returns the figures under their names in `result.json`."""
        figures = {name: getattr(self, name) for name in _COUNTS}
        timing = {} if self.timing is None else self.timing.to_dict()
        return figures | timing | ({} if self.overrides is None else {"overrides": self.overrides})


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Settings that affect the memory of a step, besides model and graph."""

    dtype: torch.dtype  # of features and parameters
    inputs: torch.dtype  # of dense input rows
    moments: int  # optimizer state tensors per parameter
    keeps_sums: bool  # whether sums over constant input rows are cached between steps


def count_layout(
    costs: StepCosts, graph: Graph, model: nn.Module | Program, quality: Quality, ranks_per_host: int
) -> tuple[LayoutFigures, StepLoad]:
    """Counts the words, messages and tensors of a step on one layout.

    Memory excludes the process itself and temporary buffers of operations.

    Args:
        costs: Precision and optimizer.
        graph: The full graph.
        model: A trainable model, or a program.
        ranks_per_host: Number of consecutive ranks per host.
    """
    model = model if is_iterated(model) else model.to(costs.dtype)
    moved, sizes = step_volume(graph, model, quality, keeps_sums=costs.keeps_sums, inputs=costs.inputs)
    parts = _memory(costs, graph, model, quality, sizes)
    memory = np.sum(list(parts.values()), axis=0)
    busiest = int(memory.argmax())
    far_messages, far_bytes = quality.traffic.far(ranks_per_host)
    load = StepLoad(
        *(moved.messages.tolist(), moved.bytes_received.tolist(), memory.tolist(), moved.largest.tolist()),
        *(far_messages, far_bytes),
        gradient=0 if is_iterated(model) else sum(p.numel() for p in model.parameters()) * costs.dtype.itemsize,
    )
    layout = LayoutFigures(
        grid=shape(quality.partition.grid),
        words=_count_words(moved),
        messages=_spread(moved.messages),
        bytes_sent=_spread(moved.bytes_sent),
        counted_memory=int(memory.max()),
        memory_of_busiest_rank={name: int(number[busiest]) for name, number in parts.items()},
        balance=quality.balance(),
        work=work_of(quality),
        host_tensors=load.host_tensors(ranks_per_host),
    )
    return layout, load


def _count_words(moved: Volume) -> ReceivedWords:
    return {
        **_spread(moved.received),
        "gathered": moved.total("gather").tolist(),
        "reduced": moved.total("reduce").tolist(),
        "sliced": moved.total("slice").tolist(),
    }


def _memory(
    costs: StepCosts, graph: Graph, model: nn.Module | Program, quality: Quality, sizes: list[Sizes]
) -> dict[str, _Ranks]:
    """Returns each rank's bytes, by purpose."""
    parts = {
        "features": _features(costs, graph, model, quality),
        "edges": np.array([16 * size.edges for size in sizes]),  # a source and an id each
    }
    if is_iterated(model):
        _, width = program_step(model, graph, quality.traffic, 0)
        return parts | {"values": quality.traffic.num_owned * width * costs.dtype.itemsize * 2}  # before and after
    copies = 2 + costs.moments  # parameters and gradients
    state = sum(parameter.numel() for parameter in model.parameters()) * costs.dtype.itemsize * copies
    activations = step_activations(graph, model, quality.traffic, sizes, costs.inputs)
    return parts | {"parameters": np.full(len(sizes), state), "activations": activations}


def _features(costs: StepCosts, graph: Graph, model: nn.Module | Program, quality: Quality) -> _Ranks:
    """Returns the bytes of each rank's input rows, with a copy of sparse values."""
    features, owned = graph.features, quality.traffic.num_owned
    if not reads_sparse_rows(graph, model):
        return np.asarray(owned * features.shape[1] * costs.inputs.itemsize)
    assert isinstance(features, SparseFeatures)
    stored = np.bincount(quality.partition.node_rank, np.diff(features.csr.indptr), len(owned)).astype(np.int64)
    return stored * (PLACE_BYTES + 2 * costs.dtype.itemsize) + 8 * (owned + features.shape[1])


def _spread(values: _Ranks) -> RankCounts:
    return {"max": int(values.max()), "total": int(values.sum()), "per_rank": values.tolist()}


def table(layouts: Mapping[str, LayoutFigures]) -> list[str]:
    """Formats the figures of all layouts, one per line."""
    header = (
        f"{'layout':<22}{'grid':>12}{'s an epoch':>12}{'MiB a rank':>12}{'words, busiest':>16}{'words, all':>16}"
        f"{'messages':>10}{'edges max/mean':>16}"
    )
    return [header] + [
        f"{name:<22}{'x'.join(map(str, layout.grid)):>12}{_seconds(layout):>12}{layout.memory / 2**20:>12.1f}"
        f"{layout.words['max']:>16,}{layout.words['total']:>16,}{layout.messages['max']:>10,}"
        f"{layout.balance['edges']:>16.3f}"
        for name, layout in layouts.items()
    ]


def _seconds(layout: LayoutFigures) -> str:
    return "-" if layout.seconds is None else f"{layout.seconds:.4g}"
