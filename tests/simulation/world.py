"""Virtual time: tasks that run one at a time, in an order that a seed decides.

A task is a thread, because real code runs in it. It gives way only where it waits: for
a time, a signal, or a call of the simulated disk. There it may be killed, too.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any


class Killed(BaseException):
    """The end of a task whose process was killed. No code of it runs any more."""


class Signal:
    """What tasks wait for."""

    def __init__(self) -> None:
        self.waiters: list[tuple[Task, int]] = []
        self.fired = False


class Task:
    """One thread of a process."""

    def __init__(self, name: str, process: Any) -> None:
        self.name, self.process = name, process
        self.turn = threading.Lock()
        self.turn.acquire()
        self.ticket = 0  # of the wait that may end now. Older ones are over
        self.killed = self.ended = False
        self.error: BaseException | None = None
        self.end = Signal()


class World:
    """The clock, and what happens next."""

    def __init__(self, random: Random) -> None:
        self.random, self.now = random, 0.0
        self.tasks: list[Task] = []
        self.task = Task("nobody", None)
        self.is_over = False
        self.errors: list[BaseException] = []
        self._numbers, self._heap = itertools.count(), list[tuple[float, int, Task | Callable[[], None], int]]()

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        """Calls a function so many seconds later."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), do, 0))

    def spawn(self, name: str, process: Any, do: Callable[[], Any]) -> Task:
        """Starts a task."""
        task = Task(name, process)
        self.tasks.append(task)
        _idle_thread().put((self, task, do))
        self._wake(task, 0)
        return task

    def kill(self, task: Task) -> None:
        """Ends a task where it waits."""
        if not task.ended:
            task.killed = True
            self._wake(task, 0)

    def fire(self, signal: Signal) -> None:
        """Ends the waits for a signal."""
        waiters, signal.waiters, signal.fired = signal.waiters, [], True
        for task, ticket in waiters:
            if ticket == task.ticket:
                self._wake(task, 0)

    def sleep(self, seconds: float) -> None:
        self.wait((), seconds)

    def wait(self, signals: Sequence[Signal], seconds: float | None) -> None:
        """Waits for one of the signals, or so many seconds. None: for ever."""
        task = self.task
        if task.killed:
            raise Killed
        task.ticket += 1
        for signal in signals:
            signal.waiters.append((task, task.ticket))
        if seconds is not None:
            self._wake(task, seconds)
        self._go_on(task)
        while not task.killed and task.process is not None and task.process.stopped_until > self.now:
            task.ticket += 1
            self._wake(task, task.process.stopped_until - self.now)
            self._go_on(task)
        task.ticket += 1
        if task.killed:
            raise Killed

    def until(self, is_so: Callable[[], bool], signal: Signal, seconds: float | None) -> bool:
        """Waits until something is so, or so many seconds. Returns whether it is."""
        end = None if seconds is None else self.now + seconds
        while not is_so():
            seconds_left = None if end is None else end - self.now
            if seconds_left is not None and seconds_left <= 0:
                return False
            self.wait([signal], seconds_left)
        return True

    def _wake(self, task: Task, seconds: float) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), task, task.ticket))

    def _go_on(self, task: Task | None) -> None:
        """Lets the next task run, and returns when it is the turn of this one."""
        following = self._next()
        if following is not task:
            self.task = following
            following.turn.release()
            if task is not None:
                task.turn.acquire()

    def _next(self) -> Task:
        while self._heap:
            when, _, task, ticket = heapq.heappop(self._heap)
            if isinstance(task, Task):
                if not task.ended and (ticket == task.ticket or task.killed):
                    self.now = when
                    return task
            else:
                self.now = when
                try:
                    task()
                except Exception as error:  # of a callback, which no task may die of
                    self.errors.append(error)
        raise AssertionError("nothing happens any more")  # the test itself always waits for a time

    def run(self, task: Task, do: Callable[[], Any], inbox: queue.SimpleQueue[Any]) -> None:
        """Is the thread of a task."""
        task.turn.acquire()
        try:
            if not task.killed:
                do()
        except Killed:
            pass
        except BaseException as error:
            task.error = error
        task.ended = True
        self.fire(task.end)
        _idle.append(inbox)
        if not self.is_over:
            self._go_on(None)


_idle: list[queue.SimpleQueue[Any]] = []


def _idle_thread() -> queue.SimpleQueue[Any]:
    """Returns the inbox of a thread that has nothing to do."""
    if _idle:
        return _idle.pop()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            world, task, do = inbox.get()
            world.run(task, do, inbox)

    threading.Thread(target=serve, daemon=True, name="simulated").start()
    return inbox


def play(world: World, do: Callable[[], None]) -> None:
    """Runs the first task of a world, which starts all others and ends them."""
    exits, errors = threading.Event(), world.errors

    def main() -> None:
        try:
            do()
        except BaseException as error:
            errors.append(error)
        world.is_over = True
        exits.set()

    world.spawn("the test", None, main)
    world._go_on(None)
    exits.wait()
    if errors:
        raise errors[0]
