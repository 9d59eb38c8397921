"""What a layer sees of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gnnkit.engine.dropout import derive, dropout
from gnnkit.engine.engine import Engine, Message
from gnnkit.engine.halo import ForwardPass
from gnnkit.engine.local import LocalEdges
from gnnkit.errors import UserError

Reduce = Literal["sum", "mean", "max"]


class Adjacency(ABC):
    """The in-edges of `num_dst` rows, wherever they are held. One layer of a model reads `x` [num_src, ...] through it.

    The first `num_dst` of the source rows are the destinations. Degrees are those of the whole graph (sums of weights where
    edges have weights). Where several ranks share the graph, every method but `dropout` and `edge_dropout` is collective, in
    forward and backward. Per-edge values have a row for each edge that this rank holds.
    """

    num_dst: int
    src_nodes: Tensor  # [num_src] int64 global ids
    in_degree: Tensor  # [num_dst]
    out_degree: Tensor  # [num_src]
    edge_ids: Tensor  # [held edges] int64 global ids
    num_edges: int  # held edges; the leader counts a rank's work by them
    edge_features: Tensor | None  # [held edges, edge_width]
    key: int  # of this layer and step: all noise derives from it

    @abstractmethod
    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        """Sum, mean or maximum of the sources' rows over in-edges, [num_src, f] -> [num_dst, f]; 0 for rows without in-edges.

        Sum and mean multiply by the graph's edge weights; the mean divides by their sum. `weight` [held edges, H] takes their
        place in a sum of rows with heads, [num_src, H, d] -> [num_dst, H, d]. Of equal maxima the gradient goes to the in-edge
        with the lowest global source id, then the lowest edge id.
        """

    @abstractmethod
    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Sum over in-edges of `message(rows, columns)`: `rows` [held edges, columns] are the sources' and `columns` says which
        columns they are, because a layout may give a rank only some. It works on each column for itself; besides `rows`,
        gradients flow from it into this rank's parameters only."""

    @abstractmethod
    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:  # [held edges, H]
        """src[u] + dst[v] (+ edge[e]) for each held edge e = u -> v; src [num_src, H], dst [num_dst, H], edge [held edges, H]."""

    @abstractmethod
    def softmax(self, scores: Tensor) -> Tensor:  # [held edges, H] -> [held edges, H]
        """Softmax over all in-edges of each destination."""

    @property
    def local(self) -> LocalEdges:
        """The held edges as a graph of this rank's own rows and its halo. Raises `UserError` where a rank does not hold all
        in-edges of its rows."""
        raise UserError(f"{type(self).__name__} does not serve layers written for one process")

    def with_halo(self, x: Tensor) -> Tensor:  # [num_dst, ...] -> [num_dst + num_halo, ...]
        """The rows that `local` joins: the given ones, then those of other ranks."""
        raise UserError(f"{type(self).__name__} does not serve layers written for one process")

    def degree_with_halo(self, loop: float) -> Tensor:  # [num_dst + num_halo]
        """In-degrees of the rows that `local` joins, `loop` added where there is no loop."""
        return self.with_halo((self.in_degree + loop * self.lacks_loop)[:, None])[:, 0]

    @property
    def lacks_loop(self) -> Tensor:  # [num_dst] bool
        """Which destinations have no edge to themselves."""
        edge_index = self.local.edge_index
        lacks = torch.ones(self.num_dst, dtype=torch.bool, device=edge_index.device)
        lacks[edge_index[1, edge_index[0] == edge_index[1]]] = False
        return lacks

    def dropout(self, x: Tensor, p: float, *, training: bool) -> Tensor:  # [num_src, f]
        """Dropout of the layer's input, keyed by global node id: the same on any number of ranks."""
        return dropout(x, self.src_nodes[: len(x)], p, self.key) if training and p > 0 else x

    def edge_dropout(self, values: Tensor, p: float, *, training: bool) -> Tensor:  # [held edges, H]
        """Dropout of per-edge values, keyed by global edge id."""
        return dropout(values, self.edge_ids, p, derive(self.key, 1)) if training and p > 0 else values


@dataclass(frozen=True, slots=True, eq=False)
class ShardAdjacency(Adjacency):
    """All edges into the nodes that this rank owns, as one layer sees them in one step."""

    engine: Engine
    layer: int
    key: int
    forward: ForwardPass

    @classmethod
    def layers(
        cls, engine: Engine, num_layers: int, key: int, forward: ForwardPass | None = None
    ) -> tuple[Adjacency, ...]:
        """The whole graph, for each layer of a model, in the step of that key and for one pass over it."""
        forward = forward or ForwardPass()
        return tuple(cls(engine, layer, derive(key, layer), forward) for layer in range(num_layers))

    def _entered(self) -> Engine:
        """The engine, in the state of this pass."""
        self.engine.halo.enter(self.forward)
        return self.engine

    @property
    def num_dst(self) -> int:  # type: ignore[override]
        return len(self.engine.nodes)

    @property
    def src_nodes(self) -> Tensor:  # type: ignore[override]
        return self.engine.nodes

    @property
    def in_degree(self) -> Tensor:  # type: ignore[override]
        return self.engine.in_degree

    @property
    def out_degree(self) -> Tensor:  # type: ignore[override]
        return self.engine.out_degree

    @property
    def edge_ids(self) -> Tensor:  # type: ignore[override]
        return self.engine.edge_ids

    @property
    def num_edges(self) -> int:  # type: ignore[override]
        return len(self.engine.edge_ids)

    @property
    def edge_features(self) -> Tensor | None:  # type: ignore[override]
        return self.engine.edge_features

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        if weight is not None:
            return self._entered().weighted_sum(x, weight, self.layer)
        if reduce == "max":
            return self._entered().max(x, self.layer)
        z = self._entered().sum(x, self.layer)
        return z / torch.where(self.in_degree == 0, 1, self.in_degree)[:, None] if reduce == "mean" else z

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        return self._entered().message_sum(x, message, self.layer)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        return self._entered().scores(src, dst, edge, self.layer)

    def softmax(self, scores: Tensor) -> Tensor:
        return self._entered().softmax(scores, self.layer)

    @property
    def local(self) -> LocalEdges:
        return self.engine.local

    def with_halo(self, x: Tensor) -> Tensor:
        return self._entered().with_halo(x, self.layer)
