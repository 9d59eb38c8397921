"""Functions of torch that depend on the layout, replaced while a model is called."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.engine import Adjacency
from gnnkit.engine.adjacency import drawn
from gnnkit.kernels.dropout import derive, dropout
from gnnkit.nn import normalize

BATCH_NORMS = ("BatchNorm", "BatchNorm1d")  # that call F.batch_norm, by class name
_OF_EDGES = ("message", "edge_update")  # methods of PyG's MessagePassing that get values of edges


class ExactFunctions(TorchFunctionMode):
    """Dropout that follows from node ids, and batch statistics of all ranks.

    Serves F.dropout and F.batch_norm, and so the modules that call these. Dropout
    within the messages of a layer of PyG, such as dropped attention, follows from the
    ids of both ends. Dropout of any other tensor stays torch's.
    """

    def __init__(self, adjacency: Adjacency, edge_ids: Callable[[], Tensor | None]) -> None:
        """Keeps the parts.

        Args:
            adjacency: The edges of the pass.
            edge_ids: Numbers of the edges [num_edges] that a layer reads now.
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
        draw = next(self._draws)  # on all ranks, also where a tensor of edges has as many rows as there are nodes
        if not training or inplace or not 0 < p < 1:
            return F.dropout(x, p, training, inplace)
        if _in_messages():
            ids = self._edge_ids()
            if ids is None or len(ids) != len(x):
                return F.dropout(x, p)
            return dropout(x.reshape(len(x), -1), ids, p, drawn(derive(self._adjacency.key, 3), draw)).view_as(x)
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
    """Says whether a layer of PyG computes values of edges now."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if frame.f_code.co_name in _OF_EDGES:
            return hasattr(frame.f_locals.get("self"), "propagate")
        if frame.f_code.co_name == "forward" and hasattr(frame.f_locals.get("self"), "propagate"):
            return False
        frame = frame.f_back
    return False
