"""Functions of rows at both ends of edges, which are computed piece by piece.

`f(x[source], x[destination], values)` stays an expression. Its sum, maximum or minimum
by destination, and sums over an edge's own numbers, are computed for some edges at a
time, so that the rows of all edges never exist at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lazyedges.deferred import Call, Deferred, Meaning, meaning_of, replaced, tensors_in, value_of
from lazyedges.edges import EdgeSet
from lazyedges.pieces import PieceFunction, Read, Reduction, evaluate
from lazyedges.views import VIEWS, change_of_rows

POINTWISE = {
    "add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "rsub", "mul", "__mul__", "__rmul__", "multiply",
    "div", "__truediv__", "__rtruediv__", "__rdiv__", "divide", "true_divide", "neg", "__neg__", "abs", "exp",
    "log", "sqrt", "square", "pow", "__pow__", "clamp", "relu", "leaky_relu", "elu", "selu", "celu", "gelu", "silu",
    "tanh", "sigmoid", "softplus", "detach", "to", "float", "double", "type_as",
}  # fmt: skip
PRODUCTS = {"linear", "matmul", "__matmul__", "mm"}
_JOINS = {"cat", "concat", "concatenate", "stack"}
_SUMS = {"sum", "mean"}  # over the numbers of an edge
_NARROW = 16  # numbers of an edge, such as weights of heads, that are stored beside others of the same shape

Memo = dict[Any, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An input of an expression."""

    read: Read
    source: Any  # the tensor, or the `Lazy` rows of nodes
    width: int  # numbers of an edge

    @property
    def key(self) -> tuple[str, int]:
        """Equal for leaves that read the same values."""
        return self.read, id(self.source)

    def value(self, edges: EdgeSet) -> Tensor:
        """Returns the values of all edges or nodes. May be collective."""
        value: Tensor = self.source if isinstance(self.source, Tensor) else self.source.value()
        return edges.in_order(value) if self.read == "edge" else value


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A function of edges."""

    edges: EdgeSet
    leaves: Mapping[Any, Leaf]  # by key
    compute: Callable[[Memo], Tensor]  # values of some edges by key -> [num_edges, *shape]
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_row: bool = False  # whether it is a source's row, unchanged

    def __call__(self, memo: Memo) -> Tensor:
        """Computes the values of some edges, once for each use."""
        if id(self) not in memo:
            memo[id(self)] = self.compute(memo)
        return memo[id(self)]

    def detached(self) -> Expression:
        """Returns the expression without gradient."""
        return replace(self, compute=lambda memo: self(memo).detach(), is_row=False)

    def exchange(self) -> None:
        """Computes the rows of nodes. Collective."""
        for leaf in self.leaves.values():
            if leaf.read == "source":
                leaf.value(self.edges)

    def reduce(self, reduction: Reduction) -> Tensor:
        """Computes all edges' values, in their order, or a reduction by destination."""
        edges, leaves = self.edges, list(self.leaves.values())
        values = [leaf.value(edges) for leaf in leaves]  # all ranks exchange in this order
        width = max([math.prod(self.shape), *(leaf.width for leaf in leaves)])
        compute = lambda parts: self(dict(zip(self.leaves, parts, strict=True)))  # noqa: E731
        function = PieceFunction(tuple(leaf.read for leaf in leaves), compute, self.shape, self.dtype)
        output = edges.largest_rows(values[0]) if self.is_row and reduction == "amax" else None
        count = len(edges) if reduction == "none" else edges.num_rows[1]
        result = evaluate(lambda: edges.pieces(width), function, values, reduction, count, output)
        return edges.from_order(result) if reduction == "none" else result


