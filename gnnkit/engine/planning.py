"""What a model will exchange, exactly, before it runs: it is run on one node, with exchanges that only take notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.module_tracker import ModuleTracker

from gnnkit.engine.adjacency import ShardAdjacency
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.engine import Engine
from gnnkit.engine.exchange import Route, Slicing
from gnnkit.engine.halo import Halo
from gnnkit.engine.kernels import EdgeKernels
from gnnkit.engine.tally import Step, Tally
from gnnkit.graph import CSC, Ids
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


def exchanges(model: nn.Module, in_features: int, edge_width: int, num_slices: int, slice_: int) -> list[Exchange]:
    """Those of one training step of the model, forward and backward, in order, on a rank of that slice."""
    notes: list[Exchange] = []
    engine = _NotingEngine(notes, edge_width, num_slices, slice_, next(model.parameters()).dtype)
    x = torch.zeros(1, in_features, dtype=engine.in_degree.dtype)
    model.train()
    num_layers: int = model.num_layers  # type: ignore[assignment]
    model(x, ShardAdjacency.layers(engine, num_layers, 0)).sum().backward()
    model.zero_grad()
    return notes


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


class _NotingEngine(Engine):
    """One node with a loop, and routes as if other ranks held edges at it."""

    def __init__(
        self, notes: list[Exchange], edge_width: int, num_slices: int, slice_: int, dtype: torch.dtype
    ) -> None:
        self.traffic, self.halo = Tally(), Halo()
        self.slicing = _NotingSlicing(notes, num_slices, slice_) if num_slices > 1 else None
        self.sources, self.targets = _NotingRoute(notes, "gather"), _NotingRoute(notes, "reduce")
        self.edges = HeldEdges(CSC(np.array([0, 1]), np.array([0])), torch.device("cpu"))
        self.nodes = self.edge_ids = self.source_ids = torch.zeros(1, dtype=torch.int64)
        self.edge_features = torch.zeros(1, edge_width, dtype=dtype) if edge_width else None
        self.in_degree = self.out_degree = torch.ones(1, dtype=dtype)


class _NotingRoute(Route):
    def __init__(self, notes: list[Exchange], kind: Literal["gather", "reduce"]) -> None:
        self.notes, self.kind = notes, kind
        self.sent = torch.zeros(1, dtype=torch.int64)
        self.arrivals = EdgeKernels.of(CSC(np.array([0, 1]), np.array([0])), torch.device("cpu"))

    def to_owners(self, z: Tensor, layer: int) -> Tensor:
        return self._note("reduce" if self.kind == "reduce" else "gather_back", z, layer)

    def to_holders(self, arrivals: Tensor, layer: int) -> Tensor:
        return self._note("gather" if self.kind == "gather" else "reduce_back", arrivals, layer)

    def _note(self, kind: Kind, rows: Tensor, layer: int) -> Tensor:
        self.notes.append(Exchange(kind, layer, _tracker.is_bw, 1, rows[0].numel()))
        return rows.contiguous()


class _NotingSlicing(Slicing):
    def __init__(self, notes: list[Exchange], num_slices: int, slice_: int) -> None:
        self.notes, self.num_slices, self.slice, self.halo = notes, num_slices, slice_, Halo()

    def columns(self, width: int) -> slice:
        shares = column_shares(width, self.num_slices)
        return slice(int(shares[: self.slice].sum()), int(shares[: self.slice + 1].sum()))

    def once(self, values: Tensor) -> Tensor:
        return values

    def cut_columns(self, x: Tensor, layer: int) -> Tensor:
        self._note("cut", x, x.shape[-1], layer)
        return x[..., self.columns(x.shape[-1])].contiguous()

    def join_columns(self, z: Tensor, width: int, layer: int) -> Tensor:
        self._note("join", z, width, layer)
        return z.new_zeros(*z.shape[:-1], width)

    def replicate_rows(self, x: Tensor, layer: int) -> Tensor:
        self._note("replicate", x, x.shape[-1], layer)
        return x.clone()

    def own_rows(self, x: Tensor) -> Tensor:
        return x

    def add_up(self, values: Tensor, layer: int) -> Tensor:
        self._note("add_up", values, values.shape[-1], layer)
        return values

    def _note(self, kind: Kind, rows: Tensor, width: int, layer: int) -> None:
        heads = int(np.prod(rows.shape[1:-1]))
        self.notes.append(Exchange(kind, layer, _tracker.is_bw, heads, width))
