"""Trial runs of a model on small shards, to record exchanges and memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gnnkit.comm import Communicator
from gnnkit.comm.base import Arrived, Counts, Pending
from gnnkit.engine import Adjacency, ShardAdjacency
from gnnkit.engine.engine import Engine
from gnnkit.engine.in_place import default_dtype
from gnnkit.engine.relations import num_pairs
from gnnkit.exchange.tally import Exchange, Tally
from gnnkit.graph import Ids
from gnnkit.kernels.product_rows import SparseRows
from gnnkit.kernels.products import fast_products
from gnnkit.model.exactness import TrialRows
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import cut
from gnnkit.partition.traffic import Traffic

_DRAWS = 12  # small shards from which the bytes per row of each kind follow


def set_row_counts(engine: Engine) -> None:
    """Sets the row counts of cell peers, for an engine with an `Alone`."""
    shard, slicing = engine.shard, engine.topology.slicing
    if slicing.num_slices > 1:
        counts = [len(shard.cell_nodes) - len(shard.owned)] + [0] * (shard.grid.slices - 2)
        counts.insert(shard.slice, len(shard.owned))
        slicing.cell = replace(slicing.cell, row_counts=counts)


class Alone(Communicator):
    """A communicator without peers, which receives zeros and no requests."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.device = rank, world_size, torch.device("cpu")

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Communicator:
        return cls(rank, world_size)

    def split(self, ranks: Sequence[int]) -> Communicator:
        return Alone(list(ranks).index(self.rank), len(ranks))

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        """Receives zeros, and the rows that this rank sends to itself."""
        rows = rows.detach()
        goes, comes, count = sum(send_counts[: self.rank]), sum(recv_counts[: self.rank]), send_counts[self.rank]
        own_range = slice(goes, goes + count)
        received = rows.new_zeros(sum(recv_counts), *rows.shape[1:])
        received[comes : comes + count] = rows[own_range] if index is None else rows[index[own_range]]
        return Arrived(received)

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        return self.start(rows, send_counts, recv_counts).wait()

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        return x


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows in a rank's part of a forward pass."""

    owned: int
    cell_nodes: int  # `owned` of all ranks of the cell, at least `owned`
    partial: int  # partial sums for other cells
    edges: int
    halo: int  # sources that other cells own
    pairs: int  # (row, relation) pairs with edges, if the model reads relations


class TrialInputs(NamedTuple):
    """The input rows of a trial."""

    width: int  # columns of a node's features
    edge_width: int = 0  # columns of an edge's features
    dtype: torch.dtype | None = None  # as `Worker.input_dtype`. None: the type of other rows
    keeps_sums: bool = False  # whether sums over constant input rows are cached


class ModelTrial:
    """One rank's share of a small graph, with peers that send zeros.

    The rank is in the first cell, and exchanges rows of the same kinds as in the full
    graph.
    """

    def __init__(
        self,
        model: nn.Module,
        grid: Grid,
        slice_: int,
        inputs: TrialInputs,
        dtype: torch.dtype,
        draw: int = 0,
    ) -> None:
        """Draws the graph.

        Args:
            model: The model that will read it.
            grid: The grid from `small_grid`.
            slice_: Slice of the rank.
            inputs: The input rows.
            dtype: Type of rows.
            draw: Number of the graph.
        """
        slices, rows = grid.slices, TrialRows(inputs.width, inputs.edge_width)
        self.model, graph = rows.fit(model, draw)
        ranks = [slice_, *([(slice_ + 1) % slices] if slices > 1 else []), *range(slices, grid.world_size, slices)]
        owners = np.random.default_rng(draw).choice(ranks, graph.num_nodes).astype(np.int32)
        shard = cut(graph, Partition(owners, None, grid), slice_)
        shard = shard.with_self_loops() if getattr(model, "self_loops", False) else shard
        self._tally, self._inputs, self._input_dtype = _RecordingTally(), inputs, inputs.dtype or dtype
        self.engine = Engine(shard, Alone(slice_, grid.world_size), dtype, self._tally)
        set_row_counts(self.engine)

    @property
    def sizes(self) -> Sizes:
        """The numbers of rows."""
        shard, model = self.engine.shard, self.model
        reads = getattr(model, "reads_relations", False)
        pairs = num_pairs(shard, inverse=getattr(model, "inverse", False)) if reads else 0
        nodes = len(shard.owned), len(shard.cell_nodes), len(shard.partial)
        return Sizes(*nodes, shard.csc.num_edges, len(shard.halo), pairs)

    def adjacencies(self, num_layers: int) -> tuple[Adjacency, ...]:
        """Creates one adjacency per layer."""
        return ShardAdjacency.layers(self.engine, num_layers, 0)

    def forward(self, *, sparse: bool = False) -> tuple[Tensor, int]:
        """Runs a training step's forward pass, as in a step after the first.

        Returns the logits [owned, num_classes], and the bytes saved by autograd.

        Args:
            sparse: Whether input rows are sparse. They contain no values here.
        """
        model, dtype = cast(Any, self.model), self.engine.topology.dtype
        shape = (len(self.engine.shard.owned), self._inputs.width)
        rows = SparseRows.zeros(shape, dtype) if sparse else torch.zeros(shape, dtype=dtype)
        x = rows.to(self._input_dtype)
        existing = [] if isinstance(x, SparseRows) else [x]
        model.train()
        if self._inputs.keeps_sums:
            self.engine.fix(x)
            with self._precision():
                model(x, self.adjacencies(model.num_layers))  # fills the cache
            self.take_exchanges()
        existing += [*self.engine.lasting_tensors(), *model.parameters(), *model.buffers()]
        with saved_tensors(existing) as saved, self._precision(), fast_products(), default_dtype(dtype):
            logits: Tensor = model(x, self.adjacencies(model.num_layers))
        return logits, num_bytes(saved)

    def _precision(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self._input_dtype == torch.bfloat16)

    def take_exchanges(self) -> list[Exchange]:
        """Returns the exchanges since the last call, in order."""
        exchanges, self._tally.exchanges = self._tally.exchanges, []
        return exchanges


