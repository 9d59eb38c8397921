"""Labels of a node's earlier edges, a prediction that learns nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.graph import Ids, Labels, Split, labelled
from gnnkit.graph.times import ALWAYS, NEVER, Times
from gnnkit.sampler.targets import Targets

LAST = 10  # labels that are averaged
_LEAST = 1e-9  # share of a class without labels, whose logarithm is finite


def earlier_labels(
    nodes: Ids, times: Times, labels: npt.NDArray[np.floating], rows: Ids | None = None, last: int = LAST
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Averages the labels of the last edges of each row's node, before the row's time.

    Equal times do not see each other. Among them, later edges of the list are the last
    ones. The label of an edge without a time is never read, and such a row has no
    earlier labels. A row's result depends on its own node's earlier edges alone.

    Args:
        nodes: [n] the node of each edge, such as its destination.
        times: [n] the edges' times, with `ALWAYS` or `NEVER` for none.
        labels: [n, outputs] numbers, or a column of 0 and 1 for each class. NaN where
            unknown. Edges with NaN alone are skipped.
        rows: [k] positions of the edges to compute. None: all edges.
        last: Number of labels to average.

    Returns:
        Means over the known numbers [k, outputs], NaN without any, and the number of
        edges that are averaged [k], at most `last`.
    """
    has_time = (times != ALWAYS) & (times != NEVER)
    rank, num_times = np.unique(times, return_inverse=True)[1], len(times)
    node_rank = np.unique(nodes, return_inverse=True)[1]
    codes = node_rank * num_times + rank  # ordered by node, then by time
    history = np.flatnonzero(has_time & ~np.isnan(labels).all(1))
    history = history[np.argsort(codes[history], kind="stable")]
    places = np.arange(len(nodes)) if rows is None else np.asarray(rows)
    end = np.searchsorted(codes[history], codes[places])
    begin = np.searchsorted(codes[history], node_rank[places] * num_times)
    counts = np.where(has_time[places], np.minimum(end - begin, last), 0)
    sums, num_known = np.zeros((2, len(places), labels.shape[1]))
    for lag in range(1, last + 1):  # differences of running sums would depend on other nodes
        reached = np.flatnonzero(counts >= lag)
        values = labels[history[end[reached] - lag]]
        sums[reached] += np.nan_to_num(values)
        num_known[reached] += ~np.isnan(values)
    return np.divide(sums, num_known, out=np.full_like(sums, np.nan), where=num_known > 0), counts


def label_columns(label: Labels, num_classes: int) -> npt.NDArray[np.float64]:  # [n, num_classes]
    """Returns numbers as they are, and a column of 0 and 1 for each class, NaN unknown.

    Args:
        label: [n, ...] labels in the form of `Graph.labels`.
        num_classes: Number of classes, or of numbers.
    """
    if label.dtype.kind == "f":
        return np.asarray(label, np.float64).reshape(len(label), -1)
    columns = label if label.ndim == 2 else label[:, None] == np.arange(num_classes)
    return np.where(labelled(label)[:, None], columns, np.nan)


def outputs_of_labels(edges: Targets, rows: Ids, width: int) -> Tensor | None:  # [k, width] float64
    """Predicts the mean of the destination's last labels, else that of training.

    It reads all earlier labels, also held-out ones.

    Args:
        edges: All ranks' edges.
        rows: [k] positions of the edges to predict.
        width: Number of classes, or of numbers.

    Returns:
        Numbers, or logarithms of the classes' shares. None if the edges have no times,
        or sets of classes as labels.
    """
    if edges.time is None or edges.label.dtype.kind == "b":
        return None
    columns = label_columns(edges.label, width)
    means = earlier_labels(edges.rows[:, 1], edges.time, columns, rows)[0]
    train = columns[edges.of_split(Split.TRAIN)]
    usual = np.nansum(train, 0) / np.maximum((~np.isnan(train)).sum(0), 1)
    outputs = torch.from_numpy(np.where(np.isnan(means), usual, means))
    return outputs if edges.label.dtype.kind == "f" else outputs.clamp(min=_LEAST).log()
