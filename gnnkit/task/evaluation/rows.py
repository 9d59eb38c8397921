"""Joins all ranks' rows by node: on the leader, or columns on each rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gnnkit.graph import Ids
from gnnkit.partition import column_shares
from gnnkit.strategy import Worker


def by_node(rows: Tensor, worker: Worker) -> Tensor | None:  # [num_owned, ...] -> [num_nodes, ...]
    """Returns all nodes' rows in the dataset's order on the leader, and None elsewhere.

    Collective. Use it for tables of predictions, which the leader writes.

    Args:
        rows: [num_owned, ...] this rank's rows, in the order of `Worker.owned`.
        worker: This rank's part of the run.
    """
    return _join_rows(rows, worker.owned, worker)


def by_row(rows: Tensor, worker: Worker) -> Tensor | None:  # [num_targets, ...] -> [num_rows, ...]
    """Like `by_node`, for the rows that the task predicts. Collective."""
    return _join_rows(rows, worker.targets.ids, worker)


def _join_rows(rows: Tensor, ids: Ids, worker: Worker) -> Tensor | None:
    numbers = worker.comm.gather(_as_tensor(ids, worker))
    parts = worker.comm.gather(rows)
    return torch.cat(parts)[torch.argsort(torch.cat(numbers))] if parts else None


def columns_by_row(
    rows: Tensor, ids: Ids, worker: Worker
) -> Iterator[tuple[int, Tensor]]:  # [k, width] -> [num_rows] each
    """Yields this rank's columns with their numbers, in the dataset's order of rows.

    Collective, so every rank must read all of its columns. The columns are divided into
    ranges as in slices (`column_shares`). Each rank holds one joined column at a time.

    Args:
        rows: [k, width] values of this rank's rows.
        ids: [k] numbers of these rows.
        worker: This rank.
    """
    comm, shares = worker.comm, column_shares(rows.shape[1], worker.comm.world_size)
    firsts, row_ids = np.cumsum(shares) - shares, _as_tensor(ids, worker)
    counts = comm.all_gather(len(row_ids)).tolist()
    nodes = comm.all_to_all(row_ids.repeat(comm.world_size), [len(row_ids)] * comm.world_size, counts)
    for index in range(shares[0]):
        takes = shares > index  # [world_size] whether a rank takes a column in this round
        columns = rows[:, torch.from_numpy(firsts[takes] + index)].T.reshape(-1)
        values = comm.all_to_all(columns, (takes * len(row_ids)).tolist(), [int(takes[comm.rank]) * n for n in counts])
        if takes[comm.rank]:
            column = torch.empty_like(values)
            column[nodes] = values
            yield int(firsts[comm.rank]) + index, column


def meet(worker: Worker) -> None:
    """Waits for all ranks. Collective."""
    worker.comm.all_reduce(torch.zeros(1, device=worker.device))


def _as_tensor(ids: Ids, worker: Worker) -> Tensor:  # [k] int64
    return torch.tensor(np.asarray(ids, np.int64), device=worker.device)
