"""PyG's aggregations that pad rows to the largest in-degree, here over all ranks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency

_ORDERED = ("LSTMAggregation", "GRUAggregation", "LCMAggregation", "MLPAggregation", "PatchTransformerAggregation")
_LENGTH = "max_num_elements"  # parameter of an aggregation's `forward`


def ordered_layer(model: object) -> str | None:
    """Returns the class of a layer that reads in-edges in their order, or None."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return next((type(part).__name__ for part in parts if type(part).__name__ in _ORDERED), None)


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
    is_aggregation = "Aggregation" in (base.__name__ for base in type(part).__mro__)
    return is_aggregation and _LENGTH in inspect.signature(part.forward).parameters


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
