"""The task interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph
from gnnkit.kernels.sums import wide
from gnnkit.sampler import Sampler
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.task.decoder import EventDecoder
from gnnkit.task.evaluation import by_row
from gnnkit.task.item_ranking import TopItems
from gnnkit.utils.checks import Array
from gnnkit.utils.documents import Json

HEAD = "task_head"  # name of `Task.head()` within the model


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """Label statistics and decision rules, saved with the model.

    `outputs * deviation + mean` are numbers in the labels' unit or their logarithms, or
    calibrated logits.
    """

    class_weights: tuple[float, ...] | None = None  # [num_classes] factors of the losses
    mean: tuple[float, ...] | None = None  # [width], or [1] for all outputs. None if outputs are not scaled
    deviation: tuple[float, ...] | None = None  # [width], or [1] for all outputs
    thresholds: tuple[float, ...] | None = None  # [num_classes] lowest probabilities at which classes are predicted
    shares: tuple[float, ...] | None = None  # [num_classes] of the training nodes
    logarithm: tuple[float, ...] | None = None  # [1] if outputs are logarithms, with a sign, of 1 and the number

    @property
    def positive(self) -> int:
        """The one of two classes that is ranked, and predicted from a threshold on.

        It is the second one, or the first one if that has a small share of the training
        nodes.
        """
        return int(self.shares is None or self.shares[0] >= self.shares[1])

    def in_unit(self, outputs: Tensor) -> Tensor:
        """Returns outputs [k, width] in the labels' unit, or calibrated logits."""
        if self.mean is None or self.deviation is None:
            return outputs
        numbers = outputs * outputs.new_tensor(self.deviation) + outputs.new_tensor(self.mean)
        return numbers if self.logarithm is None else numbers.sign() * numbers.abs().expm1()


CLASSES = "classes"
PredictionColumns = Mapping[str, Array | Sequence[object]]  # columns of `predictions.parquet`, by name


