"""job=report: the page of one run, or a comparison of several."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.ranges import one_line
from gnnkit.result.result import Result


def report(runs: Sequence[str], folder: Path | None) -> Result:
    """Writes `report.html` and PNGs. Raises `UserError` for folders without a result.

    Args:
        runs: Run folders. One is shown, several are compared.
        folder: Where the page goes. None: into the folder of the one run.
    """
    from gnnkit.report import compare, read_run, write

    begun = time.perf_counter()
    found = [read_run(Path(run)) for run in runs]
    target = Path(runs[0]) if folder is None else folder
    try:
        page = write(found[0], target) if len(found) == 1 else compare(found, target)
        size = page.stat().st_size
    except OSError as error:
        raise UserError(f"output={target}: the report cannot be written: {error.strerror}") from error
    figures = {"runs": list(runs), "page": str(page), "seconds": time.perf_counter() - begun, "bytes": size}
    return Result(
        "report", figures, f"{len(found)} {'run' if len(found) == 1 else 'runs'}, {size:,} bytes: {page}", target
    )


def after_run(folder: Path) -> None:
    """Writes the report of a run that has ended. A failure costs a line, not the run.

    Args:
        folder: The run folder, with `result.json`.
    """
    from gnnkit.report import read_run, write

    with costing_a_line():
        write(read_run(folder), folder)


def after_comparison(
    runs: Mapping[str, Path], folder: Path, head: Sequence[str], rows: Sequence[Sequence[str]], sentence: str
) -> None:
    """Writes the page of job=compare. A failure costs a line, not the comparison.

    Args:
        runs: Run folders by name.
        folder: The folder of the comparison.
        head: Names of the columns of the table.
        rows: Cells of the table.
        sentence: Stands below the table.
    """
    from gnnkit.report import compare, read_run
    from gnnkit.report.markup import element, joined, table

    with costing_a_line():
        top = joined([table(head, rows), element("p", sentence)])
        compare([read_run(run) for run in runs.values()], folder, list(runs), top)


@contextlib.contextmanager
def costing_a_line() -> Iterator[None]:
    """Prints any error as one line, and goes on."""
    try:
        yield
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        print(f"report.html is not written, the results are kept: {reason}", file=sys.stderr, flush=True)
