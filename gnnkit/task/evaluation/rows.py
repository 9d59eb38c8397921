"""Gathers all ranks' rows on the leader."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnkit.strategy import Worker


def by_node(rows: Tensor, worker: Worker) -> Tensor | None:  # [num_owned, ...] -> [num_nodes, ...]
    """Returns all nodes' rows in the dataset's order on the leader, None elsewhere.

    Collective.
    """
    nodes = worker.comm.gather(torch.tensor(np.asarray(worker.owned, np.int64), device=worker.device))
    parts = worker.comm.gather(rows)
    return torch.cat(parts)[torch.argsort(torch.cat(nodes))] if parts else None
