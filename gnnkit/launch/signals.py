"""Deferred signals: a handler records a signal, and `check` raises for it.

A handler that raises would do so in whatever code it interrupts. Python discards
exceptions raised in `__del__` or in callbacks of native code, and an exception raised
during an import may be reported as the module's failure. Handlers therefore do not
raise. Instead, code calls `check` wherever it can end in an orderly way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 2.0  # seconds from a signal to the next `check`, after which the process is ended
LIMIT = 15.0  # seconds from the exception raised by `check` to the end of the process

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class _Deferral:
    """The signals received since the handlers were replaced."""

    def __init__(self) -> None:
        handlers = {number: signal.getsignal(number) for number in HANDLED}
        # Ignored signals stay ignored. None is a native handler, which also stays.
        stays = (None, signal.SIG_IGN, leave_terminal)
        self.handlers: dict[int, Any] = {n: handler for n, handler in handlers.items() if handler not in stays}
        self.pid = os.getpid()
        self.numbers: list[int] = []  # signal numbers, in order of arrival
        self.owns_process = False  # any thread may end the process
        self.answered = threading.Event()  # set when the exception has been raised
        self.left = threading.Event()  # set when the handlers have been restored


_current: _Deferral | None = None
_exit_callbacks: list[Callable[[], object]] = []  # callbacks of `if_forced`, outermost first


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Replaces the handlers of `HANDLED`, so that signals wait for `check`.

    Signals that no `check` has handled are sent again after the handlers are restored.
    Does nothing within another `defer_signals`, and outside the main thread.
    """
    global _current  # noqa: PLW0603 - handlers are global too
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _current = deferral = _Deferral()
    try:
        for number in deferral.handlers:
            signal.signal(number, _note)
        yield
    finally:
        for number, handler in deferral.handlers.items():
            signal.signal(number, handler)
        _current = None
        waiting = [] if deferral.answered.is_set() else deferral.numbers
        deferral.answered.set()
        deferral.left.set()
        for number in waiting:
            signal.raise_signal(number)


@contextlib.contextmanager
def ending_process(grace: float = GRACE) -> Iterator[None]:
    """Like `defer_signals`, for gnnkit's own processes: a signal always ends them.

    A thread ends the process if no `check` follows, for example because the main thread
    waits in native code.

    Args:
        grace: Seconds from the signal to the next `check`.
    """
    with defer_signals():
        deferral = _current
        assert deferral is not None
        deferral.owns_process = True
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=_end_process, args=(deferral, reader, grace), name="signals", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(writer)


def check() -> None:
    """Raises `KeyboardInterrupt` or `SystemExit` after a signal that ends the process.

    It raises once, so that cleanup code can run. The caller's own handler is called
    instead, and may return. The cost is negligible without a signal.
    """
    deferral = _current
    if deferral is None or not deferral.numbers or deferral.answered.is_set():
        return
    if not deferral.owns_process and threading.current_thread() is not threading.main_thread():
        return
    number = deferral.numbers[0]
    handler = deferral.handlers[number]
    if handler not in _DEFAULTS:
        deferral.numbers.remove(number)
        handler(number, None)
        return
    deferral.answered.set()
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def exit_code() -> int:
    """Returns the exit code of a command ended by a signal, or 0.

    Marks the signal as handled. Other errors are then consequences.
    """
    deferral = _current
    if deferral is None or not deferral.numbers:
        return 0
    deferral.answered.set()
    return 128 + deferral.numbers[0]


@contextlib.contextmanager
def if_forced(callback: Callable[[], object]) -> Iterator[None]:
    """Calls `callback` if a signal ends the process within the context.

    `finally` blocks do not run in this case. The callback runs in another thread.
    """
    _exit_callbacks.append(callback)
    try:
        yield
    finally:
        if callback in _exit_callbacks:
            _exit_callbacks.remove(callback)


def leave_terminal(_number: int = 0, _frame: object = None) -> None:
    """Discards output to a terminal that was closed, where each write would fail."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)


def _note(number: int, frame: object) -> None:
    if number == signal.SIGHUP:
        leave_terminal()
    if _current is None:
        return
    if _current.pid == os.getpid():
        _current.numbers.append(number)
    else:  # a forked process, before `_restore_in_child` has run
        _restore_in_child()
        signal.raise_signal(number)


def _end_process(deferral: _Deferral, reader: int, grace: float) -> None:
    """Waits for a signal, and ends the process unless it ends in time.

    The system writes the signal's number to the pipe, even if the main thread is busy.
    """
    with open(reader, "rb", buffering=0) as pipe:  # stays open, because more signals may arrive
        while (text := pipe.read(1)) and text[0] not in deferral.handlers:
            pass
        if not text or (deferral.answered.wait(grace) and deferral.left.wait(LIMIT)):
            return
        cleaning = threading.Thread(target=_clean_up, daemon=True)
        cleaning.start()
        cleaning.join(1.0)  # seconds
        os._exit(128 + text[0])


def _clean_up() -> None:
    while _exit_callbacks:
        with contextlib.suppress(Exception):
            _exit_callbacks.pop()()


def _restore_in_child() -> None:
    """Restores the handlers in a forked process, because pools use SIGTERM."""
    global _current  # noqa: PLW0603 - as above
    _exit_callbacks.clear()
    if _current is None:
        return
    if _current.owns_process:
        signal.set_wakeup_fd(-1)  # the child's signals are not the parent's
    for number, handler in _current.handlers.items():
        signal.signal(number, handler)
    _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)
