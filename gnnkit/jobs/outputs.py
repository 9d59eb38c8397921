"""The rows that a run writes: predictions, logits, probabilities, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.evaluation import Evaluation, by_node
from gnnkit.jobs.rows import write_rows
from gnnkit.settings import Settings
from gnnkit.strategy import Worker
from gnnkit.task import NodeTask, Task

Make = Callable[[nn.Module], Evaluation]


def check(settings: Settings, model: object) -> None:
    """Raises `UserError` for rows that the model or the task does not give.

    Args:
        settings: The configuration.
        model: The model, or None where the model is not known yet.
    """
    if "embeddings" in settings.write and isinstance(model, nn.Module):
        _check_layers(model)
    task: Task = settings.task.create()
    if settings.job == "predict" and "predictions" in settings.write and not isinstance(task, NodeTask):
        raise UserError(
            f"job=predict: task={settings.task.name} predicts edges that were held out: write=[logits] gives the "
            "rows of all nodes, and job=test scores the edges"
        )
    if "probabilities" in settings.write and type(task).probabilities is Task.probabilities:
        raise UserError(f"write={list(settings.write)}: task={settings.task.name} has no probabilities, leave them out")


def write(
    wanted: Sequence[str], folder: Path, task: Task, model: nn.Module, make: Make, *, measures: bool = True
) -> tuple[dict[str, float], dict[str, Any]]:
    """Writes the wanted rows. Collective.

    Args:
        wanted: Names of `settings.WRITTEN`.
        folder: The run folder.
        task: Makes predictions and probabilities, and measures.
        model: The model.
        make: Makes the evaluation of a model. Collective.
        measures: Whether figures are asked for. Default: yes.

    Returns:
        The figures of the task, and further ones by split from `Task.details`.
    """

    def read(logits: Tensor, worker: Worker) -> tuple[dict[str, float], dict[str, Any]]:
        if "predictions" in wanted:
            write_rows(folder / "predictions.npy", task.predictions(logits, worker))
        if "logits" in wanted:
            write_rows(folder / "logits.npy", by_node(logits, worker))
        if "probabilities" in wanted:
            write_rows(folder / "probabilities.npy", by_node(task.probabilities(logits), worker))
        return (task.measure(logits, worker), task.details(logits, worker)) if measures else ({}, {})

    found = make(model).read(model, read)
    if "embeddings" in wanted:
        _check_layers(model)
        body = Body(model)

        def keep(rows: Tensor, worker: Worker) -> None:
            write_rows(folder / "embeddings.npy", by_node(rows, worker))

        make(body).read(body, keep)
    return found


class Body(nn.Module):
    """A model without the last layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.num_layers: int = model.num_layers - 1  # type: ignore[operator, assignment]
        self.self_loops = getattr(model, "self_loops", False)
        self.model, self.layer = model, model.layer

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes the rows that the last layer reads, [num_dst, width]."""
        for index, adjacency in enumerate(adjacencies):
            x = self.layer(index, x, adjacency)  # type: ignore[operator]
        return x


def _check_layers(model: object) -> None:
    if not hasattr(model, "layer") or getattr(model, "num_layers", 0) < 2:
        raise UserError(
            f"write=[embeddings]: model={type(model).__name__} has no rows before its last layer: embeddings need a "
            "model with `layer` and two layers or more"
        )
