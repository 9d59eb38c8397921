"""Checks, before training, whether a model's results depend on the number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from gnnkit.model.functions import BATCH_NORMS
from gnnkit.model.norms import NORMS
from gnnkit.model.pyg import reads_whole_graph
from gnnkit.model.two_ranks import TrialRows, differs, run_alone
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.utils.ranges import one_line

_DROPOUT = ("native_dropout", "bernoulli", "bernoulli_")
_ROW_MIXERS = ("GPSConv", "HANConv", "Polynormer", "SGFormer", "GraphUNet", "GraphMultisetTransformer")


@dataclass(frozen=True, slots=True)
class _Remedies:
    """Recommended replacements."""

    dropout: str = "use gnnkit.nn.Dropout, or adjacency.dropout"
    edge_dropout: str = "set its dropout to 0 and drop rows by gnnkit.nn.Dropout, or use model=gat"
    draw: str = "derive draws from adjacency.key and adjacency.src_nodes"
    norm: str = "use gnnkit.nn.BatchNorm, or torch's LayerNorm"
    over_rows: str = "use gnnkit.nn.BatchNorm or adjacency.pool, see job=verify"


_ROWS_ONLY = _Remedies(  # for modules called without an adjacency
    dropout="use F.dropout on rows [num_nodes, width]",
    edge_dropout="set its dropout to 0 and drop rows by nn.Dropout, or use model=gat",
    draw="draw by nn.Dropout only, or write forward(x, adjacencies)",
    norm="use nn.BatchNorm1d or nn.LayerNorm",
    over_rows="use nn.BatchNorm1d, or write forward(x, adjacencies), see job=verify",
)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Why a training step depends on the number of ranks, by module with a remedy."""

    systematic: tuple[str, ...] = ()  # results differ from those of one rank on average too
    random: tuple[str, ...] = ()  # other draws of the same distribution
    unchecked: str | None = None  # why nothing was compared

    @property
    def reasons(self) -> list[str]:
        """All reasons."""
        return [*self.systematic, *self.random]


def check_model(model: nn.Module, rows: TrialRows, *, compares: bool = True) -> ModelCheck:
    """Searches for reasons why a training step depends on the number of ranks.

    Runs the model on a small graph in training mode, and records random draws and batch
    statistics, also those of functions. Then compares the model on several ranks with
    the model on one. torch's random state is preserved.

    Args:
        model: The model. Its statistics and hooks change, so it must not be used again.
        rows: The rows that the model reads.
        compares: Whether to compare. A model that is exact otherwise needs no
            comparison.
    """
    original = copy.deepcopy(model.cpu())
    notes = _Notes(model)
    with torch.random.fork_rng(devices=[]):
        try:
            with notes:
                run_alone(model, rows)
        except Exception:
            notes.add_dropouts(model)
        skip_reason = notes.compare(original, rows) if compares and not notes.systematic else None
    return ModelCheck(_lines(notes.systematic), _lines(notes.random), skip_reason)


