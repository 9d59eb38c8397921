"""job=report, and the pages that other jobs write at their end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gnnkit import plugins
from gnnkit.errors import UserError
from gnnkit.result.result import Result
from gnnkit.utils.ranges import one_line


def report(runs: Sequence[str], folder: Path | None) -> Result:
    """Writes `report.html` and its figures. Raises `UserError` without a result.

    Args:
        runs: Run folders. Several are compared.
        folder: Receives the page. None: the folder of the one run.
    """
    from gnnkit.report import read_run, write

    compare = plugins.load("job", "compare").write_page if len(runs) > 1 else None
    begun = time.perf_counter()
    contents = [read_run(Path(run)) for run in runs]
    target = Path(runs[0]) if folder is None else folder
    try:
        page = write(contents[0], target) if compare is None else compare(contents, target)
        size = page.stat().st_size
    except OSError as error:
        raise UserError(f"output={target}: the report cannot be written: {error.strerror}") from error
    figures = {"runs": list(runs), "page": str(page), "seconds": time.perf_counter() - begun, "bytes": size}
    summary = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {size:,} bytes: {page}"
    return Result("report", figures, summary, target)


def after_run(folder: Path) -> None:
    """Writes the report of a completed run. A failure is printed, and loses no result.

    Args:
        folder: The run folder, with `result.json`.
    """
    from gnnkit.report import read_run, write

    with as_a_warning():
        write(read_run(folder), folder)


@contextlib.contextmanager
def as_a_warning() -> Iterator[None]:
    """Prints any error as one line, and continues."""
    try:
        yield
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        print(f"report.html is not written, the results are kept: {reason}", file=sys.stderr, flush=True)
