"""Rows and counts of all ranks, joined at the leader."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.storage import write_atomically
from gnnkit.strategy import Worker


def by_node(rows: Tensor, worker: Worker) -> Tensor | None:  # [num_owned, ...] -> [num_nodes, ...]
    """Returns the rows of all nodes in the data set's order, on the leader.

    Collective. Returns None on other ranks.
    """
    nodes = worker.comm.gather(torch.tensor(np.asarray(worker.owned, np.int64), device=worker.device))
    parts = worker.comm.gather(rows)
    return torch.cat(parts)[torch.argsort(torch.cat(nodes))] if parts else None


def write_rows(path: Path, rows: Tensor, worker: Worker) -> None:
    """Writes the rows of all nodes as `.npy`, in the data set's order.

    Collective. The leader writes.

    Args:
        path: The file.
        rows: [num_owned, ...] of this rank's nodes.
        worker: This rank.
    """
    joined = by_node(rows, worker)
    if joined is not None:
        buffer = io.BytesIO()
        np.save(buffer, joined.cpu().numpy(), allow_pickle=False)
        write_atomically(path, buffer.getvalue())


def all_ranks(counts: Mapping[str, int], worker: Worker) -> dict[str, Any]:
    """Returns the largest count of all ranks by name, and all counts under `per_rank`.

    Collective.
    """
    table = torch.zeros(worker.comm.world_size, len(counts), dtype=torch.int64, device=worker.device)
    table[worker.comm.rank] = torch.tensor(list(counts.values()))
    columns = dict(zip(counts, worker.comm.all_reduce(table).t().tolist(), strict=True))
    return {**{name: max(values) for name, values in columns.items()}, "per_rank": columns}
