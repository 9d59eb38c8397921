"""Task tables that an SQL query computes from the tables."""

from __future__ import annotations

import re
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from gnnkit_formats.column_table import require
from gnnkit_formats.table import Table

from gnnkit.errors import UserError
from gnnkit.graph.cells import nulls_of
from gnnkit.graph.times import UNITS, Times, has_time, parse_time, read_span, show_time
from gnnkit.launch.progress import say
from gnnkit.utils.ranges import one_line, shown_names
from gnnkit_tables.database import ColumnTimes
from gnnkit_tables.folder import SHARE, SPLIT
from gnnkit_tables.keys import key_column
from gnnkit_tables.lists import one_row_per_item
from gnnkit_tables.lookahead import Lookahead
from gnnkit_tables.manifest import FILE, Manifest, TaskSpec

_MAX_ROWS, _MAX_DATES, _MAX_SECONDS, _MAX_MESSAGE = 20_000_000, 100_000, 600, 300
_DAY = 86_400
_PLACEHOLDERS = ("{timedelta}", "{self.timedelta}")  # the second one as in RelBench's source code
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_UNSTABLE = re.compile(
    r"\b(random|now|today|transaction_timestamp|\w*uuid\w*|(get_)?current_(local)?(date|time|timestamp)|setseed)\s*\("
    r"|\b(current_(date|time|timestamp)|localtime(stamp)?|using\s+sample|tablesample)\b|\bage\s*\([^,()]*\)",
    re.IGNORECASE,
)  # what differs between runs: samples, and clocks, of which age with one argument is one
_NAMES = ("timestamps", "timestamp_df")  # tables of the dates, the second one as in RelBench


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A task's query, and the dates at which it is run."""

    name: str
    spec: TaskSpec
    unit: str | None  # of times. None: plain numbers
    horizon: int
    val: int  # first validation date
    test: int  # first test date
    dates: Mapping[str, Times]  # of each part, in ascending order
    idle: Mapping[str, Times]  # those that no row follows within the horizon

    @classmethod
    def create(cls, name: str, spec: TaskSpec, times: Sequence[Times], unit: str | None) -> Self:
        """Places the dates, one horizon apart, as RelBench does.

        Training dates precede the first validation date. The labels of validation dates
        are known by the first test date, and those of test dates by the last row.

        Args:
            name: The task.
            spec: Its entry in the manifest, with a query.
            times: [rows] times of each table.
            unit: Of times.
        """
        place = f"tasks.{name}"
        horizon = read_span(f"{FILE}, {place}.horizon", spec.horizon, unit)
        rows = np.concatenate([*times, np.empty(0, np.int64)])
        rows = rows[has_time(rows)]
        if not horizon or spec.time is None or not len(rows):
            raise UserError(
                f"{FILE}, {place}.query needs a time, a horizon above 0 such as '30 days', and a table with a time"
            )
        first, last = int(rows.min()), int(rows.max())
        if (spec.val is None) != (spec.test is None):
            raise UserError(f"{FILE}, {place}: name both val and test, the first dates of these parts, or neither")
        if (last - first) // horizon > _MAX_DATES:
            raise UserError(f"{FILE}, {place}.horizon={spec.horizon}: more than {_MAX_DATES:,} dates; use a longer one")
        val, test = (
            _default_dates(first, last, horizon, unit)
            if spec.val is None
            else tuple(parse_time(f"{place}.{key}", getattr(spec, key), unit) for key in ("val", "test"))
        )
        dates = {
            "train": val - horizon * np.arange(1, 1 + _count(first, val - horizon, horizon, spec.train_dates))[::-1],
            "val": val + horizon * np.arange(_count(val, test - horizon, horizon, spec.eval_dates)),
            "test": test + horizon * np.arange(_count(test, last - horizon, horizon, spec.eval_dates)),
        }
        if empty := [part for part, numbers in dates.items() if not len(numbers)]:
            raise UserError(
                f"{FILE}, {place}: no date is left for {empty[0]}, with val {show_time(val, unit)}, test "
                f"{show_time(test, unit)}, a horizon of {spec.horizon} and rows from {show_time(first, unit)} to "
                f"{show_time(last, unit)}; name other dates val and test"
            )
        rows = np.sort(rows)
        idle = {
            part: numbers[np.searchsorted(rows, numbers, "right") == np.searchsorted(rows, numbers + horizon, "right")]
            for part, numbers in dates.items()
        }
        return cls(name, spec, unit, horizon, val, test, dates, idle)

    @property
    def dated_spec(self) -> TaskSpec:
        """The task's entry with the first dates of validation and test."""
        val, test = (time if self.unit is None else show_time(time, self.unit) for time in (self.val, self.test))
        return replace(self.spec, val=val, test=test)

    def lines(self) -> list[str]:
        """Describes the dates."""
        parts = (
            f"{len(dates):,} {part} ({show_time(int(dates[0]), self.unit)} to {show_time(int(dates[-1]), self.unit)})"
            for part, dates in self.dates.items()
        )
        lines = [f"tables: {self.name} has dates {self.spec.horizon} apart: {', '.join(parts)}"]
        if self.spec.val is None:
            dated = self.dated_spec
            lines.append(
                f"tables: tasks.{self.name} sets neither val nor test, so each has {100 * SHARE:g} % of the dates; "
                f"add val: {dated.val} and test: {dated.test} to keep these dates when rows are added"
            )
        for part, idle in self.idle.items():
            if 2 * len(idle) > len(self.dates[part]):
                lines.append(
                    f"tables: no table has a row in the {self.spec.horizon} after {len(idle):,} dates of {part}, such as "
                    f"{show_time(int(idle[-1]), self.unit)}: correct rows with a wrong time, or limit the dates by val, test "
                    "and train_dates"
                )
        return lines

    def answer(self, tables: Mapping[str, Table], times: ColumnTimes, manifest: Manifest) -> Table:
        """Runs the query, and returns rows of entity, time, label and split.

        Rows without an entity or a label are dropped and counted. They are ordered by
        time and entity.

        Args:
            tables: The tables by name.
            times: Times in one unit, by table and column.
            manifest: Keys and times of the tables.
        """
        self._check_text(tables)
        views = {name: _view(name, table, times, manifest, self.unit) for name, table in tables.items()}
        dates = np.concatenate([*self.dates.values()])
        rows = self._ask_items(dates, views)
        assert self.spec.time is not None, "create requires a time"
        columns = (*self.spec.entity, self.spec.time, self.spec.label)
        for column in columns:
            require(f"the result of tasks.{self.name}.query", rows.column_names, column, f"; change {FILE}")
        rows = rows.select(list(dict.fromkeys(columns)))
        empty = np.logical_or.reduce([nulls_of(rows[column].combine_chunks()) for column in columns])
        if empty.any():
            say(
                f"tables: {empty.sum():,} of {len(empty):,} rows of tasks.{self.name}.query have an empty cell: dropped"
            )
        rows = rows.filter(pa.array(~empty))
        if not rows.num_rows:
            raise UserError(
                f"{FILE}, tasks.{self.name}.query: no row has an entity, a time and a label; change the query"
            )
        order = (self.spec.time, *self.spec.entity, *self._labels)
        rows = rows.sort_by([(column, "ascending") for column in order])
        self._describe_later(Lookahead(self._ask_columns, views, times, manifest), dates)
        return Table(f"tasks.{self.name}.query", rows.append_column(SPLIT, self._split(rows[self.spec.time])))

    def _ask_columns(self, dates: Times, views: Mapping[str, pa.Table]) -> pa.Table:
        """Returns entities and labels, in the entities' order."""
        columns, order = list(dict.fromkeys([*self.spec.entity, self.spec.label])), (*self.spec.entity, *self._labels)
        return self._ask_items(dates, views).select(columns).sort_by([(column, "ascending") for column in order])

    @property
    def _labels(self) -> tuple[str, ...]:
        """The label of a ranking task, by which rows of an entity are ordered."""
        return () if self.spec.target is None else (self.spec.label,)

    def _ask_items(self, dates: Times, views: Mapping[str, pa.Table]) -> pa.Table:
        """Runs the query, and gives a ranking task one row for each item."""
        timestamps = pa.table({"timestamp": _as_dates(dates, self.unit)})
        rows = _run(f"tasks.{self.name}.query", self._text(), {**views, **dict.fromkeys(_NAMES, timestamps)})
        if self.spec.target is None:
            return rows
        table = one_row_per_item(Table(f"tasks.{self.name}.query", rows), self.spec.label)
        return pa.table({name: table.plain(name) for name in table.names})

    def _describe_later(self, lookahead: Lookahead, dates: Times) -> None:
        """Warns if labels depend on rows after their horizon, or on missing rows."""
        if beyond := lookahead.find_beyond(dates, self.horizon):
            date, names = show_time(beyond[0], self.unit), shown_names(beyond[1])
            end = show_time(beyond[0] + self.horizon, self.unit)
            warnings.warn(
                f"tasks.{self.name}.query: at {date}, entities or labels depend on rows of {names} after {end}, although the "
                f"horizon is {self.spec.horizon}, so earlier labels tell about later ones; bound these rows by the timestamp "
                "plus {timedelta}, or name a longer horizon",
                stacklevel=2,
            )
        for name, oldest in lookahead.find_begun(dates):
            first = show_time(int(dates[0]), self.unit)
            warnings.warn(
                f"tasks.{self.name}.query: labels depend on rows of {name}, which begin at {show_time(oldest, self.unit)}, and the "
                f"first date is {first}, so earlier labels are incomplete; limit the dates by train_dates",
                stacklevel=2,
            )
        for name, newest in lookahead.find_ended(dates):
            last = show_time(int(dates[-1]), self.unit)
            warnings.warn(
                f"tasks.{self.name}.query: labels depend on rows of {name}, which end at {show_time(newest, self.unit)}, and the "
                f"last date is {last}, so later labels are incomplete; limit the dates by val, test and eval_dates",
                stacklevel=2,
            )

    def _check_text(self, tables: Collection[str]) -> None:
        """Raises `UserError` for ambiguous names, and for unstable functions."""
        counts = Counter(name.lower() for name in (*tables, *_NAMES))
        if confused := [name for name in tables if counts[name.lower()] > 1]:
            raise UserError(
                f"{FILE}, tasks.{self.name}.query: SQL ignores case, and {' and '.join(_NAMES)} hold the dates, so table "
                f"{confused[0]!r} needs another name"
            )
        if unstable := _UNSTABLE.search(_QUOTED.sub("''", self._text())):
            raise UserError(
                f"{FILE}, tasks.{self.name}.query: {unstable[0].partition('(')[0].strip()} differs between runs; use the timestamps"
            )

    def _text(self) -> str:
        text, span = str(self.spec.query), str(self.spec.horizon)
        for placeholder in _PLACEHOLDERS:
            text = text.replace(placeholder, span)
        return text

    def _split(self, column: pa.ChunkedArray) -> pa.Array:  # [rows] names of parts
        """Returns each row's part. Raises `UserError` for a time that is no date."""
        try:
            times = column if self.unit is None else column.cast(pa.timestamp(self.unit))
            places = np.asarray(times.cast(pa.int64()))
        except pa.ArrowException as error:
            raise UserError(
                f"tasks.{self.name}.query, column {self.spec.time!r}: {column.type}, expected a timestamp"
            ) from error
        parts = np.full(len(places), "none", dtype=object)
        for part, dates in self.dates.items():
            parts[np.isin(places, dates)] = part
        if (bad := parts == "none").any():
            raise UserError(
                f"tasks.{self.name}.query: {bad.sum():,} rows have a time that is no timestamp of the question, such as "
                f"{show_time(int(places[bad][0]), self.unit)}; select timestamp AS "
                f"{self.spec.time}, or write rows with times of their own as the file tasks/{self.name}.csv"
            )
        return pa.array(parts, pa.string())


