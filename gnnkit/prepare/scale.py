"""The scale of columns: found where training rows are, kept with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, PackedFeatures, SparseFeatures, Split
from gnnkit.graph.features import normalized
from gnnkit.ranges import one_of, shown
from gnnkit.settings import SCALES

_LARGE = 4.0  # standard deviation of a column, beyond which training suffers
_UNEVEN = 30.0  # times another column's, in a table
_FAR = 2.0  # times its standard deviation that the mean of a column is from 0, in a table
_TABLE = 64  # columns at most. Wider rows count words or the like, whose zeros mean something
_LOOKED_AT = 10_000  # rows, to choose
_ROWS = 1 << 16  # rows that are looked at together
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How rows of features were made even before a model read them."""

    kind: str  # of SCALES
    mean: list[float] | None = None  # [width] of `standard`
    deviation: list[float] | None = None  # [width] of `standard`, 1 for a constant column

    def __post_init__(self) -> None:
        one_of("features.scale", self.kind, SCALES)
        numbers = [] if self.mean is None or self.deviation is None else [*self.mean, *self.deviation]
        right = all(isinstance(number, float) and np.isfinite(number) for number in numbers)
        if (self.kind == "standard") != bool(numbers) or not right:
            raise ValueError(f"a scale of kind {self.kind} with means {shown(self.mean)}")

    @classmethod
    def standard(cls, features: Floats, rows: npt.NDArray[np.int64], category_of: Sequence[str] | None = None) -> Scale:
        """Finds mean and standard deviation of each column over some rows.

        Columns of 0 and 1 that stand for values of text stay as they are.

        Args:
            features: [num_nodes, width].
            rows: [k] ids of the rows.
            category_of: [width] as of `Graph`. Default: no column is a value of text.
        """
        mean, deviation = _moments(features, rows)
        if category_of is not None:
            numbers = _are_numbers(category_of)
            mean, deviation = np.where(numbers, mean, 0), np.where(numbers, deviation, 1)
        return cls("standard", mean.tolist(), np.where(deviation > 0, deviation, 1).tolist())

    def apply(self, graph: Graph) -> Graph:
        """Returns the graph with the rows that the model reads, in the same type.

        Raises `UserError` for sparse rows under `standard`, and for another width.
        """
        if self.kind == "none":
            return graph
        features = graph.features
        if self.kind == "row":
            return graph.row_normalize()
        if isinstance(features, SparseFeatures):
            raise UserError("features.scale=standard: features without zeros would be dense then: choose row or none")
        if features.shape[1] != len(self.mean or ()):
            raise UserError(
                f"dataset has {features.shape[1]} columns of features, the model reads {len(self.mean or ())}"
            )
        features = np.asarray(features)
        rows = np.empty(features.shape, features.dtype)
        for start in range(0, len(features), _ROWS):
            rows[start : start + _ROWS] = self.rows(features[start : start + _ROWS])
        return replace(graph, features=rows)

    def rows(self, some: Floats) -> Floats:  # [k, width]
        """Returns some rows as the model reads them."""
        if self.kind == "none":
            return some
        if self.kind == "row":
            return normalized(some)
        scaled: Floats = ((some - np.array(self.mean)) / np.array(self.deviation)).astype(some.dtype)
        return scaled


def choose(graph: Graph, kind: str) -> tuple[Scale, str]:
    """Returns the scale of a new model, and why, or no words where nothing is changed.

    Args:
        graph: The graph that trains.
        kind: "auto", or one of SCALES.
    """
    features, rows = graph.features, np.flatnonzero(graph.split == Split.TRAIN)
    if isinstance(features, PackedFeatures):  # of a store, which are as models read these
        return Scale("none"), ""
    rows = rows if len(rows) else np.arange(graph.num_nodes)
    why = f"features.scale={kind}"
    if kind == "auto":
        why = uneven(graph, rows)
        kind = "standard" if why else "none"
    if kind != "standard":
        return Scale(kind), "" if kind == "none" else "features: each row is divided by its sum (features.scale=row)"
    dense = np.asarray(features)  # sparse rows are refused when the scale is applied
    return Scale.standard(
        dense, rows, graph.category_of
    ), f"features: standardised by {len(rows):,} nodes that train ({why})"


def is_table(graph: Graph) -> bool:
    """Says whether columns are those of a table, or have numbers below 0.

    Other columns count words or the like. Rows of these may be divided by their sum.
    """
    features = graph.features
    if isinstance(features, SparseFeatures):
        return bool((features.values < 0).any())
    features = np.asarray(features)
    if graph.category_of is not None:
        return True
    return features.shape[1] <= _TABLE or bool((features[:: max(len(features) // _LOOKED_AT, 1)] < 0).any())


def uneven(graph: Graph, rows: npt.NDArray[np.int64]) -> str:
    """Says how columns of numbers differ in scale, or that some are far from 0.

    Returns no words where columns are even.

    Args:
        graph: The graph.
        rows: [k] ids of the rows that train.
    """
    features = graph.features
    if isinstance(features, SparseFeatures) or not len(rows) or not features.shape[1]:
        return ""
    mean, deviation = _moments(np.asarray(features), rows[:: max(len(rows) // _LOOKED_AT, 1)])
    read = deviation > 0
    if graph.category_of is not None:
        read &= _are_numbers(graph.category_of)
    if not read.any():
        return ""
    some, table = deviation[read], features.shape[1] <= _TABLE
    if some.max() > _LARGE or (table and some.max() > _UNEVEN * some.min()):
        return f"columns have standard deviations of {some.min():.3g} to {some.max():.3g}"
    far = float((np.abs(mean[read]) / some).max())
    return f"the mean of a column is {far:.3g} times its standard deviation" if table and far > _FAR else ""


def _are_numbers(category_of: Sequence[str]) -> npt.NDArray[np.bool_]:  # [width]
    """Says which columns are no values of text."""
    return np.array([not text for text in category_of], np.bool_)


def _moments(features: Floats, rows: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:  # [width] each
    """Computes mean and standard deviation of columns, in two passes in float64."""
    parts = [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]
    mean = sum(features[part].sum(0, dtype=np.float64) for part in parts) / len(rows)
    squares = sum(np.square(features[part] - mean).sum(0) for part in parts)
    return mean, np.sqrt(squares / len(rows))
