"""Checks, before training, whether a model's results depend on the number of ranks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from gnnkit.engine.trial import ModelTrial, Sizes, TrialInputs, TypeCounts
from gnnkit.model.functions import BATCH_NORMS
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.norms import NORMS
from gnnkit.model.pyg import reads_whole_graph
from gnnkit.model.two_ranks import differs, run_alone
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.partition.grid import Grid
from gnnkit.partition.traffic import Traffic

ROWS = Sizes(owned=3, edges=4)  # batch normalisation rejects a single row
ONE_RANK = Traffic(Grid(1, 1, 1), np.array([3]), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64))
_DROPOUT = ("native_dropout", "bernoulli", "bernoulli_")


@dataclass(frozen=True, slots=True)
class _Cures:
    """Recommended replacements."""

    dropout: str = "use gnnkit.nn.Dropout, or adjacency.dropout"
    edge_dropout: str = "set its dropout to 0 and drop rows by gnnkit.nn.Dropout, or use model=gat"
    draw: str = "derive draws from adjacency.key and adjacency.src_nodes"
    norm: str = "use gnnkit.nn.BatchNorm, or torch's LayerNorm"
    over_rows: str = "use gnnkit.nn.BatchNorm or adjacency.pool, see job=verify"


_ROWS_ONLY = _Cures(  # for modules called without an adjacency
    dropout="use F.dropout on rows [num_nodes, width]",
    edge_dropout="set its dropout to 0 and drop rows by nn.Dropout, or use model=gat",
    draw="draw by nn.Dropout only, or write forward(x, adjacencies)",
    norm="use nn.BatchNorm1d or nn.LayerNorm",
    over_rows="use nn.BatchNorm1d, or write forward(x, adjacencies), see job=verify",
)


def inexact(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Returns the reasons why a training step depends on the number of ranks.

    Each reason names a module, the layer and a replacement. The list is empty for an
    exact model. Runs the model on three nodes in training mode, and records random
    draws and batch statistics, also those of functions. If there are none, compares the
    model on two ranks with the model on one. If the model does not run on a small
    graph, only its modules are checked. torch's random state is preserved.

    Args:
        model: The model. Its statistics and hooks change, so it must not be used again.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    untouched = copy.deepcopy(model.cpu())
    notes = _Notes(model)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), notes:
            if isinstance(model, HeteroModel):
                run_alone(model, in_features, edge_width)
            else:
                inputs = TrialInputs(in_features, edge_width)
                ModelTrial(ONE_RANK, 0, inputs, dtype, ROWS, TypeCounts.of(model)).forward(model)
    except Exception:
        notes.add_dropouts(model)
    with contextlib.suppress(Exception):
        if not notes.reasons and differs(untouched, in_features, edge_width):
            cure = f"as with x.mean(0) over the rows of a rank: {notes.cures.over_rows}"
            notes.add("the model", f"outputs on two ranks differ from those on one, {cure}")
    return [f"{name}: {reason}" for name, reason in notes.reasons.items()]


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators whose result depends on the layout, by calling module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, nn.Module]] = [("the model", model)]  # modules being called, innermost last
        self.reasons: dict[str, str] = {}
        adapts = isinstance(model, EdgeIndexModel)
        exact, self.cures = ((*BATCH_NORMS, *NORMS), _ROWS_ONLY) if adapts else ((), _Cures())
        for name, module in model.named_modules():
            if type(module).__name__ not in exact and (reason := _by_module(module, self.cures)) is not None:
                self.add(name or type(module).__name__, reason)
            if name:
                module.register_forward_pre_hook(lambda module, _, name=name: self.calls.append((name, module)))
                module.register_forward_hook(lambda _module, _inputs, _output: self.leave(), always_call=True)

    def add(self, name: str, reason: str) -> None:
        if not any(name.startswith(f"{noted}.") for noted in self.reasons):  # part of a layer that has been reported
            self.reasons.setdefault(name, reason)

    def leave(self) -> None:
        self.calls.pop()

    def add_dropouts(self, model: nn.Module) -> None:
        """Records torch's dropout modules, if the model could not be run."""
        for name, module in model.named_modules():
            if isinstance(module, _DropoutNd) and module.p > 0:
                self.add(name or type(module).__name__, _drawn(module, "Dropout", self.cures))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, module = self.calls[-1]
        reason = _by_operator(func, args, module, self.cures)
        if reason is not None:
            self.add(name, reason)
        return func(*args, **(kwargs or {}))


def _by_operator(func: Any, args: tuple[Any, ...], module: nn.Module, cures: _Cures) -> str | None:
    """Returns why an operator depends on the layout, or None.

    Args:
        func: The operator.
        args: Its arguments.
        module: The calling module.
        cures: Recommended replacements.
    """
    name = str(func.overloadpacket.__name__)
    if torch.Tag.nondeterministic_seeded in func.tags:
        return _drawn(module, name, cures)
    if "batch_norm" in name and next((flag for flag in args if isinstance(flag, bool)), True):
        return _normed(_own_name(module, "BatchNorm"), cures)
    return None


def _drawn(module: nn.Module, operator: str, cures: _Cures) -> str:
    if operator not in (*_DROPOUT, "Dropout"):
        return f"a draw of torch ({operator}) differs on every layout: {cures.draw}"
    if _gathers(module):
        return (
            f"{type(module).__name__} drops by torch's own Dropout, which differs on every layout: {cures.edge_dropout}"
        )
    return f"torch's own {_own_name(module, 'Dropout')} differs on every layout: {cures.dropout}"


def _normed(name: str, cures: _Cures) -> str:
    return f"{name} takes its statistics over the rows of one rank: {cures.norm}"


def _own_name(module: nn.Module, otherwise: str) -> str:
    """Returns a layer's class name, or a function called by a user's module."""
    return type(module).__name__ if otherwise in type(module).__name__ else otherwise


def _by_module(module: nn.Module, cures: _Cures) -> str | None:
    kind = type(module).__name__
    if reads_whole_graph(module):
        return _normed(kind, cures)
    return None


def _gathers(module: nn.Module) -> bool:
    """Returns whether the module is a PyG aggregation or convolution.

    PyG does not have to be installed.
    """
    return bool({"Aggregation", "MessagePassing"} & set(_bases(module)))


def _bases(module: nn.Module) -> Iterator[str]:
    return (base.__name__ for base in type(module).__mro__)
