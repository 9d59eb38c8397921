"""Trial runs of a model on placeholder rows, to record exchanges and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gnnkit.comm import Communicator
from gnnkit.comm.pending import Counts, Pending
from gnnkit.engine.adjacency import Adjacency, ShardAdjacency
from gnnkit.engine.default_dtype import default_dtype
from gnnkit.engine.engine import Engine
from gnnkit.engine.relations import Pairs, RowPairs
from gnnkit.engine.typed_edges import AddedRelations, EdgeList, TypedEdges
from gnnkit.exchange.tally import Exchange, Tally
from gnnkit.graph import CSC, Ids
from gnnkit.graph.types import offsets_of
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.products import fast_products
from gnnkit.kernels.sparse_rows import SparseRows
from gnnkit.partition.shard import Shard
from gnnkit.partition.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows in a rank's part of a forward pass."""

    owned: int = 1
    cell_nodes: int = 1  # `owned` of all ranks of the cell, at least `owned`
    partial: int = 1  # partial sums for other cells
    edges: int = 1
    halo: int = 1  # sources that other cells own
    pairs: int = 1  # (row, relation) pairs with edges, if the model reads relations


class TypeCounts(NamedTuple):
    """Numbers of types that a model has weights for."""

    of_edges: int = 1
    of_nodes: int = 1

    @classmethod
    def of(cls, model: object) -> TypeCounts:
        """Reads a model's attributes."""
        return cls(*(int(getattr(model, name, 1)) for name in ("num_relations", "num_node_types")))


class TrialInputs(NamedTuple):
    """The input rows of a trial."""

    width: int  # columns of a node's features
    edge_width: int = 0  # columns of an edge's features
    dtype: torch.dtype | None = None  # as `Worker.input_dtype`. None: the type of other rows
    keeps_sums: bool = False  # whether sums over constant input rows are cached


_ONE_TYPE = TypeCounts()


class ModelTrial:
    """One rank's engine on placeholder rows, with peers that send zeros."""

    def __init__(
        self,
        traffic: Traffic,
        slice_: int,
        inputs: TrialInputs,
        dtype: torch.dtype,
        sizes: Sizes | None = None,
        types: TypeCounts = _ONE_TYPE,
    ) -> None:
        """Creates the rows.

        Args:
            traffic: The exchanges between ranks.
            slice_: Slice of the rank.
            inputs: The input rows.
            dtype: Type of rows.
            sizes: Numbers of rows. None: one of each kind.
            types: Numbers of types that the model was built for.
        """
        grid, sizes = traffic.grid, sizes or Sizes()
        if grid.slices == 1:
            sizes = replace(sizes, cell_nodes=sizes.owned)
        self._tally, self._inputs, self._input_dtype = _RecordingTally(), inputs, inputs.dtype or dtype
        self.comm = Alone(slice_, grid.world_size)
        shard = _shard(traffic, slice_, inputs.edge_width, sizes)
        shard = replace(shard, type_sizes=(shard.num_nodes, *[0] * (types.of_nodes - 1)))
        self.engine = Engine(shard, self.comm, dtype, self._tally)
        set_row_counts(self.engine)
        self.engine.set_pairs(
            {inverse: _pairs(self.engine, sizes, types.of_edges, inverse) for inverse in (False, True)}
        )
        every = (AddedRelations(inverse, loops) for inverse in (False, True) for loops in (False, True))
        self.engine.set_typed_edges(
            {added: _typed_edges(self.engine.shard, sizes, types.of_edges, added) for added in every}
        )

    def adjacencies(self, num_layers: int) -> tuple[Adjacency, ...]:
        """Creates one adjacency per layer."""
        return ShardAdjacency.layers(self.engine, num_layers, 0)

    def forward(self, model: nn.Module, *, sparse: bool = False) -> tuple[Tensor, int]:
        """Runs a training step's forward pass, as in a step after the first.

        Returns the logits [owned, num_classes], and the bytes saved by autograd.

        Args:
            model: The model.
            sparse: Whether input rows are sparse. They contain no values here.
        """
        shape = (len(self.engine.nodes), self._inputs.width)
        rows = SparseRows.zeros(shape, self.engine.dtype) if sparse else torch.zeros(shape, dtype=self.engine.dtype)
        x = rows.to(self._input_dtype)
        known = [] if isinstance(x, SparseRows) else [x]
        model.train()
        num_layers: int = model.num_layers  # type: ignore[assignment]
        if self._inputs.keeps_sums:
            self.engine.fix(x)
            with self._precision():
                model(x, self.adjacencies(num_layers))  # fills the cache
            self.take_exchanges()
        known += [*self.engine.held(), *model.parameters(), *model.buffers()]
        with SavedTensors(known) as saved, self._precision(), fast_products(), default_dtype(self.engine.dtype):
            logits: Tensor = model(x, self.adjacencies(num_layers))
        return logits, saved.num_bytes

    def _precision(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self._input_dtype == torch.bfloat16)

    def take_exchanges(self) -> list[Exchange]:
        """Returns the exchanges since the last call, in order."""
        exchanges, self._tally.exchanges = self._tally.exchanges, []
        return exchanges


