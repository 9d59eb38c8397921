"""What moves tensors between ranks."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gnnkit.comm.mailbox import Mailbox
from gnnkit.comm.sockets import SocketMailbox

T = TypeVar("T")


class Communicator(ABC):
    """A group of ranks. Every method is collective over the group: all its ranks call it, in the same order.

    Nothing waits for ever: a peer that does not come within the deadline, or is gone, raises `RuntimeError` on the others.
    `all_to_all`, `all_reduce` and `broadcast` must not be traced by autograd: the exchange differentiates for itself.
    """

    device_type: ClassVar[str] = "cpu"  # "cuda": every rank needs a GPU
    in_one_process: ClassVar[bool] = False  # True: ranks are threads, which `run` starts
    is_process_group: ClassVar[bool] = (
        False  # True: torch.distributed is initialised, and its default group has the ranks
    )
    rank: int  # within this group
    world_size: int
    device: torch.device
    timeout: float = 120.0  # seconds, the deadline of everything that waits for peers

    @classmethod
    @abstractmethod
    def connect(
        cls, rank: int, world_size: int, *, device: torch.device, timeout: float, listener: socket.socket | None = None
    ) -> Communicator:
        """Joins the run's ranks, whose processes all call it; `timeout` in seconds is the deadline of everything later.

        Address and port of a meeting point stand in MASTER_ADDR and MASTER_PORT. Where gnnkit started the ranks, rank 0 brings
        the `listener`, a listening socket on loopback.
        """

    @classmethod
    def run(cls, function: Callable[[Any], T], world_size: int, *, timeout: float) -> list[T]:
        """Runs `function(communicator)` on ranks that are threads, and returns their results by rank.

        Only where `in_one_process`.
        """
        raise NotImplementedError(f"{cls.__name__} does not make its ranks itself")

    @abstractmethod
    def split(self, ranks: Sequence[int]) -> Communicator:
        """The group of those ranks (of this group's numbering, ascending, this rank among them). Only they call it."""

    @abstractmethod
    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        """Sends the first `send_counts[0]` rows to rank 0, the next `send_counts[1]` to rank 1, and so on.

        Returns the `sum(recv_counts)` rows received, ordered by their sender. `rows` is contiguous, [sum(send_counts), ...].
        """

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Sums `x` over the ranks in place, to the same bits on all of them; returns it."""

    @abstractmethod
    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        """Overwrites `x` in place with that of rank `src`; returns it."""

    def gather(self, x: Tensor, *, dst: int = 0) -> list[Tensor]:
        """On rank `dst` every rank's `x`, in the order of ranks; elsewhere nothing. Lengths may differ, the rest of the shape not."""
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
        """Rank `src`'s value, which JSON can hold, on all ranks."""
        text = json.dumps(value).encode() if self.rank == src else b""
        length = self.broadcast(torch.tensor([len(text)], device=self.device), src=src)
        buffer = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        if self.rank == src:
            buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        return json.loads(bytes(self.broadcast(buffer, src=src).tolist()))

    def mailbox(self) -> Mailbox:
        """Makes a mailbox for messages between two ranks. Collective, unlike the mailbox's own methods.

        The default sends over TCP connections of its own, with a random token.
        """
        return SocketMailbox.open(self)

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Lets go of connections. Not collective; the communicator is not used afterwards."""
