"""Gradient boosting on a graph's columns: a baseline for the trials of job=init."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.comm.threads import Threads
from gnnkit.graph import SPLITS, Floats, Graph, Split
from gnnkit.task import LabelFacts, NodeTask
from gnnkit.task.node_classification import uneven_shares
from gnnkit.task.ranking import mean_areas

MISSING = "gradient boosting is not tried: it needs scikit-learn: pip install 'gnnkit[init]'"
_MOST_CELLS = 20_000_000  # of a table, above which a trial would take minutes
_MOST_EDGE_CELLS = 500_000_000  # summed for the neighbours' means
_SMALL_CELLS = 1_000_000  # below this, threads wait longer for each other than they work
_ROUND, _MOST_TREES, _PATIENCE = 10, 300, 5  # trees a round, trees, rounds without a better score
_LEAST = 1e-12  # probability
# Numbers that the splits of a tree read per column, and seconds to read one.
_BINS, _SECONDS = 31 * 256, 5e-9
Numbers = npt.NDArray[np.float64]


def is_installed() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def fits(graph: Graph) -> bool:
    """Returns whether the columns and neighbours' means are few enough."""
    width = graph.features.shape[1] + graph.num_classes
    return bool(2 * graph.num_nodes * width <= _MOST_CELLS and graph.num_edges * width <= _MOST_EDGE_CELLS)


def columns(graph: Graph) -> Floats:  # [num_nodes, width]
    """Returns the features, with NaN in empty cells."""
    rows = np.array(graph.features, dtype=np.float32)
    if graph.missing is not None:
        rows[graph.missing[:, 0], graph.missing[:, 1]] = np.nan
    return rows


def columns_and_means(graph: Graph) -> Floats:  # [num_nodes, width]
    """Appends the means over each node's in-neighbours, other than the node itself.

    They are the means of features, edge features and labels. Only training nodes'
    labels count. Without any value, a mean is NaN. The last column is the in-degree.
    """
    rows, csc = columns(graph), graph.csc
    sources, targets = csc.indices, np.repeat(np.arange(graph.num_nodes), np.diff(csc.indptr))
    apart = sources != targets
    sources, targets = sources[apart], targets[apart]
    labels = _label_columns(graph)
    labels[graph.split != Split.TRAIN] = np.nan
    means = [_mean(column[sources], targets, graph.num_nodes) for column in (*rows.T, *labels.T)]
    if graph.edge_features is not None:
        edge_rows = np.asarray(graph.edge_features, np.float32)
        means += [_mean(column[apart], targets, graph.num_nodes) for column in edge_rows.T]
    return np.column_stack([rows, *means, np.diff(csc.indptr)])


def _label_columns(graph: Graph) -> Floats:  # [num_nodes, width]
    """Returns one-hot classes, or other labels as they are, with NaN for none."""
    encoded: Floats
    if graph.labels.ndim == 1 and graph.labels.dtype.kind != "f":
        encoded = (graph.labels[:, None] == np.arange(graph.num_classes)).astype(np.float32)
    else:
        encoded = np.array(graph.labels, np.float32).reshape(graph.num_nodes, -1)
    encoded[~graph.labelled] = np.nan
    return encoded


def _mean(values: Floats, targets: npt.NDArray[np.int64], num_nodes: int) -> Floats:  # [num_nodes]
    """Averages edges' values by target, without NaN."""
    known = ~np.isnan(values)
    counts = np.bincount(targets[known], minlength=num_nodes)
    sums = np.bincount(targets[known], values[known], num_nodes)
    means = np.full(num_nodes, np.nan, np.float32)
    return np.divide(sums, counts, out=means, where=counts > 0, casting="same_kind")


@dataclass(frozen=True, slots=True)
class Boosted:
    """The scores of the number of trees that validates best."""

    score: float
    test: float | None
    trees: int


