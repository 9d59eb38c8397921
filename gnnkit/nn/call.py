"""Calls layers with or without the adjacency."""

from __future__ import annotations

from torch import Tensor, nn

from gnnkit.engine import Adjacency


def call(module: nn.Module, x: Tensor, adjacency: Adjacency) -> Tensor:
    """Calls a module on rows, with the adjacency if it `reads_adjacency`."""
    out: Tensor = module(x, adjacency) if getattr(module, "reads_adjacency", False) else module(x)
    return out
