"""The table type that the readers of node and edge files share."""

from __future__ import annotations

import warnings
from collections.abc import Collection

import numpy as np
import pyarrow as pa

from gnnkit.graph.cells import find_ids
from gnnkit.graph.types import Ids
from gnnkit_formats.label_columns import LabelColumns
from gnnkit_formats.time_columns import TimeColumns


class Table(TimeColumns, LabelColumns):
    """A table of nodes or edges, with readers for all kinds of columns."""

    def without(self, names: Collection[str]) -> Table:
        """Returns the table without some columns."""
        left = [name for name in self.names if name not in names]
        return self._like(self._table.select(left), self._first)

    def part(self, first: int, last: int) -> Table:
        """Returns the rows `first` to `last` - 1."""
        rows = self._table.slice(first, last - first)
        if self._rows is None:
            return self._like(rows, self._first + first).use_readings(self.readings)
        return self._like(rows, self._first, self._rows[first:last]).use_readings(self.readings)

    def first_rows(self, name: str) -> Table:
        """Removes each row with an id that occurs in an earlier row, with a warning."""
        ids = self.id_column(name)
        first_ids = np.flatnonzero(find_ids(ids, ids) == np.arange(len(ids)))
        if len(first_ids) == len(ids):
            return self
        what = f"{len(ids) - len(first_ids):,} of {len(ids):,} rows repeat an id in {name!r} and are left out"
        warnings.warn(f"{self.name}: {what}, also where another column differs, such as the label", stacklevel=4)
        return self._like(self._table.take(first_ids), self._first, first_ids)

    def _like(self, table: pa.Table, first: int, rows: Ids | None = None) -> Table:
        rows = self._rows if rows is None else rows
        return Table(self.name, table, first, self.missing, rows)