def small_grid(traffic: Traffic) -> Grid:
    """Returns the smallest grid whose ranks have exchanges of the same kinds."""
    rows, cols = (1 + bool(rows.any()) for rows in (traffic.gather_rows, traffic.reduce_rows))
    return Grid(rows, cols, traffic.grid.slices)


@functools.lru_cache(maxsize=1024)  # layouts differ in few grids, and slices have few widths
def exchanges(model: nn.Module, inputs: TrialInputs, grid: Grid, slice_: int) -> list[Exchange]:
    """Lists the exchanges of a training step on a rank of a slice.

    This includes the backward pass.

    Args:
        model: The model, whose gradients are reset.
        inputs: The input rows.
        grid: The grid from `small_grid`.
        slice_: Slice of the rank.
    """
    trial = ModelTrial(model, grid, slice_, inputs, _dtype(model))
    trial.forward()[0].sum().backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    return trial.take_exchanges()


@functools.lru_cache(maxsize=1024)
def activations(
    model: nn.Module, inputs: TrialInputs, grid: Grid, slice_: int, *, sparse: bool = False
) -> Ids:  # [number of Sizes + 1]
    """Counts the bytes that a forward pass saves for the backward pass.

    The count is exact for everything autograd saves, because every tensor has rows of
    one kind, so the bytes are a linear function of the sizes.

    Args:
        model: The model.
        inputs: The input rows.
        grid: The grid from `small_grid`.
        slice_: Slice of the rank.
        sparse: Whether input rows are sparse.

    Returns:
        Bytes per row for each of the `Sizes`, in order, then the bytes that do not
            depend on sizes.
    """
    trials = [ModelTrial(model, grid, slice_, inputs, _dtype(model), draw) for draw in range(_DRAWS)]
    sizes = np.array([[*astuple(trial.sizes), 1] for trial in trials], np.float64)
    saved_bytes = np.array([trial.forward(sparse=sparse)[1] for trial in trials], np.float64)
    per_row: Ids = np.rint(np.linalg.lstsq(sizes, saved_bytes, rcond=None)[0]).astype(np.int64)
    return per_row


@contextmanager
def saved_tensors(existing: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """Collects the tensors that autograd saves in the body, by their storage.

    Storage shared by several tensors counts once, and that of `existing` tensors not.
    """
    known, saved = {_storage(tensor) for tensor in existing}, dict[int, Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in known:
            saved[_storage(tensor)] = tensor.detach()  # keeps the address from being reused
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def num_bytes(saved: Mapping[int, Tensor]) -> int:
    """Returns the total bytes of tensors from `saved_tensors`."""
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


class _RecordingTally(Tally):
    """A tally that also lists the exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []

    def record(self, exchange: Exchange, *args: Any, **kwargs: Any) -> None:
        self.exchanges.append(exchange)