class Task(ABC):
    """Defines a model's loss, metrics and predictions.

    A strategy selects each step's rows, and a task computes their loss. The
    constructor's arguments are the keys of `task`. Most tasks derive from `NodeTask`.

    Derive from `NodeTask` for rows with labels, and from this class for other
    targets, such as pairs of nodes. A task is created on every rank. All of its methods
    that are not marked collective see one rank's rows only.
    """

    metrics: ClassVar[tuple[str, ...]]  # names. The first one is the main metric
    metrics_of_some: tuple[str, ...] = ()  # metrics that only some data have
    splits: ClassVar[tuple[str, ...]] = tuple(SPLITS)  # names of the measured splits
    lower_is_better: ClassVar[bool] = False  # applies to the metrics. A lower loss is always better
    pairs: ClassVar[bool] = False  # whether rows are pairs of nodes, of which another rank may own one
    hides_edges: ClassVar[bool] = False  # whether the edges that a step predicts pass no messages in it
    labels_nodes: ClassVar[bool] = False  # whether rows are nodes with labels
    timed: ClassVar[frozenset[str]] = frozenset()  # values of `write` that a row's time leaves undefined
    unit_of_outputs: str | None = None  # what the model's outputs stand for, if their number is checked
    expected: tuple[str, int] | None = None  # a Python model's name and `num_outputs`, set when it is made
    noun: ClassVar[str] = "node"  # noun for a predicted row, in messages
    embeds: ClassVar[bool] = False  # whether outputs are node embeddings, whose pairs are scored
    reads_labels: str = ""  # describes the known labels of other rows that predictions read
    reads_events: bool = False  # whether a score reads all events before its pair's time, also held-out ones
    window: int | None = None  # `Sampler.window` of the run, set before `prepare`
    monitored: str = ""  # name of the figure that selects the run's model, set before the first evaluation
    without_learning: str = ""  # describes the baseline that `chance` measures
    least_skill: float = 0.1  # minimum improvement over chance, relative to a perfect score's

    @property
    def names(self) -> list[str]:
        """Names of all measured metrics, such as `val_accuracy`.

        They are allowed values of `trainer.monitor`, and keys of `result.json`.
        """
        metrics = (*self.metrics, *self.metrics_of_some)
        return [f"{split}_{metric}" for split in self.splits for metric in metrics]

    def is_lower_better(self, name: str) -> bool:
        """Returns whether a lower value of `name`, one of `names`, is better."""
        return self.lower_is_better or name.endswith("_loss")

    @property
    def progress(self) -> str:
        """The main validation metric's name, which may depend on the labels in `begin`.

        It selects the best model with `trainer.monitor=auto`.
        """
        return f"val_{self.metrics[0]}"

    @abstractmethod
    def prepare(self, graph: Graph) -> tuple[Graph, TaskRows]:
        """Returns the training graph and the rows to predict.

        These are `NODES`, or `Targets` or `Links` for pairs of nodes. Called once,
        before the graph is partitioned. Raises `UserError` for an unsuitable graph,
        with the remedy.
        """

    def prepare_by_time(self, graph: Graph) -> tuple[Graph, TaskRows]:
        """Calls `prepare` for a sampler by time, which needs the edges of all times."""
        return self.prepare(graph.evolve(time_borders=None))

    def prepare_known(self, graph: Graph) -> tuple[Graph, TaskRows]:
        """Returns a graph for job=predict and the rows to predict.

        All edges are known, so none is held out. Raises `UserError` like `prepare`.
        Default: the graph as it is, and its nodes.
        """
        return graph, NODES

    def check(self, strategy: ExecutionStrategy, sampler: Sampler | None) -> None:  # noqa: B027 - most support all
        """Raises `UserError` for a strategy or a sampler the task does not support.

        Called before ranks start. Default: supports all.

        Args:
            strategy: The configured strategy.
            sampler: The configured sampler, or None.
        """

    def num_outputs(self, num_classes: int) -> int:
        """Returns the model's output width.

        Default: one output per class.

        Args:
            num_classes: `Graph.num_classes`, the number of classes or of numbers to
                predict.
        """
        return num_classes

    def check_outputs(self, outputs: Tensor) -> None:
        """Raises `UserError` if a model passed from Python has another output width.

        Classes without labels are allowed, so a classifier may have more outputs.

        Args:
            outputs: [num_rows, width] model outputs.
        """
        if self.expected is None or self.unit_of_outputs is None or outputs.dim() != 2 or not outputs.shape[1]:
            return  # rows without columns stand for outputs that are computed in parts
        (name, expected), width = self.expected, outputs.shape[1]
        if width < expected or (width > expected and self.unit_of_outputs != CLASSES):
            raise UserError(
                f"model={name} has {width} outputs, expected {expected} ({self.unit_of_outputs}): change the width of its "
                "last layer"
            )

    def size_head(self, num_outputs: int, edge_width: int) -> None:  # noqa: B027 - most have no head
        """Sets the sizes of `head`. Called before it.

        Args:
            num_outputs: `Targets.num_classes` of the training data.
            edge_width: Number of edge features.
        """

    def head(self) -> nn.Module | None:
        """Returns the task's own parameters, the same module in each call.

        The module becomes part of the model, so its parameters are trained,
        synchronised and saved. Default: None.
        """
        return None

    def adopt(self, model: nn.Module) -> None:
        """Stores the parts of a new model that the task calls.

        Called after `begin` for a model to train, and before it for a trained model.
        Default: raises `UserError` for a model that scores pairs at a time.
        """
        if isinstance(getattr(model, "decoder", None), EventDecoder):
            raise UserError(f"model={type(model).__name__} scores pairs at a time: use task=link_prediction")

    def begin(self, worker: Worker) -> None:  # noqa: B027 - most need no statistics
        """Computes the label statistics that the losses need. Collective.

        Called once on each rank that trains or tests. Default: does nothing.
        """

    def calibrate(self, outputs: Tensor, worker: Worker) -> list[str]:
        """Chooses decision thresholds and a temperature by validation. Collective.

        Called once, on the trained model's outputs. Returns a message for each decision
        that was not made. Takes the arguments of `measure`. Default: does nothing.
        """
        return []

    def facts(self) -> LabelFacts:
        """Returns the statistics of `begin` and `calibrate`, for use on other data."""
        return LabelFacts()

    def label_warnings(self, worker: Worker, classes: Sequence[str] | None) -> list[str]:
        """Returns warnings about labels that are hard to learn from. Collective.

        Called once, when training starts. Default: none.

        Args:
            classes: [num_classes] class names, or None.
        """
        return []

    def recall(self, facts: LabelFacts) -> None:  # noqa: B027 - most need no statistics
        """Sets the training data's label statistics.

        Called before `begin`, which then does not compute them again.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [k]
        """Computes each row's loss. A step's loss is the mean over all ranks' rows.

        Args:
            outputs: [k, width] model outputs, or [k, 2, width] for node pairs.
            labels: [k, ...] labels in the form of `Graph.labels`. For pairs, 1 if there
                is an edge, else 0.
        """

    def losses_of(self, out: Tensor, rows: Tensor, labels: Tensor, features: Tensor | None = None) -> Tensor:  # [k]
        """Computes `losses` of some output rows, which a task may do without a copy.

        Args:
            out: [num_rows, width] model outputs.
            rows: [k] positions of rows, or [k, 2] for node pairs.
            labels: [k, ...] as for `losses`.
            features: [k, edge_width] features of labelled edges, or None.
        """
        outputs = out[rows]
        return self.losses(outputs.to(wide(outputs.dtype)), labels)

    def probabilities(self, outputs: Tensor) -> Tensor:  # [k, ...]
        """Converts outputs to probabilities, for tasks that have them.

        Used where people read predictions: in tables, reports and explanations.

        Args:
            outputs: [k, width] model outputs.

        Returns:
            [k, ...].
        """
        raise NotImplementedError(f"{type(self).__name__} does not define probabilities")

    def row_outputs(self, outputs: Tensor, worker: Worker) -> Tensor:
        """Returns the outputs of this rank's rows, `Worker.targets`. Collective.

        All methods below read the result. Default: the nodes' outputs.

        Args:
            outputs: [num_owned, width] outputs for this rank's nodes.
        """
        return outputs

    @abstractmethod
    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        """Computes the metrics in `names` over all ranks. Collective.

        The result is equal on all ranks and omits empty splits.

        Args:
            outputs: [k, width] outputs of this rank's rows, from `row_outputs`.
        """

    def measure_progress(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        """Computes the metrics of an evaluation during training. Collective.

        May omit expensive metrics other than `monitored`. Default: calls `measure`.
        """
        return self.measure(outputs, worker)

    def details(self, outputs: Tensor, worker: Worker) -> Json:
        """Returns the parts of `Classes` in `result.json`, by class number. Collective.

        Takes the arguments of `measure`. Default: empty.
        """
        return {}

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        """Returns the metrics of a predictor that ignores its input. Collective.

        A run warns if the model is no better than this baseline. The arguments are
        those of `measure`. Default: empty, which disables the warning.
        """
        return {}

    def score_warnings(self, metrics: Mapping[str, float]) -> list[str]:
        """Returns reasons why the metrics are not meaningful.

        The log and the report show them. Called once, with the final metrics. Default:
        none.

        Args:
            metrics: Values by name, from `measure`.
        """
        return []

    @abstractmethod
    def predictions(self, outputs: Tensor, worker: Worker) -> Tensor | None:
        """Returns the content for `predictions.npy` on rank 0, or None on other ranks.

        Collective. Takes the arguments of `measure`.
        """

    def predict_rows(self, outputs: Tensor) -> Tensor | None:  # [k, ...]
        """Returns the predictions of this rank's rows, one for each.

        Default: None, for a task whose `predictions` has other rows.

        Args:
            outputs: As for `measure`.
        """
        return None

    def read_rows(self, graph: Graph) -> Graph:
        """Returns a graph whose nodes are the labelled rows. Default: the graph."""
        return graph

    def recommend(self, outputs: Tensor, worker: Worker) -> TopItems | None:
        """Returns each source's best new destinations on rank 0. Collective.

        Returns None on other ranks, and for tasks without recommendations. The
        arguments are those of `measure`.
        """
        return None

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> PredictionColumns:
        """Returns the columns for `predictions.parquet`, by name.

        Args:
            rows: The result of `predictions`.
            ids: Original id of each row: of the nodes, or positions in the edge list.
            classes: [num_classes] class names, or None.
        """
        return {"id": ids, **name_columns("prediction", rows)}

    def output_names(self, classes: Sequence[str] | None) -> Sequence[str] | None:
        """Returns the output columns' names, if the outputs are named classes.

        Args:
            classes: [num_classes] class names, or None.
        """
        return None


class NodeTask(Task):
    """A task with labelled rows: nodes, or edges with `LabelledEdges`.

    Its metrics are computed from sums over all ranks, so they are exact. The validation
    and test losses are measured too.

    Implement `read`, `losses`, `counts`, `figures` and `predict`. A metric that is
    not a function of sums, such as the area under a curve, overrides `measure`.

    Examples:
        >>> import torch
        >>> from gnnkit.task import NodeTask
        >>> class Presence(NodeTask):
        ...     '''Predicts a set of classes for each node.'''
        ...     metrics = ("hamming",)
        ...     def read(self, graph):
        ...         return graph
        ...     def losses(self, outputs, labels):
        ...         loss = torch.nn.functional.binary_cross_entropy_with_logits
        ...         return loss(outputs, labels.to(outputs), reduction="none").mean(1)
        ...     def counts(self, outputs, labels):
        ...         hits = (outputs > 0) == labels
        ...         return outputs.new_tensor([hits.sum(), hits.numel()])
        ...     def figures(self, counts):
        ...         return {"hamming": float(counts[0] / counts[1])}
        ...     def predict(self, outputs):
        ...         return outputs > 0
    """

    labels_nodes = True
    key: str = ""  # the task's name, in messages

    @property
    def names(self) -> list[str]:
        return [*super().names, *(f"{split}_loss" for split in self.splits if split != "train")]

    @abstractmethod
    def read(self, graph: Graph) -> Graph:
        """Returns the graph with labels in the task's form.

        Raises `UserError` for unsuitable labels, with the remedy.
        """

    def read_rows(self, graph: Graph) -> Graph:
        """Returns a graph whose nodes are the labelled rows, as `read` gives them."""
        return self.read(graph)

    @abstractmethod
    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [num_counts] float64
        """Computes the sums over rows from which `figures` computes the metrics.

        Args:
            outputs: [k, width] outputs of labelled nodes. k may be 0.
            labels: [k, ...] labels of these nodes.
        """

    @abstractmethod
    def figures(self, counts: Tensor) -> dict[str, float]:
        """Computes the metrics from the sums over all ranks' rows.

        Args:
            counts: [num_counts] float64 sums of `counts`.

        Returns:
            A value for each of `metrics`, and for those of `metrics_of_some` that
            the data have.
        """

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:  # [k, ...]
        """Returns the prediction for each output row.

        Args:
            outputs: [k, width] model outputs.

        Returns:
            [k] classes or numbers, or [k, ...] sets of classes or several numbers.
        """

    def prepare(self, graph: Graph) -> tuple[Graph, TaskRows]:
        return self.read(graph), NODES

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for split in self.splits:
            rows, labels = rows_of(split, outputs, worker)
            counts = self.counts(rows, labels).to(torch.float64)
            loss = self.losses(rows, labels).sum(dtype=torch.float64)
            *sums, total, num_rows = worker.comm.all_reduce(
                torch.cat([counts, loss[None], loss.new_tensor([len(rows)])])
            )
            if num_rows > 0:
                metrics |= {f"{split}_{name}": value for name, value in self.figures(torch.stack(sums)).items()}
                metrics |= {} if split == "train" else {f"{split}_loss": float(total / num_rows)}
        return metrics

    @property
    def baseline_metrics(self) -> tuple[str, ...]:
        """The metrics of `figures` that are compared with the baseline of `chance`."""
        return self.metrics[:1]

    def constant(self, labels: Tensor, width: int, comm: Communicator) -> Tensor | None:  # [width]
        """Returns the best constant prediction's outputs. Collective.

        Default: None, which disables the baseline.

        Args:
            labels: [k, ...] labels of this rank's rows.
            width: Output width.
            comm: The ranks.
        """
        return None

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        rows, labels = rows_of("train", outputs, worker)
        constant = self.constant(labels, rows.shape[1], worker.comm)
        if constant is None:
            return {}
        counts = self.counts(constant.expand(len(rows), -1), labels).to(torch.float64)
        *sums, num_rows = worker.comm.all_reduce(torch.cat([counts, counts.new_tensor([len(rows)])]))
        figures = self.figures(torch.stack(sums)) if num_rows > 0 else {}
        return {f"train_{name}": figures[name] for name in self.baseline_metrics if name in figures}

    def predict_rows(self, outputs: Tensor) -> Tensor | None:
        return self.predict(outputs) if type(self).predictions is NodeTask.predictions else None

    def predictions(self, outputs: Tensor, worker: Worker) -> Tensor | None:
        return by_row(self.predict(outputs), worker)


def name_columns(name: str, rows: Array, titles: Sequence[str] | None = None) -> dict[str, Array]:
    """Splits rows into named columns, such as `logit_0`, or `logit_cat` with titles.

    Args:
        name: Column name prefix.
        rows: [n] or [n, width].
        titles: [width] column name suffixes, or None for 0, 1, ...
    """
    if rows.ndim == 1:
        return {name: rows}
    return {f"{name}_{title}": rows[:, i] for i, title in enumerate(titles or range(rows.shape[1]))}


def rows_of(split: str, outputs: Tensor, worker: Worker) -> tuple[Tensor, Tensor]:
    """Returns outputs [k, width] and labels [k, ...] of this rank's rows in a split.

    Rows without a label are omitted.

    Args:
        outputs: [num_rows, width] outputs of this rank's rows, `Worker.targets`.
    """
    targets = worker.targets
    rows = targets.of_split(SPLITS[split])
    labels = torch.from_numpy(np.asarray(targets.label[rows])).to(worker.device)
    return outputs[torch.from_numpy(rows).to(worker.device)], labels


def f1(counts: Tensor) -> Tensor:  # [num_classes]
    """Computes each class's F1 score, or NaN if the class does not occur.

    Args:
        counts: [3, num_classes] true positives, predictions and labels per class.
    """
    hits, predictions, actual = counts
    scores: Tensor = 2 * hits / (predictions + actual)
    return scores


def macro(scores: Tensor) -> float:
    """Averages scores over the classes that occur in predictions or labels."""
    return float(scores[~scores.isnan()].mean()) if not scores.isnan().all() else 0.0
