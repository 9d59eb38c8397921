"""Unmodified PyTorch Geometric (PyG) models: forward(x, edge_index) or (data).

PyG does not have to be installed, because `forward` is recognised by parameter names.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency, BlockAdjacency, as_one_graph
from gnnkit.errors import UserError
from gnnkit.model.edge_index import Pass
from gnnkit.model.functions import ExactFunctions, exact_norms, inherits, is_convolution, shared_padding
from gnnkit.model.pyg_steps import SharedMeans, Values, own_steps, share, values_of

_EDGES = ("edge_index", "adj_t")  # parameters that identify a module of (x, edge_index)
_DICTS = ("edge_index_dict", "adj_t_dict")  # and of (x_dict, edge_index_dict)
_DATA = ("data", "batch")  # the only parameter of a module of (data)
_TYPES = "edge_type"  # always passed if `forward` takes it
_OF_EDGES = ("edge_weight", "edge_attr", "edge_age", _TYPES)  # all but the last are passed if there are any
_OF_RELATIONS = ("edge_attr", "edge_weight")  # also with the suffix `_dict`
_REFUSED = {"allow_single_element": "takes no statistics on a worker with a single row"}
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a PyG module's `forward`, by role."""

    rows: str  # the rows, or the complete batch if `edges` is ""
    edges: str = ""
    values: Mapping[str, str] = field(default_factory=dict)  # parameter -> edge values by PyG's name
    required_names: tuple[str, ...] = ()  # edge values without a default
    by_type: bool = False  # whether rows and edges are dictionaries by type
    positional: bool = False  # whether arguments are passed by position, as to HeteroConv

    @classmethod
    def of(cls, module: nn.Module) -> Signature | None:
        """Inspects a module's parameters. Returns None for other modules.

        Raises `UserError` for an unsupported parameter.
        """
        if inherits(module, "HeteroConv"):
            return cls("x_dict", "edge_index_dict", by_type=True, positional=True)
        parameters = _parameters(module)
        if len(parameters) == 1 and next(iter(parameters)) in _DATA:
            return cls(next(iter(parameters)))
        edges = next((name for name in parameters if name in _EDGES + _DICTS), None)
        if edges is None:
            return None
        by_type = edges in _DICTS or _is_converted(module)
        kinds = {name: name.removesuffix("_dict") if by_type else name for name in parameters if name != edges}
        known_kinds = _OF_RELATIONS if by_type else _OF_EDGES
        rows, *other_names = kinds or [""]
        if not rows or kinds[rows] in known_kinds:
            raise _rows_error(module, parameters, by_type=by_type)
        required_names = tuple(name for name in other_names if parameters[name].default is inspect.Parameter.empty)
        for name in required_names:
            if kinds[name] not in known_kinds:
                raise _argument_error(module, name, by_type=by_type)
        values = {name: kinds[name] for name in other_names if kinds[name] in known_kinds}
        return cls(rows, edges, values, required_names, by_type)

    def arguments(self, module: nn.Module, x: object, edges: object, values: Mapping[str, object]) -> dict[str, Any]:
        """Returns the module's arguments by name.

        Raises `UserError` for edge values that the graph does not have.

        Args:
            module: The module.
            x: [num_rows, f], or [rows of the type, f] by node type.
            edges: `edge_index` [2, k], by relation if rows are by type.
            values: Edge values by PyG's name, or None.
        """
        present = {name: values[kind] for name, kind in self.values.items() if values.get(kind) is not None}
        for name in self.required_names:
            if name not in present:
                raise model_error(
                    module, f"forward asks for {name}, but the graph has none: give {name} the default None"
                )
        return {self.rows: x, self.edges: edges, **present}

    def call(self, module: nn.Module, x: object, edges: object, values: Mapping[str, object]) -> Any:
        """Calls the module. Takes what `arguments` does."""
        return module(x, edges) if self.positional else module(**self.arguments(module, x, edges, values))


