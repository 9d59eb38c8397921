"""Models of PyTorch Geometric (PyG) as they are: forward(x, edge_index).

PyG need not be installed, because parameters of `forward` are known by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.edge_index import Pass
from gnnkit.model.functions import ExactFunctions

_EDGES = "edge_index"
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
    if not isinstance(model, nn.Module) or isinstance(model, EdgeIndexModel) or _EDGES not in _asked(model):
        return model
    return EdgeIndexModel(model)


def _asked(model: nn.Module) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # a forward without a signature
        return {}


class EdgeIndexModel(nn.Module):
    """A module of (x, edge_index), on full graphs and grids with one column and slice.

    `x` and `edge_index` are those of a rank. Rows of other ranks are exchanged wherever
    a layer reads rows by `edge_index[0]`, so that losses and gradients are those of one
    process. Dropout of rows follows from node ids, and batch normalisation takes its
    statistics over all ranks. Parameters, buffers and submodules are the module's own, by name too.
    """

    num_layers = 1  # all reads of the module go through one adjacency

    def __init__(self, module: nn.Module) -> None:
        """Looks at the forward of the module, and shares its parameters."""
        super().__init__()
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, name, getattr(module, name))
        object.__setattr__(self, "module", module)  # no part of this one, which has its parts already
        self._rows, self._optional = _read(module)
        for part in module.modules():
            for name, why in _REFUSED.items():
                if getattr(part, name, False) is True:
                    raise _error(module, f"{type(part).__name__}({name}=True) {why}: use {name}=False")

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes logits [num_dst, num_classes]. Collective.

        Args:
            x: [num_dst, in_features] the own rows.
            adjacencies: The full graph.
        """
        (adjacency,) = adjacencies
        module: nn.Module = self.module  # type: ignore[assignment]
        module.training = self.training
        called = Pass(self.name, adjacency)
        given = {"edge_weight": adjacency.rank_graph.weight, "edge_attr": adjacency.edge_features}
        values = {self._rows: x, _EDGES: called.edge_index()} | {name: given[name] for name in self._optional}
        try:
            with ExactFunctions(adjacency):
                out: Tensor = module(**{name: value for name, value in values.items() if value is not None})
        finally:
            called.end()
        return out

    @property
    def name(self) -> str:
        """Name of the module's class."""
        return type(self.module).__name__

    def decayed_parameters(self) -> Iterable[Parameter]:
        """The parameters that `trainer.weight_decay` applies to."""
        named: Iterable[Parameter] = getattr(self.module, "decayed_parameters", self.module.parameters)()
        return named


def _read(module: nn.Module) -> tuple[str, list[str]]:
    """Finds the parameter that takes rows, and those that take values of edges.

    Raises `UserError` for a parameter that has no value here.
    """
    asked = {name: each for name, each in _asked(module).items() if each.kind not in _OPEN and name != _EDGES}
    rows, *others = asked or {"x": None}
    for name in others:
        if name not in _OF_EDGES and asked[name].default is inspect.Parameter.empty:
            raise _error(
                module,
                f"forward asks for {name}, and a graph gives x, edge_index, edge_weight and edge_attr: give {name} a "
                "default, or keep it in the module",
            )
    return rows, [name for name in others if name in _OF_EDGES]


def _error(module: nn.Module, text: str) -> UserError:
    return UserError(f"model={type(module).__name__}: {text}")
