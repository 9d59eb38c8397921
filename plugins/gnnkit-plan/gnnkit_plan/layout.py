"""A layout's figures: exact counts, and the seconds and memory of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn

from gnnkit.graph import Graph, SparseFeatures
from gnnkit.kernels.product_rows import PLACE_BYTES
from gnnkit.partition.quality import Quality
from gnnkit.prepare.run_partition import shape
from gnnkit.utils.documents import Json
from gnnkit_plan.candidates import is_plain, work_of
from gnnkit_plan.step import reads_sparse_rows, step_activations, step_volume
from gnnkit_plan.trial import Sizes

MAX_TRIALS = 3  # layouts whose epoch is measured
MEMORY_SHARE = 0.9  # share of the memory that a layout may fill
# Where memory is not measured: peak over counted tensors, and bytes of a process
# without data. Measured ratios are 2.3 (GAT) to 3.6 (GCN).
PEAK_RATIO, PROCESS_BYTES = 3.0, 450_000_000
TIE_TOLERANCE = 0.08  # trials of equal layouts differ by up to 8 % in seconds

_COUNTS = ("grid", "words", "messages", "bytes_sent", "memory", "memory_per_rank", "balance", "remote_edges")
_Ranks = np.ndarray[Any, Any]  # [world_size]


@dataclass(frozen=True, slots=True)
class Trial:
    """A layout's measured epoch."""

    seconds: float
    exchange: float  # share of the seconds, including waiting for slower ranks
    memory: list[int]  # [world_size] peak bytes of each rank's process


class RankCounts(TypedDict):
    """A count by rank, with its maximum and sum."""

    max: int
    total: int
    per_rank: list[int]  # [world_size]


@dataclass(frozen=True, slots=True)
class LayoutFigures:
    """The figures of one layout. Words and messages exclude the first step."""

    grid: list[int]
    words: RankCounts  # received
    messages: RankCounts
    bytes_sent: RankCounts
    tensors: list[int]  # [world_size] counted bytes
    balance: dict[str, float]
    remote_edges: float  # share of the edges between nodes on different ranks
    work: float  # words, edges and rows of the busiest rank, per column
    memory_per_rank: list[int]  # [world_size] peak bytes of each rank's process, predicted or measured
    base: int = 0  # bytes of a rank's process without data, included in `memory_per_rank`
    trial: Trial | None = None  # None: not tried

    @property
    def seconds(self) -> float | None:
        """Seconds per epoch, or None without a trial."""
        return None if self.trial is None else self.trial.seconds

    @property
    def memory(self) -> int:
        """Peak bytes of the largest rank."""
        return max(self.memory_per_rank)

    def host_memory(self, num_ranks: int) -> int:
        """Returns the bytes of the largest `num_ranks` ranks, without shared memory."""
        return sum(sorted(max(peak - self.base, 0) for peak in self.memory_per_rank)[-num_ranks:])

    def to_dict(self) -> Json:
        """Returns the figures under their names in `result.json`."""
        figures = {name: getattr(self, name) for name in _COUNTS}
        trial = {} if self.trial is None else {"seconds": self.trial.seconds, "exchange_share": self.trial.exchange}
        return figures | trial


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that layouts may fill."""

    size: float  # bytes, for a rank or for all ranks of a host
    ranks: int | None  # number of ranks per host. None: `size` is for a single rank, including its process

    def needed(self, layout: LayoutFigures) -> float:
        """Returns the bytes to compare with `size`."""
        return layout.memory if self.ranks is None else layout.host_memory(self.ranks)

    def holds(self, layout: LayoutFigures) -> bool:
        """Returns whether a layout fits."""
        return self.needed(layout) <= MEMORY_SHARE * self.size


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Settings that affect the memory of a step, besides model and graph."""

    dtype: torch.dtype  # of features and parameters
    inputs: torch.dtype  # of dense input rows
    moments: int  # optimizer state tensors per parameter
    keeps_sums: bool  # whether sums over constant input rows are cached between steps


def count_layout(costs: StepCosts, graph: Graph, model: nn.Module, quality: Quality) -> LayoutFigures:
    """Counts the words, messages and tensors of a step on one layout.

    Memory is `PEAK_RATIO` times the counted tensors, and `PROCESS_BYTES`.

    Args:
        costs: Precision and optimizer.
        graph: The full graph.
        model: The model.
    """
    model = model.to(costs.dtype)
    volume, sizes = step_volume(graph, model, quality, keeps_sums=costs.keeps_sums, inputs=costs.inputs)
    memory = _memory(costs, graph, model, quality, sizes)
    return LayoutFigures(
        grid=shape(quality.partition.grid),
        words=_spread(volume.received),
        messages=_spread(volume.messages),
        bytes_sent=_spread(volume.bytes_sent),
        tensors=memory.tolist(),
        balance=quality.balance(),
        remote_edges=quality.edge_cut / max(quality.num_edges, 1),
        work=work_of(quality),
        memory_per_rank=(PEAK_RATIO * memory + PROCESS_BYTES).astype(np.int64).tolist(),
        base=PROCESS_BYTES,
    )


