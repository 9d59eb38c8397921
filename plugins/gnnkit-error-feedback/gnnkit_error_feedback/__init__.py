"""Few bits a number, whose rounding errors do not add up over epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnnkit.exchange import Codec, ForwardPass, RowExchange, Schedule, Transfer, codec
from gnnkit.ranges import one_of


class ErrorFeedback(RowExchange):
    """Quantised rows and gradients with error feedback.

    What a row loses by rounding is added to the row that is sent in the same exchange
    of the next epoch. So over epochs the mean of what arrives is that of what was sent.
    EF-SGD does the same to gradients (Karimireddy et al., ICML 2019).
    """

    keeps_state = True

    def __init__(self, bits: int = 2) -> None:
        """Checks the number of bits: 16, 8, 4 or 2."""
        self.bits = one_of("exchange.bits", bits, (16, 8, 4, 2))

    def schedule(self) -> Schedule:
        return _Residues()

    def codec(self) -> Codec | None:
        return codec(self.bits)


class _Residues(Schedule):
    """What rounding has left of the rows last sent, by direction and exchange."""

    def __init__(self) -> None:
        self._left: dict[tuple[bool, int], Tensor] = {}  # [rows to other ranks, ...]

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        others, place = transfer.others(), (transfer.backward, transfer.number)
        rows = others.rows + self._left.get(place, 0)
        sent = others.part(rows, others.send, others.recv, others.ids)
        left = rows - sent.as_read()
        self._left[place] = torch.where(left.isfinite(), left, 0)  # a step left out leaves no trace
        return transfer.with_own(sent.now())

    def state_dict(self) -> dict[str, Any]:
        return {"left": [[*place, rows] for place, rows in self._left.items()]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._left = {(backward, number): rows.to(device) for backward, number, rows in state["left"]}
