"""Node labels: classes, sets of classes, or numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.split import Split
from gnnkit.graph.types import Ids, Labels
from gnnkit.utils import checks
from gnnkit.utils.checks import Array

MAX_EXACT = 2**53 - 1  # larger floats do not represent every whole number
EMPTY = np.iinfo(np.int64).min  # an empty cell in a column of integers
_MAX_CLASSES = 1 << 16  # a class beyond this and the number of nodes is treated as a number
_MOST_DISTINCT = 50  # classes that are not numbered 0, 1, ...; more are numbers


def read_labels(values: object, num_nodes: int, num_classes: int | None = None) -> Labels:
    """Reads node labels in one of three forms.

    One-dimensional integers are classes, -1 if unlabelled, and booleans are the classes
    0 and 1. Two-dimensional booleans, or integers 0 and 1, are sets of classes.
    Floating-point numbers of one or two dimensions are regression targets, NaN if
    unlabelled.

    Args:
        values: [num_nodes] or [num_nodes, ...] labels.
        num_classes: Number of class names, or None without names.
    """
    dense = checks.array("labels", values)
    if dense.dtype.kind == "f" and dense.size:
        return _read_numbers(dense, num_nodes)
    if dense.ndim == 2:
        return _read_class_sets(dense, num_nodes, num_classes)
    if dense.dtype == np.bool_:
        dense = dense.astype(np.int64)
    labels = checks.int64s("labels", dense, num_nodes)
    checks.check_range("labels", labels, -1, max(num_nodes, _MAX_CLASSES) if num_classes is None else num_classes)
    return labels


def settle_labels(labels: Array, class_names: object | None = None) -> Array:
    """Decides whether integers in the data are classes or numbers to predict.

    `task=regression` and `task=node_classification` convert either. Readers call this
    instead of `Graph`, because a part of a graph may contain only some of the labels.

    - Up to 50 distinct numbers are classes, in a small graph up to a tenth of its
    nodes, or 10.
    - More are classes if they are 0, 1, ... or 1, 2, ... without gaps: up to a tenth of
    the nodes, or 50.
    - Others are returned as float64, with a warning, and so are all labels if one of
    them is below -1. -1 is then a number, otherwise it means unlabelled.

    Raises `UserError` for the classes -1 and 1, of which only one would remain, and for
    numbers beyond 2^53.

    Args:
        labels: [num_nodes, ...] labels as in the data. In int64, `EMPTY` marks
            unlabelled nodes, too.
        class_names: Names that define the class numbers.
    """
    if class_names is not None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        return labels
    values = _distinct(labels)
    if values.tolist() == [-1, 1]:
        raise UserError(
            "labels are only -1 and 1, and -1 means unlabelled, so one class would remain: number the classes 0 and 1, or leave the labels of nodes without one empty (Graph.from_edges: one_class=True)"
        )
    values = values if values.min(initial=0) < -1 else values[values >= 0]
    if not (reason := why_numbers(values, len(labels))):
        return np.where(labels == EMPTY, -1, labels) if (labels == EMPTY).any() else labels
    if max(-int(values[0]), int(values[-1])) > MAX_EXACT:
        raise UserError(f"labels hold {values[0]} and {values[-1]}, and float64 does not represent numbers beyond 2^53")
    warnings.warn(
        f"labels are read as numbers, because {reason}: task=regression predicts numbers, task=node_classification classes",
        stacklevel=4,
    )
    return np.where((labels == EMPTY) | (labels == -1) & (values[0] >= 0), np.nan, labels.astype(np.float64))


def _distinct(labels: Array) -> Array:
    """Returns the distinct labels in ascending order, without `EMPTY`."""
    if labels.min(initial=0) >= -1 and labels.max(initial=0) < max(len(labels), _MAX_CLASSES):  # without sorting
        return np.flatnonzero(np.bincount(labels.astype(np.int64) + 1)) - 1
    return np.unique(labels[labels != EMPTY])


def why_numbers(values: Array, num_nodes: int) -> str:
    """Returns why distinct sorted labels are numbers, or "" for classes."""
    if not len(values):
        return ""
    low, high, share = int(values[0]), int(values[-1]), num_nodes // 10
    if low < -1:
        return f"{low} is no class"
    if high >= max(num_nodes, _MAX_CLASSES):
        return f"{high:,} is too large for a class"
    is_dense = low <= 1 and high - low < len(values)
    limit = max(_MOST_DISTINCT, share) if is_dense else min(_MOST_DISTINCT, max(share, 10))
    return f"{len(values):,} whole numbers from {low:,} to {high:,} differ" if len(values) > limit else ""


def labelled(labels: Labels) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Returns which rows are labelled.

    Args:
        labels: [n, ...] in one of the forms of `Graph.labels`. An empty set of
            classes is a label, -1 and NaN are none.

    Returns:
        [n] bool.
    """
    if labels.dtype.kind == "f":
        has_label: npt.NDArray[np.bool_] = ~np.isnan(labels)
        return has_label if has_label.ndim == 1 else np.asarray(has_label.any(axis=1))
    return np.ones(len(labels), np.bool_) if labels.ndim == 2 else labels >= 0


