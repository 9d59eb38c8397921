"""Finds tables with rows after the horizon on which a query's labels depend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.graph.times import NEVER, Times, has_time
from gnnkit_tables.database import ColumnTimes
from gnnkit_tables.encode import Mask
from gnnkit_tables.manifest import Manifest

_NUM_DATES = 4  # dates at which the query is run again
Views = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead:
    """Runs a query again at single dates, with all rows and with earlier ones."""

    ask: Callable[[Times, Views], pa.Table]  # runs the query at dates, on tables
    views: Views
    times: ColumnTimes
    manifest: Manifest
    complete: dict[int, pa.Table] = field(default_factory=dict, init=False)  # answers with all rows, by date

    def find_beyond(self, dates: Times, horizon: int) -> tuple[int, list[str]] | None:
        """Returns a date with labels that depend on rows after its horizon.

        Also returns the tables with these rows. None if there is no such date.

        Args:
            dates: The query's dates, in ascending order.
            horizon: Added to a date, the last time that a label may depend on.
        """
        for date in dates[np.unique(np.linspace(0, len(dates) - 1, _NUM_DATES).astype(int))].tolist():
            cut = self._cut(date + horizon)
            if cut and self._differs(date, cut):
                return date, [name for name in cut if self._differs(date, {name: cut[name]})] or [*cut]
        return None

    def find_ended(self, dates: Times) -> list[tuple[str, int]]:
        """Returns tables that decide labels and end early, with their last times."""
        ends = {name: int(rows.max()) for name in self.views if len(rows := self._known_times(name))}
        return self._deciding({name: end for name, end in ends.items() if end < dates[-1]}, dates[:_NUM_DATES])

    def find_begun(self, dates: Times) -> list[tuple[str, int]]:
        """Returns tables that decide labels and begin late, with their first times."""
        begins = {name: int(rows.min()) for name in self.views if len(rows := self._known_times(name))}
        return self._deciding({name: begin for name, begin in begins.items() if begin > dates[0]}, dates[-_NUM_DATES:])

    def _deciding(self, tables: Mapping[str, int], dates: Times) -> list[tuple[str, int]]:
        """Returns the tables whose rows after one of the dates change its labels."""
        cuts = [(date, self._cut(date)) for date in (dates.tolist() if tables else ())]
        return [
            (name, time)
            for name, time in tables.items()
            if any(name in cut and self._differs(date, {name: cut[name]}) for date, cut in cuts)
        ]

    def _known_times(self, name: str) -> Times:  # [num_rows with a time]
        times = self._row_times(name)
        known: Times = times[has_time(times)]
        return known

    def _cut(self, bound: int) -> Views:
        """Returns the tables with rows or cells after a time, and without these."""
        views = {name: self._until(name, bound) for name in self.views}
        return {name: view for name, view in views.items() if view is not self.views[name]}

    def _differs(self, date: int, cut: Views) -> bool:
        """Returns whether replacing some tables changes the labels at a date."""
        if date not in self.complete:
            self.complete[date] = self.ask(np.array([date]), self.views)
        one, other = self.complete[date], self.ask(np.array([date]), {**self.views, **cut})
        return one.num_rows != other.num_rows or not all(map(_is_same, one.columns, other.columns))

    def _row_times(self, name: str) -> Times:  # [num_rows], or empty in a table without times
        return self.times.get((name, self.manifest.tables[name].time or ""), np.empty(0, np.int64))

    def _until(self, name: str, bound: int) -> pa.Table:
        """Returns the rows and cells that are known at a time, or the table itself."""
        view = self.views[name]
        for column, names in self.manifest.tables[name].later.items():
            for part in (column, *names) if (late := _is_late(self.times[name, column], bound)).any() else ():
                cells = pc.if_else(pa.array(late), pa.scalar(None, view[part].type), view[part])
                view = view.set_column(view.column_names.index(part), part, cells)
        late = _is_late(self._row_times(name), bound)
        return view.filter(pa.array(~late)) if late.any() else view


def _is_late(times: Times, bound: int) -> Mask:
    return np.asarray((times > bound) & (times != NEVER))


def _is_same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Returns whether cells are equal, except for rounding of sums."""
    if pa.types.is_floating(one.type):
        return bool(np.allclose(one.to_numpy(), other.to_numpy(), rtol=1e-9, equal_nan=True))
    return bool(one.equals(other))
