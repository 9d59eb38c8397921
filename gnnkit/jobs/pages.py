"""What shows a run, by the package of job=report: its page, and training so far."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit import plugins
from gnnkit.utils.ranges import one_line

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from gnnkit.leader.watch import Watch


def write_page(folder: Path) -> None:
    """Writes the page of a completed run. A failure is printed, and loses no result.

    Args:
        folder: The run folder, with `result.json`.
    """
    with as_a_warning():
        report().write_page([folder], folder)


def displays(watch: Watch) -> list[Callback]:
    """Returns the terminal's display of training, if the package is installed."""
    return [report().display(watch)] if is_installed() else []


def is_installed() -> bool:
    """Returns whether the package is installed, without importing it."""
    return "report" in plugins.names("job")


def report() -> Any:
    """Returns the class of job=report."""
    return plugins.load("job", "report")


@contextlib.contextmanager
def as_a_warning() -> Iterator[None]:
    """Prints any error as one line, and continues."""
    try:
        yield
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        print(f"report.html is not written, the results are kept: {reason}", file=sys.stderr, flush=True)
