"""job=compare: runs each training scheme with each seed, and shows one table."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gnnkit_report.run import read_run
from gnnkit_sweep.rows import DONE, SEED
from gnnkit_sweep.runner import Runner, SweepJob
from gnnkit_sweep.table import aligned

from gnnkit.config import as_overrides, key_of
from gnnkit.config.settings import AUTO, MAX_RUNS, Choice, launcher_for
from gnnkit.errors import UserError
from gnnkit.jobs import dispatch
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.order import Order, redact_override
from gnnkit.jobs.pages import as_a_warning
from gnnkit.launch.launcher import JOBS
from gnnkit.launch.phases import say
from gnnkit.result.result import Result
from gnnkit.task import Task
from gnnkit.utils.ranges import shown
from gnnkit_compare.page import compare as write_comparison
from gnnkit_compare.scheme_table import SchemeRow, SchemeRun, SchemeTable

_SCHEME = "way"


def compare(order: Order) -> Result:
    """Runs all schemes. Raises `UserError` before the first run if any is invalid.

    A scheme with incompatible options is a row with the reason, unless all are.
    """
    comparison = _Comparison(order)
    with run_folders.open_folder(order) as folder:
        return comparison.run(folder)


class _Comparison:
    """A checked comparison."""

    def __init__(self, order: Order) -> None:
        self.order, settings = order, order.settings
        _check(order)
        self.schemes = parse_schemes(settings.job_keys.compare.ways)
        self.seeds = [settings.seed + index for index in range(settings.job_keys.compare.seeds)]
        self.task: Task = settings.task.create()
        self.common = [text for text in order.overrides if not is_job_key(key_of(text))]
        self.orders = {(scheme.name, seed): self._order(scheme, seed) for seed in self.seeds for scheme in self.schemes}
        self.refused = self._refused()

    def run(self, folder: Path) -> Result:
        """Runs what is missing, seed by seed, and returns the result."""
        start, self.folder = time.perf_counter(), folder
        one_at_a_time = Choice("launcher", "processes", {})  # parallel runs would slow each other down
        self.runner = Runner(folder, launcher_for(one_at_a_time, JOBS), self.task)
        try:
            for seed in self.seeds:
                for scheme in self.schemes:
                    self._run(scheme, seed)
        except BaseException:
            say(_format_table(self._table()))
            raise
        return self._result(self._table(), time.perf_counter() - start)

    def _order(self, scheme: Scheme, seed: int) -> Order:
        """Returns the order of a run. Raises `UserError` with the scheme's name."""
        assert self.order.settle is not None
        overrides = scheme.over(self.common, [f"seed={seed}"])
        exists = as_overrides({"on_exists": self.order.settings.on_exists})
        try:
            settings = self.order.settle([*overrides, "job=train", *exists])
        except UserError as error:
            raise UserError(f"compare.ways: {scheme.name}: {error}") from error
        settings = replace(settings, output=None)
        return replace(self.order, settings=settings, folder=None, overrides=overrides, settle=None)

    def _refused(self) -> dict[str, str]:
        """Returns the errors of invalid schemes by name. Raises one if all are."""
        errors: dict[str, UserError] = {}
        for scheme in self.schemes:
            try:
                dispatch.check(self.orders[scheme.name, self.seeds[0]])
            except UserError as error:
                errors[scheme.name] = error
        if len(errors) == len(self.schemes):
            raise errors[self.schemes[0].name]
        return {name: str(error) for name, error in errors.items()}

    def _run(self, scheme: Scheme, seed: int) -> None:
        order = replace(self.orders[scheme.name, seed], folder=self.folder / f"{scheme.stem}-seed{seed}")
        values = {_SCHEME: scheme.name, SEED: str(seed)}
        job = SweepJob(len(self.runner.runs), order, values, [*order.options, *order.overrides])
        if scheme.name in self.refused:
            self.runner.refuse(job, self.refused[scheme.name])
        else:
            self.runner.run([job])

    def _table(self) -> SchemeTable:
        rows = []
        for index, scheme in enumerate(self.schemes):
            members = self.runner.runs[index :: len(self.schemes)]
            runs = [SchemeRun.read(run.folder, self.task) for run in members if run.status == DONE]
            failure = next((run for run in members if run.status != DONE), None)
            error = "" if failure is None else f"{failure.status} {failure.remark}".strip()
            rows.append(SchemeRow(scheme.name, runs, error))
        return SchemeTable(rows, self.task)

    def _result(self, table: SchemeTable, seconds: float) -> Result:
        num_runs, done = len(self.runner.runs), self.runner.done
        figures = {
            "figure": table.figure,
            "target": table.target,
            "ways": table.figures(),
            "seeds": self.seeds,
            "summary": table.sentence(),
            "failed": num_runs - len(done),
            "seconds_total": seconds,
            "command": self.order.command(self.order.overrides),
        }
        counts = f"{len(done)} of {num_runs} runs done in {seconds:.1f} s, written to {self.folder}"
        result = Result("compare", figures, f"{_format_table(table)}\n{counts}", self.folder)
        result.save(self.folder)
        if self.order.settings.draws_report:
            with as_a_warning():
                runs = [read_run(run.folder) for run in done[:MAX_RUNS]]
                schemes = [self.schemes[run.number % len(self.schemes)].name for run in done[:MAX_RUNS]]
                write_comparison(runs, self.folder, schemes, table.table(), table.sentence())
        say(result.table())
        return result


def _format_table(table: SchemeTable) -> str:
    rows = table.table()
    lines = [[*map(str, row)] for row in ([*rows.head[:-1], ""], *rows.rows)]
    return "\n".join([*aligned(lines), *filter(None, [table.sentence()])])


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
