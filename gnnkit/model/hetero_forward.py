"""Arguments of PyG modules of rows by node type, and a trial of such a module.

PyG does not have to be installed, because `forward` is recognised by parameter names.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from gnnkit.engine import Pool
from gnnkit.errors import UserError
from gnnkit.graph.schema import Schema
from gnnkit.model.functions import in_messages
from gnnkit.model.norms import exact_norms
from gnnkit.model.unchanged import model_error
from gnnkit.utils.ranges import one_line

Tensors = dict[Any, Tensor]  # by node type, or by (source type, name, destination type)

_DICTS = ("edge_index_dict", "adj_t_dict")  # parameters that identify such a module
_EDGES = ("edge_index", "adj_t")  # edge parameters of modules converted by `to_hetero`
_VALUES = ("edge_attr", "edge_weight")  # also with the suffix `_dict`
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FEWEST, _TRIAL_EDGES = 3, 4  # nodes of the first type, one more for each further type; edges of a relation


@dataclass(frozen=True, slots=True)
class HeteroArguments:
    """The parameters of a `forward` of rows by node type."""

    rows: str
    edges: str
    values: Mapping[str, str]  # parameter name -> edge values by PyG's name for one relation
    required_names: tuple[str, ...] = ()  # edge values without a default
    open: bool = False  # whether arguments are passed by position, as to HeteroConv

    @classmethod
    def of(cls, module: nn.Module) -> HeteroArguments | None:
        """Inspects a module's parameters. Returns None for other modules.

        Raises `UserError` for an unsupported parameter.
        """
        if "HeteroConv" in (base.__name__ for base in type(module).__mro__):
            return cls("x_dict", "edge_index_dict", {}, open=True)
        try:
            parameters = inspect.signature(module.forward).parameters
        except (TypeError, ValueError):  # `forward` may have no signature
            return None
        arguments = {name: parameter for name, parameter in parameters.items() if parameter.kind not in _OPEN}
        edge_names = _DICTS + (_EDGES if _is_converted(module) else ())
        edges = next((name for name in arguments if name in edge_names), None)
        if edges is None:
            return None
        rows, *other_names = [name for name in arguments if name != edges] or [""]
        if not rows or rows.removesuffix("_dict") in _VALUES:
            raise model_error(
                module, f"forward({', '.join(arguments)}) takes no rows: write forward(x_dict, edge_index_dict)"
            )
        required_names = tuple(name for name in other_names if arguments[name].default is inspect.Parameter.empty)
        values = {name: name.removesuffix("_dict") for name in other_names if name.removesuffix("_dict") in _VALUES}
        for name in required_names:
            if name not in values:
                raise model_error(
                    module,
                    f"forward asks for {name}, and a graph of several types gives x_dict, edge_index_dict, edge_attr_dict "
                    f"and edge_weight_dict: give {name} a default, or keep it in the module",
                )
        return cls(rows, edges, values, required_names)

    def call(self, module: nn.Module, x: Tensors, edges: Tensors, values: Mapping[str, Tensors | None]) -> Any:
        """Calls the module.

        Raises `UserError` for edge values that the graph does not have.

        Args:
            module: The module.
            x: [rows of the type, f] by node type.
            edges: `edge_index` [2, k] by relation.
            values: Edge values by relation, by PyG's name for one relation.
        """
        if self.open:
            return module(x, edges)
        edge_values = {name: values.get(kind) for name, kind in self.values.items()}
        for name in self.required_names:
            if edge_values[name] is None:
                raise model_error(
                    module, f"forward asks for {name}, but the graph has none: give {name} the default None"
                )
        present = {name: value for name, value in edge_values.items() if value is not None}
        return module(**{self.rows: x, self.edges: edges}, **present)


def _is_converted(module: nn.Module) -> bool:
    """Returns whether PyG's `to_hetero` made the module."""
    graph = getattr(module, "graph", None)
    targets = (getattr(node, "target", None) for node in getattr(graph, "nodes", ()))
    makers = {getattr(target, "__module__", "") for target in targets if callable(target)}
    return any(maker.startswith("torch_geometric.nn.to_hetero") for maker in makers if maker)


