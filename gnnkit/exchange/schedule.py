"""How the rows of other ranks come in a pass over the graph."""

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
    """Decides how a rank gets the rows of others: now, later, in part, or not at all.

    One schedule lasts for a run, and serves one pass after another. All forward passes
    of a model make the same exchanges in the same order, and so do all backward passes.
    So (`transfer.backward`, `transfer.number`) names an exchange in every pass. All
    ranks decide alike whether they call `now`, `later` or `signal` of a transfer.
    """

    def begin(self, forward: ForwardPass) -> None:  # noqa: B027 - most have nothing to do
        """Called before the first exchange of a pass."""

    def check(self, operation: Operation) -> None:  # noqa: B027 - most serve all
        """Raises `UserError` for an operation of a layer that is not served.

        Called on all ranks, before the exchanges of the operation.
        """

    @abstractmethod
    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        """Returns the rows that a rank reads, in a new tensor. Collective.

        This rank's own rows must be the current ones (`transfer.with_own`).

        Args:
            transfer: The rows of the exchange.
            forward: The pass.

        Returns:
            [sum(transfer.recv), ...]
        """

    def keep(self, compute: Callable[[], Tensor], number: int, forward: ForwardPass) -> Tensor:
        """Returns `compute()`, or the result of an earlier pass. Collective.

        Args:
            compute: Exchanges exactly.
            number: Counts in the pass, together with the exchanges.
            forward: The pass.
        """
        return compute()

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs. Waits for rows that are on their way."""
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:  # noqa: B027 - most have none
        """Goes on from a state.

        Args:
            state: The state of this rank.
            device: Where rows are.
        """


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One pass of a model over the graph, and the backward pass after it.

    The default is exact: all rows come at once, to the bit.
    """

    schedule: Schedule | None = None  # None: all rows come at once
    codec: Codec | None = None  # None: rows travel as they are
    key: int = 0  # of all draws of the exchange
    exchanges: bool = True  # False: rows of other ranks are constants

    @cached_property
    def again(self) -> ForwardPass:
        """The pass for a second look at the same step, which is no part of training.

        The rows are exact, and the schedule learns nothing. A pass without exchange
        stays one.
        """
        return ForwardPass() if self.exchanges else ForwardPass(self.schedule, exchanges=False)


class Passes:
    """The current pass of an engine, and the number of the next exchange."""

    def __init__(self) -> None:
        self.current = ForwardPass()
        self._numbers = [0, 0]  # of the forward pass, of the backward pass
        self._plain = False

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange rows in the current pass."""
        return self.current.exchanges

    @property
    def exact(self) -> bool:
        """Whether the rows of the current pass come at once, as they are."""
        return self.current.schedule is None and self.current.codec is None

    def enter(self, forward: ForwardPass) -> None:
        """Makes `forward` the current pass. Called before each operation of a pass."""
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
        """Begins an exchange. Collective.

        Args:
            wire: The ranks of the exchange.
            rows: [sum(send), ...] by receiver. With `index`: any rows.
            send: Number of rows for each rank.
            recv: Number of rows from each rank.
            exchange: Kind and layer, for counting.
            ids: [sum(send)] global ids of the rows' nodes. None: `rows` are numbers.
            index: [sum(send)] int64, rows[index] travel. None: `rows` do.

        Returns:
            Waits for the rows [sum(recv), ...], as the current pass has them.
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
        """Returns `compute()`, exact, or an earlier result if the schedule says so."""
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
        """Lets rows travel as they are, where all holders need the same bits."""
        before, self._plain = self._plain, True
        try:
            yield
        finally:
            self._plain = before

    def _next(self, backward: bool) -> int:
        self._numbers[backward] += 1
        return self._numbers[backward] - 1
