"""Unmodified PyTorch Geometric (PyG) models: forward(x, edge_index) or (data).

PyG does not have to be installed, because `forward` is recognised by parameter names.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency, BlockAdjacency, as_one_graph
from gnnkit.errors import UserError
from gnnkit.model.edge_index import Pass
from gnnkit.model.functions import ExactFunctions
from gnnkit.model.norms import exact_norms
from gnnkit.model.padding import shared_padding
from gnnkit.model.pyg_steps import SharedMeans, Values, share, values_of

_EDGES = ("edge_index", "adj_t")  # parameters that identify such a module
_DATA = ("data", "batch")
_TYPES = "edge_type"  # always passed if `forward` takes it
_OF_EDGES = ("edge_weight", "edge_attr", "edge_age", _TYPES)  # all but the last are passed if there are any
_REFUSED = {"allow_single_element": "takes no statistics on a worker with a single row"}
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def reads_edges(model: nn.Module) -> bool:
    """Returns whether `forward` takes (x, edge_index) or (data), as in PyG."""
    parameters = _parameters(model)
    return any(name in parameters for name in _EDGES) or _reads_data(parameters)


def reads_types(model: object) -> bool:
    """Returns whether a model distinguishes edge types.

    A `forward` that takes `edge_type` does. Others declare `reads_relations`.
    """
    is_declared = bool(getattr(model, "reads_relations", False))
    return is_declared or (isinstance(model, nn.Module) and reads_edges(model) and _TYPES in _parameters(model))


def _reads_data(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return len(parameters) == 1 and next(iter(parameters)) in _DATA


def _parameters(model: nn.Module) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # `forward` may have no signature
        return {}


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
        self.reads_relations = reads_types(module)
        self._signature = self._inspect(module)
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

    def _inspect(self, module: nn.Module) -> _Signature | None:
        return _Signature.of(module)

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

    def _values(self, x: Tensor, adjacency: Adjacency, graph_pass: Pass) -> dict[str, Any]:
        """Returns the module's arguments by name."""
        edge_values = _edge_values(adjacency, types=self.reads_relations)
        edges, signature = graph_pass.edge_index(), self._signature
        assert signature is not None
        if signature.data is not None:
            return {signature.data: Values(self, {"x": x, "edge_index": edges, "num_nodes": len(x)} | edge_values)}
        values = {name: edge_values[name] for name in signature.of_edges if edge_values[name] is not None}
        for name in signature.required_names:
            if name not in values:
                raise model_error(
                    self, f"forward asks for {name}, but the graph has none: give {name} the default None"
                )
        return {signature.rows: x, signature.edges: edges, **values}

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


@dataclass(frozen=True, slots=True)
class _Signature:
    """The parameters of a `forward`, by role."""

    data: str | None  # name of the parameter for the complete batch, or None
    rows: str = ""
    edges: str = ""
    of_edges: tuple[str, ...] = ()  # names of edge values
    required_names: tuple[str, ...] = ()  # edge values without a default

    @classmethod
    def of(cls, module: nn.Module) -> _Signature:
        """Inspects the parameters.

        Raises `UserError` for an unsupported one.
        """
        parameters = {name: parameter for name, parameter in _parameters(module).items() if parameter.kind not in _OPEN}
        if _reads_data(parameters):
            return cls(next(iter(parameters)))
        edges = next(name for name in _EDGES if name in parameters)
        other_names = [name for name in parameters if name != edges]
        if not other_names or other_names[0] in _OF_EDGES:
            raise model_error(
                module,
                f"forward({', '.join(parameters)}) takes no rows of features: write forward(x, edge_index), and inputs=learned "
                "gives each node a learned row",
            )
        rows, *other_names = other_names
        required_names = [name for name in other_names if parameters[name].default is inspect.Parameter.empty]
        for name in required_names:
            if name not in _OF_EDGES:
                usual = f"give {name} a default, or keep it in the module"
                raise model_error(
                    module,
                    f"forward asks for {name}, and a graph gives x, edge_index, {', '.join(_OF_EDGES)}: {usual}",
                )
        return cls(None, rows, edges, tuple(name for name in other_names if name in _OF_EDGES), tuple(required_names))


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
    caches: list[tuple[nn.Module, dict[str, Any]]] = []
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


def is_convolution(module: nn.Module) -> bool:
    """Returns whether a module is one of PyG's `MessagePassing`."""
    return "MessagePassing" in (base.__name__ for base in type(module).__mro__)


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
