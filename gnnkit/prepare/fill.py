"""Empty cells of columns: what takes their place, kept with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import FILLS
from gnnkit.dataset.pieces import FILLED_BY
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, Ids, SparseFeatures, Split
from gnnkit.ranges import one_of, shown

_ROWS = 1 << 16  # rows and cells that are looked at together


@dataclass(frozen=True, slots=True)
class Fill:
    """What takes the place of empty cells of features."""

    kind: str = "refuse"  # of FILLS
    means: list[float] | None = None  # [width] of `mean`: over the nodes that train, NaN never
    dropped: list[int] | None = None  # of `drop`: columns that the model does not read

    def __post_init__(self) -> None:
        one_of("features.fill", self.kind, FILLS)
        means = self.means is None or all(isinstance(each, float) and np.isfinite(each) for each in self.means)
        dropped = self.dropped is None or all(isinstance(each, int) and each >= 0 for each in self.dropped)
        held = ((self.means is not None) == (self.kind == "mean"), (self.dropped is not None) == (self.kind == "drop"))
        if not (means and dropped and all(held)):
            raise ValueError(
                f"a fill of kind {self.kind} with means {shown(self.means)}, dropped {shown(self.dropped)}"
            )

    @classmethod
    def of(cls, graph: Graph, kind: str) -> Fill:
        """Finds what a new model is to know of the cells of its graph.

        Raises `UserError` where a column has no number that a mean could be taken of,
        and where no column would be left.

        Args:
            graph: The graph that trains.
            kind: One of FILLS.
        """
        if kind == "mean" and not isinstance(graph.features, SparseFeatures):
            return cls(kind, means=_means(graph))
        if kind == "drop":
            dropped = [] if graph.missing is None else np.unique(graph.missing[:, 1]).tolist()
            if dropped and len(dropped) == graph.features.shape[1]:
                raise UserError("features.fill=drop: every column has an empty cell: choose features.fill=mean")
            return cls(kind, dropped=dropped)
        return cls("refuse" if kind == "mean" else kind)

    def apply(self, graph: Graph, trained: Path | None = None) -> Graph:
        """Returns the graph without empty cells, and without dropped columns.

        Raises `UserError` that names the first cell which nothing fills.

        Args:
            graph: The graph.
            trained: The folder of the run whose model reads the graph, for the error.
        """
        self.check(graph, trained)
        if graph.missing is None and not self.dropped:
            return graph
        missing = np.empty((0, 2), np.int64) if graph.missing is None else graph.missing
        names, texts = self.left(graph.feature_names), self.left(graph.category_of)
        features = self.rows(np.asarray(graph.features), missing)
        return replace(graph, features=features, feature_names=names, category_of=texts, missing=None)

    def check(self, graph: Graph, trained: Path | None = None) -> None:
        """Raises `UserError` for the first cell that nothing fills. As `apply`."""
        missing = graph.missing
        if missing is None or self.kind in ("mean", "zero"):
            return
        left = missing[~np.isin(missing[:, 1], self.dropped)] if self.dropped else missing
        if len(left):
            raise UserError(_refusal(graph, left, trained))

    def left(self, names: Sequence[str] | None) -> tuple[str, ...] | None:  # [width]
        """Returns the names of the columns that are not dropped."""
        dropped = set(self.dropped or ())
        return None if names is None else tuple(name for number, name in enumerate(names) if number not in dropped)

    def rows(self, some: Floats, missing: Ids) -> Floats:  # [k, width], fewer where columns are dropped
        """Returns some rows as a model reads them before the scale.

        Args:
            some: [k, width] Rows.
            missing: [cells, 2] Row and column of the empty cells.
        """
        filled = some.copy()
        filled[missing[:, 0], missing[:, 1]] = 0 if self.means is None else np.array(self.means)[missing[:, 1]]
        return np.ascontiguousarray(np.delete(filled, self.dropped, axis=1)) if self.dropped else filled


def told(graph: Graph, fill: Fill) -> list[str]:
    """Says for people what was filled or left out, in no line where nothing was."""
    missing = graph.missing
    if missing is None:
        return []
    counts = _counts(graph)
    if (texts := graph.category_of) is not None:  # of a text that is empty, each value is
        counts[[bool(text) and texts.index(text) < number for number, text in enumerate(texts)]] = 0
    what = f"{counts.sum():,} empty cells in {np.count_nonzero(counts):,} of {num_columns(graph):,} columns"
    done = {
        "mean": "take the mean of the nodes that train",
        "zero": "are 0",
        "drop": "leave these out",
    }
    return [f"features: {what} {done[fill.kind]} (features.fill={fill.kind})"]


def first_cell(graph: Graph, missing: Ids) -> str:
    """Names column and row of the first empty cell, and the user's id of the node."""
    column = int(missing[:, 1].min())
    node = int(missing[missing[:, 1] == column, 0].min())
    text = "" if graph.category_of is None else graph.category_of[column]
    name = f"column {column}" if graph.feature_names is None else f"column {(text or graph.feature_names[column])!r}"
    own = "" if graph.node_ids is None else f" (id {graph.node_ids[node]})"
    return f"{name}, row {node}{own}"


def num_columns(graph: Graph) -> int:
    """Counts the columns of the table: a column of text is one."""
    texts = graph.category_of or ()
    return int(graph.features.shape[1]) - sum(map(bool, texts)) + len(set(texts) - {""})


def _cells(graph: Graph, missing: Ids) -> Ids:
    """Returns empty cells of the table. A text is empty in each of its values."""
    if graph.category_of is None:
        return missing
    texts = graph.category_of
    first = np.array([not text or texts.index(text) == number for number, text in enumerate(texts)])
    cells: Ids = missing[first[missing[:, 1]]]
    return cells


def _refusal(graph: Graph, missing: Ids, trained: Path | None) -> str:
    missing = _cells(graph, missing)
    count = f"{len(missing):,} cell{'s' if len(missing) > 1 else ''} of features {'are' if len(missing) > 1 else 'is'} empty"
    place = f"dataset: {count}, the first in {first_cell(graph, missing)}: "
    if trained is not None:
        return (
            f"{place}the model of {trained} reads whole columns there: fill the cells, or train with features.fill=mean"
        )
    return f"{place}{FILLED_BY}"


def _means(graph: Graph) -> list[float]:  # [width]
    """Averages the known numbers of each column over the nodes that train."""
    features = np.asarray(graph.features)
    trains = graph.split == Split.TRAIN
    trains = trains if trains.any() else np.ones(graph.num_nodes, np.bool_)
    count = trains.sum() - _counts(graph, trains)
    if not count.all():
        column = int(count.argmin())
        name = column if graph.feature_names is None else repr(graph.feature_names[column])
        raise UserError(
            f"features.fill=mean: column {name} has no number for any node that trains: leave the column out"
        )
    rows = np.flatnonzero(trains)  # empty cells are 0
    sums = sum(features[rows[first : first + _ROWS]].sum(0, dtype=np.float64) for first in range(0, len(rows), _ROWS))
    means: list[float] = (sums / count).tolist()
    return means


def _counts(graph: Graph, rows: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:  # [width]
    """Counts the empty cells of each column, in all rows or in some [num_nodes]."""
    count, missing = np.zeros(graph.features.shape[1], np.int64), graph.missing
    for first in range(0, 0 if missing is None else len(missing), _ROWS):
        cells = missing[first : first + _ROWS]  # type: ignore[index]
        own = cells if rows is None else cells[rows[cells[:, 0]]]
        count += np.bincount(own[:, 1], minlength=len(count))
    return count
