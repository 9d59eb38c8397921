"""Decoders, which score a node pair from two embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def dot(outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
    """Scores embedding pairs by their dot product."""
    sources, destinations = outputs.unbind(-2)  # one gradient of both, where two indices would make two
    return (sources * destinations).sum(-1)


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
