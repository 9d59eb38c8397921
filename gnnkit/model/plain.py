"""Calls a model with plain tensors or a graph, in one process and without ranks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency, Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.edge_order import in_listed_order, with_inverse_edges
from gnnkit.model.parameters import dtype_of
from gnnkit.partition.shard import uncut
from gnnkit.utils.checks import array

_KEYS = {"edge_weight": "weight", "edge_attr": "edge_features", "edge_type": "edge_types"}  # PyG's names, and gnnkit's


Reads = Callable[[Graph], Graph]  # applies the model's preprocessing to a graph


def takes_edges(model: nn.Module, reads: Reads | None = None) -> None:
    """Allows calling a module of (x, adjacencies) with (x, edge_index) or (graph).

    Args:
        model: The module.
        reads: Applies the model's preprocessing to a graph. Default: none.
    """
    for key, hook in list(model._forward_pre_hooks.items()):
        if isinstance(hook, _Converter):
            if reads is None:
                return
            del model._forward_pre_hooks[key]
    model.register_forward_pre_hook(_Converter(reads), with_kwargs=True)


def in_unit(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Makes calls of a model return values in the labels' unit.

    Args:
        model: The module, whose outputs are standardised.
        convert: Converts outputs, as `LabelFacts.in_unit`.
    """
    model.register_forward_hook(_InUnit(convert))


def as_trained(model: nn.Module) -> None:
    """Reverses `in_unit` and `reads_raw_rows`, for training and for jobs."""
    every = [hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    for hooks in every:
        for key, hook in list(hooks.items()):
            if isinstance(hook, _InUnit | _RawRows):
                del hooks[key]


def reads_raw_rows(model: nn.Module, transform: Callable[[Tensor], Tensor], width: int, last: str) -> None:
    """Makes calls of a model on tensors transform the rows as in training.

    Calls with tensors of another width raise `UserError`.

    Args:
        model: The module, called with rows, rows by node type, or PyG's `Data`.
        transform: Fills and scales rows [num_nodes, in_features].
        width: Columns that training read.
        last: Name of a last column that the data does not have, or "".
    """
    model.register_forward_pre_hook(_RawRows(transform, dtype_of(model), width, last), with_kwargs=True)


class _RawRows:
    def __init__(self, transform: Callable[[Tensor], Tensor], dtype: torch.dtype, width: int, last: str) -> None:
        self._transform, self._dtype, self._width, self._last = transform, dtype, width, last

    def __call__(self, model: nn.Module, args: tuple[Any, ...], keys: Mapping[str, Any]) -> Any:
        second = args[1] if len(args) > 1 else keys.get("adjacencies")
        if isinstance(second, Sequence):  # the rows of a rank
            return args, keys
        if args:
            return (self._read(args[0]), *args[1:]), keys
        name = next(iter(inspect.signature(model.forward).parameters), "")
        return args, {**keys, **({name: self._read(keys[name])} if name in keys else {})}

    def _read(self, rows: Any) -> Any:
        if isinstance(rows, Tensor):
            if rows.dim() != 2 or rows.size(1) != self._width:
                last = f", the last of which is the {self._last}: append it" if self._last else ""
                raise UserError(f"x has the shape {list(rows.shape)}, but training read {self._width} columns{last}")
            return self._transform(rows).to(self._dtype)
        if isinstance(rows, dict):
            return {name: self._transform(value).to(self._dtype) for name, value in rows.items()}
        if isinstance(getattr(rows, "x", None), Tensor):
            rows = copy.copy(rows)
            rows.x = self._read(rows.x)
        return rows


class _InUnit:
    def __init__(self, convert: Callable[[Tensor], Tensor]) -> None:
        self._convert = convert

    def __call__(self, model: nn.Module, args: Any, out: Tensor) -> Tensor:
        return self._convert(out)


class _Converter:
    """Converts a call's arguments to rows and adjacencies."""

    def __init__(self, reads: Reads | None) -> None:
        self._reads = reads

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], keys: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first = args[0] if args else keys.get("x")
        second = args[1] if len(args) > 1 else keys.get("edge_index")
        if not isinstance(first, Graph) and (isinstance(second, Sequence) or "adjacencies" in keys):
            return args, keys
        if not isinstance(first, Graph) and not (isinstance(first, Tensor) and isinstance(second, Tensor | Graph)):
            type_names = ", ".join(type(rows).__name__ for rows in (first, second) if rows is not None)
            raise UserError(
                f"a model is called as model(x, edge_index) with tensors, or as model(graph), got {type_names}"
            )
        if getattr(torch.compiler, "is_exporting", bool)():  # missing in torch 2.6
            raise UserError(
                "torch.export cannot follow a call on edges: gnnkit.export(run, 'model.pt2') writes the file"
            )
        edge_values = {name: value for name, value in keys.items() if name not in ("x", "edge_index")}
        x = first if self._reads is None or not isinstance(first, Graph) else self._reads(first)
        return on_plain(model, x, second, **edge_values), {}