def with_trials(
    layouts: Mapping[str, LayoutFigures], trials: Mapping[str, Trial], base: int
) -> dict[str, LayoutFigures]:
    """Adds the trials, and predicts the other layouts' memory from measured peaks.

    Args:
        layouts: The counted layouts, by name.
        trials: Measured epochs, by layout.
        base: Bytes of a rank's process without data.
    """
    ratio = max(
        (peak - base) / size
        for name, trial in trials.items()
        for peak, size in zip(trial.memory, layouts[name].tensors, strict=True)
    )

    def memory(name: str) -> list[int]:
        if name in trials:
            return trials[name].memory
        return [base + int(ratio * size) for size in layouts[name].tensors]

    return {
        name: replace(layout, memory_per_rank=memory(name), base=base, trial=trials.get(name))
        for name, layout in layouts.items()
    }


def to_try(layouts: Mapping[str, LayoutFigures]) -> list[str]:
    """Selects the layouts to try, at most three.

    They are the one whose busiest rank receives the fewest words, the plain one with
    the least work, and those with the fewest words on other grids.
    """
    by_words = sorted(layouts, key=lambda name: (layouts[name].words["max"], layouts[name].work))
    plain = sorted(filter(is_plain, layouts), key=lambda name: layouts[name].work)
    grids = {tuple(layouts[name].grid): name for name in reversed(by_words)}
    best_of_grids = [name for name in by_words if name in grids.values()]
    return list(dict.fromkeys([*by_words[:1], *plain[:1], *best_of_grids]))[:MAX_TRIALS]


def select_layout(layouts: Mapping[str, LayoutFigures], room: Room) -> str | None:
    """Returns the name of the best layout, or None if none fits the memory.

    The fastest layout in trials wins. Among those within `TIE_TOLERANCE`, the fewest
    words of the busiest rank win, which are exact, then the order. Without trials, the
    words and the memory decide.

    Args:
        layouts: The layouts by name.
        room: The available memory.
    """
    fitting = {name: layout for name, layout in layouts.items() if room.holds(layout)}
    seconds = {name: layout.seconds for name, layout in fitting.items() if layout.seconds is not None}
    limit = min(seconds.values(), default=0.0) * (1 + TIE_TOLERANCE)
    ties = [name for name in seconds if seconds[name] <= limit] or list(fitting)
    return min(ties, key=lambda name: (layouts[name].words["max"], layouts[name].memory), default=None)


def _memory(costs: StepCosts, graph: Graph, model: nn.Module, quality: Quality, sizes: list[Sizes]) -> _Ranks:
    """Returns the bytes of each rank's tensors."""
    edges = np.array([16 * size.edges for size in sizes])  # a source and an id each
    memory = edges + _features(costs, graph, model, quality)
    copies = 2 + costs.moments  # parameters and gradients
    state = sum(parameter.numel() for parameter in model.parameters()) * costs.dtype.itemsize * copies
    return memory + state + step_activations(graph, model, quality.traffic, sizes, costs.inputs)


def _features(costs: StepCosts, graph: Graph, model: nn.Module, quality: Quality) -> _Ranks:
    """Returns the bytes of each rank's input rows, with a copy of sparse values."""
    features, num_owned = graph.features, quality.traffic.num_owned
    if not reads_sparse_rows(graph, model):
        return np.asarray(num_owned * features.shape[1] * costs.inputs.itemsize)
    assert isinstance(features, SparseFeatures)
    nnz = np.bincount(quality.partition.node_rank, np.diff(features.csr.indptr), len(num_owned)).astype(np.int64)
    return nnz * (PLACE_BYTES + 2 * costs.dtype.itemsize) + 8 * (num_owned + features.shape[1])


def _spread(values: _Ranks) -> RankCounts:
    return {"max": int(values.max()), "total": int(values.sum()), "per_rank": values.tolist()}


def table(layouts: Mapping[str, LayoutFigures], room: Room) -> list[str]:
    """Formats the figures of all layouts, one per line.

    Args:
        room: The available memory, to list what fits.
    """
    header = (
        f"{'layout':<26}{'grid':>12}{'s an epoch':>12}{'MiB a rank':>12}{'fits':>6}"
        f"{'words, busiest':>16}{'words, all':>16}{'messages':>10}{'edges max/mean':>16}{'cut':>7}"
    )
    return [header] + [
        f"{name:<26}{'x'.join(map(str, layout.grid)):>12}{_seconds(layout):>12}{layout.memory / 2**20:>12.1f}"
        f"{'yes' if room.holds(layout) else 'no':>6}{layout.words['max']:>16,}{layout.words['total']:>16,}{layout.messages['max']:>10,}"
        f"{layout.balance['edges']:>16.3f}{layout.remote_edges:>7.0%}"
        for name, layout in layouts.items()
    ]


def _seconds(layout: LayoutFigures) -> str:
    return "-" if layout.seconds is None else f"{layout.seconds:.4g}"