def _default_dates(first: int, last: int, horizon: int, unit: str | None) -> tuple[int, int]:
    """Returns first dates of validation and test, at midnight for whole days."""
    day = 1 if unit is None else _DAY * UNITS[unit]
    latest = last - horizon
    latest -= latest % day if horizon % day == 0 else 0
    count = max(round(SHARE * _count(first, latest, horizon, None)), 1)
    test = latest - (count - 1) * horizon
    return test - count * horizon, test


def _count(first: int, last: int, step: int, most: int | None) -> int:
    """Returns how many dates fit between two dates, both included."""
    count = max((last - first) // step + 1, 0)
    return count if most is None else min(count, most)


def _as_dates(times: Times, unit: str | None) -> pa.Array:
    return pa.array(times, pa.int64(), mask=~has_time(times)).cast(pa.int64() if unit is None else pa.timestamp(unit))


def _view(name: str, table: Table, times: ColumnTimes, manifest: Manifest, unit: str | None) -> pa.Table:
    """Returns a table with keys in one type, and times in one unit without zone."""
    ids = manifest.tables[name].ids
    return pa.table(
        {
            column: _as_dates(times[name, column], unit)
            if (name, column) in times
            else key_column(table, column)
            if column in ids
            else _without_zone(table.plain(column))
            for column in table.names
        }
    )


def _without_zone(column: pa.Array) -> pa.Array:
    return column.cast(pa.timestamp(column.type.unit)) if pa.types.is_timestamp(column.type) else column


def _run(place: str, text: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Runs one SELECT in memory, without files, extensions or settings.

    A single thread computes it, so that sums of floating-point numbers are repeatable.
    Data that memory does not hold is in a temporary folder until the query ends.
    """
    import duckdb

    spilled = tempfile.TemporaryDirectory(prefix="gnnkit-query-")
    config: dict[str, Any] = {"threads": 1, "enable_external_access": "false", "temp_directory": spilled.name}
    connection = duckdb.connect(":memory:", config=config)
    ended = threading.Event()

    def interrupt() -> None:
        """Interrupts until the query ends. One before its start is forgotten."""
        seconds: float = _MAX_SECONDS
        while not ended.wait(seconds):
            connection.interrupt()
            seconds = 0.1

    timer = threading.Thread(target=interrupt, daemon=True)
    try:
        for name, table in tables.items():
            connection.register(name, table)
        for key in ("autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements"):
            connection.execute(f"SET {key}=false")
        connection.execute("SET lock_configuration=true")
        statements = connection.extract_statements(text)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise UserError(f"{FILE}, {place}: expected one SELECT")
        timer.start()
        batches: list[Any] = []
        for batch in (reader := connection.sql(text).to_arrow_reader(1 << 16)):
            batches.append(batch)
            if sum(map(len, batches)) > _MAX_ROWS:
                raise UserError(f"{FILE}, {place}: more than {_MAX_ROWS:,} rows; use fewer dates, or a narrower query")
        return pa.Table.from_batches(batches, reader.schema)
    except duckdb.InterruptException as error:
        raise UserError(f"{FILE}, {place}: stopped after {_MAX_SECONDS} s; use fewer dates (train_dates)") from error
    except (duckdb.Error, pa.ArrowException) as error:
        raise UserError(f"{FILE}, {place}: {one_line(error)[:_MAX_MESSAGE]}") from error
    finally:
        ended.set()
        if timer.ident is not None:
            timer.join()
        connection.close()
        spilled.cleanup()
