"""Finds out before training what makes a model depend on the number of ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gnnkit.engine.trial import Sizes, Trial
from gnnkit.model.pyg import WHOLE_GRAPH
from gnnkit.partition.grid import Grid
from gnnkit.partition.traffic import Traffic

_ROWS = Sizes(owned=3, edges=3)  # batch normalisation refuses a single row
_ONE_RANK = Traffic(Grid(1, 1, 1), np.array([3]), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64))
_DROPOUT = ("native_dropout", "bernoulli", "bernoulli_")


def inexact(model: nn.Module, in_features: int, edge_width: int = 0) -> list[str]:
    """Lists why a training step depends on the number of ranks.

    The list is empty for an exact model. Runs the model on three nodes, and notes
    random draws and batch statistics. A model that cannot run on these nodes is judged
    by its modules alone. torch's random generator stays as it is.

    Args:
        model: The model, which is not used afterwards: statistics and hooks change.
        in_features: Columns of a node's features.
        edge_width: Columns of an edge's features. Default: 0, no edge features.
    """
    notes = _Notes()
    for name, module in model.cpu().named_modules():
        reason = _by_module(module)
        if reason is not None:
            notes.add(name or type(module).__name__, reason)
        if name:
            module.register_forward_pre_hook(lambda _module, _inputs, name=name: notes.names.append(name))
            module.register_forward_hook(lambda _module, _inputs, _output: notes.leave(), always_call=True)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception), notes:
        Trial(_ONE_RANK, 0, edge_width, dtype, _ROWS).forward(model, in_features)
    return [f"{name}: {reason}" for name, reason in notes.reasons.items()]


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operators whose result depends on the layout, by calling module."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []  # modules that are called right now, the innermost last
        self.reasons: dict[str, str] = {}

    def add(self, name: str, reason: str) -> None:
        self.reasons.setdefault(name, reason)

    def leave(self) -> None:
        self.names.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reason = _by_operator(func, args)
        if reason is not None:
            self.add(self.names[-1] if self.names else "the model", reason)
        return func(*args, **(kwargs or {}))


def _by_operator(func: Any, args: tuple[Any, ...]) -> str | None:
    name = str(func.overloadpacket.__name__)
    if torch.Tag.nondeterministic_seeded in func.tags:
        what = f"torch's own Dropout ({name})" if name in _DROPOUT else f"torch's own draw ({name})"
        return f"{what} differs on every layout, adjacency.dropout does not"
    if "batch_norm" in name and next((each for each in args if isinstance(each, bool)), True):
        return "batch normalisation takes its statistics over the rows of one rank"
    return None


def _by_module(module: nn.Module) -> str | None:
    kind = type(module).__name__
    if kind in WHOLE_GRAPH:
        return f"{kind} takes its statistics over the rows of one rank"
    if _gathers(module) and any(isinstance(part, nn.RNNBase) for part in module.children()):
        return f"{kind} reads neighbours in an order that differs between layouts"
    return None


def _gathers(module: nn.Module) -> bool:
    """Says whether the module is an aggregation or a convolution of PyG.

    PyG need not be installed.
    """
    return bool({"Aggregation", "MessagePassing"} & set(_bases(module)))


def _bases(module: nn.Module) -> Iterator[str]:
    return (base.__name__ for base in type(module).__mro__)