@dataclass(frozen=True, slots=True)
class HeteroTrial:
    """A module's properties, as observed in a call on a small graph."""

    output_type: str | None  # node type of the output rows. None: the output is a dictionary by type
    output_types: tuple[str, ...]  # node types that have output rows
    dropouts: tuple[str | None, ...]  # node type of the rows in each call of dropout, None for other rows
    norm_types: tuple[str | None, ...]  # the same for each pool of batch statistics

    @classmethod
    def of(
        cls, module: nn.Module, arguments: HeteroArguments, schema: Schema, widths: Mapping[str, int], edge_width: int
    ) -> HeteroTrial:
        """Calls the module on a small graph, which gives its lazy layers their widths.

        Each type has another number of nodes, so that the types of rows are known.
        Only lazy parameters change. Raises `UserError` if the module fails.

        Args:
            module: The module.
            arguments: Its parameters.
            schema: The graph's types, with the node types of each relation.
            widths: Columns of input rows by node type.
            edge_width: Number of edge features. 0: the graph has none.
        """
        graph = _small_graph(schema, widths, edge_width, _dtype(module))
        types = {len(rows): name for name, rows in graph[0].items()}
        trace = _Trace(types)
        try:
            with torch.no_grad():
                if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
                    with _evaluating(module):
                        arguments.call(module, *graph)
                replica = copy.deepcopy(module)  # running statistics of the module stay
                with torch.random.fork_rng(devices=[]), trace, exact_norms(replica, trace):
                    out = arguments.call(replica, *graph)
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {one_line(error)}"
            raise model_error(module, f"forward fails on a small graph with the types of this graph: {text}") from error
        if isinstance(out, Tensor) and out.dim() and len(out) in types:
            output_type = types[len(out)]
            return cls(output_type, (output_type,), tuple(trace.dropouts), tuple(trace.norm_types))
        if isinstance(out, Mapping):
            output_types = tuple(name for name, rows in out.items() if rows is not None)
            if output_types and all(len(out[name]) == len(graph[0].get(name, ())) for name in output_types):
                return cls(None, output_types, tuple(trace.dropouts), tuple(trace.norm_types))
        actual = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise model_error(
            module,
            f"forward must return the rows of one node type, or a dictionary of rows by node type, found {actual}",
        )


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Sets a module and its parts to evaluation mode within the context."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class _Trace(TorchFunctionMode):
    """Records the node type of the rows in each call of dropout, and in each pool."""

    def __init__(self, types: Mapping[int, str]) -> None:
        super().__init__()
        self.dropouts: list[str | None] = []
        self.norm_types: list[str | None] = []
        self._types = types

    def pool(self, num_rows: int) -> Pool:
        """Records the type of normalised rows, and returns a pool of these rows."""
        self.norm_types.append(self._types.get(num_rows))
        return Pool()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.dropout and not in_messages():
            rows = args[0] if args else (kwargs or {})["input"]
            self.dropouts.append(self._types.get(len(rows)) if rows.dim() == 2 else None)
        if func is F.batch_norm:
            arguments = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            if arguments.get("training", False) and arguments["input"].dim() == 2:  # as `ExactFunctions` pools rows
                self.pool(len(arguments["input"]))
        return func(*args, **(kwargs or {}))


_Graph = tuple[Tensors, Tensors, dict[str, Tensors | None]]


def _small_graph(schema: Schema, widths: Mapping[str, int], edge_width: int, dtype: torch.dtype) -> _Graph:
    """Draws rows, edges and edge values."""
    draw = torch.Generator().manual_seed(0)
    sizes = {name: _FEWEST + number for number, (name, _) in enumerate(schema.node_types)}
    sizes = {name: size + size // _TRIAL_EDGES for name, size in sizes.items()}  # none equals a number of edges
    x: Tensors = {name: torch.rand(sizes[name], widths[name], generator=draw, dtype=dtype) for name in sizes}
    edges: Tensors = {}
    for relation in schema.relations or ():
        ends = [torch.randint(sizes[end], (_TRIAL_EDGES,), generator=draw) for end in (relation.source, relation[2])]
        edges[tuple(relation)] = torch.stack([ends[0], ends[1].sort().values])  # as recurrent aggregations require
    shape = (_TRIAL_EDGES, edge_width)
    features = {key: torch.rand(shape, generator=draw, dtype=dtype) for key in edges} if edge_width else None
    return (
        x,
        edges,
        {"edge_attr": features, "edge_weight": {key: torch.ones(_TRIAL_EDGES, dtype=dtype) for key in edges}},
    )


def _dtype(module: nn.Module) -> torch.dtype:
    floats = (value.dtype for value in module.parameters() if is_lazy(value) or value.is_floating_point())
    return next(floats, torch.float32)
