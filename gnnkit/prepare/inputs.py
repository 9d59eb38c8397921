"""A run's graph, and its nodes' input rows, which may be rounded."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnkit.config.settings import DEFAULT_TASK, Settings
from gnnkit.dataset.base import UnlabelledEdges
from gnnkit.engine.remote.features import round_rows
from gnnkit.errors import UserError
from gnnkit.graph import Features, FeatureTable, Floats, Graph, Ids, PackedFeatures, Schema, SparseFeatures, Split
from gnnkit.graph.labels import check_one_hot
from gnnkit.graph.split import time_spans
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.graph.types import offsets_of
from gnnkit.graph.unfit_columns import IgnorableColumns
from gnnkit.launch.progress import warnings_in_lines
from gnnkit.partition.base import mix
from gnnkit.partition.store.manifest import NODE_IDS
from gnnkit.prepare.transform import Numbers
from gnnkit.sampler.targets import TaskRows
from gnnkit.utils.checks import Array, rows_at_once
from gnnkit.utils.ranges import one_line, shown_names
from gnnkit.utils.storage import save_array

_STEPS = 255  # number of 8-bit steps between a column's minimum and maximum
_EDGES = 1 << 22  # edges counted at once
_REMEDY = "remove features.dtype, or scale the column (features.scale)"


class Rounding:
    """Rounds rows piece by piece, and measures the errors.

    In 8 bits, columns of integers that span up to 255 have steps of 1 and stay exact.
    The scale does not depend on the order of rows.
    """

    form: PackedFeatures  # [0, width] scale of all rows

    def __init__(self, pieces: Iterable[Floats], kind: str, form: PackedFeatures | None = None) -> None:
        """Reads all rows to choose the scale. There must be at least one.

        Args:
            pieces: [k, width] each.
            kind: The value of features.dtype.
            form: Features that determine the scale. If None, chosen by the rows'
                ranges.
        """
        self._low, self._high, self._deviation, self._are_whole = _measure_columns(pieces)
        width = len(self._low)
        self.form = self._form(kind) if form is None else form
        self._error, self._num_bytes, self._raw_bytes = np.zeros(width), 0, 0
        self._least, self._largest = np.full(width, np.inf), np.full(width, -np.inf)  # after rounding

    def _form(self, kind: str) -> PackedFeatures:  # [0, width]
        if kind == "bf16":
            return PackedFeatures(np.empty((0, len(self._low)), np.uint16))
        span = self._high - self._low
        exact = (self._are_whole & (span <= _STEPS)) | (span == 0)
        scale = np.where(exact, 1, span / _STEPS).astype(np.float32)
        return PackedFeatures(np.empty((0, len(span)), np.uint8), scale, self._low.astype(np.float32))

    def apply(self, rows: Floats) -> Array:  # [k, width]
        """Returns the stored form of rows."""
        bits = round_rows(rows) if self.form.scale is None else self._quantise(rows)
        if len(rows):
            numbers = np.asarray(self.form.with_rows(bits), np.float64)
            with np.errstate(invalid="ignore"):
                self._error = np.maximum(self._error, np.abs(numbers - rows).max(0))
            self._least, self._largest = (
                np.minimum(self._least, numbers.min(0)),
                np.maximum(self._largest, numbers.max(0)),
            )
        self._num_bytes, self._raw_bytes = self._num_bytes + bits.nbytes, self._raw_bytes + rows.nbytes
        return bits

    def _quantise(self, rows: Floats) -> Array:  # [k, width] uint8
        scale, offset = self.form.scale, self.form.offset
        assert scale is not None
        assert offset is not None
        steps = (np.asarray(rows, np.float64) - offset) / np.where(scale > 0, scale, 1)
        bits: Array = np.clip(np.rint(steps), 0, _STEPS).astype(np.uint8)
        return bits

    def describe(self, names: Sequence[str] | None) -> str:
        """Returns a line on the saved bytes and the largest error.

        Raises `UserError` if a column's numbers become equal or overflow.
        """
        kind, low, high = self.form.name, self._low, self._high
        labels = [repr(name) for name in names] if names else [str(column) for column in range(len(low))]
        for column in np.flatnonzero(~np.isfinite(self._least) | ~np.isfinite(self._largest)):
            raise UserError(f"features.dtype={kind}: column {labels[column]} is too large for it: {_REMEDY}")
        varies = low < high
        for column in np.flatnonzero(varies & (self._least == self._largest)):
            raise UserError(
                f"features.dtype={kind}: the numbers of column {labels[column]}, {low[column]:.9g} to "
                f"{high[column]:.9g}, become equal: {_REMEDY}"
            )
        share = np.divide(self._error, self._deviation, out=np.zeros(len(varies)), where=varies)
        worst = int(share.argmax())
        line = (
            f"features: {kind}, {self._num_bytes / 1e6:.3g} MB of {self._raw_bytes / 1e6:.3g} MB, a number is off by "
            f"{share[worst]:.2g} deviations of its column at most (column {labels[worst]}; features.dtype={kind})"
        )
        inexact = np.flatnonzero(self._are_whole & (self._error > 0))
        if len(inexact):
            line += (
                f"; whole numbers, such as ids, are not exact in {len(inexact)} columns, such as {labels[inexact[0]]}"
            )
        return line


def _measure_columns(
    pieces: Iterable[Floats],
) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:  # [width] each
    """Computes each column's minimum, maximum and standard deviation.

    Also marks columns that contain only integers.
    """
    count, ranges, first = 0, None, None
    sums, squares = np.zeros(()), np.zeros(())
    for piece in pieces:
        rows = np.asarray(piece, np.float64)
        if not len(rows):
            continue
        first = rows[0].copy() if first is None else first
        offsets = rows - first  # avoids a loss of precision in squares of numbers far from 0
        count, sums, squares = count + len(rows), sums + offsets.sum(0), squares + np.square(offsets).sum(0)
        low, high, are_whole = rows.min(0), rows.max(0), (rows == np.floor(rows)).all(0)
        if ranges is not None:
            low, high, are_whole = np.minimum(low, ranges[0]), np.maximum(high, ranges[1]), are_whole & ranges[2]
        ranges = low, high, are_whole
    assert ranges is not None, "no rows"
    deviation = np.sqrt(np.maximum(squares / count - np.square(sums / count), 0))
    return ranges[0], ranges[1], deviation, ranges[2]


def round_features(graph: Graph, kind: str) -> tuple[Graph, list[str]]:
    """Rounds a graph's dense features. Also returns a line that describes the errors.

    A store's features that are already rounded in this way stay as they are. Raises
    `UserError` if they are rounded in another way.

    Args:
        graph: The graph, with the features that models read.
        kind: The value of features.dtype.
    """
    rows = graph.features
    if isinstance(rows, PackedFeatures) and rows.name != kind:
        raise UserError(
            f"features.dtype={kind}: the store has features.dtype={rows.name}: remove the key, or use the original data set"
        )
    if isinstance(rows, PackedFeatures) or not all(rows.shape):
        return graph, []
    dense = np.asarray(rows)
    rounding = Rounding((piece for _, piece in _split_rows(dense)), kind)
    bits = np.empty(dense.shape, rounding.form.kept.dtype)
    for place, piece in _split_rows(dense):
        bits[place] = rounding.apply(piece)
    return graph.evolve(features=rounding.form.with_rows(bits)), [rounding.describe(graph.feature_names)]


def _split_rows(rows: Floats) -> Iterator[tuple[slice, Floats]]:
    step = rows_at_once(rows.shape[1])
    for first in range(0, len(rows), step):
        place = slice(first, first + step)
        yield place, rows[place]


# Sparse products were measured to be faster up to this density and from this width.
MAX_SHARE, MIN_WIDTH = 0.1, 64
IDS = NODE_IDS  # file in the run folder


def load(settings: Settings, graph: Graph | None = None) -> Graph:
    """Returns the given graph or the configured data set, without column names.

    Warnings raised while loading are printed as one line each.
    """
    named_graph = with_names(settings, graph)
    return named_graph.evolve(feature_names=None, category_of=None, edge_feature_names=None, edge_category_of=None)


def with_names(settings: Settings, graph: Graph | None = None) -> Graph:
    """Like `load`, with column names."""
    if graph is not None:
        return graph
    try:
        with warnings_in_lines(settings.dataset.name):
            if settings.job.needs_labels and not settings.task.load().labels_nodes:
                warnings.simplefilter("error", UnlabelledEdges)
            data: Graph = settings.dataset.create().load()
    except UserError as error:
        if settings.checkpoint is None or IgnorableColumns.of(error) is None:
            raise
        raise UserError(f"{error}, but not if the model of {settings.checkpoint} reads it") from error
    except MemoryError as error:
        raise UserError(
            f"dataset={settings.dataset.name} does not fit into memory ({one_line(error) or 'an allocation failed'}): import it in pieces with "
            "job=import, or use a machine with more memory"
        ) from error
    return data


def check_implied_task(settings: Settings, graph: Graph) -> None:
    """Raises `UserError` if the labels are numbers, and no task was selected."""
    if not (settings.implies_task and settings.task.name == DEFAULT_TASK and graph.labels.dtype.kind == "f"):
        return
    numbers = graph.labels[graph.labelled]
    check_one_hot(numbers)
    kind = "whole" if (numbers == np.floor(numbers)).all() else "floating-point"
    raise UserError(
        f"task={DEFAULT_TASK} is the default, but labels are {kind} numbers from {numbers.min():g} to "
        f"{numbers.max():g}: use task=regression to predict numbers, or task={DEFAULT_TASK} if whole numbers are classes"
    )


def save_ids(graph: Graph, folder: Path) -> Graph:
    """Saves the user's node ids in the run folder. Returns the graph without them."""
    if graph.node_ids is None:
        (folder / IDS).unlink(missing_ok=True)  # of an earlier graph
        return graph
    save_array(folder / IDS, graph.node_ids)
    return graph.evolve(node_ids=None)


