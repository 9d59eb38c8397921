"""The group of ranks that exchange tensors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gnnkit.comm.mailbox import Mailbox
from gnnkit.comm.pending import Arrived, Counts, Pending
from gnnkit.comm.sockets import SocketMailbox

LEADER = 0  # rank that decides for the others, and through which some collectives pass
T = TypeVar("T")


class Communicator(ABC):
    """A group of ranks that exchange tensors.

    Every method except `close` is collective: all ranks of the group call it, in the
    same order. Every wait has a deadline. When a peer has exited or misses the
    deadline, the other ranks raise `RuntimeError`.

    Autograd must not trace `all_to_all`, `start`, `all_reduce` and `broadcast`, because
    the exchange implements its own backward pass.

    Derive from it to support another network or library: five methods are abstract,
    and the others have defaults that use these. A run creates it from `comm=NAME`; your
    own code gets it as `Worker.comm`.

    Examples:
        >>> import torch
        >>> from gnnkit.comm.threads import Threads
        >>> def add_ranks(comm):
        ...     return int(comm.all_reduce(torch.tensor([comm.rank])))
        >>> Threads.run(add_ranks, 3, timeout=60)  # on 3 ranks, which are threads
        [3, 3, 3]
    """

    device_type: ClassVar[str] = "cpu"  # "cuda": every rank needs a GPU
    in_threads: bool = False  # True: ranks are threads, which `run` starts
    beside: frozenset[int] = frozenset()  # this group's ranks that are threads of this process
    is_process_group: bool = False  # True: the ranks form torch.distributed's default group
    goes_on: ClassVar[bool] = False  # True: collectives skip ranks that have exited
    rank: int  # within this group
    world_size: int
    device: torch.device
    timeout: float = 120.0  # deadline of every wait for a peer, in seconds

    @classmethod
    def check_keys(cls) -> None:
        """Raises `UserError` for wrong values of the section `comm`'s keys.

        A subclass with keys of its own has them as parameters here and in `connect`, or
        in `run` if its ranks are threads.
        """
        del cls

    @classmethod
    @abstractmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Communicator:
        """Connects this process to the other ranks. Every rank's process calls it.

        The rendezvous address comes from the environment, see `gnnkit.comm.rendezvous`.
        A subclass may have further parameters, which are keys of the section `comm`.

        Args:
            timeout: Deadline of every wait for a peer, in seconds.
        """

    @classmethod
    def run(
        cls,
        function: Callable[[Any], T],
        world_size: int,
        *,
        timeout: float,
        among: Mailbox | None = None,
    ) -> list[T]:
        """Runs `function(communicator)` on ranks that are threads.

        Available only if `in_threads`.

        Args:
            function: Runs once on each rank.
            timeout: Deadline of every wait for a peer, in seconds.
            among: Connects the processes that call this method, and is closed at the
                end. Default: this is the only process.

        Returns:
            The results of this process's ranks, a range from `even_ranges`.
        """
        raise NotImplementedError(f"{cls.__name__} does not start its ranks itself")

    @abstractmethod
    def split(self, ranks: Sequence[int]) -> Communicator:
        """Creates a subgroup. Only its members call this method.

        `ranks` are ascending ranks of this group and include this rank.
        """

    @abstractmethod
    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        """Sends rows to every rank and returns the received rows, ordered by sender.

        Args:
            rows: [sum(send_counts), ...], contiguous, ordered by receiver.
            send_counts: [world_size] number of rows sent to each rank.
            recv_counts: [world_size] number of rows received from each rank.

        Returns:
            [sum(recv_counts), ...]
        """

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        """Starts an asynchronous exchange, which overlaps with computation.

        All ranks start and complete the same exchanges in the same order. `rows` must
        not change until the exchange completes. The default implementation is
        synchronous.

        Args:
            rows: The rows to send, ordered by receiver unless `index` is given.
            send_counts: [world_size] number of rows sent to each rank.
            recv_counts: [world_size] number of rows received from each rank.
            index: [sum(send_counts)] int64. Sends `rows[index]`, gathered directly into
                the send buffer. Default: sends `rows`.
        """
        send_buffer = rows if index is None else rows.detach().index_select(0, index)
        return Arrived(self.all_to_all(send_buffer, send_counts, recv_counts))

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Sums `x` over the ranks in place, bitwise equal on all ranks.

        Args:
            x: A tensor of equal shape and dtype on all ranks.

        Returns:
            `x`.
        """

    @abstractmethod
    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        """Overwrites `x` in place with the `x` of rank `src`.

        Args:
            x: A tensor of equal shape and dtype on all ranks.
            src: The sending rank.

        Returns:
            `x`.
        """

    def end_of_sum(self, num_bytes: int) -> float:
        """Accounts for a sum that torch computes itself, such as DDP's. Not collective.

        Returns the earliest end of the sum by `time.monotonic` on a simulated link, and
        0 without one.

        Args:
            num_bytes: Bytes that this rank contributes.
        """
        return 0.0

    def all_gather(self, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:  # [world_size, ...]
        """Returns the numbers of all ranks.

        Args:
            values: This rank's numbers, of the same shape on all ranks.
            dtype: Type of the result. Default: int64.
        """
        numbers = torch.as_tensor(values, dtype=dtype, device=self.device)
        table = numbers.new_zeros(self.world_size, *numbers.shape)
        table[self.rank] = numbers
        return self.all_reduce(table)

    def gather(self, x: Tensor, *, dst: int = 0) -> list[Tensor]:
        """Returns every rank's `x` on rank `dst`, and an empty list on other ranks.

        Args:
            x: [n, ...], where n may differ between ranks.
            dst: The receiving rank.
        """
        lengths = self.all_gather(len(x)).tolist()
        is_receiver = self.rank == dst
        rows = self.all_to_all(
            x.contiguous(),
            [len(x) if rank == dst else 0 for rank in range(self.world_size)],
            lengths if is_receiver else [0] * self.world_size,
        )
        return list(torch.split(rows, lengths)) if is_receiver else []

    def share(self, value: Any, *, src: int = 0) -> Any:
        """Returns the JSON value of rank `src` on all ranks.

        For decisions that one rank makes for the others. Tensors go through
        `broadcast`, which does not encode them as text.

        Args:
            value: A plain value. Only that of rank `src` is read.
            src: The rank that decides.
        """
        text = json.dumps(value).encode() if self.rank == src else b""
        length = self.broadcast(torch.tensor([len(text)], device=self.device), src=src)
        buffer = torch.frombuffer(bytearray(text.ljust(int(length))), dtype=torch.uint8).to(self.device)
        return json.loads(bytes(self.broadcast(buffer, src=src).tolist()))

    def mailbox(self) -> Mailbox:
        """Creates a mailbox for point-to-point messages.

        A mailbox's methods are not collective. The default opens additional TCP
        connections, authenticated by a random token.
        """
        return SocketMailbox.open(self)

    def close(self) -> None:  # noqa: B027 - most hold no connections
        """Closes connections. The communicator cannot be used any more.

        Unlike the other methods, it is not collective.
        """
