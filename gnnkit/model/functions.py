"""Replaces torch functions that depend on the layout while a model is called."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.engine import Adjacency
from gnnkit.engine.adjacency import dropout_key
from gnnkit.kernels.dropout import derive, dropout
from gnnkit.nn import normalize

BATCH_NORMS = ("BatchNorm", "BatchNorm1d")  # class names of modules that call F.batch_norm
_OF_EDGES = ("message", "edge_update")  # methods of PyG's MessagePassing that receive edge values


class ExactFunctions(TorchFunctionMode):
    """Dropout keyed by node ids, and batch statistics over all ranks.

    Applies to F.dropout and F.batch_norm, and thus to modules that call them. Dropout
    within a PyG layer's messages, such as attention dropout, is keyed by both ends'
    ids. Dropout of other tensors remains torch's.
    """

    def __init__(self, adjacency: Adjacency, edge_ids: Callable[[], Tensor | None]) -> None:
        """Stores the arguments.

        Args:
            adjacency: The pass's edges.
            edge_ids: Returns ids [num_edges] of the edges that a layer is reading.
        """
        super().__init__()
        self._adjacency, self._edge_ids, self._draws = adjacency, edge_ids, itertools.count()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        draw = next(self._draws)  # advances on all ranks, also if an edge tensor happens to have one row per node
        if not training or inplace or not 0 < p < 1:
            return F.dropout(x, p, training, inplace)
        if _in_messages():
            ids = self._edge_ids()
            if ids is None or len(ids) != len(x):
                return F.dropout(x, p)
            return dropout(x.reshape(len(x), -1), ids, p, dropout_key(derive(self._adjacency.key, 3), draw)).view_as(x)
        if x.dim() != 2 or len(x) != self._adjacency.num_dst:
            return F.dropout(x, p)
        return self._adjacency.dropout(x, p, training=True, draw=draw)

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training or x.dim() != 2:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        out, seen = normalize(x, self._adjacency, eps)
        if seen.lasts:
            seen.remember(running_mean, running_var, momentum)
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(x.dtype)


def _in_messages() -> bool:
    """Returns whether a PyG layer is computing edge values."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if frame.f_code.co_name in _OF_EDGES:
            return hasattr(frame.f_locals.get("self"), "propagate")
        if frame.f_code.co_name == "forward" and hasattr(frame.f_locals.get("self"), "propagate"):
            return False
        frame = frame.f_back
    return False
