"""Ranks that are processes, connected by torch.distributed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from gnnkit.comm.base import Communicator, Counts, Pending, sum_in_order
from gnnkit.comm.rendezvous import meeting, prove, report_absence
from gnnkit.comm.shared_memory import PIECE, SharedMemory
from gnnkit.utils.ranges import even_ranges


class ProcessGroup(Communicator):
    """Base class of `torch.distributed` backends. Each rank is a process."""

    backend: str
    is_process_group = True

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout: float) -> None:
        """Wraps a torch process group.

        Args:
            group: The process group, of which this process is a member.
            timeout: Deadline of every collective, in seconds.
        """
        self.group, self.device, self.timeout = group, device, timeout
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> ProcessGroup:
        _leave_groups_of_parent()
        try:
            return cls._connect(rank, world_size, device, timeout)
        except BaseException:
            _forget_groups()
            raise

    @classmethod
    def _connect(cls, rank: int, world_size: int, device: torch.device, timeout: float) -> ProcessGroup:
        deadline = timedelta(seconds=timeout)
        with contextlib.ExitStack() as stack:
            with report_absence(world_size, timeout):
                store = stack.enter_context(meeting(rank, world_size, timeout))
                dist.init_process_group(cls.backend, store=store, rank=rank, world_size=world_size, timeout=deadline)
            # DDP and Lightning use the default group.
            group = dist.new_group(timeout=deadline)
            assert isinstance(group, dist.ProcessGroup)
            assert dist.group.WORLD is not None
            # On GPUs, each use of a group takes memory.
            for process_group in (group, dist.group.WORLD) if device.type == "cpu" else (group,):
                prove(process_group, device)
        return cls(group, device, timeout)

    def split(self, ranks: Sequence[int]) -> ProcessGroup:
        members = [dist.get_global_rank(self.group, rank) for rank in ranks]
        group = dist.new_group(members, timeout=timedelta(seconds=self.timeout), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        prove(group, self.device)
        return type(self)(group, self.device, self.timeout)

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        return self.start(rows, send_counts, recv_counts).wait()

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        send_buffer = rows.detach() if index is None else rows.detach().index_select(0, index)
        recv_buffer = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        work = dist.all_to_all_single(
            recv_buffer, send_buffer, list(recv_counts), list(send_counts), group=self.group, async_op=True
        )
        assert work is not None
        return _Started(work, send_buffer, recv_buffer)

    def all_reduce(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=self.group)
        return x

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        dist.broadcast(x, dist.get_global_rank(self.group, src), group=self.group)
        return x

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class _Started(Pending):
    """An asynchronous torch collective."""

    def __init__(self, work: dist.Work, send_buffer: Tensor, recv_buffer: Tensor) -> None:
        self._work, self._send_buffer, self._recv_buffer = work, send_buffer, recv_buffer

    def wait(self) -> Tensor:
        self._work.wait()
        return self._recv_buffer


_of_parent: list[object] = []  # kept alive: a destructor would wait for threads that do not exist after a fork


def _leave_groups_of_parent() -> None:
    """Allows a process forked from another run's rank to join new ranks."""
    if dist.is_initialized():
        _of_parent.append(dist.distributed_c10d._world)
        dist.distributed_c10d._world = dist.distributed_c10d._World()
        torch._C._distributed_c10d._unregister_all_process_groups()