def set_row_counts(engine: Engine) -> None:
    """Sets the row counts of cell peers, for an engine with an `Alone`."""
    shard = engine.shard
    if engine.slicing:
        counts = [len(shard.cell_nodes) - len(shard.owned)] + [0] * (shard.grid.slices - 2)
        counts.insert(shard.slice, len(shard.owned))
        engine.slicing.row_counts = counts


def exchanges(model: nn.Module, inputs: TrialInputs, traffic: Traffic, slice_: int) -> list[Exchange]:
    """Lists the exchanges of a training step on a rank of a slice.

    This includes the backward pass.

    Args:
        model: The model, whose gradients are reset.
        inputs: The input rows.
        traffic: Rows exchanged between the shards.
        slice_: Slice of the rank.
    """
    trial = ModelTrial(traffic, slice_, inputs, _dtype(model), types=TypeCounts.of(model))
    trial.forward(model)[0].sum().backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    return trial.take_exchanges()


def activations(
    model: nn.Module, inputs: TrialInputs, traffic: Traffic, slice_: int, *, sparse: bool = False
) -> Ids:  # [number of Sizes + 1]
    """Counts the bytes that a forward pass saves for the backward pass.

    The count is exact for everything autograd saves, because every tensor has rows of
    one kind.

    Args:
        model: The model.
        inputs: The input rows.
        traffic: Rows exchanged between the shards.
        slice_: Slice of the rank.
        sparse: Whether input rows are sparse.

    Returns:
        Bytes per row for each of the `Sizes`, in order, then the bytes that do not
            depend on sizes.
    """

    def kept(sizes: Sizes) -> int:
        trial = ModelTrial(traffic, slice_, inputs, _dtype(model), sizes, TypeCounts.of(model))
        return trial.forward(model, sparse=sparse)[1]

    some = Sizes(owned=2, cell_nodes=4, partial=2, edges=2, halo=2, pairs=2)
    base = kept(some)
    numbers = {field.name: getattr(some, field.name) for field in fields(Sizes)}
    slopes = [kept(replace(some, **{name: number + 1})) - base for name, number in numbers.items()]
    return np.array([*slopes, base - np.dot(slopes, list(numbers.values()))], np.int64)


class SavedTensors(saved_tensors_hooks):
    """Counts the tensors that autograd saves in its body.

    Storage shared by several tensors counts once. Storage of `known` tensors does not
    count.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__(self._pack, lambda tensor: tensor)
        self._known = {_storage(tensor) for tensor in known}
        self._saved: dict[int, Tensor] = {}

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._known:
            self._saved[_storage(tensor)] = tensor.detach()  # keeps the address from being reused
        return tensor.detach()

    @property
    def num_bytes(self) -> int:
        """Total bytes of all saved tensors."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._saved.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _pairs(engine: Engine, sizes: Sizes, num_relations: int, inverse: bool) -> Pairs:
    """Creates placeholder pairs, with all edges in the first pair."""
    shard, total = engine.shard, num_relations * (1 + inverse)
    num_rows = len(shard.cell_nodes) + len(shard.halo) + len(shard.partial)
    indptr = np.full(sizes.pairs + 1, sizes.edges if sizes.pairs else 0)
    indptr[0] = 0
    into = CSC(indptr, np.zeros(indptr[-1], np.int64), num_sources=num_rows)
    out = CSC(np.append(0, np.full(num_rows, sizes.pairs)), np.arange(sizes.pairs), num_sources=sizes.pairs)
    counts, device = [sizes.pairs, *[0] * (total - 1)], engine.device
    return Pairs(counts, HeldEdges(into, device), np.ones(indptr[-1]), HeldEdges(out, device))


