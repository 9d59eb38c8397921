"""Replaces functions of torch and PyG that depend on the layout, in a model's call.

PyG does not have to be installed, because its classes are recognised by name.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lazyedges import Deferred, computed, written
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency
from gnnkit.engine.adjacency import dropout_key
from gnnkit.engine.pool import Pools
from gnnkit.errors import UserError
from gnnkit.kernels.dropout import derive, dropout
from gnnkit.kernels.sums import wide
from gnnkit.model.edge_index import RowReads
from gnnkit.nn import normalize

BATCH_NORMS = ("BatchNorm", "BatchNorm1d")  # class names of modules that call F.batch_norm
_WHOLE_GRAPH = (
    "BatchNorm", "BatchNorm1d", "SyncBatchNorm", "HeteroBatchNorm", "InstanceNorm", "InstanceNorm1d", "GraphNorm",
    "GraphSizeNorm", "PairNorm", "MeanSubtractionNorm", "DiffGroupNorm",
)  # fmt: skip
_ORDERED = ("LSTMAggregation", "GRUAggregation", "LCMAggregation", "MLPAggregation", "PatchTransformerAggregation")
_LENGTH = "max_num_elements"  # parameter of an aggregation's `forward`
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
        reads: RowReads,
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


def inherits(module: nn.Module, *names: str) -> bool:
    """Checks for base classes by name, because PyG need not be installed."""
    return any(base.__name__ in names for base in type(module).__mro__)


def is_convolution(module: nn.Module) -> bool:
    """Returns whether a module is one of PyG's `MessagePassing`."""
    return inherits(module, "MessagePassing")


def ordered_layer(model: object) -> str | None:
    """Returns the class of a layer that reads in-edges in their order, or None."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return next((type(part).__name__ for part in parts if type(part).__name__ in _ORDERED), None)


def reads_whole_graph(module: nn.Module) -> bool:
    """Returns whether a module computes statistics over rows, which differ per rank."""
    if getattr(module, "reads_adjacency", False):
        return False
    return inherits(module, *_WHOLE_GRAPH) or (
        inherits(module, "LayerNorm") and getattr(module, "mode", "node") == "graph"
    )


@contextmanager
def shared_padding(module: nn.Module, adjacency: Adjacency) -> Iterator[None]:
    """Makes a module's aggregations pad rows equally on all ranks, within the context.

    A recurrent aggregation also reads the padding, so its result depends on the length.

    Args:
        module: This rank's module.
        adjacency: The pass's edges.
    """
    comm = None if adjacency.alone else adjacency.pool(0).comm
    with ExitStack() as hooks:
        for part in module.modules():
            if comm is not None and _pads(part):
                hooks.callback(part.register_forward_pre_hook(_Length(comm), with_kwargs=True).remove)
        yield


def _pads(part: nn.Module) -> bool:
    return inherits(part, "Aggregation") and _LENGTH in inspect.signature(part.forward).parameters


class _Length:
    """Passes the largest number of rows of a group on any rank to an aggregation."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __call__(self, part: nn.Module, args: Any, keys: Any) -> tuple[Any, Any]:
        index = keys.get("index", args[1] if len(args) > 1 else None)
        if not isinstance(index, Tensor) or keys.get(_LENGTH) is not None:
            return args, keys
        rows = index.detach().as_subclass(Tensor)
        longest = torch.bincount(rows).max() if len(rows) else 0
        extra = int(type(part).__name__ == "PatchTransformerAggregation")  # it adds 1 itself, before it rounds down
        return args, {**keys, _LENGTH: int(self._comm.all_gather(longest).max()) + extra}


_Norm = Callable[[Any, Tensor, Pools], Tensor]


def _mean(x: Tensor, adjacency: Pools) -> Tensor:  # [num_rows, f] -> [f]
    return adjacency.pool(len(x)).mean(x)[0]