def _forget_groups() -> None:
    """Restarts the numbering of groups, so that ranks agree after a failed run."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.distributed_c10d._world.group_count = 0


class Gloo(ProcessGroup):
    """Processes on CPUs. Works everywhere.

    Rows are exchanged through shared memory within a host, and over TCP between hosts.
    Sums use shared memory if all ranks share a host.
    """

    backend = "gloo"
    shares_memory: ClassVar[bool] = True  # False: uses TCP within a host too

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout: float) -> None:
        super().__init__(group, device, timeout)
        self._memory: SharedMemory | None = None  # None if unavailable or not set up yet
        self._has_tried = not self.shares_memory
        self._ends: list[Callable[[], object]] = []  # close the shared memory of this group and its subgroups

    def split(self, ranks: Sequence[int]) -> Gloo:
        part = super().split(ranks)
        assert isinstance(part, Gloo)
        part._ends = self._ends
        return part

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        memory = self._shared_memory()
        if memory is None:
            return super().start(rows, send_counts, recv_counts, index=index)
        far = self._start_far(memory.far, rows, send_counts, recv_counts, index) if memory.far else None
        return memory.start(rows, send_counts, recv_counts, index, far)

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._by_pieces(x, self._sum) if self.sums_in_order() else super().all_reduce(x)

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        if not self.sums_in_order():
            return super().broadcast(x, src=src)

        def copy(numbers: Tensor) -> None:
            counts = [len(numbers) if rank == src else 0 for rank in range(self.world_size)]
            self._fill(numbers, numbers[: counts[self.rank]], counts)

        return self._by_pieces(x, copy)

    def _by_pieces(self, x: Tensor, write: Callable[[Tensor], None]) -> Tensor:
        """Calls a function that replaces numbers of `x`, for few of them at once."""
        numbers = x.detach().reshape(-1)
        for piece in torch.split(numbers, PIECE):
            write(piece)
        if numbers.data_ptr() != x.data_ptr():  # a copy of rows that are not contiguous
            x.detach().copy_(numbers.view_as(x))
        return x

    def _sum(self, numbers: Tensor) -> None:
        counts = [len(share) for share in even_ranges(len(numbers), self.world_size)]  # each rank sums a share
        parts = self.all_to_all(numbers, counts, [counts[self.rank]] * self.world_size)
        self._fill(numbers, sum_in_order(torch.split(parts, counts[self.rank])), counts)

    def _fill(self, numbers: Tensor, part: Tensor, counts: Counts) -> None:
        """Replaces numbers by all ranks' parts, of which `counts` are the sizes."""
        numbers.copy_(self.all_to_all(part.repeat(self.world_size), [len(part)] * self.world_size, counts))

    def sums_in_order(self) -> bool:
        memory = self._shared_memory()
        return memory is not None and not memory.far

    def close(self) -> None:
        for end in self._ends:
            end()
        super().close()

    def _start_far(
        self, far: Collection[int], rows: Tensor, send_counts: Counts, recv_counts: Counts, index: Tensor | None
    ) -> Pending:
        """Starts the part of an exchange with the ranks `far`."""
        goes, comes = ([n if rank in far else 0 for rank, n in enumerate(c)] for c in (send_counts, recv_counts))
        is_far = torch.tensor([rank in far for rank in range(self.world_size)])
        places = is_far.repeat_interleave(torch.tensor(send_counts)).nonzero()[:, 0]
        return super().start(rows, goes, comes, index=places if index is None else index[places])

    def _shared_memory(self) -> SharedMemory | None:
        """Returns the group's shared memory. Collective at first use."""
        if not self._has_tried:
            ranks = [dist.get_global_rank(self.group, rank) for rank in range(self.world_size)]
            self._memory = SharedMemory.open(self.rank, ranks, self._gather_bytes, self.timeout)
            self._has_tried = True
            if self._memory is not None:
                self._ends.append(weakref.finalize(self, self._memory.close))
        return self._memory

    def _gather_bytes(self, payload: bytes) -> list[bytes]:
        """Gathers bytes of equal length from all ranks. Collective."""
        ones = [1] * self.world_size
        row = torch.frombuffer(bytearray(payload), dtype=torch.uint8).repeat(self.world_size, 1)
        return [bytes(part.tolist()) for part in super().start(row, ones, ones).wait()]


class Nccl(ProcessGroup):
    """One process per GPU, which communicate through NCCL.

    Requires a GPU for each rank, and torch with CUDA.
    """

    backend, device_type = "nccl", "cuda"
