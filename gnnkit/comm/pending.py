"""Exchanges that have begun and end later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class Pending(ABC):
    """An exchange that has begun. Either `wait` or `borrow` ends the exchange, once.

    All ranks end their exchanges in the same order. Several may be under way. Raises a
    `RuntimeError` where a peer is gone, or does not come within the deadline of the
    communicator.
    """

    @abstractmethod
    def wait(self) -> Tensor:
        """Returns the rows received, ordered by sender, in a new tensor.

        Returns:
            [sum(recv_counts), ...]
        """

    @contextmanager
    def borrow(self) -> Iterator[Tensor]:
        """Lends the rows received, ordered by sender, for the body of a `with`.

        The rows are contiguous, and only read. They may lie in memory of the sender,
        who writes other rows there after the body. So the body keeps no view of them.
        The default is `wait`.
        """
        yield self.wait()


class Arrived(Pending):
    """An exchange that had ended when it began."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def wait(self) -> Tensor:
        return self._rows
