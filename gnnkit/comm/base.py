"""The group of ranks that exchange tensors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gnnkit.comm.mailbox import Mailbox
from gnnkit.comm.pending import Arrived, Pending
from gnnkit.comm.sockets import SocketMailbox

T = TypeVar("T")


class Communicator(ABC):
    """A group of ranks.

    Every method is collective over the group: all ranks call the method, in the same
    order. Only `close` is not collective.

    Nothing waits for ever. A peer that is gone, or does not come within the deadline,
    raises `RuntimeError` on the other ranks.

    Autograd must not trace `all_to_all`, `start`, `all_reduce` and `broadcast`, because
    the exchange has a separate backward pass.
    """

    device_type: ClassVar[str] = "cpu"  # "cuda": every rank needs a GPU
    in_threads: bool = False  # True: ranks are threads. `run` starts the threads
    beside: frozenset[int] = frozenset()  # ranks of this group in this process, where ranks are threads
    is_process_group: bool = False  # True: the ranks are the default group of torch.distributed
    goes_on: ClassVar[bool] = False  # True: collectives leave out ranks that are gone
    rank: int  # within this group
    world_size: int
    device: torch.device
    timeout: float = 120.0  # seconds, the deadline of everything that waits for peers

    @classmethod
    @abstractmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Communicator:
        """Joins the ranks of the run. Every process of a rank calls this method.

        The environment says where ranks meet, see `gnnkit.comm.rendezvous`.

        Args:
            rank: This rank.
            world_size: Number of ranks.
            device: Where this rank's tensors are.
            timeout: Deadline in seconds of everything that waits for peers.
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

        Only where `in_threads`.

        Args:
            function: The work of each rank.
            world_size: Number of ranks.
            timeout: Deadline in seconds of everything that waits for peers.
            among: Letters between the processes that call this method. Closed at the
                end. Default: this process is the only one.

        Returns:
            Results of the ranks of this process, which are
            `even_ranges(world_size, among.world_size)[among.rank]`.
        """
        raise NotImplementedError(f"{cls.__name__} does not make its ranks itself")

    @abstractmethod
    def split(self, ranks: Sequence[int]) -> Communicator:
        """Makes the group of some ranks. Only these ranks call this method.

        `ranks` are ascending ranks of this group, this rank among them.
        """

    @abstractmethod
    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        """Sends rows to every rank and returns the rows received, ordered by sender.

        Args:
            rows: Contiguous, [sum(send_counts), ...]. Rows for rank 0 come first.
            send_counts: Number of rows for each rank, [world_size].
            recv_counts: Number of rows from each rank, [world_size].

        Returns:
            [sum(recv_counts), ...]
        """

    def start(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        index: Tensor | None = None,
    ) -> Pending:
        """Begins an exchange that ends later. The rank may compute meanwhile.

        All ranks begin and end the same exchanges in the same order. The rows stay
        unchanged until the exchange has ended. The default is `all_to_all`.

        Args:
            rows: The rows, by receiver if there is no `index`.
            send_counts: Number of rows for each rank, [world_size].
            recv_counts: Number of rows from each rank, [world_size].
            index: [sum(send_counts)] int64. The rows sent are `rows[index]`, gathered
                where they travel. Default: `rows` are sent as they are.
        """
        sent = rows if index is None else rows.detach().index_select(0, index)
        return Arrived(self.all_to_all(sent, send_counts, recv_counts))

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Sums `x` over the ranks in place, to equal bits on all ranks. Returns `x`."""

    @abstractmethod
    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        """Overwrites `x` in place with the `x` of rank `src`. Returns `x`."""

    def end_of_sum(self, num_bytes: int) -> float:
        """Begins a sum that torch makes itself, beside `all_reduce`. Not collective.

        Returns the moment of `time.monotonic` before which the sum is not over. 0, and
        so no moment, without a simulated link.

        Args:
            num_bytes: Size of what is added up on this rank.
        """
        return 0.0

    def gather(self, x: Tensor, *, dst: int = 0) -> list[Tensor]:
        """Returns every rank's `x` by rank on rank `dst`, and nothing on other ranks.

        Args:
            x: [n, ...], where n may differ between ranks.
            dst: Rank that receives. Default: 0.
        """
        counts = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        counts[self.rank] = len(x)
        lengths = self.all_reduce(counts).tolist()
        here = self.rank == dst
        received = self.all_to_all(
            x.contiguous(),
            [len(x) if rank == dst else 0 for rank in range(self.world_size)],
            lengths if here else [0] * self.world_size,
        )
        return list(torch.split(received, lengths)) if here else []

    def share(self, value: Any, *, src: int = 0) -> Any:
        """Returns the JSON value of rank `src` on all ranks."""
        text = json.dumps(value).encode() if self.rank == src else b""
        length = self.broadcast(torch.tensor([len(text)], device=self.device), src=src)
        buffer = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        if self.rank == src:
            buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        return json.loads(bytes(self.broadcast(buffer, src=src).tolist()))

    def mailbox(self) -> Mailbox:
        """Makes a mailbox for messages between two ranks.

        The methods of the mailbox are not collective. The default opens further TCP
        connections. A random token keeps strangers out.
        """
        return SocketMailbox.open(self)

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Lets go of connections. The communicator is not used afterwards."""
