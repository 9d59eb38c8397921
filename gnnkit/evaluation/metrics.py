"""The quality of predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnkit.strategy import Worker

SPLITS = ("train", "val", "test")


def accuracies(logits: Tensor, worker: Worker) -> dict[str, float]:
    """Counts the share of right answers in each split, over all ranks.

    Splits without labelled nodes are left out. Collective.

    Args:
        logits: [num_owned, num_classes] of this rank's nodes.
        worker: The rank, whose shard holds labels and splits.
    """
    labels = torch.tensor(worker.shard.labels, dtype=torch.int64, device=worker.device)
    split = torch.tensor(worker.shard.split, device=worker.device)
    right = (logits.argmax(1) == labels) & (labels >= 0)
    counts = torch.zeros(2, len(SPLITS), dtype=torch.int64, device=worker.device)
    for index in range(len(SPLITS)):
        members = (split == index + 1) & (labels >= 0)
        counts[0, index], counts[1, index] = (right & members).sum(), members.sum()
    hits, totals = worker.comm.all_reduce(counts).tolist()
    return {name: hit / total for name, hit, total in zip(SPLITS, hits, totals, strict=True) if total}