@dataclass(frozen=True, slots=True, eq=False)
class EdgeFunction(Meaning):
    """A function of rows at both ends of edges, and of edge values."""

    expression: Expression
    parts: tuple[Any, ...] | None = None  # tensors that were concatenated along the last dimension

    def step(self, call: Call, tensor: Deferred) -> Any:
        if self.parts is not None and call.args[0] is tensor and len({part.dtype for part in self.parts}) == 1:
            split = self._split(call, tensor)
            if split is not NotImplemented:
                return split
        return by_piece(call, tensor)

    def _split(self, call: Call, tensor: Deferred) -> Any:
        """Applies a product, or selects from the first dimensions, part by part."""
        assert self.parts is not None
        if call.name == "linear" and len(call.args) == 3 and not call.kwargs:
            weight, bias = call.args[1:]
            columns = weight.split([part.shape[-1] for part in self.parts], 1)
            products = [F.linear(part, of_part) for part, of_part in zip(self.parts, columns, strict=True)]
            total = products[0] if bias is None else products[0] + bias
            for product in products[1:]:
                total = total + product
            return total
        index = call.args[1] if call.name == "__getitem__" else None
        if isinstance(index, tuple) and len(index) < tensor.dim() and all(isinstance(i, int | slice) for i in index):
            return torch.cat([part[index] for part in self.parts], -1)
        return NotImplemented


def expression_of(value: Any) -> Expression | None:
    """Returns a deferred tensor as a function of edges. None: it is something else."""
    meaning: Any = meaning_of(value)
    if not isinstance(value, Deferred) or value.computed:
        return None
    if isinstance(meaning, EdgeFunction):
        return meaning.expression
    if getattr(meaning, "is_end", False):
        width, read = math.prod(meaning.shape), "source" if meaning.at_source else "destination"
        leaf = Leaf(read, meaning.rows, width)  # type: ignore[arg-type]
        compute = lambda memo: memo[leaf.key]  # noqa: E731
        return Expression(
            meaning.edges, {leaf.key: leaf}, compute, meaning.shape, meaning.rows.dtype, meaning.at_source
        )
    call = value.lazy.call
    return None if call is None or not hasattr(meaning, "edges") else _of_call(call)


def reduced(tensor: Any, edges: EdgeSet, reduction: Reduction) -> Tensor | None:
    """Reduces a deferred tensor by destination, or returns None if unsupported.

    Args:
        tensor: The tensor.
        edges: The edges with these destinations.
        reduction: "sum", "amax" or "amin".
    """
    expression = expression_of(tensor)
    if expression is None or expression.edges is not edges:
        return None
    with torch.set_grad_enabled(tensor.requires_grad and torch.is_grad_enabled()):
        return expression.reduce(reduction)


def by_piece(call: Call, tensor: Deferred) -> Any:
    """Defers a function of edges, or computes sums over edges' numbers piece by piece.

    Returns NotImplemented for other functions, and for narrow values that belong to
    others of the same shape, such as attention weights.

    Args:
        call: The function.
        tensor: One of its arguments.
    """
    expression = _of_call(call)
    if expression is None:
        return NotImplemented
    shape = (len(expression.edges), *expression.shape)
    tensors = tensors_in((call.args, dict(call.kwargs)))
    plain = [value for value in tensors if value.dim() == len(shape) and expression_of(value) is None]
    if plain and math.prod(expression.shape) <= _NARROW:
        expression.exchange()  # on all ranks, although values of one edge may be those common to all edges
        if any(value.shape == shape for value in plain):
            return NotImplemented
    if call.name in _SUMS:
        with torch.set_grad_enabled(torch.is_grad_enabled() and any(value.requires_grad for value in tensors)):
            return expression.reduce("none")
    parts = None
    if call.name in _JOINS and call.name != "stack" and _dim_of(call) in (-1, len(shape) - 1):
        parts = tuple(call.args[0])
    return tensor.result(EdgeFunction(expression, parts), call, shape, expression.dtype)


def _of_call(call: Call) -> Expression | None:
    """Returns a function of edges, or None if it is not one, edge by edge."""
    tensors = tensors_in((call.args, dict(call.kwargs)))
    operands: dict[int, Expression] = {}
    for value in tensors:
        operand = expression_of(value)
        if operand is not None:
            grad = value.requires_grad or not torch.is_grad_enabled()
            operands[id(value)] = operand if grad else operand.detached()
    edges = next(iter(operands.values())).edges if operands else None
    if edges is None or any(operand.edges is not edges for operand in operands.values()):
        return None
    if call.name in VIEWS:
        return _view(call, operands)
    leaves = _leaves_of_plain(call, tensors, operands, edges)
    return None if leaves is None or not _is_by_edge(call, tensors) else _node(call, operands, leaves, edges)


