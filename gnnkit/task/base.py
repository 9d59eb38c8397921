"""The interface of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.checks import Array
from gnnkit.evaluation import by_node
from gnnkit.graph import SPLITS, Graph
from gnnkit.sampler import Sampler
from gnnkit.sampler.links import Links
from gnnkit.strategy import ExecutionStrategy, Worker


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """What a task has learned of the labels that train. Stays with the model."""

    class_weights: tuple[float, ...] | None = None  # [num_classes] factors of losses
    mean: tuple[float, ...] | None = None  # [width] outputs are in deviations from the mean. None: in the labels' unit
    deviation: tuple[float, ...] | None = None  # [width]


class Task(ABC):
    """Says what a model is trained to say, and how well the model does.

    A strategy decides which rows a step reads, a task what these rows lose. Arguments
    of the constructor are the keys of `task`. Most tasks are a `NodeTask`.
    """

    metrics: ClassVar[tuple[str, ...]]  # names. The first one says how training gets on
    metrics_of_some: ClassVar[tuple[str, ...]] = ()  # names of further metrics, which some data have
    splits: ClassVar[tuple[str, ...]] = tuple(SPLITS)  # that are measured
    lower_is_better: ClassVar[bool] = False  # of the metrics. Of a loss it always is
    without_learning: ClassVar[str] = ""  # describes the predictor that `chance` measures
    least_skill: ClassVar[float] = 0.1  # share of the way from chance to a perfect figure that counts as learned

    @property
    def names(self) -> list[str]:
        """The names of all measured figures, such as `val_accuracy`."""
        metrics = (*self.metrics, *self.metrics_of_some)
        return [f"{split}_{metric}" for split in self.splits for metric in metrics]

    def is_lower_better(self, name: str) -> bool:
        """Says whether the least value of one of `names` is best."""
        return self.lower_is_better or name.endswith("_loss")

    @property
    def progress(self) -> str:
        """The name of the figure that says how training gets on."""
        return f"val_{self.metrics[0]}"

    @abstractmethod
    def prepare(self, graph: Graph) -> tuple[Graph, Links | None]:
        """Returns the graph that trains, and the edges to predict where there are any.

        Raises `UserError` for a graph that does not fit, with the way out. Runs once,
        before the graph is cut.
        """

    def check(self, strategy: ExecutionStrategy, sampler: Sampler | None) -> None:  # noqa: B027 - most fit all
        """Raises `UserError` for a strategy or a sampler that cannot serve the task."""

    def num_outputs(self, num_classes: int) -> int:
        """Returns the width of the model's output from `Graph.num_classes`."""
        return num_classes

    def head(self) -> nn.Module | None:
        """Returns parameters of the task itself, the same module in each call.

        The module becomes a part of the model. So steps, synchronisations and
        checkpoints cover its parameters. Default: None, no parameters.
        """
        return None

    def begin(self, worker: Worker) -> None:  # noqa: B027 - most need to know nothing
        """Learns about the labels of all ranks what losses need. Collective.

        Called once on each rank that trains or tests. Default: does nothing.
        """

    def facts(self) -> LabelFacts:
        """Returns what `begin` has learned, for other data."""
        return LabelFacts()

    def label_warnings(self, worker: Worker, classes: Sequence[str] | None) -> list[str]:
        """Describes labels from which a model can hardly learn. Collective.

        Called once, when training starts. Default: no line.

        Args:
            worker: This rank.
            classes: [num_classes] the user's names of classes, or None.
        """
        return []

    def recall(self, facts: LabelFacts) -> None:  # noqa: B027 - most have learned nothing
        """Takes what the task has learned of the labels that trained the model.

        Called before `begin`, which then learns nothing else of these.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [k]
        """Computes the loss of each row. The loss of a step is the mean over all ranks.

        Args:
            outputs: [k, width] of the model, or [k, 2, width] for pairs of nodes.
            labels: [k, ...] labels of the rows, in the form of `Graph.labels`. For
                pairs: 1 where there is an edge, else 0.
        """

    def probabilities(self, outputs: Tensor) -> Tensor:  # [k, ...]
        """Returns probabilities from outputs [k, width], for tasks that have any."""
        raise NotImplementedError(f"{type(self).__name__} has no probabilities")

    @abstractmethod
    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        """Measures the model by `names`, over all ranks. Equal on all ranks.

        Leaves out splits that have nothing to measure. Collective.

        Args:
            outputs: [num_owned, width] of this rank's nodes.
            worker: This rank.
        """

    def details(self, outputs: Tensor, worker: Worker) -> dict[str, Any]:
        """Returns `per_class` and `confusion` of `result.json`, by split. Collective.

        A list of figures by class, and a matrix of counts. Arguments are as in
        `measure`. Default: neither.
        """
        return {}

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        """Measures what a predictor reaches that has learned nothing. Collective.

        A run whose figures of these names are no better reports that its model has
        learned nothing. Arguments are as in `measure`. Default: no figures, so such a
        run is not recognised.
        """
        return {}

    def doubts(self, measured: Mapping[str, float]) -> list[str]:
        """Says why figures of `measure` tell nothing. Default: no reason."""
        return []

    @abstractmethod
    def predictions(self, outputs: Tensor, worker: Worker) -> Tensor | None:
        """Returns what the run writes as `predictions.npy`, on the leader.

        Collective. Returns None on other ranks. Arguments are as in `measure`.
        """

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> dict[str, Any]:
        """Returns the columns of `predictions.parquet`, by name.

        Args:
            rows: What `predictions` gives.
            ids: [num_nodes] the user's ids.
            classes: [num_classes] the user's names of classes, or None.
        """
        return {"id": ids, **numbered("prediction", rows)}

    def output_names(self, classes: Sequence[str] | None) -> Sequence[str] | None:
        """Returns the names of the outputs, where outputs are classes with names.

        Args:
            classes: [num_classes] the user's names of classes, or None.
        """
        return None


class NodeTask(Task):
    """A task whose rows are nodes. Sums over ranks keep the metrics exact.

    The losses of splits that do not train are measured too.
    """

    @property
    def names(self) -> list[str]:
        return [*super().names, *(f"{split}_loss" for split in self.splits if split != "train")]

    @abstractmethod
    def read(self, graph: Graph) -> Graph:
        """Returns the graph with labels in the form that the task reads.

        Raises `UserError` for labels of another form, with the way out.
        """

    @abstractmethod
    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [num_counts] float64
        """Computes what the metrics need as sums over rows.

        Args:
            outputs: [k, width] of labelled nodes. k may be 0.
            labels: [k, ...] of these nodes.
        """

    @abstractmethod
    def figures(self, counts: Tensor) -> dict[str, float]:
        """Computes the metrics from the sums over the rows of all ranks."""

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:  # [k, ...]
        """Returns the prediction for each row of outputs [k, width]."""

    def prepare(self, graph: Graph) -> tuple[Graph, Links | None]:
        return self.read(graph), None

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
    def judged(self) -> tuple[str, ...]:
        """The metrics of `figures` that show whether a model has learned anything."""
        return self.metrics[:1]

    def constant(self, labels: Tensor, width: int, worker: Worker) -> Tensor | None:  # [width]
        """Returns the outputs of the best constant prediction of rows. Collective.

        Default: None, not known.

        Args:
            labels: [k, ...] of this rank's rows.
            width: Width of the outputs.
            worker: This rank.
        """
        return None

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        rows, labels = rows_of("train", outputs, worker)
        constant = self.constant(labels, rows.shape[1], worker)
        if constant is None:
            return {}
        counts = self.counts(constant.expand(len(rows), -1), labels).to(torch.float64)
        *sums, num_rows = worker.comm.all_reduce(torch.cat([counts, counts.new_tensor([len(rows)])]))
        figures = self.figures(torch.stack(sums)) if num_rows > 0 else {}
        return {f"train_{name}": figures[name] for name in self.judged if name in figures}

    def predictions(self, outputs: Tensor, worker: Worker) -> Tensor | None:
        return by_node(self.predict(outputs), worker)


def numbered(name: str, rows: Array, titles: Sequence[str] | None = None) -> dict[str, Array]:
    """Returns the columns of rows, such as `logit_0`, or `logit_cat` with titles.

    Args:
        name: Of the columns.
        rows: [n] or [n, width].
        titles: [width] of the columns, or None for 0, 1, ...
    """
    if rows.ndim == 1:
        return {name: rows}
    return {f"{name}_{title}": rows[:, i] for i, title in enumerate(titles or range(rows.shape[1]))}


def rows_of(split: str, outputs: Tensor, worker: Worker) -> tuple[Tensor, Tensor]:
    """Returns outputs [k, width] and labels [k, ...] of a rank's nodes of a split.

    Leaves out nodes without a label.

    Args:
        split: Name of the split.
        outputs: [num_owned, width] of the rank's nodes.
        worker: The rank.
    """
    shard = worker.shard
    rows = np.flatnonzero(shard.labelled & (shard.split == SPLITS[split]))
    labels = torch.from_numpy(np.asarray(shard.labels[rows])).to(worker.device)
    return outputs[torch.from_numpy(rows).to(worker.device)], labels


def f1(counts: Tensor) -> Tensor:  # [num_classes]
    """Computes the F1 score of each class, NaN for a class that nowhere occurs.

    Args:
        counts: [3, num_classes] hits, predictions and labels of each class.
    """
    hits, predicted, actual = counts
    scores: Tensor = 2 * hits / (predicted + actual)
    return scores


def macro(scores: Tensor) -> float:
    """Averages over the classes that occur in predictions or labels."""
    return float(scores[~scores.isnan()].mean()) if not scores.isnan().all() else 0.0
