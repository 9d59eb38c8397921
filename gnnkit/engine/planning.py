"""What a model will exchange and keep, exactly, before it runs: it is run on a few rows, with exchanges that only take notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.module_tracker import ModuleTracker

from gnnkit.engine.adjacency import ShardAdjacency
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.engine import Engine
from gnnkit.engine.exchange import Route, Slicing
from gnnkit.engine.halo import Halo
from gnnkit.engine.kernels import EdgeKernels
from gnnkit.engine.local import LocalEdges
from gnnkit.engine.tally import Step, Tally
from gnnkit.graph import CSC, Ids
from gnnkit.partition.grid import Grid
from gnnkit.partition.traffic import Traffic, column_shares

Kind = Literal["gather", "gather_back", "reduce", "reduce_back", "cut", "join", "replicate", "add_up"]

_STEPS: dict[Kind, Step] = {  # under which name the engine counts it
    "gather": "gather",
    "gather_back": "reduce",
    "reduce": "reduce",
    "reduce_back": "gather",
    "cut": "slice",
    "join": "slice",
    "replicate": "slice",
    "add_up": "slice",
}
_tracker = ModuleTracker()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange of one training step, as one slice rank sees it."""

    kind: Kind
    layer: int
    backward: bool
    heads: int  # groups of columns; only `width` is cut into slices
    width: int  # columns of a row, or of an edge for add_up

    @property
    def step(self) -> Step:
        return _STEPS[self.kind]


def exchanges(model: nn.Module, in_features: int, edge_width: int, grid: Grid, slice_: int) -> list[Exchange]:
    """Those of one training step of the model, forward and backward, in order, on a rank of that slice."""
    engine = NotingEngine(Sizes(), edge_width, grid, slice_, _dtype(model))
    engine.forward(model, in_features)[0].sum().backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    return engine.notes


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows that a rank's part of one forward pass has."""

    owned: int = 1
    cell_nodes: int = 1  # `owned` of all ranks of its cell; the same where there is one
    sources: int = 1  # of held edges
    targets: int = 1
    edges: int = 1
    halo: int = 1  # sources that other cells own
    asked: int = 1  # rows that cells, its own too, ask it for in a gather
    arrived: int = 1  # rows that they hand it in a reduce


def activations(model: nn.Module, in_features: int, edge_width: int, grid: Grid, slice_: int) -> Ids:
    """Bytes that the forward pass of a training step keeps for the backward pass: for each row of each of the `Sizes`, in their
    order, and then what does not depend on them. Exact for all that autograd saves, because every tensor has rows of one kind."""

    def kept(sizes: Sizes) -> int:
        engine = NotingEngine(sizes, edge_width, grid, slice_, _dtype(model))
        return engine.forward(model, in_features)[1]

    names = [field.name for field in fields(Sizes)]
    some = Sizes(*[2] * len(names))
    base = kept(some)
    slopes = [kept(replace(some, **{name: 3})) - base for name in names]
    return np.array([*slopes, base - 2 * sum(slopes)], np.int64)


