"""Functions of torch that depend on the layout, replaced while a model is called."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.engine import Adjacency
from gnnkit.nn import normalize

BATCH_NORMS = ("BatchNorm", "BatchNorm1d")  # that call F.batch_norm, by class name


class ExactFunctions(TorchFunctionMode):
    """Dropout that follows from node ids, and batch statistics of all ranks.

    Serves F.dropout and F.batch_norm, and so the modules that call these. Dropout of
    tensors that are no rows of nodes, such as attention over edges, stays torch's.
    """

    def __init__(self, adjacency: Adjacency) -> None:
        super().__init__()
        self._adjacency, self._draws = adjacency, itertools.count()

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
        if not training or inplace or not 0 < p < 1 or x.dim() != 2 or len(x) != self._adjacency.num_dst:
            return F.dropout(x, p, training, inplace)
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
