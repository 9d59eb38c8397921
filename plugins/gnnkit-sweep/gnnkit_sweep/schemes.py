"""job=compare: runs each training scheme with each seed, and shows one table."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnnkit_report import runs_page
from gnnkit_report.runs_page import DONE, SEED, Sweep

from gnnkit.config import as_overrides, key_of
from gnnkit.config.settings import AUTO, Choice, launcher_for
from gnnkit.errors import UserError
from gnnkit.jobs import check
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.job import as_a_warning
from gnnkit.jobs.order import Order, redact_override
from gnnkit.launch.launcher import JOBS
from gnnkit.launch.progress import say
from gnnkit.result.result import Result
from gnnkit.task import Task
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import shown
from gnnkit_sweep.runner import Runner, SweepJob
from gnnkit_sweep.scheme_table import SchemeRow, SchemeRun, SchemeTable

_SCHEME = "way"


def compare(order: Order) -> Result:
    """Runs all schemes, seed by seed, and returns the result.

    Raises `UserError` before the first run if a scheme has invalid keys, or if all
    schemes have incompatible options. One with incompatible options is a row with the
    reason.
    """
    _check(order)
    settings, start = order.settings, time.perf_counter()
    schemes, task = parse_schemes(settings.job_keys.compare.ways), settings.task.create()
    seeds = [settings.seed + index for index in range(settings.job_keys.compare.seeds)]
    orders = [[_order_of_run(order, scheme, seed) for scheme in schemes] for seed in seeds]
    _check_any(orders[0])
    with run_folders.open_folder(order) as folder:
        one_at_a_time = Choice("launcher", "processes", {})  # parallel runs would slow each other down
        runner = Runner(folder, launcher_for(one_at_a_time, JOBS), task)
        try:
            for seed, of_seed in zip(seeds, orders, strict=True):
                for scheme, of_run in zip(schemes, of_seed, strict=True):
                    in_folder = replace(of_run, folder=folder / f"{scheme.stem}-seed{seed}")
                    values = {_SCHEME: scheme.name, SEED: str(seed)}
                    arguments = [*in_folder.options, *in_folder.overrides]
                    runner.run([SweepJob(len(runner.runs), in_folder, values, arguments)])
        finally:
            table, seconds = _table(schemes, runner, task), time.perf_counter() - start
            counts = f"{len(runner.done)} of {len(runner.runs)} runs done in {seconds:.1f} s, written to {folder}"
            text = "\n".join(filter(None, [table.table().aligned(), table.sentence(), counts]))
            say(text)
            _write_page(order, runner, table)
        result = Result("compare", _figures(order, runner, table, seeds, seconds), text, folder)
        result.save(folder)
        return result


def _order_of_run(order: Order, scheme: Scheme, seed: int) -> Order:
    """Returns the order of a run. Raises `UserError` with the scheme's name."""
    assert order.settle is not None
    common = [text for text in order.overrides if not is_job_key(key_of(text))]
    overrides = scheme.over(common, [f"seed={seed}"])
    exists = as_overrides({"on_exists": order.settings.on_exists})
    try:
        settings = order.settle([*overrides, "job=train", *exists])
    except UserError as error:
        raise UserError(f"compare.ways: {scheme.name}: {error}") from error
    return replace(order, settings=replace(settings, output=None), folder=None, overrides=overrides, settle=None)


def _check_any(orders: Sequence[Order]) -> None:
    """Raises the first order's `UserError` if no order can be done."""
    errors = []
    for order in orders:
        try:
            check(order)
        except UserError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _table(schemes: Sequence[Scheme], runner: Runner, task: Task) -> SchemeTable:
    rows = []
    for index, scheme in enumerate(schemes):
        members = runner.runs[index :: len(schemes)]
        runs = [SchemeRun.read(run.folder, task) for run in members if run.status == DONE]
        errors = (f"{run.status} {run.remark}".strip() for run in members if run.status != DONE)
        rows.append(SchemeRow(scheme.name, runs, next(errors, "")))
    return SchemeTable(rows, task)


