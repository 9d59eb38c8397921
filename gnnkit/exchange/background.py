"""Rows that travel while the rank computes."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from gnnkit.comm import Communicator
from gnnkit.spans import Spans, active, span

T = TypeVar("T")
_Job = tuple[Callable[[Communicator], Any], Future[Any]]


class Background:
    """One thread that carries rows in order, over a communicator of its own.

    All ranks hand in the same exchanges in the same order. After an error every later
    exchange has the same error. The thread ends with `close`, or with this object, and
    never keeps the interpreter from exiting. Nobody hands in without bound: whoever
    hands in an exchange waits for an older one first.
    """

    def __init__(self, comm: Communicator) -> None:
        """Starts the thread. Collective, as the communicator is a new one."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        own_comm = comm.split(range(comm.world_size))
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, own_comm, active()), name="exchange", daemon=True
        )
        self._thread.start()
        self._timeout = comm.timeout
        self._end = weakref.finalize(self, self._jobs.put, None)

    def submit(self, carry: Callable[[Communicator], T]) -> Future[T]:
        """Calls `carry(communicator)` later. The future holds the rows or the error."""
        future: Future[T] = Future()
        self._jobs.put((carry, future))
        return future

    def ahead(self, work: Iterable[Callable[[Communicator], T]], count: int) -> Iterator[T]:
        """Gives results in order. At most `count` more are under way.

        Where nobody takes the rest, all ranks drop the same results.
        """
        pending: deque[Future[T]] = deque()
        for carry in work:
            pending.append(self.submit(carry))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def close(self) -> None:
        """Ends the thread after the exchanges handed in, or at the deadline."""
        self._end()
        self._thread.join(self._timeout)


def _work(jobs: queue.SimpleQueue[_Job | None], comm: Communicator, spans: Spans | None) -> None:
    failed: BaseException | None = None
    while (job := jobs.get()) is not None:
        carry, future = job
        if failed is None:
            try:
                with span(spans, "background exchange", "carry"):
                    rows = carry(comm)
                future.set_result(rows)
                del rows
            except BaseException as error:  # raised again where the rows are waited for
                failed = error
        if failed is not None:
            future.set_exception(failed)
        del job, carry, future  # rows that nobody waits for any more are let go
