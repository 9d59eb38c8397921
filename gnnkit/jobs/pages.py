"""The page of a run, which the package of job=report draws."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from gnnkit import plugins
from gnnkit.utils.ranges import one_line


def write_page(folder: Path) -> None:
    """Writes the page of a completed run. A failure is printed, and loses no result.

    Args:
        folder: The run folder, with `result.json`.
    """
    with as_a_warning():
        plugins.load("job", "report").write_page([folder], folder)


@contextlib.contextmanager
def as_a_warning() -> Iterator[None]:
    """Prints any error as one line, and continues."""
    try:
        yield
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        print(f"report.html is not written, the results are kept: {reason}", file=sys.stderr, flush=True)
