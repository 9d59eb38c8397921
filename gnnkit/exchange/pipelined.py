"""Stale rows: an epoch's exchange overlaps with the next epoch's computation."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from gnnkit.exchange.base import ForwardPass, RowExchange, Schedule
from gnnkit.exchange.wire import Transfer
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, share, whole


class Pipelined(RowExchange):
    """Uses an earlier epoch's rows (PipeGCN: Wan et al., ICLR 2022).

    Unlike PipeGCN, rows that a rank reads late are constants: their gradients, which
    would arrive later still, are not sent.
    """

    keeps_state = True
    needs_in_edges = True
    every_epoch = True

    def __init__(self, staleness: int = 1, smoothing: float = 0.0) -> None:
        """Checks the arguments.

        Args:
            staleness: Number of epochs between sending and reading. 0 is exact without
                smoothing.
            smoothing: Weight of the previous average, in [0, 1).
        """
        self.staleness = whole("exchange.staleness", staleness, 0, MAX_COUNT)
        self.smoothing = share("exchange.options.smoothing", smoothing)
        self.exact = staleness == smoothing == 0

    def costs(self) -> str:
        age = f"stale by up to {self.staleness} epochs" + (", and moving averages" if self.smoothing else "")
        return "" if self.exact else approximate("exchange=pipelined", f"rows of other workers are {age}")

    def schedule(self) -> Schedule:
        return PipelinedRows(self.staleness, self.smoothing)


class PipelinedRows(Schedule):
    """Delivers an earlier pass's rows.

    Pass t reads other ranks' rows from pass max(t - staleness, 0). Pass 0 waits for its
    own. Later passes read rows that had `staleness` passes to arrive. No gradient of
    other ranks' rows is sent: late ones did more harm than late rows. Staleness 0 is
    exact. With `smoothing` g, a pass reads the moving average g *
    average + (1 - g) * received.
    """

    def __init__(self, staleness: int = 1, smoothing: float = 0.0) -> None:
        """Stores the arguments.

        Args:
            staleness: Number of passes between sending and reading, at least 0.
            smoothing: Weight of the previous average, in [0, 1).
        """
        self.staleness, self.smoothing = staleness, smoothing
        self._lines: dict[int, _Line] = {}  # by exchange number

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        if transfer.backward:
            return transfer.own_alone() if self.staleness else transfer.now()
        line = self._lines.setdefault(transfer.number, _Line(deque(maxlen=self.staleness + 1)))
        return transfer.with_own(line.take(transfer, self.smoothing))

    def state_dict(self) -> dict[str, object]:
        return {"lines": [[number, *line.state()] for number, line in self._lines.items()]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._lines = {
            number: _Line.of(coming, average, self.staleness, device) for number, coming, average in state["lines"]
        }


class _Line:
    """One exchange's rows in flight, and the average of received rows."""

    def __init__(self, coming: deque[Future[Tensor]], average: Tensor | None = None) -> None:
        self._coming, self._average = coming, average  # oldest first

    @classmethod
    def of(cls, coming: list[Tensor], average: Tensor | None, staleness: int, device: torch.device) -> _Line:
        queue: deque[Future[Tensor]] = deque(maxlen=staleness + 1)
        for rows in coming:
            queue.append(Future())
            queue[-1].set_result(rows.to(device))
        return cls(queue, None if average is None else average.to(device))

    def state(self) -> tuple[list[Tensor], Tensor | None]:
        """Waits for the rows in flight, and returns them and the average."""
        return [rows.result() for rows in self._coming], self._average

    def take(self, transfer: Transfer, smoothing: float) -> Tensor:
        """Sends the current rows, and returns the oldest ones or the average."""
        oldest = self._coming[0] if self._coming else None
        self._coming.append(transfer.later())  # evicts the oldest rows if full
        rows = transfer.wait(self._coming[0])
        if smoothing == 0:
            return rows
        if self._average is None:
            self._average = rows.clone()
        elif self._coming[0] is not oldest:
            mean = smoothing * self._average + (1 - smoothing) * rows
            self._average = torch.where(mean.isfinite(), mean, rows)  # discards rows of a skipped step
        return self._average