def _parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # `forward` may have no signature
        return {}
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in _OPEN}


def _is_converted(module: nn.Module) -> bool:
    """Returns whether PyG's `to_hetero` made the module."""
    graph = getattr(module, "graph", None)
    targets = (getattr(node, "target", None) for node in getattr(graph, "nodes", ()))
    makers = {getattr(target, "__module__", "") for target in targets if callable(target)}
    return any(maker.startswith("torch_geometric.nn.to_hetero") for maker in makers if maker)


def _rows_error(module: nn.Module, names: Iterable[str], *, by_type: bool) -> UserError:
    """Creates the error for a `forward` without rows."""
    text = f"forward({', '.join(names)}) takes no rows"
    if by_type:
        return model_error(module, f"{text}: write forward(x_dict, edge_index_dict)")
    return model_error(
        module,
        f"{text} of features: write forward(x, edge_index), and inputs=learned gives each node a learned row",
    )


def _argument_error(module: nn.Module, name: str, *, by_type: bool) -> UserError:
    """Creates the error for an argument that a graph does not give."""
    graph = f"a graph gives x, edge_index, {', '.join(_OF_EDGES)}"
    if by_type:
        graph = "a graph of several types gives x_dict, edge_index_dict, edge_attr_dict and edge_weight_dict"
    return model_error(module, f"forward asks for {name}, and {graph}: give {name} a default, or keep it in the module")


def _signature_of(model: object) -> Signature | None:
    return Signature.of(model) if isinstance(model, nn.Module) else None


def reads_edges(model: object) -> bool:
    """Returns whether a module takes edges as PyG's do, rather than adjacencies."""
    return _signature_of(model) is not None


def takes_types(model: object) -> bool:
    """Returns whether a module takes rows and edges in dictionaries by type."""
    signature = _signature_of(model)
    return signature is not None and signature.by_type


def reads_types(model: object) -> bool:
    """Returns whether a model distinguishes edge types.

    A `forward` that takes `edge_type` or dictionaries by type does. Others declare
    `reads_relations`.
    """
    signature = _signature_of(model)
    is_shown = signature is not None and (signature.by_type or _TYPES in signature.values)
    return is_shown or bool(getattr(model, "reads_relations", False))


