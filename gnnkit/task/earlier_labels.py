"""Labels of a node's earlier edges, a prediction that learns nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.graph import Floats, Ids, Labels, Split, labelled
from gnnkit.graph.times import ALWAYS, NEVER, Times
from gnnkit.sampler.targets import Targets

LAST = 10  # labels that are averaged
_LEAST = 1e-9  # share of a class without labels, whose logarithm is finite


def earlier_labels(
    nodes: Ids, times: Times, ends: Ids, edge_times: Times, labels: npt.NDArray[np.floating], last: int | None = LAST
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Averages the labels of the last edges of each node before a time.

    Edges at the time itself are later. Among equal times, later edges of the list are
    the last ones. The label of an edge without a time is never read, and a node without
    a time has no earlier labels. Results depend on the node's own earlier edges alone.

    Args:
        nodes: [k] nodes.
        times: [k] their times, with `ALWAYS` or `NEVER` for none.
        ends: [n] the node that each edge belongs to, such as its destination.
        edge_times: [n] the edges' times.
        labels: [n, outputs] numbers, or a column of 0 and 1 for each class. NaN where
            unknown. Edges with NaN alone are skipped.
        last: Number of labels to average. If None, all.

    Returns:
        Means over the known numbers [k, outputs], NaN without any, and the number of
        edges that are averaged [k], at most `last`.
    """
    history = np.flatnonzero((edge_times != ALWAYS) & (edge_times != NEVER) & ~np.isnan(labels).all(1))
    history = history[np.lexsort((edge_times[history], ends[history]))]  # by node, then by time
    moments = np.unique(edge_times[history])
    codes = ends[history].astype(np.int64) * (len(moments) + 1) + np.searchsorted(moments, edge_times[history])
    first = nodes.astype(np.int64) * (len(moments) + 1)
    begin, end = (np.searchsorted(codes, first + place) for place in (0, np.searchsorted(moments, times)))
    counts = np.where((times == ALWAYS) | (times == NEVER), 0, end - begin)
    values = np.hstack([np.nan_to_num(labels[history]), ~np.isnan(labels[history])])
    sums = np.zeros((len(nodes), values.shape[1]))
    if last is None:
        reached, values = np.flatnonzero(counts), _running_sums(values, ends[history])
        sums[reached] = values[end[reached] - 1]
    else:
        counts = np.minimum(counts, last)
        for lag in range(1, last + 1):
            reached = np.flatnonzero(counts >= lag)
            sums[reached] += values[end[reached] - lag]
    sums, num_known = np.split(sums, 2, 1)
    return np.divide(sums, num_known, out=np.full_like(sums, np.nan), where=num_known > 0), counts


def _running_sums(values: Floats, nodes: Ids) -> Floats:  # [n, width]
    """Adds to each row those before it of the same node, without a bit of other nodes.

    Args:
        values: [n, width] rows.
        nodes: [n] their nodes, each in consecutive rows.
    """
    _, first, sizes = np.unique(nodes, return_index=True, return_counts=True)
    order, step = np.argsort(first), 1
    places = np.arange(len(nodes)) - np.repeat(first[order], sizes[order])  # within the node's rows
    while (reached := np.flatnonzero(places >= step)).size:
        values[reached] += values[reached - step]
        step *= 2
    return values


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
    destinations = edges.rows[:, 1]
    means = earlier_labels(destinations[rows], edges.time[rows], destinations, edges.time, columns)[0]
    train = columns[edges.of_split(Split.TRAIN)]
    usual = np.nansum(train, 0) / np.maximum((~np.isnan(train)).sum(0), 1)
    outputs = torch.from_numpy(np.where(np.isnan(means), usual, means))
    return outputs if edges.label.dtype.kind == "f" else outputs.clamp(min=_LEAST).log()
