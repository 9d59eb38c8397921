"""Exchanges that overlap with computation."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from gnnkit.comm import Communicator
from gnnkit.utils.spans import Spans, active, span

T = TypeVar("T")
_Job = tuple[Callable[[Communicator], Any], Future[Any]]


class Background:
    """A thread that runs exchanges in order, over its own communicator.

    All ranks submit the same exchanges in the same order. After an error, all later
    exchanges raise it too. The thread stops on `close` or when this object is deleted,
    and does not keep the interpreter from exiting. To bound memory, callers wait for an
    earlier exchange before submitting the next one.
    """

    def __init__(self, comm: Communicator) -> None:
        """Starts the thread. Collective, because it creates a communicator."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        own_comm = comm.split(range(comm.world_size))
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, own_comm, active()), name="exchange", daemon=True
        )
        self._thread.start()
        self._timeout = comm.timeout
        self._end = weakref.finalize(self, self._jobs.put, None)

    def submit(self, carry: Callable[[Communicator], T]) -> Future[T]:
        """Schedules `carry(communicator)`. The future holds its result or its error."""
        future: Future[T] = Future()
        self._jobs.put((carry, future))
        return future

    def ahead(self, work: Iterable[Callable[[Communicator], T]], count: int) -> Iterator[T]:
        """Yields results in order, running at most `count` exchanges ahead.

        If the iteration is abandoned, all ranks discard the same results.
        """
        pending: deque[Future[T]] = deque()
        for carry in work:
            pending.append(self.submit(carry))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def close(self) -> None:
        """Stops the thread after the submitted exchanges, or at the deadline."""
        self._end()
        self._thread.join(self._timeout)


def _work(jobs: queue.SimpleQueue[_Job | None], comm: Communicator, spans: Spans | None) -> None:
    failure: BaseException | None = None
    while (job := jobs.get()) is not None:
        carry, future = job
        if failure is None:
            try:
                with span(spans, "background exchange", "carry"):
                    rows = carry(comm)
                future.set_result(rows)
                del rows
            except BaseException as error:  # raised by the future's `result`
                failure = error
        if failure is not None:
            future.set_exception(failure)
        del job, carry, future  # releases rows that are not awaited
