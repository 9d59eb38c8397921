"""The last received rows, which are read in passes without an exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnnkit.exchange.schedule import ForwardPass, Operation, Schedule
from gnnkit.exchange.wire import Transfer


class LastReceived(Schedule):
    """Stores received rows, which passes without an exchange read as constants.

    Their gradients are then zero. The first pass always exchanges. In passes with an
    exchange, another schedule applies.
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        """Stores the schedule for passes with an exchange, or None to send all rows."""
        self._schedule = schedule
        self._rows: list[Tensor] = []  # by number of the exchange, or of the stored value

    def begin(self, forward: ForwardPass) -> None:
        if self._schedule is not None:
            self._schedule.begin(forward)

    def check(self, operation: Operation) -> None:
        if self._schedule is not None:
            self._schedule.check(operation)

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        if transfer.backward:
            return self._new(transfer, forward) if forward.exchanges else transfer.own_alone()
        if not forward.exchanges and transfer.number < len(self._rows):
            return transfer.with_own(self._rows[transfer.number])
        rows = self._new(transfer, forward)
        self._store(transfer.number, transfer.without_own(rows.detach()))
        return rows

    def keep(self, compute: Callable[[], Tensor], number: int, forward: ForwardPass) -> Tensor:
        if forward.exchanges or number >= len(self._rows):
            self._store(number, compute())
        return self._rows[number]

    def state_dict(self) -> dict[str, Any]:
        state = {} if self._schedule is None else {"schedule": self._schedule.state_dict()}
        return {"received": self._rows, **state}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._rows = [rows.to(device) for rows in state["received"]]
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"], device)

    def _new(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        return transfer.now() if self._schedule is None else self._schedule.receive(transfer, forward)

    def _store(self, number: int, rows: Tensor) -> None:
        self._rows[number : number + 1] = [rows]