def boost(graph: Graph, task: NodeTask, figure: str, rows: Floats, work: float, seed: int) -> tuple[Boosted, float]:
    """Adds trees until the validation figure no longer improves.

    Returns the best number of trees, and the work.

    Args:
        graph: Labels in the task's form, and a split.
        task: Measures predictions.
        figure: The validation metric, such as `val_accuracy`.
        rows: [num_nodes, width] the table.
        work: The limit, in seconds of a nominal machine.
        seed: Determines the random numbers.
    """
    from threadpoolctl import threadpool_limits

    sign = -1 if task.is_lower_better(figure) else 1
    training = rows[graph.labelled & (graph.split == Split.TRAIN)]
    rows = rows[:, ~np.isnan(training).all(0)]  # scikit-learn refuses columns of training without a value
    tried, spent = list[Boosted](), 0.0
    models = [_Forest(graph, column, figure, seed) for column in range(graph.labels.ndim == 1 or graph.num_classes)]
    for trees in range(_ROUND, _MOST_TREES + 1, _ROUND):
        with threadpool_limits(1 if rows.size < _SMALL_CELLS else None):
            outputs = torch.from_numpy(np.concatenate([model.outputs(rows, trees) for model in models], 1))
        score, test = (measure(graph, task, outputs, name) for name in (figure, figure.replace("val_", "test_")))
        assert score is not None
        tried.append(Boosted(score, test, trees))
        best = max(tried, key=lambda one: sign * one.score)  # the first of equal ones
        numbers = rows.shape[1] * (len(training) + _BINS) + len(rows) * trees
        spent += _ROUND * graph.num_classes * numbers * _SECONDS
        if spent > work or trees - best.trees >= _PATIENCE * _ROUND:
            break
    return best, spent


class _Forest:
    """A boosted model of one label column, which gains trees."""

    def __init__(self, graph: Graph, column: int, figure: str, seed: int) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        self.labels = graph.labels if graph.labels.ndim == 1 else graph.labels[:, column]
        self.num_outputs = graph.num_classes if graph.labels.ndim == 1 else 1
        self.train_rows = np.flatnonzero(graph.labelled & (graph.split == Split.TRAIN))
        options = {"warm_start": True, "early_stopping": False, "random_state": seed}
        if self.labels.dtype.kind == "f":
            self.train_rows = self.train_rows[~np.isnan(self.labels[self.train_rows])]
            loss = "absolute_error" if figure.endswith("mae") else "squared_error"
            self.model = HistGradientBoostingRegressor(loss=loss, **options)
        else:
            weight = "balanced" if figure.endswith("macro_f1") else None
            self.model = HistGradientBoostingClassifier(class_weight=weight, **options)

    def outputs(self, rows: Floats, trees: int) -> Numbers:  # [num_nodes, num_outputs]
        """Trains up to a number of trees, and returns numbers or log-probabilities."""
        if not len(self.train_rows):
            return np.zeros((len(rows), self.num_outputs))
        known = self.labels[self.train_rows]
        if self.labels.dtype.kind != "f" and (known == known[0]).all():  # the model needs two classes
            constant = np.arange(self.num_outputs) == known[0] if self.num_outputs > 1 else np.array([known[0] - 0.5])
            return np.tile(constant.astype(np.float64), (len(rows), 1))
        self.model.set_params(max_iter=trees).fit(rows[self.train_rows], known)
        if self.labels.dtype.kind == "f":
            predicted: Numbers = self.model.predict(rows)[:, None]
            return predicted
        logs: Numbers = np.log(np.maximum(self.model.predict_proba(rows), _LEAST))
        if self.num_outputs == 1:
            return logs[:, 1:] - logs[:, :1]
        outputs = np.full((len(rows), self.num_outputs), np.log(_LEAST))
        outputs[:, self.model.classes_] = logs
        return outputs


def measure(graph: Graph, task: NodeTask, outputs: Tensor, name: str) -> float | None:
    """Computes a metric over its split, or None if the split is empty."""
    split, _, metric = name.partition("_")
    nodes = graph.labelled & (graph.split == SPLITS[split])
    if not nodes.any():
        return None
    predicted, labels = outputs[torch.from_numpy(nodes)], torch.from_numpy(graph.labels[nodes])
    if metric not in ("roc_auc", "average_precision"):
        return task.figures(task.counts(predicted, labels))[metric]
    if labels.ndim == 1:
        train = np.bincount(graph.labels[graph.labelled & (graph.split == Split.TRAIN)], minlength=2)
        ranked = LabelFacts(shares=uneven_shares(train.tolist())).positive
        predicted, labels = predicted[:, [ranked]] - predicted[:, [1 - ranked]], (labels == ranked)[:, None]
    return mean_areas(predicted, labels).get(metric)


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
