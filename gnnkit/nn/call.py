"""Calls layers with or without the adjacency."""

from __future__ import annotations

from torch import Tensor, nn

from gnnkit.engine import Adjacency


def call(module: nn.Module, x: Tensor, adjacency: Adjacency) -> Tensor:
    """Calls a module on rows, with the adjacency if it `reads_adjacency`.

    Lets a model hold torch's modules and gnnkit's in one list: `gnnkit.nn.BatchNorm`
    and `gnnkit.nn.Dropout` declare `reads_adjacency`, torch's modules take rows only.

    Examples:
        >>> import torch
        >>> from gnnkit.nn import call
        >>> call(torch.nn.ReLU(), torch.tensor([[-1.0, 2.0]]), adjacency=None)
        tensor([[0., 2.]])
    """
    out: Tensor = module(x, adjacency) if getattr(module, "reads_adjacency", False) else module(x)
    return out
