"""Databases of tables with keys, as typed graphs with times."""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from gnnkit_formats.table import Table
from gnnkit_formats.table_files import read_table

from gnnkit import plugins
from gnnkit.dataset.base import Advice, Dataset
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Schema, Split
from gnnkit.graph.cells import read_missing
from gnnkit.graph.split import read_split
from gnnkit.graph.times import ALWAYS, NEVER, parse_time, show_time
from gnnkit.graph.types import Ids
from gnnkit.launch.progress import say
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import local_path, one_of, shown, shown_names, switch, whole
from gnnkit_tables.baselines import best_column, can_compare, rank_by_rules
from gnnkit_tables.build import (
    are_targets_at,
    build_columns,
    build_graph,
    describe_outsiders,
    encode_types,
    with_scores,
)
from gnnkit_tables.database import Database, join_epochs, read_database, read_tables, read_times
from gnnkit_tables.encode import Embed, Encoded
from gnnkit_tables.folder import SHARE, Folder
from gnnkit_tables.guess import add_task, columns_named_like_keys, propose
from gnnkit_tables.history import is_event
from gnnkit_tables.keys import KeyIndex
from gnnkit_tables.lists import one_row_per_item
from gnnkit_tables.manifest import FILE, Manifest, TaskSpec, example_tasks
from gnnkit_tables.pairs import pair_targets
from gnnkit_tables.question import Question
from gnnkit_tables.select import ADVICE, Keys, list_candidates, metric_of, rule_candidate, select_keys
from gnnkit_tables.targets import SplitRule, Targets, read_targets

_ROWS = ".rows.parquet"  # ending of the file next to a manifest that keeps the answer to a question


@dataclass(frozen=True, slots=True)
class Reading:
    """A database and the targets of a task, with their entries in the manifest."""

    database: Database
    targets: Targets
    manifest: Manifest  # without reasons, unless some entries are guesses
    answer: Table | None  # the task's rows that job=init writes, if they answer a question


