"""Tables of numeric columns, and the columns of new data in a trained model's order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import Settings
from gnnkit.dataset.base import blame, name_list
from gnnkit.errors import UserError
from gnnkit.graph import Features, Graph, Ids, SparseFeatures
from gnnkit.graph.unfit_columns import IgnorableColumns, describe_many, has_many_values, remedy
from gnnkit.launch.progress import warn
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown_names

_ID_NAME = re.compile(r"(?:.*[\W_])?[iI][dD]|.*[a-z\d]I[dD]")  # id, user_id or userId, but not paid


@dataclass(frozen=True, slots=True, eq=False)
class NumericTable:
    """Rows of numbers, with the names of their columns and the empty cells."""

    rows: Features  # [n, width], 0 in empty cells
    names: tuple[str, ...] | None = None  # [width]. None: columns are identified by position
    category_of: tuple[str, ...] | None = None  # [width] as `Graph.category_of`
    missing: Ids | None = None  # [k, 2] row and column of each empty cell
    row_ids: Array | None = None  # [n] as `Graph.node_ids`, for error messages

    @classmethod
    def of_nodes(cls, graph: Graph) -> NumericTable:
        return cls(graph.features, graph.feature_names, graph.category_of, graph.missing, graph.node_ids)

    @classmethod
    def of_edges(cls, graph: Graph) -> NumericTable | None:
        """Returns the edge features, if there are any."""
        rows = graph.edge_features
        return None if rows is None else cls(rows, graph.edge_feature_names, graph.edge_category_of)

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    @property
    def num_sources(self) -> int:
        """The number of columns before text was encoded: a text column counts once."""
        texts = self.category_of or ()
        return self.width - sum(map(bool, texts)) + len(set(texts) - {""})

    def column(self, number: int) -> str:
        """Returns a column's name as shown in messages, or its number."""
        return str(number) if self.names is None else repr(self.names[number])

    def are_sources(self) -> npt.NDArray[np.bool_]:  # [width]
        """Marks numeric columns, and the first column of each encoded text."""
        texts = self.category_of or ("",) * self.width
        return np.array([not text or texts.index(text) == number for number, text in enumerate(texts)], np.bool_)

    def cell(self, cells: Ids) -> str:
        """Describes the first of the given cells: column, row and the row's id."""
        column = int(cells[:, 1].min())
        row = int(cells[cells[:, 1] == column, 0].min())
        text = "" if self.category_of is None else self.category_of[column]
        name = repr(text) if text and self.names is not None else self.column(column)
        user_id = "" if self.row_ids is None else f" (id {self.row_ids[row]})"
        return f"column {name}, row {row}{user_id}"


def are_numbers(category_of: Sequence[str] | None, width: int) -> npt.NDArray[np.bool_]:  # [width]
    """Marks the columns that do not encode text."""
    return np.array([not text for text in category_of or ("",) * width], np.bool_)


def ignored_columns(settings: Settings) -> tuple[str, ...] | None:
    """Returns the value of `dataset.ignore`, or None if there is no such key."""
    arguments = settings.dataset.arguments
    return name_list("dataset.ignore", arguments["ignore"] or ()) if "ignore" in arguments else None


def check_texts(graph: Graph, kind: str, ignore: Sequence[str] | None = ()) -> list[str]:
    """Checks a new model's text columns, and describes them in one line.

    Raises `UserError` for columns that identify nodes, such as names.

    Args:
        graph: The training graph.
        kind: One of `settings.inputs.TEXTS`.
        ignore: As for `remedy`.
    """
    counts, edge_counts = _count_values(graph.category_of), _count_values(graph.edge_category_of)
    id_texts = [name for name, count in counts.items() if has_many_values(count, graph.num_nodes)]
    texts = [*counts, *edge_counts]
    if texts and kind == "refuse":
        raise UserError(f"features.text=refuse: the columns {shown_names(texts)} hold text: {remedy(texts, ignore)}")
    if id_texts:
        unfit = [(name, describe_many(name, counts[name], graph.num_nodes)) for name in id_texts]
        with blame("dataset"):
            raise IgnorableColumns(unfit, ignore)
    if not texts:
        return []
    counts |= {f"{name} of edges": count for name, count in edge_counts.items()}
    values = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return [f"features: one column for each value of text ({values} values; features.text={kind})"]


def find_ids(graph: Graph) -> list[tuple[str, str]]:
    """Returns numeric feature columns that identify nodes, each with the reason.

    Their name ends in id, and they have as many different integers as text that
    identifies nodes has values.
    """
    if not isinstance(graph.features, np.ndarray) or graph.feature_names is None:
        return []
    ids = []
    for number, name in enumerate(graph.feature_names):
        values = graph.features[:, number] if _ID_NAME.fullmatch(name) else np.empty(0)
        count = len(np.unique(values)) if (values == np.floor(values)).all() else 0
        if has_many_values(count, graph.num_nodes):
            reason = f"column {name!r} holds {count:,} different whole numbers for {graph.num_nodes:,} nodes, as ids do"
            ids.append((name, reason))
    return ids


