"""Metrics of torchmetrics in a user's model, over all ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator


def join_metrics(model: nn.Module, comm: Communicator) -> None:
    """Lets every metric of a model compute over the states of all ranks.

    torchmetrics itself knows only the default group of torch.distributed, which ranks
    that are threads lack, and which servers are part of.

    Args:
        model: The model.
        comm: The workers.
    """
    for metric in metrics_of(model):
        metric.distributed_available_fn = functools.partial(bool, comm.world_size > 1)
        metric.dist_sync_fn = functools.partial(gather_everywhere, comm)


def metrics_of(model: nn.Module) -> Iterator[Any]:
    """Yields the metrics of torchmetrics within a model."""
    for part in model.modules():
        if hasattr(part, "dist_sync_fn") and hasattr(part, "distributed_available_fn"):
            yield part


def gather_everywhere(comm: Communicator, x: Tensor, group: Any = None) -> list[Tensor]:
    """Returns the tensors of all ranks on all ranks. Collective.

    Args:
        comm: The ranks.
        x: Tensor of this rank. The first dimension may differ between ranks.
        group: The group that torchmetrics names, not read.
    """
    rows = x.detach().reshape(1) if x.ndim == 0 else x.detach()
    counts = torch.zeros(comm.world_size, dtype=torch.int64, device=comm.device)
    counts[comm.rank] = len(rows)
    lengths: list[int] = comm.all_reduce(counts).tolist()
    sent = torch.cat([rows.to(comm.device)] * comm.world_size)
    received = comm.all_to_all(sent, [len(rows)] * comm.world_size, lengths).to(x.device)
    parts = torch.split(received, lengths)
    return [part[0] if x.ndim == 0 else part for part in parts]