class Tables(Dataset):
    """A database: a folder with one Parquet or CSV file for each table, and tasks.

    Each row is a node, and each table a node type. A column that holds the primary key
    of another table is a relation with an inverse. An edge has the time of the row that
    refers to the other. Rows of the task table are nodes of a further type, the only
    ones with labels: each has an in-edge from its entity, the entity's columns, and
    summaries of the rows that refer to the entity before the target's time.

    `manifest.yaml` names keys, links, times and tasks. Without it, they are guesses
    from names and values, which `job=init` writes into such a file.
    """

    of_data: ClassVar[tuple[str, ...]] = (*Dataset.of_data, "until")
    of_task: ClassVar[tuple[str, ...]] = ("table", "freeze")

    def __init__(
        self,
        root: str,
        table: str | None = None,
        manifest: str | None = None,
        links: bool = True,
        boosting: bool = False,
        freeze: str = "none",
        until: Any = None,
        text: str = "hashed",
        missing: Sequence[str | float] | None = None,
        split: Any = None,
        seed: int = 0,
    ) -> None:
        """Checks the options.

        Args:
            root: The folder.
            table: Name of the task table. Default: the only one.
            manifest: File with keys, links, times and tasks. Default: manifest.yaml in
                the folder.
            links: Whether other rows than the targets are nodes. Without them, the
                graph has no edges, for a baseline of the targets' columns.
            boosting: Whether targets have outputs of gradient boosting, which
                `model=blend` reads, as their last columns.
            freeze: `test` hides all rows after the first test time from all targets.
            until: Time as of which every entity is a target without a label, besides
                the rows of the task table.
            text: Plugin of the group `gnnkit.text` that embeds columns of text.
            missing: Words and numbers for missing values, as in `dataset=edges`.
            split: `{by: time, shares: [...]}`, or three shares for a task without
                times, if the task table has no split.
            seed: Seed of a random split.
        """
        self.root = local_path("dataset.root", root)
        self.table, self.until = _name("task.table", table), _until(until)
        self.manifest = None if manifest is None else local_path("dataset.manifest", manifest)
        self.links = switch("dataset.links", links)
        self.boosting = switch("dataset.boosting", boosting)
        if self.boosting and not self.links:
            raise UserError(
                "dataset.boosting=true: model=blend averages a model of the graph; remove dataset.links=false"
            )
        self.freeze = one_of("task.freeze", freeze, ("none", "test"))
        self.embed: Embed = plugins.load("text", text)
        self.missing = read_missing("dataset.missing", missing)
        self.split, self.seed = read_split("dataset.split", split), whole("dataset.seed", seed, 0)

    def load(self) -> Graph:
        return self._build(*self._encode(self._read(*self._open()), self.split))

    def advise(self, minutes: float, seed: int) -> Advice:
        """Completes a manifest with guesses, and selects a model by validation."""
        folder, manifest = self._open()
        if not _task_names(folder, manifest):
            text = manifest.text().removesuffix("tasks: {}\n")
            why = (
                f"dataset.root={folder.root} has no task: change the example in {FILE}, then repeat the command with "
                "dataset.manifest=PATH and on_exists=replace; or add tasks/NAME.csv with entity, time, label and split"
            )
            return Advice(files={FILE: f"{text}{example_tasks(manifest)}"}, missing=why)
        try:
            reading = self._read(folder, manifest)
        except UserError as error:
            if not manifest.reasons:
                raise
            why = (
                f"{error}; once it is corrected, repeat the command with on_exists=replace, and with dataset.manifest=PATH if "
                f"the correction is in {FILE}"
            )
            return Advice(files={FILE: manifest.text()}, missing=why)
        default = None if self.split else reading.targets.default_split
        split = self.split or read_split("dataset.split", default)
        database, targets, encoded = self._encode(reading, split)
        columns, graph = build_columns(database, targets, encoded), self._build(database, targets, encoded)
        keys = graph_keys(database, targets)
        if minutes and can_compare(columns):
            rules = [] if targets.pairs is None else rank_by_rules(targets)
            baseline = max(rules, key=lambda rule: rule.val) if rules else best_column(columns)
            for line in rules or [baseline] if baseline else ():
                say(str(line))
            plain, scored = (
                graph
                if self.links and self.boosting == is_scored
                else build_graph(database, targets, with_scores(encoded, targets) if is_scored else encoded)
                for is_scored in (False, True)
            )
            candidates = list_candidates(plain, scored, columns, keys)
            if baseline and rules:
                candidates.append(rule_candidate(columns, baseline, keys))
            keys = select_keys(candidates, metric_of(columns), minutes, seed, baseline)
        elif minutes:
            say(f"tables: no trials, because {targets.name} needs rows of train, val and test, with different labels")
        if default is not None:
            keys = {"dataset.split": (default, "the task table has none"), **keys}
        if not (manifest.reasons or reading.answer is not None or self.manifest):
            return Advice(keys, graph=graph)
        path = None if manifest.reasons else self._manifest_file(folder)
        files: dict[str, str | bytes] = {FILE: path.read_bytes() if path else manifest.text()}
        if reading.answer is not None:
            files[f"{targets.name}{_ROWS}"] = _as_parquet(reading.answer, manifest.tasks[targets.name])
        return Advice({"dataset.manifest": (FILE, "guesses have reasons: correct them"), **keys}, files, graph)

    def predicted_nodes(self, schema: Schema, ids: Array) -> slice | Ids:
        """Returns the task's rows, the last node type, or only those as of `until`."""
        rows = schema.nodes(schema.node_types[-1][0])
        if self.until is None:
            return rows
        places: Ids = np.flatnonzero(are_targets_at(self.until, ids[rows])) + rows.start
        return places

    def _open(self) -> tuple[Folder, Manifest]:
        folder = Folder.find(self.root)
        return folder, self._read_manifest(folder)

    def _encode(self, reading: Reading, split: SplitRule) -> tuple[Database, Targets, dict[str, Encoded]]:
        """Describes the tables, and returns them as of the configured times."""
        database = reading.database
        targets = reading.targets.split_by(split, self.seed, database.unit)
        if any(section == "tables" for section, *_ in reading.manifest.reasons):
            say(
                f"tables: no {'tables in ' if self._manifest_file(Folder.find(self.root)) else ''}{FILE}, so keys, links and "
                "times are guesses; job=init writes them with reasons"
            )
        for line in (*database.lines(), *describe_outsiders(database, targets), targets.line):
            say(line)
        if (targets.times == ALWAYS).all() and not all(row_type.is_static for row_type in database.types.values()):
            say(f"tables: {targets.name} has no time in {FILE}, so its rows see all rows, however late they are")
        targets.check_times(database.unit)
        database, targets = self._as_of(database, targets)
        if targets.lists is not None:
            targets = pair_targets(database, targets)
        return database, targets, encode_types(database, targets, self.embed)

    def _build(self, database: Database, targets: Targets, encoded: Mapping[str, Encoded]) -> Graph:
        """Returns the graph that `links` and `boosting` select."""
        if not self.links:
            return build_columns(database, targets, encoded)
        if not self.boosting:
            return build_graph(database, targets, encoded)
        say("tables: the last columns of held-out targets are outputs of boosting, for model=blend and no other model")
        return build_graph(database, targets, with_scores(encoded, targets))

    def _read(self, folder: Folder, manifest: Manifest) -> Reading:
        name = self._task_name(folder, manifest)
        spec = manifest.tasks[name]
        tables = read_tables(folder, manifest, self.missing)
        columns = _time_columns(tables, manifest)
        if spec.query is None:
            task = folder.read_task(name, spec.keys, self.missing)
            task = task if spec.target is None else one_row_per_item(task, spec.label)
            columns |= _task_times(name, task, spec.time)
        columns = join_epochs(columns, has_spans=isinstance(spec.horizon, str))
        path, answer = (self._manifest_file(folder) or folder.root / FILE).with_name(f"{name}{_ROWS}"), None
        if spec.query is not None and path.is_file():
            task = _read_answer(path, name, spec, self.missing)
            answer = task if self.manifest else None
        elif spec.query is not None:
            task = answer = self._ask(name, tables, columns, manifest)
        if spec.query is not None:
            columns |= _task_times(name, task, spec.time)
        times, unit = read_times(columns)
        database = read_database(tables, manifest, times, unit)
        targets = read_targets(name, spec, task, times.get((name, spec.time or "")), database)
        return Reading(database, targets, manifest, answer)

    def _ask(
        self, name: str, tables: Mapping[str, Table], columns: Mapping[tuple[str, str], Array], manifest: Manifest
    ) -> Table:
        """Computes a task table by its query. Adds default dates to the manifest."""
        times, unit = read_times(columns)
        row_times = [times[table, spec.time] for table, spec in manifest.tables.items() if spec.time is not None]
        question = Question.create(name, manifest.tasks[name], row_times, unit)
        for line in question.lines():
            say(line)
        if question.spec.val is None:
            manifest.tasks[name] = question.dated_spec
            manifest.reasons["tasks", name, "val"] = f"the last dates, {100 * SHARE:g} % for each part"
        return question.answer(tables, times, manifest)

    def _as_of(self, database: Database, targets: Targets) -> tuple[Database, Targets]:
        """Returns rows and targets as of the times that `freeze` and `until` name."""
        if (self.until is not None or self.freeze == "test") and (targets.times == ALWAYS).all():
            raise UserError(f"dataset.until and task.freeze need times: name tasks.{targets.name}.time in {FILE}")
        if self.freeze == "test":
            if self.until is not None:
                say(
                    "tables: task.freeze=test hides rows after "
                    f"{show_time(targets.first_test, database.unit)}, also from rows of dataset.until={self.until}"
                )
            database = database.until(targets.first_test)
        if self.until is not None:
            time = parse_time("dataset.until", self.until, database.unit)
            first = min(int(rows.times[rows.times > ALWAYS].min(initial=NEVER)) for rows in database.types.values())
            if time < first < NEVER:
                begin = show_time(first, database.unit)
                raise UserError(f"dataset.until={self.until}: all rows are later, from {begin} on: choose a later time")
            newest = max(int(rows.times[rows.times < NEVER].max(initial=ALWAYS)) for rows in database.types.values())
            if ALWAYS < newest < time:
                say(f"tables: dataset.until={self.until}: the newest row is of {show_time(newest, database.unit)}")
            if targets.lists is not None and (
                count := int(((targets.times == time) & (targets.split == Split.TRAIN)).sum())
            ):
                raise UserError(
                    f"dataset.until={self.until}: {count:,} training lists of {targets.name} have this time, of which only some "
                    "rows are read; use another time"
                )
            targets = targets.with_all(database.types[targets.entity], time)
        return database, targets

    def _task_name(self, folder: Folder, manifest: Manifest) -> str:
        """Returns the task. Raises `UserError` if there are several, or none."""
        names = _task_names(folder, manifest)
        if self.table is None and len(names) != 1:
            raise UserError(
                f"task.table=NAME selects one of the tasks {shown_names(names)}"
                if names
                else f"dataset.root={folder.root} has no task: add tasks/NAME.parquet with entity, time, label and split, or "
                f"tasks.NAME with a query to {FILE}, of which job=init writes an example"
            )
        name = self.table or names[0]
        if name not in names:
            raise UserError(f"task.table={name}: the tasks are {shown_names(names) or 'none'}")
        if name not in manifest.tasks:
            raise UserError(f"task.table={name}: {FILE} has no such task, only {shown_names(manifest.tasks)}")
        return name

    def _read_manifest(self, folder: Folder) -> Manifest:
        """Reads the manifest. Without entries of tables, these are guesses."""
        if (path := self._manifest_file(folder)) is None:
            return self._propose(folder, folder.tasks)
        manifest = Manifest.read(path)
        if not manifest.tables:
            manifest = replace(self._propose(folder, ()), tasks=manifest.tasks)
        self._add_task(folder, manifest)
        return manifest.checked()

    def _add_task(self, folder: Folder, manifest: Manifest) -> None:
        """Adds a guess of the task, if it is a file that the manifest lacks."""
        names = _task_names(folder, manifest)
        name = self.table or (names[0] if len(names) == 1 else None)
        if name is None or name not in folder.tasks or name in manifest.tasks:
            return
        tables = read_tables(folder, manifest, self.missing)
        indices = {key: KeyIndex.create(tables[key], spec.key) for key, spec in manifest.tables.items() if spec.key}
        keys = columns_named_like_keys(folder.read_task(name, (), self.missing), indices)
        add_task(manifest, name, folder.read_task(name, keys, self.missing), tables, indices)

    def _manifest_file(self, folder: Folder) -> Path | None:
        """Returns the manifest, or None if it must be guessed.

        Raises `UserError` if the configured file does not exist.
        """
        path = self.manifest or folder.root / FILE
        if self.manifest is not None and not path.is_file():
            raise UserError(f"dataset.manifest={path}: no such file; job=init dataset=tables writes one")
        return path if path.exists() else None

    def _propose(self, folder: Folder, names: Iterable[str]) -> Manifest:
        """Proposes the entries of all tables, and of some tasks, in the manifest.

        Keys in text files are read as text once they are known, so that 007 is not 7.
        """
        tables = {name: folder.read(path, (), self.missing) for name, path in folder.tables.items()}
        tasks = {name: folder.read_task(name, (), self.missing) for name in names}
        manifest = propose(tables, tasks)
        again = read_tables(folder, manifest, self.missing)
        task_rows = {name: folder.read_task(name, manifest.tasks[name].keys, self.missing) for name in tasks}
        before, after = [*tables.values(), *tasks.values()], [*again.values(), *task_rows.values()]
        is_same = [part.kinds for part in before] == [part.kinds for part in after]
        return manifest if is_same else propose(again, task_rows)


