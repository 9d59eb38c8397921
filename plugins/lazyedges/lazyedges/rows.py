"""Deferred rows of nodes, one per edge, and the functions that keep them deferred."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lazyedges.attention import combine
from lazyedges.deferred import (
    DIVIDE,
    MULTIPLY,
    Call,
    Deferred,
    Lazy,
    Meaning,
    Origin,
    deferred,
    deferred_in,
    meaning_of,
    version_of,
)
from lazyedges.edges import EdgeSet
from lazyedges.factors import EndFactors
from lazyedges.functions import POINTWISE, PRODUCTS, by_piece
from lazyedges.views import VIEWS, change_of_rows, tail_of


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Meaning):
    """Rows at one end of edges, times factors per edge and head."""

    edges: EdgeSet
    rows: Lazy  # [num_src or num_dst, ...]
    at_source: bool
    shape: tuple[int, ...]  # shape of an edge's row
    weight: Tensor | None = None  # [num_edges, 1] or [num_edges, heads]
    add_up: Callable[[], Tensor] | None = None  # sums of the unmodified rows, instead of `rows`
    ends: EndFactors | None = None  # further factors of edges

    def step(self, call: Call, tensor: Deferred) -> Any:
        if call.name in MULTIPLY or call.name in DIVIDE:
            scaled_rows = self._weighted(call, tensor)
            if scaled_rows is not NotImplemented:
                return scaled_rows
        result: Any = NotImplemented
        if call.name in VIEWS:
            result = self._viewed(call, tensor)
        elif call.name in POINTWISE or (call.name in PRODUCTS and call.args[0] is tensor):
            result = self._pushed(call, tensor)
            result = combine(call, tensor) if result is NotImplemented else result
        return by_piece(call, tensor) if result is NotImplemented else result

    def sum(self, tensor: Deferred, edges: EdgeSet) -> Tensor | None:
        if not self.at_source or edges is not self.edges:
            return None
        if self.weight is None and self.add_up is not None and not self.rows.computed:
            return self.add_up()
        if self.ends is not None:
            sums = self.ends.sum_rows(self.rows.value())
            return sums.view(len(sums), *self.shape)
        sums = self.edges.sum_rows(self.rows.value(), self.weight)
        return sums.view(len(sums), *self.shape)

    @property
    def is_end(self) -> bool:
        """Whether the rows are those of nodes, without factors of edges."""
        return self.weight is None and self.ends is None

    def tail_of(self, call: Call) -> tuple[int, ...] | None:
        """Returns a row's shape in a view of all rows, or None if it mixes rows."""
        args = call.args[1:]
        sizes = args[0] if args and isinstance(args[0], list | tuple) else args
        return None if call.kwargs else tail_of(sizes, len(self.edges), self.shape)

    def _weighted(self, call: Call, tensor: Deferred) -> Any:
        """Multiplies or divides by a plain factor of each edge, or edge and head."""
        first, second = call.args if len(call.args) == 2 else (None, None)
        factor = second if first is tensor else first
        divides = call.name in DIVIDE
        ends = meaning_of(factor)
        if isinstance(ends, EndFactors) and isinstance(factor, Deferred):
            if not divides and self._takes(ends, factor, tensor):
                meaning = replace(self, ends=ends if self.ends is None else self.ends.times(ends), add_up=None)
                return tensor.result(meaning, call, tuple(tensor.shape), tensor.dtype)
            factor = factor.value()
        if not isinstance(factor, Tensor) or (divides and first is not tensor) or not self._is_weight(factor, tensor):
            return NotImplemented
        weight = factor.reshape(len(factor), math.prod(factor.shape[1:]))
        weight = weight.reciprocal() if divides else weight
        dtype = torch.promote_types(tensor.dtype, factor.dtype)
        weight = weight if self.ends is None else weight * self.ends.by_edge()
        weight = weight if self.weight is None else self.weight * weight
        meaning = replace(self, weight=weight, ends=None, add_up=None)
        return tensor.result(meaning, call, tuple(tensor.shape), dtype)

    def _is_weight(self, factor: Tensor, tensor: Deferred) -> bool:
        """Whether a factor is plain, with a number for each edge, or edge and head."""
        if isinstance(factor, Deferred) or not self.at_source or not factor.is_floating_point():
            return False
        heads = tuple(factor.shape[1:])
        return factor.dim() == tensor.dim() and len(factor) == len(self.edges) and _is_factor(heads, self.rows.shape)

    def _takes(self, ends: EndFactors, factor: Deferred, tensor: Deferred) -> bool:
        """Whether rows are multiplied by factors of both ends only."""
        alike = factor.dtype == tensor.dtype and factor.shape == (len(self.edges), *[1] * len(self.shape))
        return self.at_source and self.weight is None and ends.edges is self.edges and alike

    def _viewed(self, call: Call, tensor: Deferred) -> Any:
        """Changes each row's shape."""
        if deferred_in((call.args[1:], call.kwargs)):
            return NotImplemented
        if call.name == "contiguous":
            return tensor
        change = change_of_rows(call, len(self.edges), self.shape)
        if change is None:
            return NotImplemented
        if self.weight is not None and self.weight.shape[1] > 1:  # heads stay a dimension of the rows
            shape = tuple(change(torch.empty(0, *self.shape)).shape[1:])
            if math.prod(shape) != math.prod(self.shape) or call.name == "__getitem__":
                return NotImplemented
            return tensor.result(replace(self, shape=shape), call, (len(self.edges), *shape), tensor.dtype)
        return self._mapped(call, tensor, lambda rows: change(rows[0]), [self])

    def _pushed(self, call: Call, tensor: Deferred) -> Any:
        """Applies a function of single rows to the rows of nodes."""
        values = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
        meanings = [value.meaning for value in values if isinstance(value, Deferred)]
        row_meanings = [meaning for meaning in meanings if isinstance(meaning, Rows) and self._is_alike(meaning)]
        if len(row_meanings) < len(meanings):
            return NotImplemented
        plain = [value for value in values if not isinstance(value, Deferred)]
        common = all(self._is_common(value, tensor) for value in plain)
        if not (common if call.name in POINTWISE else all(value.dim() < 3 for value in plain)):
            return NotImplemented
        scales = call.name in MULTIPLY or (call.name in DIVIDE and call.args[0] is tensor)
        if not self.is_end and not (scales and len(row_meanings) == 1 and self._scales(plain)):
            return NotImplemented

        def function(rows: list[Tensor]) -> Tensor:
            remaining = iter(rows)
            result: Tensor = call.on(lambda _: next(remaining))
            return result

        return self._mapped(call, tensor, function, row_meanings)

    def _mapped(
        self, call: Call, tensor: Deferred, function: Callable[[list[Tensor]], Tensor], of: list[Rows]
    ) -> Deferred:
        """Defers a function of each row, given by `function` of the nodes' rows."""
        with torch.no_grad():
            device = tensor.device
            sample = function([torch.empty((0, *rows.rows.shape), dtype=rows.rows.dtype, device=device) for rows in of])
        shape = tuple(sample.shape[1:])
        rows = Lazy(lambda: function([rows.rows.value() for rows in of]), shape, sample.dtype)
        meaning = replace(self, rows=rows, shape=shape, add_up=None)
        dtype = sample.dtype if self.weight is None else torch.promote_types(sample.dtype, self.weight.dtype)
        return tensor.result(meaning, call, (len(self.edges), *shape), dtype)

    def _is_alike(self, other: Rows) -> bool:
        alike = other.edges is self.edges and other.at_source == self.at_source
        return alike and (other is self or (other.is_end and self.is_end))

    def _scales(self, plain: list[Tensor]) -> bool:
        """Whether the factors of weighted rows may be applied before the sum."""
        return self.rows.shape == self.shape and all(value.dim() < 2 for value in plain)

    def _is_common(self, value: Tensor, tensor: Deferred) -> bool:
        """Whether a plain operand is the same for all rows."""
        if value.dim() < tensor.dim() or value.dim() == 0:
            return True
        return value.dim() == tensor.dim() and len(value) == 1 and len(self.edges) != 1


