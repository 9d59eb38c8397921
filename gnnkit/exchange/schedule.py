"""The schedule interface. Schedules deliver other ranks' rows in a pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

from gnnkit.comm import Arrived, Pending
from gnnkit.exchange.codecs import Codec
from gnnkit.exchange.tally import Exchange
from gnnkit.exchange.wire import Transfer, Wire
from gnnkit.kernels.dropout import derive

Operation = Literal["sum", "mean", "max", "weighted sum", "messages", "scores", "softmax", "halo", "relations"]
_tracker = ModuleTracker()


class Schedule(ABC):
    """Decides how a rank gets other ranks' rows: now, later, in part, or not at all.

    A schedule lives for a run and serves one pass after another. A model's forward
    passes all make the same exchanges in the same order, and so do its backward passes.
    (`transfer.backward`, `transfer.number`) therefore identifies an exchange in every
    pass. All ranks make the same choice of calling a transfer's `now`, `later` or
    `signal`.

    Examples:
        >>> from gnnkit.exchange import Schedule
        >>> class Every(Schedule):
        ...     '''Exchanges all rows in each pass.'''
        ...     def receive(self, transfer, forward):
        ...         return transfer.now()
    """

    def begin(self, forward: ForwardPass) -> None:  # noqa: B027 - most have nothing to do
        """Called before a pass's first exchange.

        A schedule that counts passes, or decides once for a pass, does so here.

        Args:
            forward: The pass that begins.
        """

    def check(self, operation: Operation) -> None:  # noqa: B027 - most serve all
        """Raises `UserError` if a layer's operation is unsupported.

        Called on all ranks, before the operation's exchanges.
        """

    @abstractmethod
    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        """Returns the rows that this rank reads, in a new tensor. Collective.

        This rank's own rows must be the current ones (`transfer.with_own`).

        Args:
            transfer: The exchange's rows.

        Returns:
            [sum(transfer.recv), ...]
        """

    def keep(self, compute: Callable[[], Tensor], number: int, forward: ForwardPass) -> Tensor:
        """Returns `compute()`, or its result in an earlier pass. Collective.

        Args:
            compute: Exchanges rows exactly.
            number: Position in the pass, counted together with the exchanges.
        """
        return compute()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as plain values and tensors.

        Waits for rows in flight, because they will not arrive in a resumed run.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:  # noqa: B027 - most have none
        """Restores the state."""


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One forward pass of a model over the graph, and the backward pass after it.

    The default is exact: all rows are sent, unencoded.
    """

    schedule: Schedule | None = None  # None: all rows are sent
    codec: Codec | None = None  # None: numbers are sent unencoded
    key: int = 0  # random key of the exchange
    exchanges: bool = True  # False: remote rows are constants

    @cached_property
    def again(self) -> ForwardPass:
        """The pass for evaluating a training step again, outside training.

        Its rows are exact, and the schedule's state does not change. A pass without an
        exchange remains without one.
        """
        return ForwardPass() if self.exchanges else ForwardPass(self.schedule, exchanges=False)


class Passes:
    """An engine's current pass, and the number of the next exchange."""

    def __init__(self) -> None:
        self.current = ForwardPass()
        self._numbers = [0, 0]  # forward, backward
        self._plain = False

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange rows in the current pass."""
        return self.current.exchanges

    @property
    def exact(self) -> bool:
        """Whether the current pass receives all rows, unencoded."""
        return self.current.schedule is None and self.current.codec is None

    def enter(self, forward: ForwardPass) -> None:
        """Makes `forward` the current pass. Called before each of its operations."""
        if forward is not self.current:
            self.current, self._numbers = forward, [0, 0]
            if forward.schedule is not None:
                forward.schedule.begin(forward)

    def start(
        self,
        wire: Wire,
        rows: Tensor,
        send: Sequence[int],
        recv: Sequence[int],
        exchange: Exchange,
        ids: Tensor | None,
        index: Tensor | None = None,
    ) -> Pending:
        """Starts an exchange. Collective.

        Args:
            wire: The ranks of the exchange.
            rows: [sum(send), ...] ordered by receiver. With `index`, in any order.
            send: Number of rows for each rank.
            recv: Number of rows from each rank.
            exchange: Kind and layer, for counting.
            ids: [sum(send)] the rows' global node ids. If None, `rows` are not node
                rows.
            index: [sum(send)] int64: sends rows[index]. If None, sends `rows`.

        Returns:
            Waits for the rows [sum(recv), ...] that the current pass delivers.
        """
        current, backward = self.current, _tracker.is_bw
        number = self._next(backward)
        key = derive(current.key, int(backward), number)
        codec = None if self._plain else current.codec
        if current.schedule is None:
            return Transfer(rows, send, recv, exchange, number, backward, key, wire, ids, codec, index).start()
        rows = rows if index is None else rows.index_select(0, index)
        transfer = Transfer(rows, send, recv, exchange, number, backward, key, wire, ids, codec)
        return Arrived(current.schedule.receive(transfer, current))

    def keep(self, compute: Callable[[], Tensor]) -> Tensor:
        """Returns `compute()`, exact, or an earlier result, as the schedule decides."""
        number, schedule = self._next(False), self.current.schedule

        def exactly() -> Tensor:
            current, numbers = self.current, self._numbers
            self.current, self._numbers = ForwardPass(), [0, 0]
            try:
                return compute()
            finally:
                self.current, self._numbers = current, numbers

        return exactly() if schedule is None else schedule.keep(exactly, number, self.current)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Sends rows unencoded within the context, for holders that need equal bits."""
        before, self._plain = self._plain, True
        try:
            yield
        finally:
            self._plain = before

    def _next(self, backward: bool) -> int:
        self._numbers[backward] += 1
        return self._numbers[backward] - 1
