"""The page about several runs: of a sweep, of job=compare, or of any run folders."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gnnkit.config import leaves
from gnnkit.errors import UserError
from gnnkit.result.result import REPORT
from gnnkit.utils.documents import number
from gnnkit_report import learning, timeline
from gnnkit_report.charts import NUM_COLOURS, Chart, Curve, Part, Point, bars, colour, curves
from gnnkit_report.page import Cell, Page, PageSection, PageTable, Panel, clipped, format_value
from gnnkit_report.run import RunFiles, at, read_run
from gnnkit_report.run_page import SETTINGS

SEED, DONE = "seed", "done"
MOST_GROUPS = NUM_COLOURS  # drawn: the best of a larger sweep
_MORE = ("train_loss", "seconds_per_epoch", "seconds_total")  # columns besides the main figure
_NOT_COMPARED = {"confusion", "per_rank", "per_class", "why", "command", "versions", "layouts", "regions", "peers"}
_OF_A_RUN = {"seed", "output", "cache"}  # keys in which a group's runs may differ
_DATA = "dataset.name", "dataset.root"
_OF_DATA = (*_DATA, "dataset.split", "dataset.seed", "task.name", "task.seed", "task.val_share", "task.test_share")


@dataclass(frozen=True, slots=True)
class SweptRun:
    """One run of several, without secrets."""

    number: int
    status: str  # "done", or the reason why there is no result
    swept: Mapping[str, str]  # value by key, as typed
    figures: Mapping[str, float]
    folder: Path  # the run folder
    log: Path
    remark: str = ""  # the last line of the log about an error
    exit_code: int | None = None
    main: str | None = None  # the main validation figure's name, if it has trained
    overrides: Sequence[str] = ()

    @property
    def page(self) -> Path | None:
        """The run's page, or its log without one."""
        return next((path for path in (self.folder / REPORT, self.log) if path.exists()), None)

    @property
    def name(self) -> str:
        """The swept values as text."""
        return " ".join(f"{key}={value}" for key, value in self.swept.items())

    @property
    def setting(self) -> str:
        """The swept values except the seed. Runs with equal ones are a group."""
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.swept.items() if key != SEED)

    def figure(self, name: str) -> float | None:
        """Returns a finite figure, or None."""
        return number(self.figures.get(name))


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs so far, and the figure that ranks them."""

    runs: Sequence[SweptRun]
    main: str
    lower_is_better: bool
    ended: bool = True

    @property
    def keys(self) -> list[str]:
        """The swept keys, in order of appearance."""
        return list(dict.fromkeys(key for run in self.runs for key in run.swept))

    @property
    def columns(self) -> list[str]:
        """The figures in tables that a run has: the main ones, the loss and seconds."""
        names = (self.main, self.main.replace("val_", "test_", 1), *_MORE)
        return [name for name in dict.fromkeys(names) if any(name in run.figures for run in self.runs)]

    @property
    def done(self) -> list[SweptRun]:
        """The runs that have succeeded, best first."""
        sign = 1 if self.lower_is_better else -1
        runs = [run for run in self.runs if run.status == DONE]
        return sorted(runs, key=lambda run: (run.figure(self.main) is None, sign * (run.figure(self.main) or 0)))

    def groups(self) -> dict[str, list[SweptRun]]:
        """Returns completed runs by their setting, best first."""
        groups: dict[str, list[SweptRun]] = {}
        for run in self.done:
            groups.setdefault(run.setting, []).append(run)
        return groups


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The files of a group's runs."""

    name: str
    runs: Sequence[RunFiles]
    colour: str

    def points(self, name: str) -> list[Point]:
        """Returns the mean curve, at the epochs that all runs have."""
        by_epoch: dict[float, list[float]] = {}
        for run in self.runs:
            for epoch, value in learning.points_of(run, name):
                by_epoch.setdefault(epoch, []).append(value)
        return [(epoch, statistics.fmean(v)) for epoch, v in by_epoch.items() if len(v) == len(self.runs)]


def settings_of(run: RunFiles) -> dict[str, str]:
    """Returns a run's settings by key, from its configuration or its result."""
    values = dict(leaves(run.settings)) or {key: value for key, value in run.result.items() if key in SETTINGS}
    return {key: format_value(value) for key, value in values.items()}


def numbers_of(result: Mapping[str, object]) -> dict[str, float]:
    """Returns the numbers of a result."""
    return {name: value for name, value in result.items() if isinstance(value, int | float)}


