"""Makes a user's torchmetrics cover all ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator


def join_metrics(model: nn.Module, comm: Communicator) -> None:
    """Makes every metric of a model combine the states of all ranks.

    torchmetrics itself uses torch.distributed's default group, which ranks that are
    threads do not have, and which includes servers.

    Args:
        model: The model.
        comm: Connects the workers.
    """
    for metric in metrics_of(model):
        metric.distributed_available_fn = functools.partial(bool, comm.world_size > 1)
        metric.dist_sync_fn = functools.partial(gather_everywhere, comm)


def metrics_of(model: nn.Module) -> Iterator[Any]:
    """Yields a model's torchmetrics metrics."""
    for part in model.modules():
        if hasattr(part, "dist_sync_fn") and hasattr(part, "distributed_available_fn"):
            yield part


def gather_everywhere(comm: Communicator, x: Tensor, group: Any = None) -> list[Tensor]:
    """Returns all ranks' tensors on all ranks. Collective.

    Args:
        comm: Connects the ranks.
        x: This rank's tensor. The first dimension may differ between ranks.
        group: torchmetrics' process group, unused.
    """
    rows = x.detach().reshape(1) if x.ndim == 0 else x.detach()
    lengths: list[int] = comm.all_gather(len(rows)).tolist()
    copies = torch.cat([rows.to(comm.device)] * comm.world_size)
    all_rows = comm.all_to_all(copies, [len(rows)] * comm.world_size, lengths).to(x.device)
    parts = torch.split(all_rows, lengths)
    return [part[0] if x.ndim == 0 else part for part in parts]
