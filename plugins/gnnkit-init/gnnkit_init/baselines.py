"""Baselines for the trials of job=init: gradient boosting and constant predictions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnkit import plugins
from gnnkit.comm.threads import Threads
from gnnkit.graph import SPLITS, Graph, Split
from gnnkit.task import LabelFacts, NodeTask
from gnnkit.task.node_classification import uneven_shares
from gnnkit.task.ranking import mean_areas

NAME = "boosting"  # the model of the package gnnkit-boosting
MISSING = "gradient boosting is not tried: it needs gnnkit-boosting: pip install 'gnnkit[init]'"
_MOST_CELLS = 20_000_000  # of a table, above which a trial would take minutes
_MOST_EDGE_CELLS = 500_000_000  # summed for the neighbours' means
# An epoch's trees, columns that they choose from, bins of a column, leaves of a tree,
# and rows of a leaf; numbers read per node in a tree; and seconds to read one.
_TREES, _COLUMNS, _BINS, _LEAVES, _LEAF, _DEPTH, _SECONDS = 10, 256, 256, 31, 20, 200, 5e-9


def is_installed() -> bool:
    return NAME in plugins.names("model")


def fits(graph: Graph) -> bool:
    """Returns whether the columns and neighbours' means are few enough."""
    width = graph.features.shape[1] + graph.num_classes
    return bool(2 * graph.num_nodes * width <= _MOST_CELLS and graph.num_edges * width <= _MOST_EDGE_CELLS)


def epoch_seconds(graph: Graph) -> float:
    """Estimates the seconds of an epoch, which adds trees, on a nominal machine."""
    num_training, width = int(np.count_nonzero(graph.split == Split.TRAIN)), min(2 * graph.features.shape[1], _COLUMNS)
    numbers = width * (num_training + _BINS * min(_LEAVES, num_training // _LEAF + 1)) + _DEPTH * graph.num_nodes
    return float(graph.num_classes * _TREES * numbers * _SECONDS)


def measure(graph: Graph, task: NodeTask, outputs: Tensor, name: str) -> float | None:
    """Computes a metric over its split, or None if the split is empty."""
    split, _, metric = name.partition("_")
    nodes = graph.labelled & (graph.split == SPLITS[split])
    if not nodes.any():
        return None
    predictions, labels = outputs[torch.from_numpy(nodes)], torch.from_numpy(graph.labels[nodes])
    if metric not in ("roc_auc", "average_precision"):
        return task.figures(task.counts(predictions, labels))[metric]
    if labels.ndim == 1:
        train = np.bincount(graph.labels[graph.labelled & (graph.split == Split.TRAIN)], minlength=2)
        positive = LabelFacts(shares=uneven_shares(train.tolist())).positive
        predictions, labels = predictions[:, [positive]] - predictions[:, [1 - positive]], (labels == positive)[:, None]
    return mean_areas(predictions, labels).get(metric)


def measure_constant(graph: Graph, task: NodeTask, name: str) -> float | None:
    """Measures the best constant prediction of the training labels, if there are any.

    Args:
        graph: Labels in the task's form, and a split.
        task: Measures predictions.
        name: The metric, such as `val_accuracy`.
    """
    labels = torch.from_numpy(graph.labels[graph.labelled & (graph.split == Split.TRAIN)])
    if not len(labels):
        return None
    are_classes = labels.ndim == 1 and not labels.is_floating_point()
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0)  # alone, so nothing waits
    constant = task.constant(labels, graph.num_classes if are_classes else labels[0].numel(), comm)
    return None if constant is None else measure(graph, task, constant.expand(graph.num_nodes, -1), name)