def _graph_norm(norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
    out = x - _mean(x, adjacency) * norm.mean_scale
    return norm.weight * out / (_mean(out.square(), adjacency) + norm.eps).sqrt() + norm.bias  # type: ignore[no-any-return]


def _pair_norm(norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
    x = x - _mean(x, adjacency)
    if norm.scale_individually:
        return norm.scale * x / (norm.eps + x.norm(2, -1, keepdim=True))  # type: ignore[no-any-return]
    squares = x.square().sum(1, keepdim=True)
    return norm.scale * x / (norm.eps + _mean(squares, adjacency)).sqrt()  # type: ignore[no-any-return]


def _layer_norm(norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
    """Normalises by one mean and deviation over all elements of all nodes."""
    x = x - _mean(x.mean(1, keepdim=True), adjacency)
    out: Tensor = x / (_mean(x.square().mean(1, keepdim=True), adjacency).sqrt() + norm.eps)
    return out if norm.weight is None else out * norm.weight + norm.bias


def _layer_norm_by_batch(norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
    """As `_layer_norm`, with epsilon where PyG adds it if it gets a batch."""
    x = x - _mean(x.mean(1, keepdim=True), adjacency)
    out: Tensor = x / (_mean(x.square().mean(1, keepdim=True), adjacency) + norm.eps).sqrt()
    return out if norm.weight is None else out * norm.weight + norm.bias


def _instance_norm(norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
    if norm.training or not norm.track_running_stats:
        out, batch_stats = normalize(x, adjacency, norm.eps)
        if batch_stats.lasts:
            batch_stats.remember(norm.running_mean, norm.running_var, norm.momentum)
    else:
        out = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return out if norm.weight is None else out * norm.weight + norm.bias


def _mean_subtraction(_norm: object, x: Tensor, adjacency: Pools) -> Tensor:
    return x - _mean(x, adjacency)


def _graph_size_norm(_norm: object, x: Tensor, adjacency: Pools) -> Tensor:
    return x / adjacency.pool(len(x)).mean(x)[1].clamp(min=1).sqrt()


_NORMS: dict[str, _Norm] = {  # by class name
    "GraphNorm": _graph_norm,
    "PairNorm": _pair_norm,
    "LayerNorm": _layer_norm,
    "InstanceNorm": _instance_norm,
    "MeanSubtractionNorm": _mean_subtraction,
    "GraphSizeNorm": _graph_size_norm,
}
NORMS = (*_NORMS, "DiffGroupNorm")  # DiffGroupNorm calls F.batch_norm


@contextmanager
def exact_norms(module: nn.Module, adjacency: Pools) -> Iterator[None]:
    """Makes a module's normalisations cover all ranks' nodes, within the context.

    Args:
        module: This rank's module.
        adjacency: Connects to the other ranks.
    """
    norms = [part for part in module.modules() if type(part).__name__ in _NORMS and _over_nodes(part)]
    for part in norms:
        vars(part)["forward"] = _Served(part, adjacency)
    try:
        yield
    finally:
        for part in norms:
            del vars(part)["forward"]


def _over_nodes(part: nn.Module) -> bool:
    of_pyg = type(part).__module__.startswith("torch_geometric.")
    return of_pyg and getattr(part, "mode", "graph") == "graph"


class _Served:
    """A normalisation's replaced `forward` in one pass."""

    def __init__(self, norm: nn.Module, adjacency: Pools) -> None:
        self._norm, self._adjacency = norm, adjacency

    def __call__(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        name = type(self._norm).__name__
        if batch is not None and bool(batch.any()):
            pool = self._adjacency.pool(len(x))
            if pool.comm is None or pool.comm.world_size == 1:
                return type(self._norm).forward(self._norm, x, batch, batch_size)  # type: ignore[no-any-return]
            raise UserError(
                f"model: {name} gets a batch of several graphs, and all nodes are one graph: leave it out, or use workers=1"
            )
        by_batch = batch is not None and name == "LayerNorm"
        function = _layer_norm_by_batch if by_batch else _NORMS[name]
        return function(self._norm, x.to(wide(x.dtype)), self._adjacency).to(x.dtype)
