"""Replaces torch functions that depend on the layout while a model is called."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from lazyedges import Deferred, computed, written
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.engine import Adjacency
from gnnkit.engine.adjacency import dropout_key
from gnnkit.engine.pool import Pools
from gnnkit.kernels.dropout import derive, dropout
from gnnkit.model.edge_index import Reads
from gnnkit.nn import normalize

BATCH_NORMS = ("BatchNorm", "BatchNorm1d")  # class names of modules that call F.batch_norm
_OF_EDGES = ("message", "edge_update")  # methods of PyG's MessagePassing that receive edge values


class ExactFunctions(TorchFunctionMode):
    """Dropout keyed by node ids, and batch statistics over all ranks.

    Applies to F.dropout and F.batch_norm, and thus to modules that call them. Dropout
    within a PyG layer's messages, such as attention dropout, is keyed by both ends'
    ids. Dropout of other tensors remains torch's.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        reads: Reads,
        row_ids: Callable[[Tensor, int], Tensor | None] | None = None,
        pools: Pools | None = None,
    ) -> None:
        """Stores the arguments.

        Args:
            adjacency: The pass's edges.
            reads: The edges that a layer is reading.
            row_ids: Returns the node ids of rows [n, f] in the call of dropout with a
                number, None if they are not rows of nodes. Default: the rows of all
                nodes.
            pools: Returns the pools of batch statistics. Default: the adjacency.
        """
        super().__init__()
        self._pools = pools or adjacency
        self._adjacency, self._reads, self._draws = adjacency, reads, itertools.count()
        self._message_draws = (0, itertools.count())  # number of the read, and the draws since
        self._row_ids = row_ids or self._ids_of_all

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        target = written(func, args, kwargs)
        if target is not None and not isinstance(target, Deferred):
            self._reads.origin.before_write(target)
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if in_messages():
            return self._message_dropout(x, p, training, inplace)
        draw = next(self._draws)  # advances on all ranks
        if not training or inplace or not 0 < p < 1:
            return F.dropout(x, p, training, inplace)
        x = computed(x, "dropout")
        ids, self._reads.drew = self._row_ids(x, draw) if x.dim() == 2 else None, True
        return F.dropout(x, p) if ids is None else dropout(x, ids, p, dropout_key(self._adjacency.key, draw))

    def _message_dropout(self, x: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        """Applies dropout to edge values.

        Draws are numbered from the last read of rows, because a layer may draw nothing
        on a rank without edges.
        """
        if self._message_draws[0] != self._reads.count:
            self._message_draws = (self._reads.count, itertools.count())
        draw = next(self._message_draws[1])
        if not training or inplace or not 0 < p < 1:
            return F.dropout(x, p, training, inplace)
        ids = self._reads.edge_ids()
        if ids is None or len(ids) != len(x):
            return F.dropout(computed(x, "dropout"), p)
        self._reads.drew = True
        key = derive(self._adjacency.key, 3, self._reads.count, draw)
        if isinstance(x, Deferred) and x.meaning is not None:
            result = x.meaning.drop(x, ids, p, key)
            if result is not None:
                return result
        values = computed(x, "dropout")
        rows = values.reshape(len(values), math.prod(values.shape[1:]))  # without edges, -1 fails
        return dropout(rows, ids, p, key).view_as(values)

    def _ids_of_all(self, x: Tensor, draw: int) -> Tensor | None:
        adjacency = self._adjacency
        return adjacency.src_nodes[: len(x)] if len(x) == adjacency.num_dst else None

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
        out, batch_stats = normalize(x, self._pools, eps)
        if batch_stats.lasts:
            batch_stats.remember(running_mean, running_var, momentum)
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(x.dtype)


def in_messages() -> bool:
    """Returns whether a PyG layer is computing edge values."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if frame.f_code.co_name in _OF_EDGES:
            return hasattr(frame.f_locals.get("self"), "propagate")
        if frame.f_code.co_name == "forward" and hasattr(frame.f_locals.get("self"), "propagate"):
            return False
        frame = frame.f_back
    return False
