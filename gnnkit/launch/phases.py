"""Progress lines on standard output, with the seconds since the start."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from gnnkit.launch.progress import progress
from gnnkit.utils.ranges import one_line, printable
from gnnkit.utils.redaction import redact

_start_time, _silent = time.monotonic(), False


def begin(*, silent: bool = False) -> None:
    """Starts the clock. Forked processes share it.

    Args:
        silent: Whether to print nothing, because a progress bar is shown.
    """
    global _start_time, _silent
    _start_time, _silent = time.monotonic(), silent


def phase(text: str) -> None:
    """Prints a line for a phase that starts, and reports it to the launcher."""
    if not _silent:
        say(f"{time.monotonic() - _start_time:6.1f} s  {text}")
    progress(text)


def say(text: str) -> None:
    """Prints to standard output. A closed pipe does not end the job."""
    try:
        print(printable(redact(text)), flush=True)
    except (OSError, ValueError):  # a closed pipe or file, a full disk
        return


@contextmanager
def warnings_in_lines(name: str) -> Iterator[None]:
    """Collects a dataset's warnings and prints them at the end, one per line.

    Args:
        name: The dataset, as in `dataset=NAME`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        warn(f"dataset={name}: {warning.message}")


def warn(text: str) -> None:
    """Prints a warning to standard error, on one line."""
    print(f"gnnkit: warning: {redact(one_line(text))}", file=sys.stderr, flush=True)
