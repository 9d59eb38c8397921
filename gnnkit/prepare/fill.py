"""Empty cells of columns: what takes their place, kept with the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, Ids, SparseFeatures, Split
from gnnkit.ranges import one_of, shown
from gnnkit.settings import FILLS


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
        missing = graph.missing
        if missing is not None and self.kind not in ("mean", "zero"):
            missing = missing[~np.isin(missing[:, 1], self.dropped or [])]
            if len(missing):
                raise UserError(_refusal(graph, missing, trained))
        if self.dropped:
            left = np.setdiff1d(np.arange(graph.features.shape[1]), self.dropped)
            names = None if graph.feature_names is None else tuple(graph.feature_names[i] for i in left)
            texts = None if graph.category_of is None else tuple(graph.category_of[i] for i in left)
            features = np.ascontiguousarray(np.asarray(graph.features)[:, left])
            return replace(graph, features=features, feature_names=names, category_of=texts, missing=None)
        if missing is None:
            return graph
        return replace(graph, features=self._filled(np.asarray(graph.features), missing), missing=None)

    def _filled(self, features: Floats, missing: Ids) -> Floats:
        filled = features.copy()
        filled[missing[:, 0], missing[:, 1]] = 0 if self.means is None else np.array(self.means)[missing[:, 1]]
        return filled


def told(graph: Graph, fill: Fill) -> list[str]:
    """Says for people what was filled or left out, in no line where nothing was."""
    missing = graph.missing
    if missing is None:
        return []
    missing = _cells(graph, missing)
    columns = np.unique(missing[:, 1])
    what = f"{len(missing):,} empty cells in {len(columns):,} of {num_columns(graph):,} columns"
    done = {
        "mean": "take the mean of the nodes that train",
        "zero": "are 0",
        "drop": "leave these out",
    }
    return [f"features: {what} {done[fill.kind]} (features.fill={fill.kind})"]


def first_cell(graph: Graph, missing: Ids) -> str:
    """Names column and row of the first empty cell, and the user's id of the node."""
    node, column = missing[np.lexsort((missing[:, 0], missing[:, 1]))[0]].tolist()
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
    return (
        f"{place}choose features.fill=mean (of the nodes that train), zero, or drop (columns with empty cells), or fill "
        "the cells"
    )


def _means(graph: Graph) -> list[float]:  # [width]
    """Averages the known numbers of each column over the nodes that train."""
    features = np.asarray(graph.features)
    trains = graph.split == Split.TRAIN
    trains = trains if trains.any() else np.ones(graph.num_nodes, np.bool_)
    count = np.full(features.shape[1], trains.sum())
    if graph.missing is not None:
        np.subtract.at(count, graph.missing[trains[graph.missing[:, 0]], 1], 1)
    if not count.all():
        column = int(count.argmin())
        name = column if graph.feature_names is None else repr(graph.feature_names[column])
        raise UserError(
            f"features.fill=mean: column {name} has no number for any node that trains: leave the column out"
        )
    sums = features[trains].sum(0, dtype=np.float64)  # empty cells are 0
    means: list[float] = (sums / count).tolist()
    return means
