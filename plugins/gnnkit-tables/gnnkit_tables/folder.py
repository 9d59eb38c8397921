"""The files of a database: one for each table, in one of two layouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.table import Table
from gnnkit_formats.table_files import find_table, form_of, parts_of, read_table

from gnnkit.errors import UserError
from gnnkit.launch.progress import say
from gnnkit.utils.ranges import shown_names
from gnnkit_tables.keys import KEY

FORMS = ("parquet", "csv", "csv.gz")
TABLES, TASKS = ("db", "tables"), "tasks"  # folders, the first as in RelBench
SPLIT = "split"  # column of a task table
SHARE = 0.15  # of validation and test each, if neither a task nor the configuration divides its rows
_PARTS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of tables, and of tasks, by name."""

    root: Path
    tables: Mapping[str, Path]
    tasks: Mapping[str, Path]  # a file, or a folder with one for each part of the split
    converted: set[str] = field(default_factory=set, compare=False)  # columns that `read` has reported

    @classmethod
    def find(cls, root: Path) -> Folder:
        """Lists the files in `db`, `tables` or the folder itself, and in `tasks`.

        Raises `UserError` if there are no tables.
        """
        if not root.is_dir():
            raise UserError(f"dataset.root={root}: no such folder")
        places = [root / name for name in TABLES if (root / name).is_dir()] or [root]
        tables = _list_tables(places[0])
        if not tables:
            raise UserError(f"dataset.root={root}: no .parquet or .csv file, nor in a folder {' or '.join(TABLES)}")
        tasks = root / TASKS
        return cls(root, tables, {} if not tasks.is_dir() else _list_tables(tasks) | _list_divided(tasks))

    def read_task(self, name: str, ids: Sequence[str], missing: Sequence[str]) -> Table:
        """Reads a task table, with a column `split` if its parts are separate files.

        Args:
            name: The task.
            ids: Columns of the entity's key, as in `read`.
            missing: Words for missing values.
        """
        path, columns = self.tasks[name], []
        if not path.is_dir() or parts_of(path):
            table = self.read(path, ids, missing)
        else:
            for part in _PARTS:
                if file := find_table(path, part, FORMS):
                    columns.append(_with_part(read_table(file, sorted(ids), missing, narrow=True), part))
            rows = pa.concat_tables(columns, promote_options="permissive")
            table = self._with_dates(Table(f"{TASKS}/{name}", rows, missing=missing), ids)
        if not table.num_rows:
            raise UserError(f"{table.name} has no rows, but is the task {name}; fill it, or remove the file")
        return table

    def read(self, path: Path, ids: Collection[str], missing: Sequence[str]) -> Table:
        """Reads a file. Whole numbers that are all days, such as 20260131, are dates.

        Args:
            path: A file of a table or task.
            ids: Columns of keys, which stay as they are, like columns whose names end
                in id or key.
            missing: Words for missing values.
        """
        return self._with_dates(read_table(path, sorted(ids), missing, narrow=True), ids)

    def _with_dates(self, table: Table, ids: Collection[str]) -> Table:
        """Converts columns of days. Reports a column once."""
        others = [name for name in table.others({*ids, "id"}) if not KEY.search(name)]
        dates = {name: days for name in others if (days := as_days(table.plain(name))) is not None}
        for place in sorted({f"{table.name}, column {name!r}" for name in dates} - self.converted):
            self.converted.add(place)
            say(f"tables: {place} holds whole numbers such as 20260131, which are read as dates")
        columns = {name: dates[name] if name in dates else table.plain(name) for name in table.names}
        return Table(table.name, pa.table(columns), missing=table.missing) if dates else table


def as_days(column: pa.Array) -> pa.Array | None:
    """Returns whole numbers such as 20260131 as dates, or None unless all are days."""
    if not pa.types.is_integer(column.type) or not column.is_valid().true_count:
        return None
    if pc.min(column).as_py() < 1700_01_01 or pc.max(column).as_py() > 2199_12_31:
        return None
    coded = column.dictionary_encode()
    days = pc.strptime(coded.dictionary.cast(pa.string()), format="%Y%m%d", unit="s", error_is_null=True)
    is_day = pc.equal(pc.strftime(days, format="%Y%m%d"), coded.dictionary.cast(pa.string()))  # null: none at all
    return days.take(coded.indices) if pc.all(is_day, skip_nulls=False).as_py() else None


def _list_tables(folder: Path) -> dict[str, Path]:
    files = sorted(path for path in folder.iterdir() if form_of(path) in FORMS or parts_of(path))
    names = [path.name.removesuffix(f".{form_of(path)}") for path in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        copies = shown_names(path.name for path, name in zip(files, names, strict=True) if name == twice)
        raise UserError(f"{folder} has several files of the table {twice}: {copies}; keep one of them")
    return dict(zip(names, files, strict=True))


def _list_divided(folder: Path) -> dict[str, Path]:
    """Lists tasks as RelBench stores them: a folder with train, val and test."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not parts_of(path))
    return {path.name: path for path in folders if find_table(path, _PARTS[0], FORMS)}


def _with_part(table: Table, part: str) -> pa.Table:
    columns = {name: table.plain(name) for name in table.names if name != SPLIT}
    return pa.table({**columns, SPLIT: pa.array(np.full(table.num_rows, part))})
