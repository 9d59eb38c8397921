"""What shows runs: HTML pages, and displays of training.

Only the files in run folders are read. A `Page` consists of charts and tables as data,
which one Jinja2 template renders.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gnnkit.config.settings import Section
from gnnkit.config.settings.fields import run_folders
from gnnkit.errors import UserError
from gnnkit.jobs import Job, Order, Result
from gnnkit.jobs import folder as folders
from gnnkit.jobs.folder import locked
from gnnkit.launch.progress import say

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from gnnkit.config.settings import Settings
    from gnnkit.leader.watch import Watch
    from gnnkit_report.notebook import Bar


@dataclass(frozen=True, slots=True)
class ReportKeys(Section):
    """The keys of job=report."""

    runs: Annotated[tuple[str, ...], run_folders]

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("job=report needs runs=FOLDER or runs=[FOLDER,FOLDER] of runs that have trained")


class Report(Job):
    """job=report. Writes into the run's folder, or into a new one for several runs."""

    name = "report"
    keys = ReportKeys
    reads_strategy = False
    one_run = False

    @staticmethod
    def write_page(runs: Sequence[Path], folder: Path) -> Path:
        """Writes the page of one run, or one that compares several. Returns its path.

        Args:
            runs: Run folders.
            folder: Receives `report.html`.
        """
        from gnnkit_report.run import read_run
        from gnnkit_report.run_page import write

        contents = [read_run(run) for run in runs]
        if len(contents) == 1:
            return write(contents[0], folder)
        from gnnkit_report.runs_page import compare

        return compare(contents, folder)

    @staticmethod
    def display(watch: Watch) -> Callback:
        """Returns the callback that shows training in a terminal."""
        from gnnkit_report.terminal import Display

        return Display(watch)

    @staticmethod
    def notebook_bar(settings: Settings, folder: Path) -> Bar:
        """Shows a bar in a notebook, and returns it."""
        from gnnkit_report.notebook import Bar

        return Bar(settings, folder)

    def start(self, order: Order) -> Result:
        runs = [Path(run) for run in order.settings.job_keys.runs]
        lock: contextlib.AbstractContextManager[Path | None]
        if order.named_folder is not None or len(runs) > 1:
            lock = folders.lock_folder(order)
        else:
            lock = locked(runs[0]) if runs[0].is_dir() else contextlib.nullcontext()
        with lock as target:
            result = self._report(runs, runs[0] if target is None else target)
        say(result.table())
        return result

    def _report(self, runs: Sequence[Path], folder: Path) -> Result:
        start = time.perf_counter()
        try:
            page = self.write_page(runs, folder)
            size = page.stat().st_size
        except OSError as error:
            raise UserError(f"output={folder}: the report cannot be written: {error.strerror}") from error
        seconds = time.perf_counter() - start
        figures = {"runs": [str(run) for run in runs], "page": str(page), "seconds": seconds, "bytes": size}
        summary = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {size:,} bytes: {page}"
        return Result("report", figures, summary, folder)