def on_plain(
    model: nn.Module, x: Tensor | Graph, edges: Tensor | Graph | None = None, **of_edges: Tensor | None
) -> tuple[Tensor, tuple[Adjacency, ...]]:
    """Returns rows and adjacencies for a model of (x, adjacencies).

    Builds the adjacencies at each call, which takes one pass over the edges. Dropout
    uses torch's random generator. Raises `UserError` for edges that do not match the
    rows, and for rows on a GPU.

    Args:
        model: The model, with its attributes `num_layers` and `self_loops`.
        x: [num_nodes, in_features] rows, or a `Graph` with features.
        edges: [2, num_edges] int64 source and destination of each edge, or a `Graph`.
            If None, the edges of the graph `x`.
        **of_edges: `edge_weight` [num_edges], `edge_attr` [num_edges, width] and
            `edge_type` [num_edges].
    """
    if isinstance(x, Graph):
        graph, x = x, _rows(model, x)
    else:
        graph = edges if isinstance(edges, Graph) else _graph(x, edges, of_edges)
    if not x.is_floating_point() or (any(True for _ in model.parameters()) and x.dtype != dtype_of(model)):
        raise UserError(f"x has dtype {x.dtype}, and the model has {dtype_of(model)}: use x.to({dtype_of(model)})")
    if x.device.type != "cpu":
        raise UserError(f"a model is called on edges on the CPU, and x is on {x.device}: use model.cpu() and x.cpu()")
    if len(x) != graph.num_nodes:
        raise UserError(f"x has {len(x):,} rows, and the graph {graph.num_nodes:,} nodes")
    graph = in_listed_order(graph) if getattr(model, "edge_order", False) else graph
    shard = uncut(with_inverse_edges(graph) if getattr(model, "undirected", False) else graph)
    if getattr(model, "self_loops", False):
        shard = shard.with_self_loops()
    comm = Threads.connect(0, 1, device=x.device, timeout=1.0)
    key = int(torch.randint(2**62, ())) if model.training else 0
    num_layers: int = model.num_layers  # type: ignore[assignment]
    return x, ShardAdjacency.layers(Engine(shard, comm, x.dtype), num_layers, key)


def _graph(x: Tensor, edges: Tensor | None, of_edges: dict[str, Tensor | None]) -> Graph:
    """Creates the graph of an `edge_index`."""
    if unknown := sorted(of_edges.keys() - _KEYS.keys()):
        raise UserError(f"a model reads {', '.join(_KEYS)} of edges, not {unknown[0]}")
    if not isinstance(edges, Tensor) or edges.dim() != 2 or len(edges) != 2:
        shape = list(edges.shape) if isinstance(edges, Tensor) else type(edges).__name__
        raise UserError(f"edge_index must have the shape [2, num_edges], found {shape}")
    edge_arrays: dict[str, Any] = {
        _KEYS[name]: array(name, value) for name, value in of_edges.items() if value is not None
    }
    src, dst = edges.cpu().numpy()
    return Graph.from_edges(src, dst, len(x), **edge_arrays)


def _rows(model: nn.Module, graph: Graph) -> Tensor:
    """Returns a graph's features in the parameters' dtype."""
    dtype = dtype_of(model)
    return torch.from_numpy(np.array(graph.whole_features)).to(dtype)
