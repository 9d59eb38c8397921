"""From the embeddings of two nodes to the score of a pair."""

from __future__ import annotations

from torch import Tensor, nn


def dot(outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
    """Scores pairs of embeddings by their dot product."""
    return (outputs[..., 0, :] * outputs[..., 1, :]).sum(-1)


class ProductMLP(nn.Module):
    """Scores pairs by two linear layers on the elementwise product of the embeddings.

    The score of a pair is that of the reverse pair, as in the examples of OGB.
    """

    def __init__(self, width: int) -> None:
        """Draws the parameters from torch's generator.

        Args:
            width: Numbers of an embedding, and of the hidden layer.
        """
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
        """Scores pairs of embeddings."""
        scores: Tensor = self.layers(outputs[..., 0, :] * outputs[..., 1, :])
        return scores.squeeze(-1)
