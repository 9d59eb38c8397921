"""Checks of feature columns before the trials of job=init."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gnnkit.graph import Features, Graph, Ids, SparseFeatures, Split
from gnnkit.graph.unfit_columns import ignore_key
from gnnkit.prepare.columns import NumericTable
from gnnkit.utils.checks import Array, rows_at_once
from gnnkit.utils.ranges import shown_names

FEW_ROWS = 0.01  # distinct feature rows per node below which they hardly distinguish nodes
MOST_VALUES = 20  # of a column that may determine the label
_AGREEMENT = 0.999  # share of each class from which a column's values determine it
LEAST_NODES = 10  # training nodes of each value of such a column, and of two classes
_SCREENED = 50  # training nodes per class that exclude most columns
_BLOCK = 256  # columns compared at once
_NUMBERS = 1 << 22  # dense numbers at once


def has_classes(graph: Graph) -> bool:
    """Returns whether each label is one class."""
    return graph.labels.ndim == 1 and graph.labels.dtype.kind != "f"


def has_few_rows(features: Features) -> bool:
    """Returns whether the distinct rows are fewer than `FEW_ROWS` of the nodes."""
    unique_rows: set[bytes] = set()
    step = rows_at_once(features.shape[1])
    for start in range(0, len(features), step):
        unique_rows.update(row.tobytes() for row in np.asarray(features[start : start + step]))
        if len(unique_rows) > max(FEW_ROWS * len(features), 1):
            return False
    return True


def describe_leaks(graph: Graph, ignore: Sequence[str] | None = ()) -> str:
    """Describes the columns that alone determine the class, or returns "".

    Such a column of nodes, or of edges for the class of one end, has at most
    `MOST_VALUES` values, which agree with 99.9 % of each class. The training nodes must
    be `LEAST_NODES` for each value, and as many in each of two classes, so that this is
    no coincidence.

    Args:
        graph: The graph, with a split.
        ignore: The value of `dataset.ignore`. If None, the data set has no such key.
    """
    if not has_classes(graph):
        return ""
    in_training = graph.labelled & (graph.split == Split.TRAIN)
    sizes = np.sort(np.bincount(graph.labels[in_training], minlength=2))
    if sizes[-2] < LEAST_NODES or np.count_nonzero(sizes) > MOST_VALUES:
        return ""
    rows = np.flatnonzero(in_training)
    lines = [_describe(list(dict.fromkeys(_names(NumericTable.of_nodes(graph), rows, graph.labels[rows]))), ignore)]
    if (of_edges := NumericTable.of_edges(graph)) is not None:
        destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
        for end, nodes in (("source", graph.csc.indices), ("destination", destinations)):
            rows = np.flatnonzero(in_training[nodes])
            rows = rows[:: 1 + of_edges.width * len(rows) // _NUMBERS]
            names = _names(of_edges, rows, graph.labels[nodes[rows]]) if len(rows) else ()
            lines.append(_describe(list(dict.fromkeys(names)), ignore, f" of an edge's {end}"))
    return "; ".join(filter(None, lines))


def _describe(leaks: Sequence[str], ignore: Sequence[str] | None, nodes: str = "") -> str:
    """Describes columns that determine the label, with the remedy."""
    if not leaks:
        return ""
    is_plural = len(leaks) > 1
    subject = f"each of the columns {shown_names(leaks)}" if is_plural else f"column {leaks[0]}"
    predicate, it = ("they are", "them") if is_plural else ("it is", "it")
    cure = f"leave {it} out" if ignore is None or leaks[0].isdecimal() else f"use {ignore_key([*ignore, *leaks])}"
    return f"{subject} alone determines the label{nodes}: unless {predicate} known when you predict, {cure}"


def _names(table: NumericTable, rows: Ids, classes: Ids) -> Iterator[str]:
    """Yields the determining columns' names, or numbers."""
    width, features = table.width, table.rows
    texts = np.array(table.category_of or ("",) * width)
    names, limit = table.names or tuple(map(str, range(width))), min(MOST_VALUES, len(rows) // LEAST_NODES)
    for text in dict.fromkeys(filter(None, texts.tolist())):
        one_hot = _dense(features, rows, np.flatnonzero(texts == text))
        value = np.where(one_hot.any(1), 1 + one_hot.argmax(1), 0)
        if _determine(value[:, None], classes, limit).any():
            yield text
    order = np.argsort(classes, kind="stable")
    place = np.arange(len(rows)) - np.searchsorted(classes[order], classes[order])  # within the class
    sample = order[place < _SCREENED]
    for start in range(0, width, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, width))
        block = block[texts[block] == ""]
        block = block[_determine(_dense(features, rows[sample], block), classes[sample], limit)]
        block = block[_determine(_dense(features, rows, block), classes, limit)]
        yield from (names[column] for column in block)


def _dense(features: Features, rows: Ids, columns: Ids) -> Array:  # [len(rows), len(columns)]
    """Returns some rows and columns, without making others dense."""
    if isinstance(features, np.ndarray):
        return np.asarray(features[np.ix_(rows, columns)])
    if not isinstance(features, SparseFeatures):
        return np.asarray(features[:, columns])[rows]
    subset, number = features[rows], np.full(features.shape[1], -1)
    number[columns] = np.arange(len(columns))
    row, column = np.repeat(np.arange(len(rows)), np.diff(subset.csr.indptr)), number[subset.csr.indices]
    is_wanted = column >= 0
    dense = np.zeros((len(rows), len(columns)), features.dtype)
    dense[row[is_wanted], column[is_wanted]] = subset.values[is_wanted]
    return dense


def _determine(values: Array, classes: Ids, limit: int) -> npt.NDArray[np.bool_]:  # [width]
    """Marks columns of few values that determine `_AGREEMENT` of each class."""
    counts = 1 + np.count_nonzero(np.diff(np.sort(values, axis=0), axis=0), axis=0)
    mask: npt.NDArray[np.bool_] = counts <= limit
    for column in np.flatnonzero(mask):
        value = np.unique(values[:, column], return_inverse=True)[1]
        pairs = np.zeros((value.max() + 1, classes.max() + 1), np.int64)
        np.add.at(pairs, (value, classes), 1)
        largest = pairs * (np.arange(pairs.shape[1]) == pairs.argmax(1)[:, None])  # one class of each value
        mask[column] = (largest.sum(0) >= _AGREEMENT * pairs.sum(0)).all()
    return mask
