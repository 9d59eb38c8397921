"""PyG's normalisations over all ranks' nodes. PyG does not have to be installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from gnnkit.engine.pool import Pools
from gnnkit.errors import UserError
from gnnkit.kernels.sums import wide
from gnnkit.nn import normalize

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


def _mean_subtraction(_norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
    return x - _mean(x, adjacency)


def _graph_size_norm(_norm: Any, x: Tensor, adjacency: Pools) -> Tensor:
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
