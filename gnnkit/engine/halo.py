"""Rows last received: what iterations without exchange read in place of rows of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

_tracker = ModuleTracker()


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPass:
    """One pass of a model over the graph, and the backward pass after it."""

    local: bool = False  # rows of other ranks are those last received, as constants
    remember: bool = False  # later passes may want what this one receives


class Halo:
    """What was last received, in the order of the exchanges of a forward pass: all passes of a model make the same ones."""

    def __init__(self) -> None:
        self._current = ForwardPass()
        self.received: list[Tensor] = []
        self._position = 0

    @property
    def local(self) -> bool:
        """Whether the current pass is one without exchange."""
        return self._current.local

    def enter(self, forward: ForwardPass) -> None:
        """Called before each operation of a pass; the first one of a new pass starts from the first exchange."""
        if forward is not self._current:
            self._current, self._position = forward, 0

    def exchange(
        self, move: Callable[[], Tensor], rows: Tensor, send: Sequence[int], recv: Sequence[int], me: int
    ) -> Tensor:
        """What `move()` receives. Without exchange, `rows` that rank `me` sends to itself among those last received or, in a
        backward pass, among zeros; rows that were never received are moved now."""
        if _tracker.is_bw:
            return (
                self._own(rows, rows.new_zeros((sum(recv), *rows.shape[1:])), send, recv, me) if self.local else move()
            )
        if not (self._current.local or self._current.remember):
            return move()
        position, self._position = self._position, self._position + 1
        if self.local and position < len(self.received):
            return self._own(rows, self.received[position].clone(), send, recv, me)
        received = move()
        self.received[position : position + 1] = [received.detach().clone()]
        return received

    def keep(self, compute: Callable[[], Tensor]) -> Tensor:
        """`compute()`, exchanges and all; without exchange, what it was when last computed."""
        if not (self._current.local or self._current.remember):
            return compute()
        position, self._position = self._position, self._position + 1
        if self.local and position < len(self.received):
            return self.received[position]
        current, self._current = self._current, ForwardPass()
        value = compute()
        self._current = current
        self.received[position : position + 1] = [value]
        return value

    @staticmethod
    def _own(rows: Tensor, received: Tensor, send: Sequence[int], recv: Sequence[int], me: int) -> Tensor:
        first, last = sum(recv[:me]), sum(recv[: me + 1])
        received[first:last] = rows[sum(send[:me]) : sum(send[: me + 1])]
        return received
