"""New nodes and edges of a request, and their values as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids
from gnnkit.graph.cells import MISSING
from gnnkit.launch.progress import warn
from gnnkit.prepare.columns import NumericTable, TrainedColumns
from gnnkit.utils.checks import FLOAT32_MAX
from gnnkit.utils.ranges import shown, shown_names

NodeId = int | str
FeatureCell = float | str | None  # None: empty
FeatureCells = Sequence[FeatureCell] | Mapping[str, FeatureCell]  # raw, in the training data's order or by column


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that the graph does not have."""

    id: NodeId
    features: FeatureCells = ()
    type: str | None = None  # None: the type of the labelled nodes

    def __str__(self) -> str:
        return f"nodes: {self.id}"


@dataclass(frozen=True, slots=True)
class NewEdge:
    """An edge with a new node at one end or both, or an edge to predict."""

    source: NodeId
    destination: NodeId
    weight: float | None = None
    features: FeatureCells = ()
    relation: str | None = None  # as `Graph.edge_type_names`. None: the only one
    time: int | str | None = None  # a number, or a date if times are dates. None: the edges have no times

    def __str__(self) -> str:
        return f"edges: {self.source} -> {self.destination}"


@dataclass(frozen=True, slots=True, eq=False)
class NewColumns:
    """The feature columns of new nodes of one type, or of new edges."""

    names: Sequence[str]  # [width]. Empty: by position
    texts: Sequence[str]  # [width] as `Graph.category_of`, "" for a number
    dtype: npt.DTypeLike
    only_known: bool  # whether text values must occur in training
    place: slice  # of these columns among those of all types

    @classmethod
    def of(cls, columns: TrainedColumns | None, table: NumericTable, place: slice = slice(None)) -> NewColumns:
        """Returns the columns of training, or the table's if these have no names."""
        names = (table.names or ()) if columns is None else columns.names
        texts = (None if columns is None else columns.category_of) or ("",) * (len(names) or table.width)
        is_closed = columns is not None and columns.text == "known"
        return cls(names[place], texts[place], table.rows.dtype, is_closed, place)

    def read(self, items: Sequence[object], features: Sequence[FeatureCells]) -> tuple[Floats, Ids]:
        """Reads the cells of nodes or edges, and warns of unknown text.

        Raises `UserError` for other columns, and for values that do not fit a column.

        Args:
            items: [k] nodes or edges, for messages.
            features: [k] cells.

        Returns:
            The numbers [k, width], 0 in empty cells, and row and column of each empty
                cell [c, 2].
        """
        cells = [self._cells(str(item), values) for item, values in zip(items, features, strict=True)]
        numbers = np.array(cells, np.float64).reshape(len(cells), len(self.texts))  # None becomes NaN
        self._warn_of_unknown(items, features, numbers)
        for row, column in np.argwhere(np.abs(numbers) > FLOAT32_MAX).tolist():
            raise UserError(f"{items[row]}: column {self.title(column)} exceeds the range of float32")
        return np.nan_to_num(numbers).astype(self.dtype), np.argwhere(np.isnan(numbers))

    def _warn_of_unknown(
        self, items: Sequence[object], features: Sequence[FeatureCells], numbers: npt.NDArray[np.float64]
    ) -> None:
        """Warns once per column of text, because a request may have many nodes."""
        for text in dict.fromkeys(filter(None, self.texts)):
            zeros = np.flatnonzero(~numbers[:, [column == text for column in self.texts]].any(1)).tolist()
            rows = [row for row in zeros if isinstance(features[row], Mapping)]
            for row in rows[:1]:
                value = shown(f"{text}={features[row][text]}")  # type: ignore[call-overload]
                suffix = f", nor do {len(rows) - 1} further values" if len(rows) > 1 else ""
                warn(f"{items[row]}: {value} does not occur in the training data{suffix}: all columns of {text} are 0")

    def _cells(self, item: str, cells: FeatureCells) -> Sequence[FeatureCell]:  # [width] numbers and None
        cells = self._by_position(item, cells) if isinstance(cells, Mapping) else cells
        if len(cells) != len(self.texts):
            raise UserError(f"{item} has {len(cells)} features, expected {len(self.texts)}")
        for column, value in enumerate(cells):
            if isinstance(value, str):
                raise UserError(
                    f"{item}: column {self.title(column)} has the text {shown(value)!r}, expected a number: text is "
                    'passed by column, as in {"column": "value"}'
                )
        return cells

    def _by_position(self, item: str, cells: Mapping[str, FeatureCell]) -> list[FeatureCell]:  # [width]
        """Orders an item's values. Text becomes 1 in its value's column, else 0."""
        columns = [text or name for text, name in zip(self.texts, self.names, strict=False)]
        if not self.names or cells.keys() != set(columns):
            raise UserError(
                f"{item} has the columns {shown_names(cells) or 'none'}, expected "
                f"{', '.join(dict.fromkeys(columns)) or 'a list, because the data have no names'}"
            )
        self._check_numbers(item, cells)
        values = {text: self._category(item, text, cells[text]) for text in dict.fromkeys(self.texts) if text}
        return [
            cells[name] if not text else None if values[text] is None else float(name == values[text])
            for name, text in zip(self.names, self.texts, strict=True)
        ]

    def _category(self, item: str, text: str, cell: FeatureCell) -> str | None:
        """Returns the column that encodes a value, None for an empty cell."""
        cell_text = format(cell, ".15g") if isinstance(cell, float) else str(cell).strip()  # 7 without a fraction
        name = f"{text}={cell_text}"
        if cell is None or (name not in self.names and cell_text.lower() in MISSING):
            return None
        if name not in self.names and self.only_known:
            raise UserError(
                f"{item}: {shown(name)} does not occur in the training data, which features.text=known requires"
            )
        return name

    def _check_numbers(self, item: str, cells: Mapping[str, FeatureCell]) -> None:
        """Raises `UserError` for text in a column of numbers."""
        for column, text in zip(self.names, self.texts, strict=True):
            if not text and isinstance(cells[column], str):
                raise UserError(
                    f"{item}: column {column!r} has the text {shown(cells[column])!r}, but training read numbers there: "
                    "pass the number that training read"
                )

    def title(self, column: int) -> str:
        """Returns a column's name as shown in messages, or its number."""
        return repr(self.names[column]) if self.names else str(column)
