"""Begin and end of what a rank does, for a trace of the run. Off unless asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

LIMIT = 20_000  # spans of one rank. Later ones are counted and left out

Span = tuple[str, str, float, float]  # track, name, seconds of the monotonic clock at begin and end


@dataclass(eq=False)
class Spans:
    """What one rank did and when. Any thread may add."""

    limit: int = LIMIT
    kept: list[Span] = field(default_factory=list)
    dropped: int = 0

    def add(self, track: str, name: str, begin: float, end: float) -> None:
        """Adds a span.

        Args:
            track: Row of the trace, such as `exchange`.
            name: What was done.
            begin: Seconds, as `time.perf_counter` counts.
            end: The same.
        """
        if len(self.kept) < self.limit:
            self.kept.append((track, name, begin, end))
        else:
            self.dropped += 1


_active: ContextVar[Spans | None] = ContextVar("spans", default=None)


def record(limit: int = LIMIT) -> Spans:
    """Begins a record of this rank, which is a process or a thread."""
    spans = Spans(limit)
    _active.set(spans)
    return spans


def active() -> Spans | None:
    """Returns the record of this rank. None: nothing is recorded.

    What works on other threads asks when it is made, on the rank's own thread.
    """
    return _active.get()


def stop() -> None:
    """Ends the record of this rank. What was made meanwhile goes on adding."""
    _active.set(None)


@contextmanager
def span(spans: Spans | None, track: str, name: str) -> Iterator[None]:
    """Adds the time of its body to a record, if there is one.

    Args:
        spans: The record, from `active`.
        track: Row of the trace.
        name: What is done.
    """
    if spans is None:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        spans.add(track, name, begin, time.perf_counter())
