"""Quantised rows with error feedback, so that rounding errors do not accumulate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnnkit.exchange import Codec, ForwardPass, RowExchange, Schedule, Transfer, codec
from gnnkit.utils.ranges import one_of


class ErrorFeedback(RowExchange):
    """Quantises rows and gradients with error feedback.

    A row's rounding error is added to the row sent in the same exchange of the next
    epoch. Over epochs, the received rows have the same mean as the sent rows. EF-SGD
    applies this to gradients (Karimireddy et al., ICML 2019).
    """

    keeps_state = True

    def __init__(self, bits: int = 2) -> None:
        """Checks the number of bits: 16, 8, 4 or 2."""
        self.bits = one_of("exchange.bits", bits, (16, 8, 4, 2))

    def schedule(self) -> Schedule:
        return _ErrorFeedbackSchedule()

    def codec(self) -> Codec | None:
        return codec(self.bits)


class _ErrorFeedbackSchedule(Schedule):
    """Stores the rounding errors of the last sent rows, by direction and exchange."""

    def __init__(self) -> None:
        self._errors: dict[tuple[bool, int], Tensor] = {}  # [rows to other ranks, ...]

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        peers, place = transfer.others(), (transfer.backward, transfer.number)
        rows = peers.rows + self._errors.get(place, 0)
        part = peers.part(rows, peers.send, peers.recv, peers.ids)
        error = rows - part.as_read()
        self._errors[place] = torch.where(error.isfinite(), error, 0)  # ignores skipped steps
        return transfer.with_own(part.now())

    def state_dict(self) -> dict[str, Any]:
        return {"left": [[*place, rows] for place, rows in self._errors.items()]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._errors = {(backward, number): rows.to(device) for backward, number, rows in state["left"]}