def _view(call: Call, operands: Mapping[int, Expression]) -> Expression | None:
    operand = operands.get(id(call.args[0]))
    if operand is None or len(tensors_in((call.args, dict(call.kwargs)))) > 1:
        return None
    if call.name == "contiguous":
        return operand
    change = change_of_rows(call, len(operand.edges), operand.shape)
    if change is None:
        return None
    shape = tuple(change(torch.empty(0, *operand.shape)).shape[1:])
    return replace(operand, compute=lambda memo: change(operand(memo)), shape=shape, is_row=False)


def _is_by_edge(call: Call, tensors: list[Tensor]) -> bool:
    """Whether a function computes each edge's result from the edge alone."""
    dims = max(value.dim() for value in tensors)
    if call.name in POINTWISE:
        return True
    if call.name in PRODUCTS:
        return tensors[0] is call.args[0] and isinstance(tensors[0], Deferred)
    if call.name in _JOINS:
        return len(call.args) > 0 and _dim_of(call) % (dims + (call.name == "stack")) != 0
    if call.name in _SUMS:
        dim = _dim_of(call)
        places = [dim] if isinstance(dim, int) else dim
        return bool(places) and all(isinstance(place, int) and place % dims != 0 for place in places)
    return False


def _dim_of(call: Call) -> Any:
    """Returns a function's dimension. Default: 0 for a concatenation, all for a sum."""
    default = 0 if call.name in _JOINS else ()
    return call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", default)


def _leaves_of_plain(
    call: Call, tensors: list[Tensor], operands: Mapping[int, Expression], edges: EdgeSet
) -> dict[int, Leaf] | None:
    """Returns the plain operands by identity, or None if one fits no edge."""
    dims, leaves = max(value.dim() for value in tensors), {}
    for value in tensors:
        if id(value) in operands:
            if value.dim() != dims:
                return None
            continue
        read = _reading(call, value, dims, len(edges))
        if read is None or _is_deferred(value) or not value.is_floating_point():
            return None
        leaves[id(value)] = Leaf(read, value_of(value), math.prod(value.shape[1:]) if read == "edge" else 0)
    return leaves


def _reading(call: Call, value: Tensor, dims: int, num_edges: int) -> Read | None:
    """Returns how a function of edges reads a plain operand, or None if unknown."""
    if type(value) is not Tensor and not isinstance(value, torch.nn.Parameter | Deferred):
        return None
    if call.name in PRODUCTS:
        return "all" if value.dim() < 3 else None
    if call.name in POINTWISE and (value.dim() < dims or len(value) == 1):
        return "all"
    return "edge" if value.dim() == dims and len(value) == num_edges else None


def _is_deferred(value: Tensor) -> bool:
    """Whether computing a tensor would make a row per edge."""
    return isinstance(value, Deferred) and not value.computed and not getattr(value.meaning, "is_narrow", False)


def _node(call: Call, operands: Mapping[int, Expression], plain: Mapping[int, Leaf], edges: EdgeSet) -> Expression:
    leaves: dict[Any, Leaf] = {leaf.key: leaf for leaf in plain.values()}
    for operand in operands.values():
        leaves |= operand.leaves

    def compute(memo: Memo) -> Tensor:
        def of(value: Tensor) -> Tensor:
            return memo[plain[id(value)].key] if id(value) in plain else operands[id(value)](memo)

        args, kwargs = replaced((call.args, dict(call.kwargs)), of, Tensor)
        result: Tensor = call.func(*args, **kwargs)
        return result

    device = edges.source.device
    with torch.no_grad():
        memo: Memo = {
            id(item): torch.empty(0, *item.shape, dtype=item.dtype, device=device) for item in operands.values()
        }
        memo |= {leaf.key: leaf.source[:0] if leaf.read == "edge" else leaf.source for leaf in plain.values()}
        sample = compute(memo)
    return Expression(edges, leaves, compute, tuple(sample.shape[1:]), sample.dtype)
