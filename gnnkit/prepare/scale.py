"""The scale of columns: found where training rows are, kept with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import SCALES
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, PackedFeatures, SparseFeatures, Split
from gnnkit.graph.features import normalized
from gnnkit.ranges import one_of, shown
from gnnkit.storage import forget_pages

_LARGE = 4.0  # standard deviation of a column, or mean of a constant one, beyond which training suffers
_UNEVEN = 30.0  # times another column's, in a table
_FAR = 2.0  # times its standard deviation that the mean of a column is from 0
_TABLE = 64  # columns at most. Wider rows count words or the like, whose zeros mean something
_LIMIT = 10.0  # deviations from the mean where values are clipped, unless training rows go further
_STRAY = 30.0  # distance from the mean of training rows, beyond which a value outside their range does harm
_LOOKED_AT = 10_000  # rows, to tell tables from counts of words, and of edge features
_NUMBERS = 1 << 20  # numbers that are looked at together
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How rows of features were made even before a model read them.

    Under `standard` a column becomes clip((x - mean) / deviation, -limit, limit). The
    limit is 0 for a column that is constant in the training rows: its weights do not
    train, so any value of it would be noise. Otherwise it is 10, or as far as training
    rows go.
    """

    kind: str  # of SCALES
    mean: list[float] | None = None  # [width] of `standard`
    deviation: list[float] | None = None  # [width] of `standard`, above 0
    limit: list[float] | None = None  # [width] of `standard`, in deviations

    def __post_init__(self) -> None:
        one_of("features.scale", self.kind, SCALES)
        numbers = [*(self.mean or ()), *(self.deviation or ()), *(self.limit or ())]
        right = all(isinstance(number, float) and np.isfinite(number) for number in numbers)
        widths = {None if values is None else len(values) for values in (self.mean, self.deviation, self.limit)}
        positive = right and min(self.deviation or (1,)) > 0 and min(self.limit or (0,)) >= 0
        if (self.kind == "standard") != (self.mean is not None) or len(widths) > 1 or not positive:
            raise ValueError(f"a scale of kind {self.kind} with means {shown(self.mean)}")

    @classmethod
    def standard(cls, features: Floats, rows: npt.NDArray[np.int64], category_of: Sequence[str] | None = None) -> Scale:
        """Computes mean, standard deviation and limit of each column over some rows.

        Columns of 0 and 1 that stand for values of text stay as they are.

        Args:
            features: [num_nodes, width].
            rows: [k] ids of the rows, one at least.
            category_of: [width] as of `Graph`. Default: no column is a value of text.
        """
        mean, deviation, reach = _moments(features, rows)
        rounding = np.finfo(features.dtype).eps * np.abs(mean)
        constant = deviation <= rounding
        deviation = np.maximum(np.maximum(deviation, rounding), np.finfo(np.float32).tiny)
        limit = np.where(constant, 0, np.maximum(_LIMIT, reach / deviation))
        numbers = _are_numbers(category_of, len(mean))
        mean, deviation, limit = (
            np.where(numbers, values, kept) for values, kept in ((mean, 0), (deviation, 1), (limit, 1))
        )
        return cls("standard", mean.tolist(), deviation.tolist(), limit.tolist())

    def apply(self, graph: Graph) -> Graph:
        """Returns the graph with the rows that the model reads, in the same type.

        Raises `UserError` for sparse rows under `standard`, and for another width.
        """
        if self.kind == "none":
            return graph
        if self.kind == "row":
            return graph.row_normalize()
        features = self._dense(graph)
        rows = np.empty(features.shape, features.dtype)
        for place in _pieces(*features.shape):
            rows[place] = self.rows(features[place])
        return replace(graph, features=rows)

    def rows(self, some: Floats) -> Floats:  # [k, width]
        """Returns some rows as the model reads them."""
        if self.kind == "none":
            return some
        if self.kind == "row":
            return normalized(some)
        limit = np.array(self.limit)
        scaled: Floats = np.clip(self._deviations(some), -limit, limit).astype(some.dtype)
        return scaled

    def clipped(self, graph: Graph) -> list[str]:
        """Returns a line that counts the values which are clipped, if there are any."""
        if self.kind != "standard":
            return []
        counts = self._outside(self._dense(graph))
        if not counts.any():
            return []
        names = range(len(counts)) if graph.feature_names is None else [repr(name) for name in graph.feature_names]
        columns = [f"{counts[column]:,} in column {names[column]}" for column in np.flatnonzero(counts)]
        return [
            f"features: values far outside the range of the nodes that train are clipped: {shown(', '.join(columns))}"
        ]

    def _dense(self, graph: Graph) -> Floats:
        """Returns the features. Raises `UserError` where the scale does not fit."""
        features = graph.features
        if isinstance(features, SparseFeatures):
            raise UserError("features.scale=standard: features without zeros would be dense then: choose row or none")
        if features.shape[1] != len(self.mean or ()):
            raise UserError(
                f"dataset has {features.shape[1]} columns of features, the model reads {len(self.mean or ())}"
            )
        return np.asarray(features)

    def _deviations(self, some: Floats) -> Numbers:  # [k, width]
        """Returns the distance of each value from the mean, in deviations."""
        distance: Numbers = (some - np.array(self.mean)) / np.array(self.deviation)
        return distance

    def _outside(self, features: Floats, distance: float = 0) -> npt.NDArray[np.int64]:  # [width]
        """Counts the values that are clipped in each column.

        Rounding of a constant column is not counted.

        Args:
            features: [num_nodes, width].
            distance: From the mean, that values must have in addition.
        """
        bound = np.maximum(np.maximum(self.limit or (), _LIMIT), distance / np.array(self.deviation))
        counts = np.zeros(len(bound), np.int64)
        for place in _pieces(*features.shape):
            counts += (np.abs(self._deviations(features[place])) > bound).sum(0)
            forget_pages(features)
        return counts