def check_ids(graph: Graph, ignore: Sequence[str] | None) -> None:
    """Raises `UserError` for numeric ids that `dataset.ignore` can exclude."""
    if ignore is not None and (ids := find_ids(graph)):
        with blame("dataset"):
            raise IgnorableColumns(ids, ignore)


def _count_values(category_of: Sequence[str] | None) -> dict[str, int]:
    texts = [text for text in category_of or () if text]
    return {name: texts.count(name) for name in dict.fromkeys(texts)}


@dataclass(frozen=True, slots=True)
class TrainedColumns:
    """The columns that a trained model reads, in their order."""

    names: Sequence[str]  # [width]
    category_of: Sequence[str] | None  # [width] as `Graph.category_of`
    text: str  # one of `settings.inputs.TEXTS`: how unseen values are handled
    item: str  # what a row belongs to: node or edge
    folder: Path  # folder of the training run, for messages

    def select(self, table: NumericTable) -> NumericTable:
        """Returns a table with the model's columns, in the model's order.

        If a text value was not seen in training, the row is 0 in all columns of that
        text, and a warning counts such rows. Raises `UserError` for unseen values if
        the model was trained with `features.text=known`, for numbers in place of text,
        for missing or additional columns, and for another number of columns without
        names.
        """
        if table.names is None and table.width != len(self.names):
            noun = "features" if self.item == "node" else "edge features"
            raise UserError(
                f"dataset has {table.width} columns of {noun}, the model of {self.folder} reads {len(self.names)}"
            )
        if table.names is None or (self.category_of is None and list(self.names) == list(table.names)):
            return table
        rows, unseen = table.rows, self._unseen(table)
        if self.category_of is not None:
            rows = np.asarray(rows)
            self._warn_of_unseen(rows, [table.names[column] for column in unseen], unseen)
        order = self._order({name: number for number, name in enumerate(table.names) if number not in unseen})
        rows = rows.columns(order.tolist()) if isinstance(rows, SparseFeatures) else rows[:, order]
        if isinstance(rows, np.ndarray):
            rows[:, order < 0] = 0
        texts = None if self.category_of is None else tuple(self.category_of)
        return NumericTable(rows, tuple(self.names), texts, self._cells(table, order), table.row_ids)

    def _order(self, columns: Mapping[str, int]) -> Ids:  # [width]
        """Returns each column's number in the table, or -1 for an absent text value."""
        values = [name for name, text in zip(self.names, self._texts, strict=True) if text]
        self.check([*columns, *(name for name in values if name not in columns)])
        return np.array([columns.get(name, -1) for name in self.names], np.int64)

    @property
    def _texts(self) -> Sequence[str]:
        return self.category_of or ("",) * len(self.names)

    def _unseen(self, table: NumericTable) -> list[int]:
        """Lists the table's columns for text values not seen in training."""
        names, texts = table.names or (), table.category_of or ("",) * table.width
        model_texts = set(self._texts) - {""}
        if numbers := [name for name, text in zip(names, texts, strict=True) if not text and name in model_texts]:
            raise UserError(
                f"dataset: column {numbers[0]!r} holds numbers here, and text where the model of {self.folder} trained"
            )
        return [number for number, text in enumerate(texts) if text in model_texts and names[number] not in self.names]

    def _warn_of_unseen(self, rows: Array, names: Sequence[str], columns: list[int]) -> None:
        if not columns:
            return
        count = int(np.count_nonzero(rows[:, columns].any(1)))
        subject = f"1 {self.item} has" if count == 1 else f"{count:,} {self.item}s have"
        line = f"{subject} values of text that the model of {self.folder} has not seen: {shown_names(names)}"
        if self.text == "known":
            raise UserError(f"dataset: {line}: features.text=known refuses these: remove the rows, or train again")
        warn(f"{line}: all columns of that text are 0 there")

    def check(self, names: Sequence[str]) -> None:
        """Raises `UserError` that lists missing and additional columns."""
        missing = [name for name in self.names if name not in names]
        additional = [name for name in names if name not in self.names]
        pairs = [("lacks", missing), ("also has", additional)]
        if parts := [f"{verb} {shown_names(columns)}" for verb, columns in pairs if columns]:
            noun = "features" if self.item == "node" else "edge features"
            raise UserError(
                f"dataset {' and '.join(parts)}: the model of {self.folder} reads the columns "
                f"{shown_names(self.names)} as {noun}"
            )

    def _cells(self, table: NumericTable, order: Ids) -> Ids | None:  # [k, 2]
        """Returns the empty cells, numbered by the model's columns.

        An empty text is empty in all its columns.
        """
        if table.missing is None:
            return None
        texts, cells = table.category_of or ("",) * table.width, [np.empty((0, 2), np.int64)]
        for column in np.unique(table.missing[:, 1]).tolist():
            rows = table.missing[table.missing[:, 1] == column, 0]
            is_target = np.array(self._texts) == texts[column] if texts[column] else order == column
            targets = np.flatnonzero(is_target)
            cells.append(np.stack([np.repeat(rows, len(targets)), np.tile(targets, len(rows))], 1))
        return np.unique(np.concatenate(cells), axis=0)