def _read_numbers(dense: Array, num_nodes: int) -> Labels:
    if dense.ndim not in (1, 2) or len(dense) != num_nodes or not dense.shape[-1]:
        raise UserError(f"labels has shape {list(dense.shape)}, expected [{num_nodes}] or [{num_nodes}, numbers]")
    labels = np.ascontiguousarray(dense, np.float64 if dense.itemsize > 4 else np.float32)
    with np.errstate(invalid="ignore"):
        bad = np.argwhere(np.abs(labels) > checks.FLOAT32_MAX)
    if len(bad):
        place = bad[0].tolist()
        raise UserError(f"labels{place} = {labels[tuple(place)]} is too large for float32: NaN stands for no label")
    return labels


def _read_class_sets(dense: Array, num_nodes: int, num_classes: int | None) -> Labels:
    if dense.dtype.kind not in "iub" or len(dense) != num_nodes or not dense.shape[1]:
        raise UserError(
            f"labels has dtype {dense.dtype}, shape {list(dense.shape)}, expected 0 and 1 of shape "
            f"[{num_nodes}, classes]"
        )
    if num_classes not in (None, dense.shape[1]):
        raise UserError(f"labels has {dense.shape[1]} columns, but there are {num_classes} class names")
    if dense.dtype != np.bool_:
        bad = np.argwhere((dense != 0) & (dense != 1))
        if len(bad):
            place = bad[0].tolist()
            raise UserError(f"labels{place} = {dense[tuple(place)]}: labels of two dimensions are 0 or 1, or floating")
    return np.ascontiguousarray(dense, np.bool_)


def check_present(labels: object, split: Array | None, name: str, sources: Iterable[str], remedy: str = "") -> None:
    """Raises `UserError` if nodes are in a split of data without labels.

    Args:
        labels: The labels, or None if the data have none.
        split: [num_nodes] values of `Split`, or None.
        name: Where the labels were expected, such as `data.y`.
        sources: Names of the masks or of the column that define the split.
        remedy: Another way to add labels, such as `, set label=COLUMN`.
    """
    count = 0 if split is None else int(np.count_nonzero(split))
    if labels is None and count:
        raise UserError(
            f"{name} is missing, but {count:,} nodes are in a split: add it{remedy}, or remove {', '.join(sources)}"
        )


def check_labelled(labels: Labels, split: Ids, ids: Array | None = None) -> None:
    """Raises `UserError` for nodes in a split without a label, by their ids if any."""
    has_label = labelled(labels)
    bad = np.flatnonzero((split != Split.NONE) & ~has_label)
    if len(bad) and not has_label.any():
        raise UserError(f"labels: no node has a label, but {len(bad):,} are in a split: add labels, or remove split")
    if len(bad):
        node = bad[0]
        whose = "" if ids is None else f" of node {ids[node]!s}"
        raise UserError(
            f"split[{node}] = {split[node]} ({Split(split[node]).name}), but labels[{node}] = {labels[node]}: no label{whose}; "
            f"{len(bad)} such nodes: give each a label, or the split none (0)"
        )


def unlabelled(like: Array, num_nodes: int) -> Array:  # [num_nodes, ...]
    """Returns labels of unlabelled nodes, in the form of `like`."""
    none = np.nan if like.dtype.kind == "f" else -1 if like.ndim == 1 else 0
    kind = like.dtype if like.dtype.kind == "f" or like.ndim == 2 else np.dtype(np.int64)
    return np.full((num_nodes, *like.shape[1:]), none, kind)


def check_one_hot(numbers: Array) -> None:
    """Raises `UserError` for numbers [k, width] if each row has a single 1, else 0.

    Rows of one number are no such rows.
    """
    if numbers.ndim == 1 or len(numbers) == 0 or numbers.shape[1] < 2:
        return
    if not (((numbers == 0) | (numbers == 1)).all() and (numbers.sum(1) == 1).all()):
        return
    raise UserError(
        f"labels are one-hot rows of {numbers.shape[1]} numbers: give the number of each row's class instead, as "
        "labels.argmax(1) does, and -1 for no class"
    )
