"""An `edge_index` of PyG whose reads are deferred, in the fewest lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lazyedges import (
    Call,
    Deferred,
    EdgeSet,
    Origin,
    at_destinations,
    deferred_in,
    extreme_by_destination,
    is_fresh,
    name_of,
    overwrite,
    rows_by_edge,
    sum_by_destination,
    value_of,
)
from plain_kernels import PlainBackend
from torch import Tensor


class Index(Tensor):
    """[2, num_edges] edges, or the row numbers of one end."""

    edges: EdgeSet
    origin: Origin
    end: int | None  # 0: sources, 1: destinations

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        first = args[0] if args else None
        if isinstance(first, Index) and first.end is None:
            if name == "unbind":
                return tuple(end_of(first, end) for end in range(2))
            if name == "__getitem__" and isinstance(args[1], int):
                return end_of(first, args[1])
        served = _served(name, args, kwargs)
        if served is not NotImplemented:
            return served
        call = Call(func, name, _plain(args), {key: _plain(value) for key, value in kwargs.items()})
        if not deferred_in((call.args, call.kwargs)):
            return func(*call.args, **call.kwargs)
        return Deferred.plainly(call)


def index_of(edge_index: Tensor, num_rows: tuple[int, int], backend: Any = None) -> Index:
    """Marks edges [2, num_edges] between rows."""
    return _marked(edge_index, EdgeSet(edge_index, num_rows, backend or PlainBackend()), Origin(lambda: "test"), None)


def end_of(index: Index, end: int) -> Index:
    return _marked(index.edges.edge_index[end], index.edges, index.origin, end)


def _marked(rows: Tensor, edges: EdgeSet, origin: Origin, end: int | None) -> Index:
    index = rows.as_subclass(Index)
    index.edges, index.origin, index.end = edges, origin, end
    return index


def _plain(value: Any) -> Any:
    if isinstance(value, Index):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    return type(value)(_plain(item) for item in value) if isinstance(value, list | tuple) else value


def _served(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if name in ("__getitem__", "index_select"):
        x, index, dim = args[0], args[-1], args[1] if name == "index_select" else 0
        if isinstance(index, Index) and index.dim() == 1 and dim in (0, -x.dim()) and not isinstance(x, Index):
            if isinstance(x, Deferred):
                spread = at_destinations("spread", x, index.edges)
                return value_of(x).index_select(0, _plain(index)) if spread is None else spread
            if x.is_floating_point() and (x.dim() > 1 or not x.requires_grad):
                return rows_by_edge(index.origin, index.edges, x, at_source=index.end == 0)
    if name == "expand_as" or (name in ("view", "expand", "reshape", "__getitem__") and isinstance(args[0], Index)):
        with torch._C.DisableTorchFunctionSubclass():
            if name == "expand_as":
                shown = args[0].as_subclass(Tensor).expand(args[1].shape)
            else:
                shown = getattr(args[0].as_subclass(Tensor), name)(*args[1:], **kwargs)
        return _marked(shown, args[0].edges, args[0].origin, args[0].end)
    reducing = name.rstrip("_") in ("index_add", "scatter_add", "scatter_reduce")
    if reducing and isinstance(args[2], Index) and args[2].end == 1 and args[1] in (0, -args[0].dim()):
        return _reduced(name, args[0], args[2].edges, *args[3:], **kwargs)
    return NotImplemented


def _reduced(
    name: str, input: Tensor, edges: EdgeSet, rows: Tensor, reduce: str = "sum", *, include_self: bool = True
) -> Any:
    if reduce == "sum":
        total = sum_by_destination(rows, edges)
        result: Any = total if is_fresh(input) else value_of(input) + total
    elif reduce in ("amax", "amin") and not include_self:
        result = extreme_by_destination(rows, edges, reduce, input)  # type: ignore[arg-type]
    else:
        return NotImplemented
    if result is None:
        return NotImplemented
    if name.endswith("_"):
        overwrite(input, result)
    return result