def rows_by_edge(
    origin: Origin,
    edges: EdgeSet,
    x: Tensor,
    *,
    at_source: bool,
    rows: Lazy | None = None,
    add_up: Callable[[], Tensor] | None = None,
) -> Deferred:  # [num_edges, ...]
    """Defers rows of nodes, one per edge.

    Numbers [num_src] without a row's dimension become factors of edges, and need no
    gradient.

    Args:
        origin: The pass.
        edges: The edges.
        x: [num_src, ...] or [num_dst, ...] rows. A change in place computes the result.
        at_source: Whether the rows are those of sources.
        rows: The rows, computed on first use. Default: `x`.
        add_up: Returns the rows' sums over all edges. Default: kernels compute them.
    """
    shape = tuple(x.shape[1:])
    nodes = Lazy(_unchanged(x), shape, x.dtype) if rows is None else rows

    def gathered() -> Tensor:
        return nodes.value().index_select(0, edges.row_of_source if at_source else edges.destination)

    lazy = Lazy(gathered, shape, x.dtype)
    meaning: Meaning = Rows(edges, nodes, at_source, shape, None, add_up)
    if x.dim() == 1:
        nodes.value()  # now, because whether factors stay deferred depends on the numbers
        meaning = EndFactors.of(edges, nodes, at_source=at_source)
    return deferred(origin, meaning, lazy, [x], (len(edges), *shape))


def _unchanged(x: Tensor) -> Callable[[], Tensor]:
    """Returns a function that returns `x`, or raises if its memory has changed."""
    version = version_of(x)

    def rows() -> Tensor:
        if version_of(x) != version:
            raise RuntimeError("rows were changed in place after they were read by edge: change a copy, as x.clone()")
        return x

    return rows


def _is_factor(heads: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether factors of an edge apply to all numbers of its row, or of a head."""
    if math.prod(heads) == 1:
        return True
    return len(shape) > 1 and heads[0] == shape[0] and math.prod(heads[1:]) == 1
