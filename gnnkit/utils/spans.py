"""Start and end times of a rank's activities, for a trace. Disabled by default."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

LIMIT = 20_000  # maximum number of spans per rank. Later ones are only counted

Span = tuple[str, str, float, float]  # track, name, start and end in seconds of the monotonic clock


@dataclass(eq=False)
class Spans:
    """The activities of one rank. Thread-safe."""

    limit: int = LIMIT
    kept: list[Span] = field(default_factory=list)
    dropped: int = 0

    def add(self, track: str, name: str, begin: float, end: float) -> None:
        """Adds a span.

        Args:
            track: Row of the trace, such as `exchange`.
            begin: Start, by `time.perf_counter`.
            end: End, likewise.
        """
        if len(self.kept) < self.limit:
            self.kept.append((track, name, begin, end))
        else:
            self.dropped += 1


_active: ContextVar[Spans | None] = ContextVar("spans", default=None)


def record(limit: int = LIMIT) -> None:
    """Starts to record this rank, which is a process or a thread."""
    _active.set(Spans(limit))


def active() -> Spans | None:
    """Returns this rank's record, or None if nothing is recorded.

    Objects that work in other threads must call this on the rank's own thread.
    """
    return _active.get()


def stop() -> None:
    """Stops recording this rank. Objects that hold the record continue to add to it."""
    _active.set(None)


@contextmanager
def span(spans: Spans | None, track: str, name: str) -> Iterator[None]:
    """Adds the context's duration to a record, if there is one.

    Args:
        spans: The record, from `active`.
        track: Row of the trace.
    """
    if spans is None:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        spans.add(track, name, begin, time.perf_counter())
