"""Losses of link prediction, over edges followed by their negative pairs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LOSSES = ("cross_entropy", "bpr", "softmax")


def link_losses(name: str, scores: Tensor, labels: Tensor, negatives: int) -> Tensor:  # [k]
    """Computes pair losses. Their sum over k is the step's mean.

    `cross_entropy` classifies each pair. The other losses compare an edge with its
    negative pairs only: `bpr` with each of them (Rendle et al., UAI 2009), `softmax`
    with all of them at once. A group's loss counts for each of its pairs, and is
    returned in the edge's row, with zeros for its negative pairs.

    Args:
        name: One of `LOSSES`.
        scores: [k] scores of edges, then of the first edge's negative pairs, the
            second edge's, and so on, as from `supervised_pairs`.
        labels: [k] 1 for edges, else 0.
        negatives: Number of negative pairs per edge.
    """
    if name == "cross_entropy":
        return F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
    num_edges = len(scores) // (1 + negatives)
    edges, negative = scores[:num_edges, None], scores[num_edges:].view(num_edges, negatives)
    if name == "bpr":
        losses = F.softplus(negative - edges).mean(1)
    else:
        losses = torch.logsumexp(torch.cat([edges, negative], 1), 1) - edges[:, 0]
    return torch.cat([losses * (1 + negatives), torch.zeros_like(scores[num_edges:])])