def spread(values: Sequence[float]) -> str:
    """Formats the mean, and the standard deviation of several values."""
    deviation = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{deviation}"


def compare(runs: Sequence[RunFiles], folder: Path) -> Path:
    """Writes a page on runs that were started separately. Returns its path.

    Runs are told apart by the settings that differ between those that have them, except
    keys of the data set that its name and root determine.
    """
    settings = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for values in settings for key in values if key not in _OF_A_RUN)
    differing = [key for key in keys if _differs(key, settings)]
    rows = []
    for index, (run, values) in enumerate(zip(runs, settings, strict=True)):
        swept = {key: values.get(key, "") for key in (*differing, SEED)}
        log = run.folder.with_name(f"{run.folder.name}.log")
        rows.append(SweptRun(index, DONE, swept, numbers_of(run.result), run.folder, log))
    main = next((name for run in runs if (name := learning.main_figure(run)) is not None), "")
    lower = at(runs[0].result, "main_figure", "lower_is_better") is True
    return write(Sweep(rows, main, lower), folder, f"{len(runs)} runs compared", dict(enumerate(runs)))


def _differs(key: str, settings: Sequence[Mapping[str, str]]) -> bool:
    """Returns whether runs differ in a key, and not only as their data differ."""
    values = {(tuple(map(run.get, _DATA)), run[key]) for run in settings if key in run}
    is_reading = key.startswith("dataset.") and key not in _OF_DATA  # how data are read
    return len({value for _, value in values}) > 1 and not (is_reading and len(values) == len(dict(values)))


def write(
    sweep: Sweep,
    folder: Path,
    title: str,
    files: Mapping[int, RunFiles] | None = None,
    summary: PageTable | None = None,
    sentence: str = "",
) -> Path:
    """Writes the page of several runs. Returns its path.

    The page leads with a chart of test figure and training seconds, and a table of
    means over seeds. The runs, curves and all figures follow. If all runs have ended,
    the table is also written as Markdown and LaTeX.

    Args:
        folder: Receives the page, `table.md` and `table.tex`.
        files: The runs' files by number. Default: those of the best groups are read.
        summary: The first table on the page. Default: means over seeds.
        sentence: A text above the summary.
    """
    groups = list(_drawn_groups(sweep, files))
    table, runs = summary or means_table(sweep), runs_table(sweep, folder)
    if sweep.ended:
        (table or runs).save(folder)
    lead = [Panel(table=table.without_empty_columns(), text=sentence, wide=True)] if table else []
    title_of_curves = "The best runs" if len(groups) < len(sweep.groups()) else "Curves"
    sections = [
        PageSection("Comparison", list(_trade_off(sweep, groups)), lead),
        PageSection("Runs", panels=[Panel(table=runs, wide=True)]),
        PageSection(title_of_curves, [*_curves(sweep, groups), *_times(groups)]),
        PageSection("All figures", panels=list(_figures(groups))),
    ]
    return Page(title, _state(sweep), sections, list(_notes(groups))).save(folder)


def _drawn_groups(sweep: Sweep, files: Mapping[int, RunFiles] | None) -> Iterator[RunGroup]:
    """Yields the best groups whose files can be read."""
    for index, (name, members) in enumerate([*sweep.groups().items()][:MOST_GROUPS]):
        runs = list(_read(members) if files is None else (files[run.number] for run in members))
        if runs:
            yield RunGroup(clipped(name.removeprefix("way="), 60) or "all", runs, colour(index))


def _read(runs: Iterable[SweptRun]) -> Iterator[RunFiles]:
    for run in runs:
        with suppress(UserError):  # the folder was removed
            yield read_run(run.folder)


def _state(sweep: Sweep) -> str:
    counts = Counter(run.status for run in sweep.runs)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
    text = f"{len(sweep.runs)} runs: {statuses}.{'' if sweep.ended else ' The sweep goes on: load the page again.'}"
    best = next(iter(sweep.done), None)
    if best is None or (value := best.figure(sweep.main)) is None:
        return text
    return f"{text} Best {sweep.main} {value:.4g}, of run {best.number}: {best.name}"


