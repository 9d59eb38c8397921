"""Decoders, which score a node pair from two embeddings."""

from __future__ import annotations

from torch import Tensor, nn


def dot(outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
    """Scores embedding pairs by their dot product."""
    return (outputs[..., 0, :] * outputs[..., 1, :]).sum(-1)


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
