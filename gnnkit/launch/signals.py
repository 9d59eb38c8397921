"""Signals in the launching process, while ranks live."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

HANDLED = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turns SIGTERM into `SystemExit(143)` where nobody else handles the signal.

    So the ranks are ended before this process.
    """
    ours = _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, exit_by_signal)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def one_interruption() -> Iterator[None]:
    """Lets the first Ctrl-C through, and no other one, where Python handles Ctrl-C.

    A second one could come before the ranks of the first are ended.
    """
    ours = _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def no_interruption() -> Iterator[None]:
    """Ignores a second Ctrl-C. Ranks would stay alive otherwise."""
    numbers = HANDLED if _in_main_thread() else ()
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def exit_by_signal(number: int, frame: object) -> None:
    """Ends this process as a handler of signal `number`, after all `finally` blocks."""
    sys.exit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
