"""Asynchronous exchanges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

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