def with_inputs(graph: Graph, inputs: str) -> Graph:
    """Returns the graph with the features that models read.

    Raises `UserError` if `inputs` is "features" and the data set has none.

    Args:
        graph: The training graph.
        inputs: "features": the data set's features. "degree": computed from the number
            of in-edges. "learned": no features, because learned rows replace them.
    """
    if inputs == "learned":
        empty, tables = np.empty((graph.num_nodes, 0), np.float32), [FeatureTable("learned", 0)]
        return graph.evolve(features=empty, missing=None, feature_tables=tables * len(graph.schema.node_types))
    if inputs == "degree":
        return graph.evolve(features=degree_rows(degrees_before_split(graph)), missing=None, feature_tables=None)
    check_width(graph.features.shape[1])
    return graph


def check_width(width: int) -> None:
    """Raises `UserError` if models would read no feature columns."""
    if width == 0:
        raise UserError(
            "inputs=features: the graph has no features of nodes, so all nodes would look alike: choose "
            "inputs=degree, inputs=learned (rows of embedding=64 numbers), or give the data set features"
        )


def check_types(model: str | None, types: Schema) -> None:
    """Raises `UserError` if a model would ignore node or edge types.

    Args:
        model: Name of a model that reads no types. If None, types may be ignored.
    """
    if model is None or not types.several:
        return
    nodes, edges = [name for name, _ in types.node_types], types.edge_types
    parts = [
        f"{len(names):,} types of {noun} ({shown_names(names)})"
        for noun, names in (("nodes", nodes), ("edges", edges))
        if len(names) > 1
    ]
    raise UserError(
        f"model={model} reads no types, and the graph has {' and '.join(parts)}: choose model=rgcn, rgat, hgt or simple_hgn, "
        "or a PyG module of (x, edge_index, edge_type) or (x_dict, edge_index_dict), which "
        "read types of edges, or types=ignore, which treats all types as one"
    )


