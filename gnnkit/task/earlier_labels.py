"""Labels of a node's earlier edges, a prediction that learns nothing."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.graph import Floats, Ids, Labels, Split, labelled
from gnnkit.graph.times import ALWAYS, Times, has_time
from gnnkit.sampler.targets import Targets

LAST = 10  # labels that are averaged
_LEAST = 1e-9  # share of a class without labels, whose logarithm is finite


class EarlierLabels:
    """The labels of the edges of each node, in order of time.

    Equal times do not see each other: edges at a time itself are later. Among them,
    later edges of the list are the last ones. The label of an edge without a time is
    never read. Results depend on the node's own earlier edges alone.
    """

    def __init__(self, ends: Ids, times: Times, labels: npt.NDArray[np.floating]) -> None:
        """Sorts the labels.

        Args:
            ends: [n] the node that each edge belongs to, such as its destination.
            times: [n] the edges' times, with `ALWAYS` or `NEVER` for none.
            labels: [n, outputs] numbers, or a column of 0 and 1 for each class. NaN
                where unknown. Edges with NaN alone are skipped.
        """
        history = np.flatnonzero(has_time(times) & ~np.isnan(labels).all(1))
        history = history[np.lexsort((times[history], ends[history]))]  # by node, then by time
        self._moments, places = np.unique(times[history], return_inverse=True)
        self._codes = ends[history].astype(np.int64) * (len(self._moments) + 1) + places
        self._ends, self._labels = ends[history], labels[history]

    def means(self, nodes: Ids, times: Times, last: int | None = LAST) -> npt.NDArray[np.float64]:  # [k, outputs]
        """Averages the known labels of each node before a time, NaN without any.

        Args:
            nodes: [k] nodes.
            times: [k] the times, with `ALWAYS` or `NEVER` for none. Nothing is earlier.
            last: Number of latest edges to average. If None, all.
        """
        first = nodes.astype(np.int64) * (len(self._moments) + 1)
        begin, end = (np.searchsorted(self._codes, first + at) for at in (0, np.searchsorted(self._moments, times)))
        counts = np.where(has_time(times), end - begin, 0)
        sums, num_known = np.zeros((2, len(nodes), self._labels.shape[1]))
        if last is None:
            reached = np.flatnonzero(counts)
            for total, running in zip((sums, num_known), self._running, strict=True):
                total[reached] = running[end[reached] - 1]
        for lag in range(1, (last or 0) + 1):
            reached = np.flatnonzero(counts >= lag)
            values = self._labels[end[reached] - lag]
            sums[reached] += np.nan_to_num(values)
            num_known[reached] += ~np.isnan(values)
        return np.divide(sums, num_known, out=np.full_like(sums, np.nan), where=num_known > 0)

    @cached_property
    def _running(self) -> tuple[Floats, Floats]:
        """Sums of labels, and of known ones, up to each edge."""
        known = (~np.isnan(self._labels)).astype(np.float64)
        return _running_sums(np.nan_to_num(self._labels), self._ends), _running_sums(known, self._ends)


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


def known_until(times: Times, delay: int) -> Times:  # [n]
    """Returns the times before which labels are known, `ALWAYS` without a time."""
    return np.where(has_time(times), np.maximum(times, ALWAYS + 1 + delay) - delay, ALWAYS)


def outputs_of_labels(edges: Targets, rows: Ids, width: int, delay: int = 0) -> Tensor | None:  # [k, width] float64
    """Predicts the mean of the destination's last labels, else that of training.

    It reads all earlier labels, also held-out ones.

    Args:
        edges: All ranks' edges.
        rows: [k] positions of the edges to predict.
        width: Number of classes, or of numbers.
        delay: Time after an edge at which its label is known.

    Returns:
        Numbers, or logarithms of the classes' shares. None if the edges have no times,
        or sets of classes as labels.
    """
    if edges.time is None or edges.label.dtype.kind == "b":
        return None
    columns, destinations = label_columns(edges.label, width), edges.rows[:, 1]
    earlier = EarlierLabels(destinations, edges.time, columns)
    means = earlier.means(destinations[rows], known_until(edges.time[rows], delay))
    train = columns[edges.of_split(Split.TRAIN)]
    usual = np.nansum(train, 0) / np.maximum((~np.isnan(train)).sum(0), 1)
    outputs = torch.from_numpy(np.where(np.isnan(means), usual, means))
    return outputs if edges.label.dtype.kind == "f" else outputs.clamp(min=_LEAST).log()
