"""Decoders, which score a node pair from two embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

_PIECE = 2**11  # pairs at a time


def dot(outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
    """Scores embedding pairs by their dot product."""
    sources, destinations = outputs.unbind(-2)  # one gradient of both, where two indices would make two
    return (sources * destinations).sum(-1)


class PairDots(Function):
    """Scores pairs [k, 2] of rows [n, width] by dot products, on a CPU.

    Pairs are processed in pieces that stay in the cache. Copies of all pairs' rows
    would take several times as long, most of it for memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor) -> Tensor:  # [k]
        ctx.save_for_backward(x, pairs)
        return torch.cat([
            torch.linalg.vecdot(x.index_select(0, source), x.index_select(0, destination))
            for source, destination in (piece.unbind(1) for piece in torch.split(pairs, _PIECE))
        ])  # fmt: skip

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, pairs = ctx.saved_tensors
        total = torch.zeros_like(x)
        for piece, factor in zip(torch.split(pairs, _PIECE), torch.split(grad[:, None], _PIECE), strict=True):
            for one, other in (piece.unbind(1), piece.flip(1).unbind(1)):
                total.index_add_(0, one, x.index_select(0, other) * factor)
        return total, None


def score_all(sources: Tensor, items: Tensor, head: nn.Module | None) -> Tensor:  # [b, num_items]
    """Scores all items for each source.

    Args:
        sources: [b, width] embeddings.
        items: [num_items, width] embeddings.
        head: The decoder. None: dot products.
    """
    if head is None:
        return sources @ items.t()
    shape = len(sources), len(items), -1
    scores: Tensor = head(torch.stack([sources[:, None].expand(shape), items[None].expand(shape)], 2))
    return scores


class ProductMLP(nn.Module):
    """Scores pairs by a two-layer MLP on the embeddings' elementwise product.

    As in OGB's examples, a pair and its reverse have the same score.
    """

    def __init__(self, width: int) -> None:
        """Initialises the parameters from torch's generator.

        Args:
            width: Embedding size, and size of the hidden layer.
        """
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
        """Scores embedding pairs."""
        scores: Tensor = self.layers(outputs[..., 0, :] * outputs[..., 1, :])
        return scores.squeeze(-1)
