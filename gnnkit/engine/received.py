"""Rows last received, which iterations without exchange read instead of new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

_tracker = ModuleTracker()


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPass:
    """One pass of a model over the graph, and the backward pass after it."""

    exchanges: bool = True  # False: rows of other ranks are constants, as last received
    remember: bool = False  # True: later passes may read what this pass receives


class Received:
    """The rows last received, in the order of the exchanges of a forward pass.

    All forward passes of a model make the same exchanges in the same order.
    """

    def __init__(self) -> None:
        self._current = ForwardPass()
        self.rows: list[Tensor] = []  # of each exchange
        self._position = 0

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange rows in the current pass."""
        return self._current.exchanges

    def enter(self, forward: ForwardPass) -> None:
        """Makes `forward` the current pass. A new pass starts at the first exchange.

        Called before each operation of a pass.
        """
        if forward is not self._current:
            self._current, self._position = forward, 0

    def exchange(
        self, move: Callable[[], Tensor], rows: Tensor, send: Sequence[int], recv: Sequence[int], me: int
    ) -> Tensor:
        """Exchanges rows by calling `move()`.

        In a pass without exchange, returns the rows last received, or zeros in the
        backward pass. This rank's own rows are the current ones. The first pass always
        exchanges.

        Args:
            move: Sends `rows` and returns [sum(recv), ...].
            rows: [sum(send), ...] rows to send, by receiver.
            send: Number of rows for each rank.
            recv: Number of rows from each rank.
            me: This rank.
        """
        if _tracker.is_bw:
            if self.exchanges:
                return move()
            return self._with_own(rows, rows.new_zeros((sum(recv), *rows.shape[1:])), send, recv, me)
        if self.exchanges and not self._current.remember:
            return move()
        position, self._position = self._position, self._position + 1
        if not self.exchanges and position < len(self.rows):
            return self._with_own(rows, self.rows[position].clone(), send, recv, me)
        received = move()
        self.rows[position : position + 1] = [received.detach().clone()]
        return received

    def keep(self, compute: Callable[[], Tensor]) -> Tensor:
        """Returns `compute()`, or the last result in a pass without exchange."""
        if self.exchanges and not self._current.remember:
            return compute()
        position, self._position = self._position, self._position + 1
        if not self.exchanges and position < len(self.rows):
            return self.rows[position]
        current, self._current = self._current, ForwardPass()
        value = compute()
        self._current = current
        self.rows[position : position + 1] = [value]
        return value

    @staticmethod
    def _with_own(rows: Tensor, received: Tensor, send: Sequence[int], recv: Sequence[int], me: int) -> Tensor:
        first, last = sum(recv[:me]), sum(recv[: me + 1])
        received[first:last] = rows[sum(send[:me]) : sum(send[: me + 1])]
        return received
