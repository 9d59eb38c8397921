"""Ranks that are processes, connected by torch's process groups."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gnnkit.comm.base import Communicator


class ProcessGroup(Communicator):
    """Base of the backends of `torch.distributed`. Each rank is a process."""

    backend: str
    is_process_group = True

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout: float) -> None:
        """Wraps a group of torch.

        Args:
            group: The group. This process is a member.
            device: Where this rank's tensors are.
            timeout: Deadline of every collective in seconds.
        """
        self.group, self.device, self.timeout = group, device, timeout
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    @classmethod
    def connect(
        cls, rank: int, world_size: int, *, device: torch.device, timeout: float, listener: socket.socket | None = None
    ) -> ProcessGroup:
        _leave_groups_of_parent()
        # A store that binds by itself listens on all interfaces, at any address given.
        deadline = timedelta(seconds=timeout)
        store = None
        if os.environ.get("GNNKIT_LOCAL"):
            store = dist.TCPStore(  # type: ignore[attr-defined]
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                world_size,
                rank == 0,
                deadline,
                wait_for_workers=False,
                master_listen_fd=listener.detach() if listener else None,
            )
        dist.init_process_group(cls.backend, store=store, rank=rank, world_size=world_size, timeout=deadline)
        # DDP and Lightning use the default group.
        group = dist.new_group(timeout=deadline)
        assert isinstance(group, dist.ProcessGroup)
        return cls(group, device, timeout)

    def split(self, ranks: Sequence[int]) -> ProcessGroup:
        members = [dist.get_global_rank(self.group, rank) for rank in ranks]
        group = dist.new_group(members, timeout=timedelta(seconds=self.timeout), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        return type(self)(group, self.device, self.timeout)

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        received = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        dist.all_to_all_single(received, rows, list(recv_counts), list(send_counts), group=self.group)
        return received

    def all_reduce(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=self.group)
        return x

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        dist.broadcast(x, dist.get_global_rank(self.group, src), group=self.group)
        return x

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


_of_parent: list[object] = []  # kept: a destructor would wait for threads that a fork lacks


def _leave_groups_of_parent() -> None:
    """Lets a process join ranks that was forked by a rank of other ones."""
    if dist.is_initialized():
        _of_parent.append(dist.distributed_c10d._world)
        dist.distributed_c10d._world = dist.distributed_c10d._World()
        torch._C._distributed_c10d._unregister_all_process_groups()


class Gloo(ProcessGroup):
    """Processes on CPUs. Works everywhere."""

    backend = "gloo"


class Nccl(ProcessGroup):
    """One process per GPU."""

    backend, device_type = "nccl", "cuda"