def _typed_edges(shard: Shard, sizes: Sizes, num_relations: int, added: AddedRelations) -> TypedEdges:
    """Creates placeholder edges, all of which connect the first pairs.

    Sources and destinations have as many pairs. Without inverse edges, this is an
    estimate, because only the destinations' pairs are counted.
    """
    edges, device = EdgeList.of_shard(shard, added), torch.device("cpu")
    num_rows = len(shard.cell_nodes) + len(shard.halo) + len(shard.partial)
    order = np.argsort(edges.dst, kind="stable")
    indptr = offsets_of(np.bincount(edges.dst, minlength=num_rows))
    rows = HeldEdges(CSC(indptr, edges.src[order], num_sources=num_rows), device)
    count = max(sizes.pairs, 1) + added.loops * len(shard.cell_nodes)
    ends = RowPairs.of(
        np.zeros(count, np.int64), np.zeros(count, np.int64), num_rows, added.count(num_relations), device
    )
    place = ends, np.zeros(len(order), np.int64)
    return TypedEdges(rows, edges.types[order], edges.ids[order], place, place)


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _shard(traffic: Traffic, slice_: int, edge_width: int, sizes: Sizes) -> Shard:
    """Creates a placeholder shard, whose ids only encode the owning rank.

    All edges run from the second source to the first target, so they are not
    self-loops. With a single source they are.
    """
    halo = sizes.halo if traffic.gather_rows.any() else 0
    partial = sizes.partial if traffic.reduce_rows.any() else 0
    away = np.int64(traffic.grid.num_cells - 1)
    none, width_0 = np.zeros(sizes.owned, np.int64), np.zeros((sizes.owned, 0))
    degrees = np.ones(sizes.cell_nodes)
    indptr = np.full(sizes.cell_nodes + partial + 1, sizes.edges)
    indptr[0] = 0
    indices = np.full(sizes.edges, min(sizes.cell_nodes, 2) - 1)
    return Shard(
        rank=slice_,
        grid=traffic.grid,
        num_nodes=2,
        num_edges=sizes.edges,
        num_classes=1,
        owned=np.zeros(sizes.owned, np.int64),
        cell_nodes=np.zeros(sizes.cell_nodes, np.int64),
        halo=np.ones(halo, np.int64),
        halo_cell=np.full(halo, away),
        partial=np.ones(partial, np.int64),
        partial_cell=np.full(partial, away),
        csc=CSC(indptr, indices, num_sources=sizes.cell_nodes + halo),
        edge_ids=np.zeros(sizes.edges, np.int64),
        in_degree=degrees,
        out_degree=degrees,
        looped=degrees > 0,
        features=width_0,
        labels=none,
        split=none.astype(np.int8),
        edge_features=np.zeros((sizes.edges, edge_width)) if edge_width else None,
        mean_edge_features=None,
    )


class _RecordingTally(Tally):
    """A tally that also lists the exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []

    def record(self, exchange: Exchange, *args: Any, **kwargs: Any) -> None:
        self.exchanges.append(exchange)


class _Zeros(Pending):
    """Zeros received from peers.

    A single peer's zeros are borrowed, as from host memory.
    """

    def __init__(self, ranks: Alone, own_rows: Tensor, first: int, num_rows: int, *, lends: bool) -> None:
        """Stores the rows.

        Args:
            ranks: The communicator, which owns the borrowed zeros.
            own_rows: Rows that this rank sends to itself.
            first: Their position among the rows received.
            num_rows: Number of rows received.
            lends: Whether all rows come from one rank.
        """
        self._ranks, self._own, self._first, self._num_rows = ranks, own_rows, first, num_rows
        self._lends = lends and not len(own_rows)

    def wait(self) -> Tensor:
        rows = self._own.new_zeros(self._num_rows, *self._own.shape[1:])
        rows[self._first : self._first + len(self._own)] = self._own
        return rows

    @contextmanager
    def borrow(self) -> Iterator[Tensor]:
        yield self._ranks.zeros(self._own, self._num_rows) if self._lends else self.wait()


class Alone(Communicator):
    """A communicator without peers, which receives zeros and no requests."""

    def __init__(self, rank: int, world_size: int, device: torch.device | None = None) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device or torch.device("cpu")
        self._zeros = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Communicator:
        return cls(rank, world_size)

    def split(self, ranks: Sequence[int]) -> Communicator:
        return Alone(list(ranks).index(self.rank), len(ranks), self.device)

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        """Receives zeros. Rows for peers are not gathered, as runs do in transit."""
        rows = rows.detach()
        goes, comes = sum(send_counts[: self.rank]), sum(recv_counts[: self.rank])
        own_range = slice(goes, goes + send_counts[self.rank])
        own_rows = rows[own_range] if index is None else rows[index[own_range]]
        return _Zeros(self, own_rows, comes, sum(recv_counts), lends=sum(map(bool, recv_counts)) == 1)

    def zeros(self, like: Tensor, num_rows: int) -> Tensor:
        """Returns zeros that later calls share, so they must not be modified."""
        size = num_rows * math.prod(like.shape[1:]) * like.element_size()
        if len(self._zeros) < size:
            self._zeros = torch.zeros(size, dtype=torch.uint8, device=like.device)
        return self._zeros[:size].view(like.dtype).view(num_rows, *like.shape[1:])

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        return self.start(rows, send_counts, recv_counts).wait()

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        return x
