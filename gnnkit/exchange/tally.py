"""Counters for exchanged rows."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from gnnkit.utils.documents import Json
from gnnkit.utils.spans import Spans, active

Step = Literal["slice", "gather", "reduce", "fetch"]  # unslicing counts as slice
Kind = Literal[
    "gather",
    "gather_back",
    "reduce",
    "reduce_back",
    "cut",
    "join",
    "replicate",
    "add_rows",
    "add_up",
    "hand_out",
    "fetch",
]

_STEPS: dict[Kind, Step] = {
    "gather": "gather",
    "gather_back": "reduce",
    "reduce": "reduce",
    "reduce_back": "gather",
    "fetch": "fetch",
}  # others count as slice


@dataclass(frozen=True, slots=True)
class Exchange:
    """One all-to-all, described identically on all ranks.

    A row has `heads * width` numbers, of which only `width` is sliced. For "add_up" and
    "hand_out", a row is an edge.
    """

    kind: Kind
    layer: int
    width: int
    heads: int = 1
    itemsize: int = 0  # bytes per number, before encoding. 0: unknown

    @property
    def step(self) -> Step:
        """The name under which its words are counted."""
        return _STEPS.get(self.kind, "slice")

    @property
    def to_owners(self) -> bool:
        """Whether rows are sent from holders to owners, not the other way."""
        return self.kind in ("gather_back", "reduce")


@dataclass(eq=False)
class Tally:
    """The numbers that one rank received and sent since the last `reset`.

    A word is one number in a row. Words count what was received from other ranks, as in
    the formulas. Bytes count what was sent to other ranks, after encoding. Messages
    count the pairs (exchange, peer) with rows to send.
    """

    words: dict[tuple[int, Step, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )  # (layer, step, peer rank)
    messages: dict[tuple[int, Step, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )  # sent, with the same keys
    bytes_sent: int = 0
    bytes_read: int = 0  # feature bytes read from disk since this process started
    seconds: float = 0.0  # time in exchanges, waiting included
    counting: bool = True
    clock: Callable[[], float] = field(default_factory=lambda: time.perf_counter)  # measures `seconds`
    spans: Spans | None = field(default_factory=active)  # for a trace

    def reset(self) -> None:
        """Resets all counters."""
        self.words.clear()
        self.messages.clear()
        self.bytes_sent, self.seconds = 0, 0.0

    def state(self) -> Json:
        """Returns the counters as JSON values."""
        words, messages = ([[*place, count] for place, count in tally.items()] for tally in (self.words, self.messages))
        return {"words": words, "messages": messages, "bytes_sent": self.bytes_sent, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the counters."""
        self.reset()
        for counts, rows in ((self.words, state["words"]), (self.messages, state["messages"])):
            counts.update({(layer, step, peer): count for layer, step, peer, count in rows})
        self.bytes_sent, self.seconds = state["bytes_sent"], state["seconds"]

    def include(self, earlier: Tally) -> None:
        """Adds the same rank's counters from another tally."""
        for totals, counts in ((self.words, earlier.words), (self.messages, earlier.messages)):
            for place, count in counts.items():
                totals[place] += count
        self.bytes_sent += earlier.bytes_sent
        self.seconds += earlier.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses counting within the context, such as for evaluation."""
        before, self.counting = self.counting, False
        try:
            yield
        finally:
            self.counting = before

    def total(self, step: Step) -> int:
        """Returns the words counted under one name."""
        return sum(words for (_, step_name, _), words in self.words.items() if step_name == step)

    def record(
        self,
        exchange: Exchange,
        me: int,
        peers: Sequence[int],
        num_sent: Sequence[int],
        num_received: Sequence[int],
        num_bytes: Sequence[int],
    ) -> None:
        """Counts one exchange.

        Args:
            exchange: Kind and layer.
            me: This rank, in the run's numbering.
            peers: The participating ranks, in the run's numbering.
            num_sent: Numbers sent to each peer.
            num_received: Numbers received from each peer.
            num_bytes: Bytes sent to each peer.
        """
        for peer, out, into, size in zip(peers, num_sent, num_received, num_bytes, strict=True):
            if peer == me or not self.counting:
                continue
            if into:
                self.words[exchange.layer, exchange.step, peer] += into
            if out:
                self.messages[exchange.layer, exchange.step, peer] += 1
            self.bytes_sent += size

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the context's duration to `seconds`."""
        start = self.clock()
        try:
            yield
        finally:
            if self.counting:
                end = self.clock()
                self.seconds += end - start
                if self.spans is not None:
                    self.spans.add("exchange", "exchange", start, end)