class EdgeIndexModel(nn.Module):
    """A module of (x, edge_index), for full graphs and sampled batches.

    `x` and `edge_index` are a rank's. Other ranks' rows are exchanged whenever a layer
    reads rows through `edge_index[0]`, so losses and gradients equal one process's.
    This requires grids with one column and slice. A sampled batch is a single graph, as
    from PyG's NeighborLoader, and all layers use all of its edges. Dropout of rows is
    keyed by node ids, and batch normalisation covers all ranks. Parameters, buffers and
    submodules are the module's own, with the same names.
    """

    num_layers = 1  # number of adjacencies per batch. A sampled batch has one per hop
    adds_rows_itself = True
    edge_order = True  # a node's in-edges are read in the order of the user's edge list
    fallbacks: Counter[str]  # functions of the last call that computed a row per edge, by layer

    def __init__(self, module: nn.Module) -> None:
        """Inspects the module's `forward`, and shares its parameters."""
        super().__init__()
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, name, getattr(module, name))
        object.__setattr__(self, "module", module)  # not registered as a submodule, because its submodules are
        signature = Signature.of(module)
        assert signature is not None, "`adapted` wraps modules that take edges"
        self._signature, self.reads_relations = signature, reads_types(module)
        for part in module.modules():
            if _of_pyg(part) and getattr(part, "flow", None) == "target_to_source":
                raise model_error(
                    module,
                    f"{type(part).__name__}(flow='target_to_source') reads edges against their direction: leave flow out, and "
                    "turn the edges around with data.edge_index.flip(0)",
                )
            for name, reason in _REFUSED.items():
                if _of_pyg(part) and getattr(part, name, False) is True:
                    raise model_error(module, f"{type(part).__name__}({name}=True) {reason}: use {name}=False")

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes logits [num_dst, num_classes]. Collective.

        Args:
            x: [num_dst, in_features] own rows, or the input rows of a batch.
            adjacencies: The full graph, or the blocks of a batch.
        """
        num_dst = adjacencies[-1].num_dst
        with self._passing(x, adjacencies) as (rows, adjacency, graph_pass):
            out: Tensor = self.module(**self._values(rows, adjacency, graph_pass))  # type: ignore[operator]
        if not isinstance(out, Tensor) or out.dim() == 0 or len(out) < num_dst:
            description = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise model_error(self, f"forward must return one tensor with a row for each row of x, found {description}")
        return out[:num_dst]

    @property
    def num_convolutions(self) -> int:
        """Number of layers that read neighbours' rows, as far as their classes show."""
        return max(sum(map(is_convolution, self.modules())), 1)

    @property
    def num_relations(self) -> int:
        """The largest number of relations that a layer was built for."""
        numbers = [getattr(part, "num_relations", 1) for part in self.module.modules()]  # type: ignore[union-attr]
        return max(number for number in numbers if isinstance(number, int))

    @contextmanager
    def _passing(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Iterator[tuple[Tensor, Adjacency, Pass]]:
        """Merges a batch into one graph, within which torch functions are exact."""
        (adjacency, rows), module = merge_adjacencies(adjacencies), self.module
        assert isinstance(module, nn.Module)
        x = x if rows is None else x[rows]
        module.training = self.training
        graph_pass = Pass(type(self).__name__, adjacency)
        try:
            with (
                ExactFunctions(adjacency, graph_pass.reads),
                exact_norms(module, adjacency),
                shared_padding(module, adjacency),
                disable_caching(module),
            ):
                yield x, adjacency, graph_pass
        except IndexError as error:
            raise index_error(self, error) from error
        finally:
            graph_pass.end()
            self.fallbacks = graph_pass.reads.origin.fallbacks

    def _values(self, x: Tensor, adjacency: Adjacency, graph_pass: Pass) -> dict[str, object]:
        """Returns the module's arguments by name."""
        edge_values, edges = _edge_values(adjacency, types=self.reads_relations), graph_pass.edge_index()
        signature = self._signature
        if not signature.edges:
            return {signature.rows: Values(self, {"x": x, "edge_index": edges, "num_nodes": len(x)} | edge_values)}
        return signature.arguments(self, x, edges, edge_values)

    def decayed_parameters(self) -> Iterable[Parameter]:
        """The parameters that `trainer.weight_decay` applies to."""
        get_parameters = getattr(self.module, "decayed_parameters", None)
        return self.parameters() if get_parameters is None else get_parameters()


class EdgeIndexSteps(EdgeIndexModel):
    """A LightningModule of (x, edge_index), whose steps read PyG's `Data`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        share(self, module)

    def step(self, user_step: Callable[..., Any], batch: Any, *args: Any) -> Tensor:
        """Computes this rank's part of the loss by the user's `training_step`.

        Collective.

        Args:
            user_step: The module's method.
            batch: A batch of the strategy.
            *args: Further arguments.
        """
        with self._passing(batch.x, batch.adjacencies) as (x, adjacency, graph_pass):
            values = (
                {"x": x, "edge_index": graph_pass.edge_index(), "num_nodes": len(x)}
                | _edge_values(adjacency, types=self.reads_relations)
                | values_of(batch, len(x))
            )
            with SharedMeans(type(self).__name__, batch):
                loss = user_step(Values(self, values), *args)
        loss = loss["loss"] if isinstance(loss, Mapping) else loss
        if not isinstance(loss, Tensor):
            raise model_error(self, f"training_step must return the loss, found {type(loss).__name__}")
        return loss


def merge_adjacencies(adjacencies: Sequence[Adjacency]) -> tuple[Adjacency, Tensor | None]:
    """Merges a batch into one graph. A full graph is one already.

    Returns the graph, and its rows [num_dst] int64 within the input rows, or None for
    all rows.
    """
    first = adjacencies[0]
    if not isinstance(first, BlockAdjacency):
        return first, None
    return as_one_graph(adjacencies)  # type: ignore[arg-type]


def _edge_values(adjacency: Adjacency, *, types: bool) -> dict[str, Tensor | None]:
    """Returns a rank's edge values by PyG's names.

    Args:
        adjacency: The rank's edges.
        types: Whether the model reads edge types.
    """
    values = {
        "edge_weight": adjacency.rank_graph.weight,
        "edge_attr": adjacency.edge_features,
        "edge_age": adjacency.edge_age,
    }
    return values | ({_TYPES: adjacency.edge_types} if types else {})


@contextmanager
def disable_caching(module: nn.Module) -> Iterator[None]:
    """Disables layers' `cached=True` within the context.

    Cached edges are valid for a full graph, but differ between batches.
    """
    caches: list[tuple[nn.Module, dict[str, object]]] = []
    for part in module.modules():
        if _of_pyg(part) and getattr(part, "cached", False) is True:
            names = ["cached", *(name for name in vars(part) if name.startswith("_cached_"))]
            caches.append((part, {name: vars(part)[name] for name in names}))
            vars(part).update(dict.fromkeys(names), cached=False)
    try:
        yield
    finally:
        for part, values in caches:
            vars(part).update(values)


def _of_pyg(module: nn.Module) -> bool:
    return any(base.__module__.startswith("torch_geometric.") for base in type(module).__mro__)


def index_error(module: nn.Module, error: IndexError) -> UserError:
    """Creates the error for an index out of range in `forward`."""
    return model_error(
        module, f"{error}: if forward uses columns of x as numbers of categories, use features.scale=none"
    )


def model_error(module: nn.Module, text: str) -> UserError:
    """Creates an error that names the model."""
    return UserError(f"model={type(module).__name__}: {text}")


def adapted(model: object) -> Any:
    """Wraps a PyG module as one of (x, adjacencies).

    Returns other values unchanged. Raises `UserError` for a `forward` with an
    unsupported parameter.
    """
    if not isinstance(model, nn.Module) or isinstance(model, EdgeIndexModel):
        return model
    _initialise_rgat(model)
    signature = Signature.of(model)
    if signature is None:
        return model
    name = type(model).__name__  # the user's class, for errors
    base = next((base_class for base_class in type(model).__mro__ if base_class.__name__ == "LightningModule"), None)
    steps = {} if base is None else own_steps(type(model), base)
    if signature.by_type:
        from gnnkit.model.hetero import HeteroModel  # derives from this file's class

        if "training_step" in steps:
            raise model_error(
                model,
                "training_step reads a HeteroData, which a worker does not have: leave the step out, or train with "
                "Lightning's Trainer and gnnkit.pyg.NeighborLoader",
            )
        return type(name, (HeteroModel,), {})(model)
    if base is None:
        return type(name, (EdgeIndexModel,), {})(model)
    return type(name, (EdgeIndexSteps, base), steps)(model)


def _initialise_rgat(model: nn.Module) -> None:
    """Fills `l2` of PyG's `RGATConv`, which `reset_parameters` leaves uninitialised.

    NaN in this memory would make checkpoints fail, at random. The value is that which
    `reset_parameters` computes without storing it.
    """
    for part in model.modules():
        l2 = getattr(part, "l2", None) if type(part).__name__ == "RGATConv" else None
        if isinstance(l2, nn.Parameter) and not l2.is_meta and not l2.isfinite().all():
            with torch.no_grad():
                l2.fill_(1 / l2.shape[1])