def check_relation(types: Schema, rows: TaskRows) -> None:
    """Raises `UserError` if a relational model would predict several relations.

    Args:
        types: The graph's types.
        rows: The rows that the task predicts.
    """
    if rows.pairs and rows.relation is None and len(types.edge_types) > 1:
        raise UserError(
            f"task.relation is not set, and the graph has {len(types.edge_types):,} relations "
            f"({', '.join(types.edge_types)}): name the relation to predict, such as task.relation={types.edge_types[0]}"
        )


def describe_repeated(graph: Graph) -> list[str]:
    """Returns a line for each pair of relations with the same edges in reverse."""
    return [
        f"relations {first} and {second} have the same edges in reverse, and model.inverse=true adds both again: "
        "use model.inverse=false"
        for first, second in _reverse_relations(graph)
    ]


def _reverse_relations(graph: Graph) -> list[tuple[str, str]]:
    """Finds pairs of relations with the same edges in reverse, by sums of hashes."""
    csc, types, names = graph.csc, graph.edge_types, graph.edge_type_names or ()
    if types is None:
        return []
    counts = np.bincount(types, minlength=len(names))
    if len(np.unique(counts[counts > 0])) == np.count_nonzero(counts):  # all sizes differ
        return []
    ends = np.asarray(csc.indices, np.uint64), np.repeat(np.arange(csc.num_nodes, dtype=np.uint64), np.diff(csc.indptr))
    hashes = [mix(a * np.uint64(csc.num_nodes) + b) >> np.uint64(40) for a, b in (ends, ends[::-1])]  # sums are exact
    sums, reverse_sums = (np.bincount(types, edge_hashes, len(names)) for edge_hashes in hashes)
    pairs = itertools.combinations(np.flatnonzero(counts).tolist(), 2)
    return [(names[i], names[j]) for i, j in pairs if (sums[i], sums[j]) == (reverse_sums[j], reverse_sums[i])]