def _task_names(folder: Folder, manifest: Manifest) -> list[str]:
    return [*dict.fromkeys([*folder.tasks, *(name for name, spec in manifest.tasks.items() if spec.query)])]


def graph_keys(database: Database, targets: Targets) -> Keys:
    """Returns the keys for a model of the graph, with their reasons."""
    keys = ADVICE["graph"] if (targets.times == ALWAYS).all() else {**ADVICE["graph"], **ADVICE["times"]}
    if targets.pairs is not None:
        lists: Keys = {
            "task": ("ranking", "labels are rows of another table"),
            "task.k": (targets.pairs.length, "length of the lists"),
        }
        keys = {**keys, **lists}
    return {**keys, **ADVICE["events"]} if is_event(database.types[targets.entity], targets) else keys


def _as_parquet(table: Table, spec: TaskSpec) -> bytes:
    """Returns the rows of a question as a file, with the question."""
    buffer, columns = io.BytesIO(), {name: table.plain(name) for name in table.names}
    metadata = {"question": repr(spec)}
    if pa.types.is_timestamp(kind := columns[str(spec.time)].type):
        metadata["unit"] = kind.unit  # Parquet has no seconds
    pyarrow.parquet.write_table(pa.table(columns, metadata=metadata), buffer)
    return buffer.getvalue()


