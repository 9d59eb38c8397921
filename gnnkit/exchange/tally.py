"""Counts the rows that exchanges move."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from gnnkit.spans import Spans, active

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
    "cut": "slice",
    "join": "slice",
    "replicate": "slice",
    "add_rows": "slice",
    "add_up": "slice",
    "hand_out": "slice",
    "fetch": "fetch",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One all-to-all, described alike on all ranks.

    A row is `heads * width` numbers. Only `width` is cut into slices. For "add_up" and
    "hand_out" a row is an edge.
    """

    kind: Kind
    layer: int
    width: int
    heads: int = 1
    itemsize: int = 0  # bytes of a number, before a codec. 0: not known yet

    @property
    def step(self) -> Step:
        """The name under which words are counted."""
        return _STEPS[self.kind]

    @property
    def to_owners(self) -> bool:
        """Whether rows go from holders to owners. Otherwise from owners to holders."""
        return self.kind in ("gather_back", "reduce")


@dataclass(eq=False)
class Tally:
    """The numbers that one rank received and sent since the last `reset`.

    A word is one number of a row. Words count what comes from other ranks, as the
    formulas do. Bytes count what goes to other ranks, as it is written on the wire.
    Messages are the pairs of (exchange, peer) that had rows to send.
    """

    words: dict[tuple[int, Step, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )  # (layer, step, peer rank)
    messages: dict[tuple[int, Step, int], int] = field(default_factory=lambda: defaultdict(int))  # sent, same keys
    bytes_sent: int = 0
    bytes_read: int = 0  # of features, from disk. Since this process began
    seconds: float = 0.0  # spent in exchanges, waiting included
    counting: bool = True
    spans: Spans | None = field(default_factory=active)  # of a trace

    def reset(self) -> None:
        """Sets all counts to zero."""
        self.words.clear()
        self.messages.clear()
        self.bytes_sent, self.seconds = 0, 0.0

    def state(self) -> dict[str, Any]:
        """Returns the counts as plain data for JSON."""
        words, messages = ([[*place, count] for place, count in tally.items()] for tally in (self.words, self.messages))
        return {"words": words, "messages": messages, "bytes_sent": self.bytes_sent, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on with the counts of `state`."""
        self.reset()
        for counts, rows in ((self.words, state["words"]), (self.messages, state["messages"])):
            counts.update({(layer, step, peer): count for layer, step, peer, count in rows})
        self.bytes_sent, self.seconds = state["bytes_sent"], state["seconds"]

    def include(self, earlier: Tally) -> None:
        """Adds the counts of another tally, of the same rank."""
        for totals, counts in ((self.words, earlier.words), (self.messages, earlier.messages)):
            for place, count in counts.items():
                totals[place] += count
        self.bytes_sent += earlier.bytes_sent
        self.seconds += earlier.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Counts nothing in its body, because evaluation is no part of an epoch."""
        before, self.counting = self.counting, False
        try:
            yield
        finally:
            self.counting = before

    def total(self, step: Step) -> int:
        """Adds up the words of all exchanges counted under one name."""
        return sum(words for (_, counted, _), words in self.words.items() if counted == step)

    def record(
        self,
        exchange: Exchange,
        me: int,
        peers: Sequence[int],
        sent: Sequence[int],
        received: Sequence[int],
        num_bytes: Sequence[int],
    ) -> None:
        """Adds one exchange.

        Args:
            exchange: Kind and layer.
            me: This rank, in the numbering of the run.
            peers: Ranks of the run that take part, this one among them.
            sent: Numbers sent to each of `peers`.
            received: Numbers received from each of `peers`.
            num_bytes: Bytes sent to each of `peers`.
        """
        for peer, out, into, size in zip(peers, sent, received, num_bytes, strict=True):
            if peer == me or not self.counting:
                continue
            if into:
                self.words[exchange.layer, exchange.step, peer] += into
            if out:
                self.messages[exchange.layer, exchange.step, peer] += 1
            self.bytes_sent += size

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of its body to `seconds`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.counting:
                end = time.perf_counter()
                self.seconds += end - start
                if self.spans is not None:
                    self.spans.add("exchange", "exchange", start, end)