def _lines(reasons: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {reason}" for name, reason in reasons.items())


def inexact(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Lists the reasons of `check_model` for drawn rows.

    Args:
        model: The model, which must not be used again.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    return check_model(model, TrialRows(in_features, edge_width)).reasons


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators whose result depends on the layout, by calling module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = [(type(model).__name__, model)]  # modules being called, innermost last
        self.systematic: dict[str, str] = {}  # by module
        self.random: dict[str, str] = {}
        adapts = isinstance(model, EdgeIndexModel)
        exact, self.remedies = ((*BATCH_NORMS, *NORMS), _ROWS_ONLY) if adapts else ((), _Remedies())
        for name, module in model.named_modules():
            if type(module).__name__ not in exact and (reason := _by_module(module, self.remedies)) is not None:
                self.add(self.systematic, name or type(module).__name__, reason)
            if name:
                module.register_forward_pre_hook(lambda module, _, name=name: self.calls.append((name, module)))
                module.register_forward_hook(lambda _module, _inputs, _output: self.leave(), always_call=True)

    def add(self, reasons: dict[str, str], name: str, reason: str) -> None:
        noted_layers = {**self.systematic, **reasons}
        is_part = any(name.startswith(f"{layer}.") for layer in noted_layers)
        if name not in noted_layers and not is_part:
            reasons[name] = reason

    def compare(self, model: nn.Module, rows: TrialRows) -> str | None:
        """Notes whether outputs depend on the ranks, or returns why it is unknown."""
        try:
            if not differs(model, rows, draws=bool(self.random)):
                return None
        except Exception as error:
            return f"it failed on a few nodes with {type(error).__name__}: {one_line(error)}"
        reason = "outputs on several ranks differ from those on one, as with x.mean(0) over the rows of a rank"
        self.add(self.systematic, _over_rows(model), f"{reason}: {self.remedies.over_rows}")
        return None

    def leave(self) -> None:
        self.calls.pop()

    def add_dropouts(self, model: nn.Module) -> None:
        """Records torch's dropout modules, if the model could not be run."""
        for name, module in model.named_modules():
            if isinstance(module, _DropoutNd) and module.p > 0:
                self.add(self.random, name or type(module).__name__, _draw_reason(module, "Dropout", self.remedies))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (name, module), operator = self.calls[-1], str(func.overloadpacket.__name__)
        if torch.Tag.nondeterministic_seeded in func.tags and _drop_rate(func, args, kwargs or {}) != 0:
            self.add(self.random, name, _draw_reason(module, operator, self.remedies))
        if "batch_norm" in operator and next((flag for flag in args if isinstance(flag, bool)), True):
            self.add(self.systematic, name, _norm_reason(_own_name(module, "BatchNorm"), self.remedies))
        return func(*args, **(kwargs or {}))


def _drop_rate(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns the value of an operator's argument `dropout_p`, or None."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}.get("dropout_p")


def _draw_reason(module: nn.Module, operator: str, remedies: _Remedies) -> str:
    if operator not in (*_DROPOUT, "Dropout"):
        return f"a draw of torch ({operator}) differs on every layout: {remedies.draw}"
    if _gathers(module):
        return f"{type(module).__name__} drops by torch's own Dropout, which differs on every layout: {remedies.edge_dropout}"
    return f"torch's own {_own_name(module, 'Dropout')} differs on every layout: {remedies.dropout}"


def _norm_reason(name: str, remedies: _Remedies) -> str:
    return f"{name} takes its statistics over the rows of one rank: {remedies.norm}"


def _own_name(module: nn.Module, otherwise: str) -> str:
    """Returns a layer's class name, or a function called by a user's module."""
    return type(module).__name__ if otherwise in type(module).__name__ else otherwise


def _by_module(module: nn.Module, remedies: _Remedies) -> str | None:
    return _norm_reason(type(module).__name__, remedies) if reads_whole_graph(module) else None


def _over_rows(model: nn.Module) -> str:
    """Returns the names of layers over all rows of a rank, or the model's class."""
    layers = {name: type(module).__name__ for name, module in model.named_modules() if _mixes_rows(module)}
    outer = [name for name in layers if not any(name.startswith(f"{layer}.") for layer in layers)]
    return ", ".join(f"{name} ({layers[name]})" for name in outer) or type(model).__name__


def _mixes_rows(module: nn.Module) -> bool:
    """Returns whether a layer is one that selects, pools or attends over all rows."""
    kind = type(module).__name__
    return kind in _ROW_MIXERS or kind.endswith("Pooling") or isinstance(module, nn.MultiheadAttention)


def _gathers(module: nn.Module) -> bool:
    """Returns whether the module is a PyG aggregation or convolution.

    PyG does not have to be installed.
    """
    return bool({"Aggregation", "MessagePassing"} & set(_bases(module)))


def _bases(module: nn.Module) -> Iterator[str]:
    return (base.__name__ for base in type(module).__mro__)
