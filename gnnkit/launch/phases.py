"""Lines for people about what a run does now, with the seconds since the start."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from gnnkit.launch.progress import progress
from gnnkit.ranges import one_line
from gnnkit.redaction import redact

_begun, _silent = time.monotonic(), False


def begin(*, silent: bool = False) -> None:
    """Starts the clock of the lines. A forked process goes on with the same clock.

    Args:
        silent: Whether phases print nothing, because a bar shows how far the run is.
    """
    global _begun, _silent
    _begun, _silent = time.monotonic(), silent


def phase(text: str) -> None:
    """Prints a line for a phase that begins now, and tells the launcher."""
    if not _silent:
        say(f"{time.monotonic() - _begun:6.1f} s  {text}")
    progress(text)


def say(text: str) -> None:
    """Prints to standard output. A reader that has left does not end the job."""
    try:
        print(redact(text), flush=True)
    except (OSError, ValueError):  # a closed pipe, a full disk, a closed file
        return


@contextmanager
def warnings_in_lines(name: str) -> Iterator[None]:
    """Prints the warnings of a data set afterwards, each in one line.

    Args:
        name: of the data set, as in `dataset=NAME`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(f"gnnkit: warning: dataset={name}: {redact(one_line(warning.message))}", file=sys.stderr)
