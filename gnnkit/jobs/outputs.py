"""The rows that a run writes: predictions, logits, probabilities, embeddings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.checks import Array
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.evaluation import Evaluation, by_node
from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.rows import write_named
from gnnkit.leader.channel import LEADER
from gnnkit.strategy import Worker
from gnnkit.task import Task, numbered

Make = Callable[[nn.Module], Evaluation]
_SINGULAR = {"logits": "logit", "probabilities": "probability", "embeddings": "embedding"}  # of columns


@dataclass(frozen=True, slots=True)
class Scores:
    """What a task measured of all nodes. Empty where nothing is asked for."""

    figures: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)  # by split, from `Task.details`
    chance: dict[str, float] = field(default_factory=dict)  # from `Task.chance`, of a model that has just trained


def write(
    job: RankJob, task: Task, model: nn.Module, make: Make, names: Sequence[str] | None, *, measures: bool = True
) -> Scores:
    """Writes the wanted rows. Collective.

    Args:
        job: The job, whose settings say what is wanted.
        task: Makes predictions and probabilities, and measures.
        model: The model.
        make: Makes the evaluation of a model. Collective.
        names: The user's names of classes, or None.
        measures: Whether figures are asked for. Default: yes.
    """
    wanted = job.settings.write

    def keep(name: str, rows: Tensor, worker: Worker) -> None:
        if name in wanted:
            titles = None if name == "embeddings" else task.output_names(names)
            columns = functools.partial(_columns, _SINGULAR[name], titles)
            write_named(job, worker, name, by_node(rows, worker), columns)

    def read(logits: Tensor, worker: Worker) -> Scores:
        if job.settings.checkpoint is not None:
            _check_finite(logits, worker, job.settings.checkpoint)
        if "predictions" in wanted:
            columns = functools.partial(task.columns, classes=names)
            write_named(job, worker, "predictions", task.predictions(logits, worker), columns)
        keep("logits", logits, worker)
        if "probabilities" in wanted:
            keep("probabilities", task.probabilities(logits), worker)
        if not measures:
            return Scores()
        scores = _measured(task, logits, worker)
        return scores if job.settings.checkpoint is not None else replace(scores, chance=task.chance(logits, worker))

    found = make(model).read(model, read)
    if "embeddings" in wanted:
        check_layers(model)
        body = Body(model)
        make(body).read(body, lambda rows, worker: keep("embeddings", rows, worker))
    return found


def _measured(task: Task, logits: Tensor, worker: Worker) -> Scores:
    """Measures, and prints why figures tell nothing, on the leader. Collective."""
    found = task.measure(logits, worker)
    for line in task.doubts(found) if worker.comm.rank == LEADER else ():
        print(f"gnnkit: warning: {line}", file=sys.stderr)
    return Scores(found, task.details(logits, worker))


def _check_finite(logits: Tensor, worker: Worker, checkpoint: str) -> None:
    """Raises `UserError` on all ranks for outputs that are not finite. Collective."""
    bad = (~torch.isfinite(logits)).reshape(len(logits), -1).any(1).sum()
    count = int(worker.comm.all_reduce(bad[None]))
    if count:
        raise UserError(
            f"checkpoint={checkpoint}: outputs of {count:,} of {worker.shard.num_nodes:,} nodes are not finite: look for "
            "buffers of the model that are not finite, and for features far larger than those that trained"
        )


def _columns(name: str, titles: Sequence[str] | None, rows: Array, ids: Array) -> dict[str, Array]:
    """Returns the columns of a table of rows [num_nodes, width]."""
    return {"id": ids, **numbered(name, rows, titles)}


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


def check_layers(model: object) -> None:
    """Raises `UserError` for a model without rows before the last layer."""
    if not hasattr(model, "layer") or getattr(model, "num_layers", 0) < 2:
        raise UserError(
            f"write=[embeddings]: model={type(model).__name__} has no rows before its last layer: embeddings need a "
            "model with `layer` and two layers or more"
        )
