"""The group of ranks that exchange tensors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor

from gnnkit.comm.mailbox import Mailbox
from gnnkit.comm.sockets import SocketMailbox

Counts: TypeAlias = Sequence[int]  # [world_size] rows for each rank, or from each rank


class Pending(ABC):
    """An exchange that has started. Either `wait` or `borrow` completes it, once.

    Several exchanges may be in flight. All ranks complete them in the same order.
    Completion raises `RuntimeError` if a peer has exited or misses the communicator's
    deadline.
    """

    @abstractmethod
    def wait(self) -> Tensor:
        """Returns the received rows, ordered by sender, in a new tensor.

        Returns:
            [sum(recv_counts), ...]
        """

    @contextmanager
    def borrow(self) -> Iterator[Tensor]:
        """Lends the received rows, ordered by sender, to a `with` statement's body.

        The rows are contiguous and read-only. They may be in the sender's memory, which
        is reused after the body, so the body must not keep views of them. The default
        calls `wait`.
        """
        yield self.wait()


class Arrived(Pending):
    """An exchange that was complete when it started.

    The result of `Communicator.start` for a backend without asynchronous exchanges.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def wait(self) -> Tensor:
        return self._rows


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
        function: Callable[[Communicator], T],
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

    def sums_in_order(self) -> bool:
        """Returns whether `all_reduce` adds up in rank order. Collective.

        A sum then does not depend on the position of its numbers in `x`. DDP's
        gradients are summed by `all_reduce` in this case, and otherwise one by one by
        the process group. Default: False.
        """
        return False

    def all_gather(self, values: object, dtype: torch.dtype = torch.int64) -> Tensor:  # [world_size, ...]
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

    def gather_json(self, value: object, *, dst: int = 0) -> list[Any]:
        """Returns every rank's JSON value on rank `dst`, and an empty list elsewhere.

        The value of a rank that is lost is None.

        Args:
            value: A plain value.
            dst: The receiving rank.
        """
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(row.tolist() or b"null")) for row in self.gather(text.to(self.device), dst=dst)]

    def share(self, value: object, *, src: int = 0) -> Any:
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


def sum_in_order(rows: Iterable[Tensor]) -> Tensor:
    """Sums tensors of equal shape, one after the other."""
    first, *others = rows
    total = first.clone()
    for row in others:
        total += row
    return total