def degree_rows(degree: Array) -> Floats:  # [num_nodes] -> [num_nodes, 2]
    """Returns log(1 + number of in-edges) and 1 for each node."""
    column = np.log1p(degree).astype(np.float32)
    return np.stack([column, np.ones_like(column)], axis=1)


def with_kept(graph: Graph, rows: str, sparse: bool, dtype: str) -> tuple[Graph, list[str]]:
    """Returns the graph with features in the ranks' format, and lines of description.

    The lines are empty if there is no choice of format.

    Args:
        graph: The graph, with the features that models read.
        rows: "dense", "sparse" or "auto", which selects sparse rows if they are wide,
            have few nonzeros, and are not rounded.
        sparse: Whether strategy and model support sparse rows.
        dtype: One of DTYPES, for dense rows.
    """
    if dtype != "as_is" or isinstance(graph.features, PackedFeatures):
        return round_features(_to_dense(graph), dtype)
    width = graph.features.shape[1]
    if not sparse or (rows == "auto" and width < MIN_WIDTH):
        return _to_dense(graph), []
    share = nonzero_share(graph.features)
    form = rows if rows != "auto" else "sparse" if share < MAX_SHARE else "dense"
    rule = f"auto, sparse below {100 * MAX_SHARE:g} %" if rows == "auto" else rows
    percent = f"{100 * share:.0f}" if share > 0.1 else f"{100 * share:.2g}"
    line = f"features: {form}, {percent} % of {width:,} columns are not 0 (input_rows={rule})"
    if form == "dense":
        return _to_dense(graph), [line]
    return graph.derive(features=SparseFeatures.of(graph.features)), [line]


def _to_dense(graph: Graph) -> Graph:
    sparse = isinstance(graph.features, SparseFeatures)
    return graph.derive(features=np.asarray(graph.features)) if sparse else graph


def nonzero_share(features: Features) -> float:
    """Returns the share of nonzero numbers, estimated for large dense features."""
    if isinstance(features, SparseFeatures):
        return features.share
    step = max(len(features) * features.shape[1] // (1 << 22), 1)
    sample = np.asarray(features[::step])
    return float(np.count_nonzero(sample) / max(sample.size, 1))


def degrees_before_split(graph: Graph) -> Ids:  # [num_nodes]
    """Counts each node's in-edges before a split's first held-out time."""
    indptr, times, first = graph.csc.indptr, graph.edge_time, first_later(graph)
    if first is None and graph.time_borders is not None:
        first = graph.time_borders[0]
    if first is None or times is None:
        return np.diff(indptr)
    degrees = np.zeros(graph.num_nodes, np.int64)
    for begin in range(0, graph.num_edges, _EDGES):
        counts = offsets_of(times[begin : begin + _EDGES] < first)
        degrees += np.diff(counts[np.clip(indptr - begin, 0, len(counts) - 1)])
    return degrees


def rows_to_fit(graph: Graph) -> npt.NDArray[np.int8]:  # [num_nodes] values of `Split`
    """Returns the split, where statistics of columns are those of the training rows.

    If edges are split by time, the nodes before the first held-out time train.
    """
    if graph.time_borders is None or graph.node_time is None or (graph.split == Split.TRAIN).any():
        return graph.split
    return np.where(graph.node_time < graph.time_borders[0], Split.TRAIN, Split.NONE).astype(np.int8)


def first_later(graph: Graph) -> int | None:
    """Returns the first held-out node's time if an edge is as late or later."""
    first = min((first for part, (first, _) in time_spans(graph).items() if part != Split.TRAIN), default=NEVER)
    is_later = graph.edge_time is not None and graph.edge_time.max(initial=ALWAYS) >= first != NEVER
    return first if is_later else None