def runs_table(sweep: Sweep, folder: Path) -> PageTable:
    """Returns a table of all runs, with links relative to the folder."""
    rows: list[list[str | Cell]] = []
    keys, columns = sweep.keys, sweep.columns
    for run in sweep.runs:
        link = "" if run.page is None else quote(Path(os.path.relpath(run.page, folder)).as_posix())
        values = [run.figure(name) for name in columns]
        cells = [*(run.swept.get(key, "") for key in keys), *("" if v is None else f"{v:.4g}" for v in values)]
        rows.append([Cell(run.folder.name, link), *cells, run.status, clipped(run.remark, 90)])
    return PageTable(["run", *keys, *columns, "status", "remark"], rows, sortable=True).without_empty_columns()


def means_table(sweep: Sweep) -> PageTable | None:
    """Returns mean and deviation over seeds, or None without several seeds."""
    groups = sweep.groups()
    if all(len(runs) == 1 for runs in groups.values()):
        return None
    keys = [key for key in sweep.keys if key != SEED]
    rows = []
    for runs in groups.values():
        names: list[str | Cell] = [runs[0].swept.get(key, "") for key in keys] or ["seeds"]
        rows.append([*names, str(len(runs)), *(_mean_cell(runs, name) for name in sweep.columns)])
    return PageTable([*(keys or ["all"]), "runs", *sweep.columns], rows, sortable=True)


def _mean_cell(runs: Sequence[SweptRun], name: str) -> str | Cell:
    """Formats mean and deviation. Tables are sorted by the mean."""
    values = [value for run in runs if (value := run.figure(name)) is not None]
    return Cell(spread(values), value=statistics.fmean(values)) if values else ""


def _trade_off(sweep: Sweep, groups: Sequence[RunGroup]) -> Iterator[Chart]:
    """Draws each run's test figure against its training seconds."""
    name, points = sweep.main.replace("val_", "test_", 1), []
    for group in groups:
        seconds_of = [run.number("phases", "training") or run.number("seconds_total") for run in group.runs]
        pairs = zip(seconds_of, [run.number(name) for run in group.runs], strict=True)
        if places := [(seconds, value) for seconds, value in pairs if seconds is not None and value is not None]:
            points.append(Curve(group.name, sorted(places), group.colour))
    if points:
        caption = f"A point is a run. {'Down' if sweep.lower_is_better else 'Up'} and to the left is better."
        title = f"{name} and training time"
        yield curves("trade_off", title, caption, points, x_name="seconds of training", joined=False)


def _curves(sweep: Sweep, groups: Sequence[RunGroup]) -> Iterator[Chart]:
    mean = ", mean over the runs of a group" if any(len(group.runs) > 1 for group in groups) else ""
    for name, metric in {"loss": "train_loss", "figure": sweep.main}.items():
        lines = [Curve(group.name, points, group.colour) for group in groups if (points := group.points(metric))]
        if lines:
            yield curves(name, metric, f"{metric} by epoch{mean}.", lines)


def _times(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    """Draws each group's mean time per rank."""
    totals = {group.name: [rank for run in group.runs for rank in timeline.totals(run)] for group in groups}
    totals = {name: ranks for name, ranks in totals.items() if ranks}
    if totals:
        parts = [
            Part(kind, [statistics.fmean(rank[kind] for rank in ranks) for ranks in totals.values()], tint)
            for kind, tint in timeline.COLOURS.items()
        ]
        yield bars("time", "Where the time went", "Seconds of all steps, mean of the ranks.", list(totals), parts, "s")


def _figures(groups: Sequence[RunGroup]) -> Iterator[Panel]:
    """Lists all figures: means with deviations if all of a group are numbers."""
    keys = dict.fromkeys(key for group in groups for run in group.runs for key in run.result)
    rows = {key: [_figure(group, key) for group in groups] for key in keys if key not in _NOT_COMPARED}
    if rows:
        head = ("", *(group.name for group in groups))
        table = PageTable(head, [(key, *cells) for key, cells in rows.items()], grouped=True)
        yield Panel("Figures by group, as means with standard deviations", table, folded=True)


def _figure(group: RunGroup, key: str) -> str:
    values = [value for run in group.runs if (value := run.number(key)) is not None]
    if len(values) == len(group.runs) > 1:
        return spread(values)
    return clipped(format_value(group.runs[0].result.get(key)), 60)


def _notes(groups: Sequence[RunGroup]) -> Iterator[str]:
    settings = [settings_of(group.runs[0]) for group in groups]
    differing = [key for key in _OF_DATA if len({values.get(key) for values in settings}) > 1]
    if differing:
        yield f"the runs differ in {', '.join(differing)}, so their figures may not be comparable"
    yield from (f"{run.folder.name}: {note}" for group in groups for run in group.runs for note in run.notes)