def choose(graph: Graph, kind: str) -> tuple[Scale, str]:
    """Returns the scale of a new model, and why, or no words where nothing is changed.

    Args:
        graph: The graph that trains.
        kind: "auto", or one of SCALES.
    """
    features, rows = graph.features, np.flatnonzero(graph.split == Split.TRAIN)
    if isinstance(features, PackedFeatures) or not all(features.shape):  # rows of a store are scaled already
        return Scale("none"), ""
    rows = rows if len(rows) else np.arange(graph.num_nodes)
    if kind == "auto" and isinstance(features, SparseFeatures):
        largest = float(np.abs(features.values).max(initial=0))
        why = (
            f"features: sparse rows stay as they are, with values up to {largest:.3g}; features.scale=row divides them"
        )
        return Scale("none"), why if largest > _STRAY else ""
    if kind in ("none", "row"):
        return Scale(kind), "" if kind == "none" else "features: each row is divided by its sum (features.scale=row)"
    dense = np.asarray(features)  # sparse rows are refused when the scale is applied
    scale, why = Scale.standard(dense, rows, graph.category_of), f"features.scale={kind}"
    if kind == "auto" and not (why := _unevenness(dense, scale, graph.category_of)):
        return Scale("none"), ""
    return scale, f"features: standardised by {len(rows):,} nodes that train ({why})"


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
    dense = np.asarray(features)
    return _unevenness(dense, Scale.standard(dense, rows, graph.category_of), graph.category_of)


def told_of_edges(graph: Graph) -> list[str]:
    """Returns a line on edge features that do not suit training as they are."""
    if graph.edge_features is None or not graph.edge_features.size:
        return []
    some = graph.edge_features[:: max(graph.num_edges // _LOOKED_AT, 1)]
    scale = Scale.standard(some, np.arange(len(some)))
    if not (why := _unevenness(some, scale, None)):
        return []
    names = graph.edge_feature_names or range(some.shape[1])
    sizes = np.maximum(np.abs(scale.mean or ()), scale.deviation or ())
    largest = ", ".join(f"{name!r}" for name, size in zip(names, sizes, strict=True) if size > _LARGE)
    of_columns = f" (large: {shown(largest)})" if largest else ""
    return [f"warning: edge features: {why}{of_columns}. Models read them as they are: standardise them in the data"]


def _unevenness(features: Floats, scale: Scale, category_of: Sequence[str] | None) -> str:
    """Does what `uneven` does, by the moments of the rows that train."""
    mean, deviation, limit = (np.array(values) for values in (scale.mean, scale.deviation, scale.limit))
    table = len(mean) <= _TABLE
    distance = np.abs(mean)
    varied = (limit > 0) & _are_numbers(category_of, len(mean))
    some = deviation[varied]
    if len(some) and (some.max() > _LARGE or (table and some.max() > _UNEVEN * some.min())):
        return f"columns have standard deviations of {some.min():.3g} to {some.max():.3g}"
    far = varied & (distance > _FAR * deviation) & (table | (distance > _LARGE))
    if far.any():
        return f"the mean of a column is {(distance[far] / deviation[far]).max():.3g} times its standard deviation"
    constant = distance[limit == 0].max(initial=0)
    if constant > _LARGE:
        return f"a column is {constant:.3g} in all of these rows"
    stray = np.count_nonzero(scale._outside(features, _STRAY))
    return f"{stray:,} columns have values far outside the range of these rows" if stray else ""


def _are_numbers(category_of: Sequence[str] | None, width: int) -> npt.NDArray[np.bool_]:  # [width]
    """Says which columns are no values of text."""
    return np.array([not text for text in category_of or ("",) * width], np.bool_)


def _moments(features: Floats, rows: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:  # [width] each
    """Computes mean, standard deviation and largest distance from the mean of columns.

    Sums are of distances from the first row in float64, so a constant column has a
    deviation of exactly 0.
    """
    first = features[rows[0]].astype(np.float64)
    places = _pieces(len(rows), features.shape[1])
    mean = first + sum(_sum(features, rows[place], first) for place in places) / len(rows)
    squares, reach = np.zeros_like(first), np.zeros_like(first)
    for place in places:
        distance = features[rows[place]] - mean
        squares += np.square(distance).sum(0)
        reach = np.maximum(reach, np.abs(distance).max(0))
        forget_pages(features)
    return mean, np.sqrt(squares / len(rows)), reach


def _sum(features: Floats, rows: npt.NDArray[np.int64], first: Numbers) -> Numbers:  # [width]
    """Sums the distances of some rows from the first row."""
    total: Numbers = (features[rows] - first).sum(0)
    forget_pages(features)
    return total


def _pieces(num_rows: int, width: int) -> list[slice]:
    """Divides rows into pieces that are looked at together."""
    step = max(_NUMBERS // max(width, 1), 1)
    return [slice(start, start + step) for start in range(0, num_rows, step)]
