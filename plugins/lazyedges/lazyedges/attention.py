"""Attention of PyG layers on deferred rows, recognised step by step.

`alpha_j + alpha_i -> leaky_relu -> softmax -> dropout -> * x_j -> sum` becomes one
kernel. PyG's softmax subtracts each destination's largest score and divides by the sum
of powers, so some of the steps are values per destination. Each step is deferred, and
computed by plain torch if an unexpected function follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lazyedges.deferred import ADD, DIVIDE, MULTIPLY, SUBTRACT, Call, Deferred, Meaning, meaning_of
from lazyedges.edges import EdgeSet
from lazyedges.functions import by_piece
from lazyedges.kernels import EdgeDropout

if TYPE_CHECKING:
    from lazyedges.rows import Rows

_NEGLIGIBLE = 1e-12  # PyG adds 1e-16 to the sums of powers, which are 1 or more


def combine(call: Call, tensor: Deferred) -> Any:
    """Defers a sum or a product of rows at both ends of edges, or NotImplemented.

    Args:
        call: The function.
        tensor: One of its arguments.
    """
    meanings: list[Any] = [meaning_of(value) for value in call.args]
    if len(meanings) != 2 or not all(getattr(meaning, "is_end", False) for meaning in meanings):
        return NotImplemented
    source, destination = sorted(meanings, key=lambda rows: not rows.at_source)
    alike = source.edges is destination.edges and source.shape == destination.shape
    if not alike or destination.at_source or not source.at_source:
        return NotImplemented
    dtype = torch.promote_types(source.rows.dtype, destination.rows.dtype)
    if call.name in ADD and len(source.shape) == 1:
        return tensor.result(Scores(source, destination), call, tuple(tensor.shape), dtype)
    if call.name in MULTIPLY:
        return tensor.result(Product(source, destination), call, tuple(tensor.shape), dtype)
    return NotImplemented


@dataclass(frozen=True, slots=True, eq=False)
class Product(Meaning):
    """Products of the rows at both ends, number by number."""

    source: Rows
    destination: Rows

    def step(self, call: Call, tensor: Deferred) -> Any:
        dim = call.args[1] if len(call.args) == 2 else call.kwargs.get("dim")
        last = (-1, (-1,), [-1], tensor.dim() - 1)
        if call.name != "sum" or dim not in last or call.kwargs.keys() - {"dim"} or len(self.source.shape) > 2:
            return by_piece(call, tensor)
        x, y = (ends.rows.value().to(tensor.dtype) for ends in (self.source, self.destination))
        if len(self.source.shape) == 2:
            return self.source.edges.dot(x, y)
        return self.source.edges.dot(x[:, None], y[:, None])[:, 0]

    @property
    def edges(self) -> EdgeSet:
        """The edges that have products."""
        return self.source.edges


@dataclass(frozen=True, slots=True, eq=False)
class Scores(Meaning):
    """Attention scores [num_edges, H], leaky_relu(source + destination (+ edge))."""

    source: Rows
    destination: Rows
    edge: Tensor | None = None  # [num_edges, H]
    slope: float | None = None  # None: before the leaky ReLU

    def step(self, call: Call, tensor: Deferred) -> Any:
        args, shape = call.args, tuple(tensor.shape)
        scores: Any = NotImplemented
        if call.name == "detach":
            scores = self
        elif call.name == "leaky_relu" and self.slope is None:
            slope = call.kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            scores = replace(self, slope=float(slope))
        elif call.name in ADD and self.slope is None and len(args) == 2:
            operand = args[1] if args[0] is tensor else args[0]
            if type(operand) is Tensor and operand.shape == tensor.shape and operand.is_floating_point():
                scores = replace(self, edge=operand if self.edge is None else self.edge + operand)
        elif call.name in SUBTRACT and _is_stage(args[1], "largest by edge", self):
            scores = Stage(self, "shifted")
        if scores is NotImplemented:
            return by_piece(call, tensor)
        return tensor.result(scores, call, shape, tensor.dtype)

    @property
    def edges(self) -> EdgeSet:
        """The edges that have scores."""
        return self.source.edges

    def at_destinations(self, name: str, tensor: Deferred, edges: EdgeSet) -> Deferred | None:
        if name != "amax" or edges is not self.source.edges:
            return None

        def largest() -> Tensor:
            best = edges.largest(tensor.value())
            return torch.where(best == -torch.inf, 0, best)

        return tensor.derived(Stage(self, "largest"), largest, (edges.num_rows[1], *tensor.shape[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class Stage(Meaning):
    """An intermediate result of the softmax of scores over each destination's edges."""

    scores: Scores
    name: str  # largest, largest by edge, shifted, powers, totals, totals by edge, or weights
    dropped: EdgeDropout | None = None  # dropout of the weights

    def step(self, call: Call, tensor: Deferred) -> Any:
        args, name = call.args, None
        if self.name == "shifted" and call.name == "exp":
            name = "powers"
        elif self.name == "totals" and call.name in ADD and isinstance(args[1], float) and 0 <= args[1] <= _NEGLIGIBLE:
            name = "totals"
        elif self.name == "powers" and call.name in DIVIDE and _is_stage(args[1], "totals by edge", self.scores):
            name = "weights"
        elif self.name == "weights":
            return self._use(call, tensor)
        return (
            NotImplemented
            if name is None
            else tensor.result(replace(self, name=name), call, tuple(tensor.shape), tensor.dtype)
        )

    def at_destinations(self, name: str, tensor: Deferred, edges: EdgeSet) -> Deferred | None:
        if name != "spread" or self.name not in ("largest", "totals") or edges is not self.scores.source.edges:
            return None
        stage = replace(self, name=f"{self.name} by edge")
        return tensor.derived(
            stage, lambda: tensor.value().index_select(0, edges.destination), (len(edges), *tensor.shape[1:])
        )

    def sum(self, tensor: Deferred, edges: EdgeSet) -> Tensor | None:
        if self.name != "powers" or edges is not self.scores.source.edges:
            return None
        totals = replace(self, name="totals")
        return tensor.derived(totals, lambda: edges.sum_values(tensor.value()), (edges.num_rows[1], *tensor.shape[1:]))

    def drop(self, tensor: Deferred, ids: Tensor, p: float, key: int) -> Deferred | None:
        if self.name != "weights" or self.dropped is not None:
            return None
        edges = self.scores.edges

        def zeroed() -> Tensor:
            values = tensor.value()
            return edges.backend.dropout(values.reshape(len(values), -1), ids, p, key).view_as(values)

        dropout = EdgeDropout(edges.in_order(ids), p, key)
        return tensor.derived(replace(self, dropped=dropout), zeroed, tuple(tensor.shape))

    def _use(self, call: Call, tensor: Deferred) -> Any:
        """Adds dimensions of size 1 to the weights, or multiplies rows by them."""
        heads = self.scores.source.shape
        if call.name in ("unsqueeze", "view", "reshape", "__getitem__"):
            value = torch.empty(tuple(tensor.shape), device="meta")
            shape = tuple(call.on(lambda _: value).shape)
            if (
                shape[:1] != tensor.shape[:1]
                or shape[1 : 1 + len(heads)] != heads
                or math.prod(shape[1:]) != math.prod(heads)
            ):
                return NotImplemented
            return tensor.result(self, call, shape, tensor.dtype)
        if call.name not in MULTIPLY or len(call.args) != 2:
            return NotImplemented
        first, second = call.args
        rows: Any = meaning_of(second if first is tensor else first)
        if not getattr(rows, "is_end", False) or not rows.at_source or rows.edges is not self.scores.source.edges:
            return NotImplemented
        if tensor.dim() != 1 + len(rows.shape) or (rows.shape[:1] != heads and math.prod(heads) != 1):
            return NotImplemented
        dtype = torch.promote_types(rows.rows.dtype, tensor.dtype)
        return tensor.result(Attended(rows, self, tensor, rows.shape), call, (len(rows.edges), *rows.shape), dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Attended(Meaning):
    """Rows at the sources times attention weights."""

    rows: Rows
    weights: Stage
    factors: Deferred  # [num_edges, H, ...] the weights
    shape: tuple[int, ...]  # shape of an edge's row

    def step(self, call: Call, tensor: Deferred) -> Any:
        if call.name not in ("view", "reshape"):
            return NotImplemented
        shape = self.rows.tail_of(call)
        if shape is None:
            return NotImplemented
        return tensor.result(replace(self, shape=shape), call, (tensor.shape[0], *shape), tensor.dtype)

    def sum(self, tensor: Deferred, edges: EdgeSet) -> Tensor | None:
        scores = self.weights.scores
        if edges is not self.rows.edges:
            return None
        source = scores.source.rows.value()  # all ranks exchange in this order
        rows = self.rows.rows.value()
        num_heads = math.prod(scores.source.shape)
        heads = rows.reshape(len(rows), num_heads, math.prod(self.rows.shape) // num_heads)
        slope = 1.0 if scores.slope is None else scores.slope
        edge = None if scores.edge is None else edges.in_order(scores.edge)
        destination = scores.destination.rows.value()
        sums = edges.kernels.attend(heads, source, destination, edge, slope, self.weights.dropped)
        if sums is None:
            sums = edges.sum_rows(heads, self.factors.value().reshape(len(edges), num_heads))
        return sums.to(tensor.dtype).reshape(len(sums), *self.shape)


def _is_stage(value: Any, name: str, scores: Scores) -> bool:
    """Whether a deferred tensor is this stage of the same scores' softmax."""
    stage = meaning_of(value)
    return isinstance(stage, Stage) and stage.name == name and stage.scores is scores