def _read_answer(path: Path, name: str, spec: TaskSpec, missing: Sequence[str]) -> Table:
    """Reads what `_as_parquet` wrote. Raises `UserError` for another question."""
    table = read_table(path, spec.keys, missing, narrow=True)
    metadata = pyarrow.parquet.read_schema(path).metadata or {}
    if metadata.get(b"question") != repr(spec).encode():
        raise UserError(f"{path} has the rows of another question than tasks.{name} in {FILE}; remove this file")
    say(f"tables: the rows of {name} are in {path}; remove this file to run the query again")
    if (unit := metadata.get(b"unit")) is None:
        return table
    columns = {column: table.plain(column) for column in table.names}
    columns[str(spec.time)] = columns[str(spec.time)].cast(pa.timestamp(unit.decode()))
    return Table(table.name, pa.table(columns), missing=missing)


def _name(key: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise UserError(f"{key}={shown(value)} must be the name of a task")


def _until(value: object) -> Any:
    if value is None or (isinstance(value, str | int | datetime.date) and not isinstance(value, bool)):
        return value
    raise UserError(f"dataset.until={shown(value)} must be a time: a date such as 2026-01-31, or a number")


def _time_columns(tables: Mapping[str, Table], manifest: Manifest) -> dict[tuple[str, str], Array]:
    """Reads the times of all tables, by table and column."""
    return {
        (name, column): tables[name].times(column)
        for name, spec in manifest.tables.items()
        for column in (spec.time, *spec.later)
        if column is not None
    }


def _task_times(name: str, task: Table, column: str | None) -> dict[tuple[str, str], Array]:
    """Reads the times of the task's rows. Raises `UserError` for an empty cell."""
    if column is None:
        return {}
    times = task.times(column)
    empty = np.isnat(times) if times.dtype.kind == "M" else times == NEVER
    if empty.any():
        raise UserError(
            f"{task.name}, column {column!r}: {empty.sum():,} rows have no time, the first is row {empty.argmax()}"
        )
    return {(name, column): times}