class SavedTensors(saved_tensors_hooks):
    """Within it, autograd's saved tensors are counted, storages that several share once and those of `known` tensors not."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__(self._pack, lambda tensor: tensor)
        self._known = {_storage(tensor) for tensor in known}
        self._saved: dict[int, Tensor] = {}

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._known:
            self._saved[_storage(tensor)] = tensor.detach()  # held, so that no other takes its address
        return tensor.detach()

    @property
    def num_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._saved.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """What the ranks exchange in one training step."""

    words: dict[tuple[int, Step], Ids]  # (layer, step) -> [world_size] received
    messages: Ids  # [world_size] sent
    words_sent: Ids  # [world_size]

    def total(self, step: Step) -> Ids:  # [world_size]
        """Words received in all exchanges that the engine counts under that name."""
        return sum((words for (_, kind), words in self.words.items() if kind == step), np.zeros_like(self.messages))

    @property
    def received(self) -> Ids:  # [world_size]
        return sum(self.words.values(), np.zeros_like(self.messages))


def volume(traffic: Traffic, held_edges: Sequence[int], by_slice: Sequence[Sequence[Exchange]]) -> Volume:
    """From the exchanges of each slice, and the shards' traffic and held edges [world_size] (self-loops included where the model
    wants them), to words and messages of every rank."""
    size = traffic.grid.world_size
    words: dict[tuple[int, Step], Ids] = {}
    messages, words_sent = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for rank in range(size):
        for exchange in by_slice[rank % traffic.grid.slices]:
            for sent, received in _parts(exchange, traffic, held_edges[rank], rank):
                counted = words.setdefault((exchange.layer, exchange.step), np.zeros(size, np.int64))
                counted[rank] += received.sum()
                messages[rank] += np.count_nonzero(sent)
                words_sent[rank] += sent.sum()
    return Volume(words, messages, words_sent)


def _parts(exchange: Exchange, traffic: Traffic, held_edges: int, rank: int) -> list[tuple[Ids, Ids]]:
    """Words (sent to, received from) each other rank of the plane or of the cell, for each all-to-all of the exchange."""
    cell, place = divmod(rank, traffic.grid.slices)
    if exchange.kind in ("gather", "gather_back", "reduce", "reduce_back"):
        rows = traffic.gather_rows if exchange.kind.startswith("gather") else traffic.reduce_rows
        sent, received = rows[:, cell], rows[cell]
        if exchange.kind.endswith("back"):
            sent, received = received, sent
        width = exchange.heads * exchange.width
        return [(sent * width, received * width)]
    others = np.delete(np.arange(traffic.grid.slices), place)
    owned = traffic.num_owned.reshape(-1, traffic.grid.slices)[cell]
    if exchange.kind == "add_up":
        counts = column_shares(held_edges * exchange.width, traffic.grid.slices)
        mine = np.full(len(others), counts[place])
        return [(counts[others], mine), (mine, counts[others])]
    if exchange.kind == "replicate":
        return [(np.full(len(others), owned[place]) * exchange.width, owned[others] * exchange.width)]
    shares = exchange.heads * column_shares(exchange.width, traffic.grid.slices)
    there, back = owned[place] * shares[others], owned[others] * shares[place]
    return [(there, back) if exchange.kind == "cut" else (back, there)]


class NotingEngine(Engine):
    """Rows and edges of those numbers, and routes as if other ranks held edges at them, which note what they are asked for."""

    def __init__(self, sizes: Sizes, edge_width: int, grid: Grid, slice_: int, dtype: torch.dtype) -> None:
        if grid.slices == 1:
            sizes = replace(sizes, cell_nodes=sizes.owned)
        self.notes: list[Exchange] = []
        self.tally, self.halo = Tally(), Halo()
        self.slicing = _NotingSlicing(self.notes, grid.slices, slice_, sizes) if grid.slices > 1 else None
        self.sources = _NotingRoute(self.notes, "gather", sizes.sources, sizes.asked, sizes.cell_nodes)
        self.targets = _NotingRoute(self.notes, "reduce", sizes.targets, sizes.arrived, sizes.cell_nodes)
        self.grid, self.targets.local, self.num_halo = grid, grid.cols == 1, sizes.halo
        self.edges = HeldEdges(_edges(sizes.targets, sizes.edges, sizes.sources), torch.device("cpu"))
        self.nodes, self.edge_ids, self.source_ids = (
            torch.zeros(number, dtype=torch.int64) for number in (sizes.owned, sizes.edges, sizes.sources)
        )
        self.edge_features = torch.zeros(sizes.edges, edge_width, dtype=dtype) if edge_width else None
        self.in_degree = self.out_degree = torch.ones(sizes.owned, dtype=dtype)

    @cached_property
    def local(self) -> LocalEdges:
        self._check_local()
        edge_index = torch.zeros(2, self.edges.num_edges, dtype=torch.int64)
        return LocalEdges(edge_index, None, torch.zeros(self.num_halo, dtype=torch.int64))

    def forward(self, model: nn.Module, in_features: int) -> tuple[Tensor, int]:
        """The logits of a training step, and the bytes that it keeps."""
        x = torch.zeros(len(self.nodes), in_features, dtype=self.in_degree.dtype)
        model.train()
        num_layers: int = model.num_layers  # type: ignore[assignment]
        with SavedTensors([x, *self.held(), *model.parameters(), *model.buffers()]) as saved:
            logits: Tensor = model(x, ShardAdjacency.layers(self, num_layers, 0))
        return logits, saved.num_bytes


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _edges(num_dst: int, num_edges: int, num_src: int) -> CSC:
    """Edges from the first source into the first destination."""
    return CSC(np.r_[0, np.full(num_dst, num_edges)], np.zeros(num_edges, np.int64), num_sources=num_src)


class _NotingRoute(Route):
    def __init__(
        self,
        notes: list[Exchange],
        kind: Literal["gather", "reduce"],
        num_rows: int,
        num_arrivals: int,
        num_owned: int,
    ) -> None:
        self.notes, self.kind, self.num_rows = notes, kind, num_rows
        self.sent = torch.zeros(num_arrivals, dtype=torch.int64)
        self.arrivals = EdgeKernels.of(_edges(num_owned, num_arrivals, num_arrivals), torch.device("cpu"))

    def to_owners(self, z: Tensor, layer: int) -> Tensor:
        self._note("reduce" if self.kind == "reduce" else "gather_back", z, layer)
        return z.new_zeros(len(self.sent), *z.shape[1:])

    def to_holders(self, arrivals: Tensor, layer: int) -> Tensor:
        self._note("gather" if self.kind == "gather" else "reduce_back", arrivals, layer)
        return arrivals.new_zeros(self.num_rows, *arrivals.shape[1:])

    def _note(self, kind: Kind, rows: Tensor, layer: int) -> None:
        self.notes.append(Exchange(kind, layer, _tracker.is_bw, 1, rows[0].numel()))


class _NotingSlicing(Slicing):
    def __init__(self, notes: list[Exchange], num_slices: int, slice_: int, sizes: Sizes) -> None:
        self.notes, self.num_slices, self.slice, self.sizes, self.halo = notes, num_slices, slice_, sizes, Halo()

    def columns(self, width: int) -> slice:
        shares = column_shares(width, self.num_slices)
        return slice(int(shares[: self.slice].sum()), int(shares[: self.slice + 1].sum()))

    def once(self, values: Tensor) -> Tensor:
        return values

    def cut_columns(self, x: Tensor, layer: int) -> Tensor:
        self._note("cut", x, x.shape[-1], layer)
        columns = self.columns(x.shape[-1])
        return x.new_zeros(self.sizes.cell_nodes, *x.shape[1:-1], columns.stop - columns.start)

    def join_columns(self, z: Tensor, width: int, layer: int) -> Tensor:
        self._note("join", z, width, layer)
        return z.new_zeros(self.sizes.owned, *z.shape[1:-1], width)

    def replicate_rows(self, x: Tensor, layer: int) -> Tensor:
        self._note("replicate", x, x.shape[-1], layer)
        return x.new_zeros(self.sizes.cell_nodes, *x.shape[1:])

    def own_rows(self, x: Tensor) -> Tensor:
        return x.new_zeros(self.sizes.owned, *x.shape[1:])

    def add_up(self, values: Tensor, layer: int) -> Tensor:
        self._note("add_up", values, values.shape[-1], layer)
        return values

    def _note(self, kind: Kind, rows: Tensor, width: int, layer: int) -> None:
        heads = int(np.prod(rows.shape[1:-1]))
        self.notes.append(Exchange(kind, layer, _tracker.is_bw, heads, width))