def _write_page(order: Order, runner: Runner, table: SchemeTable) -> None:
    """Writes the page of all runs, or of those before an interrupt."""
    if order.settings.draws_report:
        with as_a_warning():
            sweep, title = Sweep(runner.runs, table.figure, table.lower), f"{len(runner.runs)} runs compared"
            runs_page.write(sweep, runner.folder, title, summary=table.table(), sentence=table.sentence())


def _figures(order: Order, runner: Runner, table: SchemeTable, seeds: Sequence[int], seconds: float) -> Json:
    """Returns the content of `result.json`."""
    return {
        "figure": table.figure,
        "target": table.target,
        "ways": table.figures(),
        "seeds": seeds,
        "summary": table.sentence(),
        "failed": len(runner.runs) - len(runner.done),
        "seconds_total": seconds,
        "command": order.command(order.overrides),
    }


def _check(order: Order) -> None:
    """Raises `UserError` for keys that cannot apply to all schemes."""
    settings = order.settings
    if settings.strategy.name != AUTO and "strategy" in map(key_of, order.overrides):
        raise UserError(
            f"strategy={settings.strategy.name}: job=compare runs the strategies of compare.ways: remove it"
        )
    if settings.trainer.resume is not None:
        raise UserError("trainer.resume: the runs of job=compare start from the beginning: remove it")
    if not order.source.trains:
        raise UserError(f"job=compare trains, and model={settings.model.name} is a program: choose a model")


_JOB_KEYS = ("job", "output", "on_exists", "seed", "strategy", "runs", "checkpoint")  # set by job=compare
_SHARED_SECTIONS = ("dataset", "task")  # figures are comparable only if these are equal
_NAME_LENGTH = 80  # of a folder


@dataclass(frozen=True, slots=True)
class Scheme:
    """One training scheme."""

    strategy: str
    overrides: tuple[str, ...]  # in addition to the strategy
    stem: str  # prefix of run folders

    @property
    def name(self) -> str:
        """The scheme as typed, without secrets."""
        return " ".join([self.strategy, *map(redact_override, self.overrides)])

    def over(self, common: Sequence[str], extra: Sequence[str]) -> tuple[str, ...]:
        """Returns the overrides of a run.

        A key of the scheme replaces the same key in `common`. An option, such as
        `partition=hash`, also replaces the keys of its section.

        Args:
            common: Overrides for all schemes.
            extra: Keys that the job sets.
        """
        keys = [key_of(text) for text in self.overrides]
        remaining = [text for text in common if not any(_covers(key, key_of(text)) for key in keys)]
        return (*remaining, f"strategy={self.strategy}", *self.overrides, *extra)


def parse_schemes(texts: Sequence[str]) -> list[Scheme]:
    """Parses `compare.ways`. Raises `UserError` for an invalid scheme."""
    split = [_split_scheme(text) for text in texts]
    texts_by_key: dict[tuple[str, frozenset[str]], str] = {}
    for text, (strategy, *overrides) in zip(texts, split, strict=True):
        first_text = texts_by_key.setdefault((strategy, frozenset(overrides)), text)
        if first_text is not text:
            raise UserError(f"compare.ways: {shown(text)} occurs twice: ways must differ")
    stems = [re.sub(r"[^\w.=,\[\]-]+", "_", " ".join(words))[:_NAME_LENGTH] for words in split]
    return [
        Scheme(words[0], tuple(words[1:]), stem if stems.count(stem) == 1 else f"{stem}-{index}")
        for index, (words, stem) in enumerate(zip(split, stems, strict=True))
    ]


def _split_scheme(text: str) -> list[str]:
    words = text.split()
    if not words or "=" in words[0]:
        raise UserError(f"compare.ways: {shown(text)!r} must begin with the name of a strategy")
    for word in words[1:]:
        key = key_of(word)
        if "=" not in word:
            raise UserError(f"compare.ways: {shown(text)}: {shown(word)} must be KEY=VALUE")
        if key.partition(".")[0] in _SHARED_SECTIONS or is_job_key(key):
            raise UserError(
                f"compare.ways: {shown(text)}: {key} must be the same for all ways: set it outside compare.ways"
            )
    return words


def is_job_key(key: str) -> bool:
    """Returns whether job=compare sets the key of its runs."""
    return key in _JOB_KEYS or key.partition(".")[0] == "compare"


def _covers(key: str, override: str) -> bool:
    return override == key or override.startswith(f"{key}.")
