"""Models of PyTorch Geometric (PyG) as they are: forward(x, edge_index) or (data).

PyG need not be installed, because parameters of `forward` are known by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency, BlockAdjacency, Subgraph
from gnnkit.errors import UserError
from gnnkit.model.edge_index import Pass
from gnnkit.model.functions import ExactFunctions

_EDGES, _DATA = "edge_index", "data"  # parameters by which a module is known
_OF_EDGES = ("edge_weight", "edge_attr")  # given where the graph has these
_REFUSED = {
    "cached": "keeps edges or rows of one step for others",
    "allow_single_element": "takes no statistics on a worker with a single row",
}
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def adapted(model: Any) -> Any:
    """Returns a module of (x, adjacencies) for one of (x, edge_index), else the value.

    Raises `UserError` for a forward that asks for something that no graph has.
    """
    if not isinstance(model, nn.Module) or isinstance(model, EdgeIndexModel):
        return model
    if not reads_edges(model):
        return model
    if "LightningModule" in (base.__name__ for base in type(model).__mro__):
        raise _error(
            model,
            "a LightningModule has steps of its own, which read (x, edge_index) of whole graphs: hand in the module "
            "that it trains, or write forward(x, adjacencies)",
        )
    kind = type(type(model).__name__, (EdgeIndexModel,), {})  # for errors, which name the user's class
    return kind(model)


def num_convolutions(model: nn.Module) -> int:
    """Counts the layers that read rows of neighbours, as far as their class says so."""
    layers = [part for part in model.modules() if "MessagePassing" in (base.__name__ for base in type(part).__mro__)]
    return max(len(layers), 1)


def reads_edges(model: nn.Module) -> bool:
    """Says whether `forward` is of (x, edge_index) or (data), as in PyG."""
    asked = _asked(model)
    return _EDGES in asked or list(asked) == [_DATA]


def _asked(model: nn.Module) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # a forward without a signature
        return {}


class EdgeIndexModel(nn.Module):
    """A module of (x, edge_index), on full graphs and on sampled batches.

    `x` and `edge_index` are those of a rank. Rows of other ranks are exchanged wherever
    a layer reads rows by `edge_index[0]`, so that losses and gradients are those of one
    process. This needs grids with one column and slice. A sampled batch is one graph,
    as PyG's NeighborLoader gives, and all layers read all of its edges. Dropout of rows
    follows from node ids, and batch normalisation takes its statistics over all ranks.
    Parameters, buffers and submodules are the module's own, and have its names.
    """

    num_layers = 1  # adjacencies that a batch brings. Those of a sampled batch are its hops

    def __init__(self, module: nn.Module) -> None:
        """Looks at the forward of the module, and shares its parameters."""
        super().__init__()
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, name, getattr(module, name))
        object.__setattr__(self, "module", module)  # no part of this one, which has its parts already
        self._rows, self._of_edges, self._needed = _read(module)
        for part in module.modules():
            for name, why in _REFUSED.items():
                if _of_pyg(part) and getattr(part, name, False) is True:
                    raise _error(module, f"{type(part).__name__}({name}=True) {why}: use {name}=False")

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes logits [num_dst, num_classes]. Collective.

        Args:
            x: [num_dst, in_features] the own rows, or the input rows of a batch.
            adjacencies: The full graph, or the blocks of a batch.
        """
        adjacency, num_dst = adjacencies[0], adjacencies[-1].num_dst
        if isinstance(adjacency, BlockAdjacency):
            adjacency, rows = Subgraph.of(adjacencies)  # type: ignore[arg-type]
            x = x[rows]
        module: nn.Module = self.module  # type: ignore[assignment]
        module.training = self.training
        called = Pass(type(self).__name__, adjacency)
        values = self._values(x, adjacency, called)
        try:
            with ExactFunctions(adjacency):
                out: Tensor = module(**values)
        finally:
            called.end()
        return out[:num_dst]

    def _values(self, x: Tensor, adjacency: Adjacency, called: Pass) -> dict[str, Any]:
        """Returns the arguments of the module by name."""
        given = {"edge_weight": adjacency.rank_graph.weight, "edge_attr": adjacency.edge_features}
        edges = called.edge_index()
        if self._rows == _DATA:
            return {_DATA: RankData(self, {"x": x, _EDGES: edges, "num_nodes": len(x)} | given)}
        found = {name: given[name] for name in self._of_edges if given[name] is not None}
        for name in self._needed:
            if name not in found:
                raise _error(self, f"forward asks for {name}, which the graph lacks: give {name} the default None")
        return {self._rows: x, _EDGES: edges, **found}

    def decayed_parameters(self) -> Iterable[Parameter]:
        """The parameters that `trainer.weight_decay` applies to."""
        own = getattr(self.module, "decayed_parameters", None)
        return self.parameters() if own is None else own()


class RankData:
    """The part of a rank, with the names of PyG's `Data`."""

    def __init__(self, model: nn.Module, values: Mapping[str, Any]) -> None:
        """Keeps the values that `model` may read by name."""
        self._model, self._values = model, values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        raise _error(self._model, f"forward reads data.{name}, and a graph gives {', '.join(self._values)}")


def _read(module: nn.Module) -> tuple[str, list[str], list[str]]:
    """Finds the parameters of `forward`.

    Returns the one that takes rows, those that take values of edges, and those without
    a default.

    Raises `UserError` for a parameter that has no value here.
    """
    asked = {name: each for name, each in _asked(module).items() if each.kind not in _OPEN and name != _EDGES}
    rows, *others = asked or ["x"]
    needed = [name for name in others if asked[name].default is inspect.Parameter.empty]
    for name in needed:
        if name not in _OF_EDGES:
            raise _error(
                module,
                f"forward asks for {name}, and a graph gives x, edge_index, edge_weight and edge_attr: give {name} a "
                "default, or keep it in the module",
            )
    return rows, [name for name in others if name in _OF_EDGES], needed


def _of_pyg(module: nn.Module) -> bool:
    return any(base.__module__.startswith("torch_geometric.") for base in type(module).__mro__)


def _error(module: nn.Module, text: str) -> UserError:
    return UserError(f"model={type(module).__name__}: {text}")
