"""Counts what the exchange moves."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Step = Literal["slice", "gather", "reduce", "fetch"]  # unslicing counts as slice


@dataclass(eq=False)
class Tally:
    """What one rank received and sent since the last `reset`.

    A word is one number of a row; words count what is received from other ranks, as the formulas do, and bytes what is sent
    to them. Messages are the pairs of (exchange, peer) that had rows to send.
    """

    words: dict[tuple[int, Step, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )  # (layer, step, peer rank)
    messages: dict[tuple[int, Step, int], int] = field(default_factory=lambda: defaultdict(int))  # sent, same keys
    bytes_sent: int = 0
    seconds: float = 0.0  # spent in exchanges, waiting included
    counting: bool = True

    def reset(self) -> None:
        self.words.clear()
        self.messages.clear()
        self.bytes_sent, self.seconds = 0, 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Counts nothing in its body: evaluation is no part of an epoch."""
        before, self.counting = self.counting, False
        try:
            yield
        finally:
            self.counting = before

    def total(self, step: Step) -> int:
        """Words received in all exchanges of one kind."""
        return sum(words for (_, kind, _), words in self.words.items() if kind == step)

    def record(
        self,
        layer: int,
        step: Step,
        me: int,
        peers: Sequence[int],
        sent: Sequence[int],
        received: Sequence[int],
        itemsize: int,
    ) -> None:
        """Adds one exchange: numbers `sent` to and `received` from each of `peers` (ranks of the run)."""
        for peer, out, into in zip(peers, sent, received, strict=True):
            if peer == me or not self.counting:
                continue
            if into:
                self.words[layer, step, peer] += into
            if out:
                self.messages[layer, step, peer] += 1
                self.bytes_sent += out * itemsize

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of its body to `seconds`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.counting:
                self.seconds += time.perf_counter() - start
