"""job=predict and job=test: applies a trained model to its graph or another one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from gnnkit.comm import LEADER, Communicator
from gnnkit.config import of_run
from gnnkit.engine.remote import LearnedRows
from gnnkit.errors import UserError
from gnnkit.graph import Ids, Schema
from gnnkit.graph.cells import find_ids
from gnnkit.jobs import figures, weights
from gnnkit.jobs.models import Widths
from gnnkit.jobs.outputs import EMBEDDING, node_ids, write_names, write_outputs
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import say, warn
from gnnkit.prepare.inputs import IDS
from gnnkit.prepare.trained import Inputs
from gnnkit.result.figures import Classes, merge
from gnnkit.sampler.base import TIME_ARGUMENTS
from gnnkit.strategy import Worker
from gnnkit.task import Task
from gnnkit.training.step import own_method
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import shown
from gnnkit.utils.storage import Array, read_npy


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRun:
    """A trained run's model on one rank, with the job's data."""

    folder: Path  # of the trained run
    worker: Worker
    model: nn.Module  # in evaluation mode
    task: Task
    class_names: list[str] | None

    @classmethod
    def of(cls, job: RankJob, comm: Communicator, dtype: torch.dtype | None = None) -> TrainedRun:
        """Reads the run `checkpoint`. Collective.

        Raises `UserError` for data that do not fit the model.

        Args:
            job: The job.
            comm: The ranks.
            dtype: As for `RankJob.worker`.
        """
        assert job.settings.checkpoint is not None
        folder, task = Path(job.settings.checkpoint), job.task()
        tensors, widths = weights.read(folder)
        worker = job.worker(comm, dtype=dtype)
        names = weights.class_names(folder)
        _check_data(job, worker, widths, task)
        if task.reads_labels or (job.settings.job.needs_labels and not worker.rows.drawn):
            data_names = job.prepared.class_names or map(str, range(worker.targets.num_classes))
            num_classes = widths.num_targets or widths.num_classes
            _check_classes(folder, names or map(str, range(num_classes)), data_names)
        model = job.make_model(worker, widths, task, exchanges=worker.fetches).eval()
        weights.fill(model, tensors, folder)
        task.recall(weights.read_facts(folder))
        return cls(folder, worker, model, task, names)


def predict(job: RankJob, comm: Communicator) -> Json:
    """Computes the outputs of all nodes, and the task's figures for job=test.

    Collective. Returns the figures on the leader.
    """
    run = TrainedRun.of(job, comm)
    folder, worker, model, task = run.folder, run.worker, run.model, run.task
    learned_rows = _read_learned_rows(job, worker, folder)
    make = functools.partial(job.evaluation, worker, learned_rows=learned_rows, scratch=job.scratch_folder(comm))
    tests = job.settings.job.needs_labels
    if tests:
        task.begin(worker)
    names = run.class_names or job.prepared.class_names
    if tests and comm.rank == LEADER and own_method(model, "test_step") is not None:
        print(f"model={job.source.name}: its test_step is called after training, not by job=test", file=sys.stderr)
    scores = write_outputs(job, task, model, make, names, measures=tests)
    if comm.rank != LEADER:
        return {}
    write_names(job, names)
    return merge(
        figures.plugins(job, worker),
        figures.protocol(job, worker, task),
        {"checkpoint": str(folder)},
        figures.by_name(task, scores.figures) if tests else {},
        figures.circumstances(job),
        Classes.of(scores.details, names) if tests else {},
    )


def _read_learned_rows(job: RankJob, worker: Worker, folder: Path) -> LearnedRows | None:
    """Reads a run's learned input rows, if any. Collective."""
    table = read_learned(job, worker, folder)
    if table is None:
        return None
    rows = LearnedRows(worker.shard, table.shape[1], worker.comm, worker.dtype, worker.seed)
    rows.owned.data.copy_(torch.from_numpy(np.array(table[worker.owned])))
    return rows


def read_learned(job: RankJob, worker: Worker, folder: Path) -> Array | None:  # [num_nodes, width]
    """Reads a run's table with learned input rows, if any."""
    width = job.settings.embedding
    if width is None:
        return None
    try:
        table = read_npy(folder / EMBEDDING)
    except UserError as error:
        raise UserError(f"checkpoint={folder}: {EMBEDDING} cannot be read: {error}") from error
    if table.ndim == 2 and table.shape[1] == width and (places := _trained_places(job, folder, len(table))) is not None:
        table = _with_new_nodes(table, places, worker)
    if table.shape != (worker.shard.num_nodes, width) or table.dtype.kind != "f":
        raise UserError(
            f"dataset has {worker.shard.num_nodes} nodes, {folder / EMBEDDING} has rows of shape "
            f"{list(table.shape)}: learned rows belong to the nodes that were trained"
        )
    return table


def _trained_places(job: RankJob, folder: Path, num_trained: int) -> Ids | None:  # [num_nodes]
    """Finds nodes in the training data by id, within their types, or -1 if new.

    A graph without ids has the ids 0, 1, ... Returns None if neither has ids, or if no
    node was trained. Raises `UserError` for other node types, and, without ids, for
    other numbers of nodes.
    """
    facts, schema = Inputs.load(folder), job.schema
    if facts is None or facts.type_sizes is None:
        return None
    names = [] if schema is None else [name for name, _ in schema.node_types]
    if names and facts.node_types:
        facts.check_node_types(names, folder)
    if not ((folder / IDS).exists() or (job.folder / IDS).exists()):
        _check_sizes(() if schema is None else schema.type_sizes, facts.type_sizes, folder)
        return None
    counts = {job.folder: job.prepared.num_nodes, folder: num_trained}
    ids, trained_ids = (node_ids(path, count).astype(np.str_) for path, count in counts.items())
    sizes = [len(ids)] if schema is None else [*schema.type_sizes]
    if len(sizes) != len(facts.type_sizes) or len(trained_ids) != num_trained or names != (facts.node_types or names):
        return None
    parts, first = [], 0
    for type_ids, size in zip(np.split(ids, np.cumsum(sizes)[:-1]), facts.type_sizes, strict=True):
        positions = find_ids(pa.array(trained_ids[first : first + size]), pa.array(type_ids))
        parts.append(np.where(positions < 0, -1, first + positions))
        first += size
    places = np.concatenate(parts)
    return places if (places >= 0).any() else None


def _check_sizes(sizes: Sequence[int], trained_sizes: Sequence[int], folder: Path) -> None:
    """Raises `UserError` unless several types have as many nodes as in training."""
    if len(sizes) > 1 and list(sizes) != list(trained_sizes):
        raise UserError(
            f"checkpoint={folder}: the node types have {', '.join(map(str, sizes))} nodes, and "
            f"{', '.join(map(str, trained_sizes))} in the training data: learned rows belong to nodes, so both graphs need node ids"
        )


def _with_new_nodes(table: Array, places: Ids, worker: Worker) -> Array:  # [num_nodes, width]
    """Returns the rows of nodes at `places`, with zeros for new nodes."""
    num_new = int((places < 0).sum())
    if num_new and worker.comm.rank == LEADER:
        warn(
            f"{num_new:,} of {len(places):,} nodes are not in the training data: their learned rows are "
            "zeros, so their outputs come from their neighbours alone"
        )
    return np.where(places[:, None] < 0, np.zeros((), table.dtype), table[places])


def _check_data(job: RankJob, worker: Worker, widths: Widths, task: Task) -> None:
    """Raises `UserError` for a graph that does not fit the trained model.

    Args:
        job: The job.
        worker: This rank.
        widths: The model's sizes.
        task: The trained run's task.
    """
    data_widths, schema = job.widths(worker), job.schema
    _check_time(job, worker)
    assert job.settings.checkpoint is not None, "a trained model was read"
    folder = Path(job.settings.checkpoint)
    for noun, value, model_size in (
        ("columns of features", data_widths.in_features, widths.in_features),
        ("columns of edge features", data_widths.edge_width, widths.edge_width),
        *([("types of edges", data_widths.num_relations, widths.num_relations)] if job.source.reads_relations else []),
    ):
        if value != model_size:
            by_type = _describe_widths(schema, folder, noun)
            raise UserError(
                f"dataset has {value} {noun}{by_type}, the model of {job.settings.checkpoint} reads {model_size}"
            )
    if widths.num_node_types > 1 and schema is not None and (facts := Inputs.load(folder)) is not None:
        facts.check_node_types([name for name, _ in schema.node_types], folder)
    count, model_size = data_widths.num_classes, widths.num_classes
    if widths.num_targets:
        count, model_size = data_widths.num_targets, widths.num_targets
    fits = count == model_size if task.reads_labels or worker.targets.label.ndim == 2 else count <= model_size
    if (task.reads_labels or job.settings.job.needs_labels) and not fits:
        raise UserError(
            f"dataset has labels for {count} outputs, the model of {job.settings.checkpoint} has {model_size}: use labels of "
            "the same outputs"
        )


def _describe_widths(schema: Schema | None, folder: Path, noun: str) -> str:
    """Lists the columns by node type. Raises `UserError` for other node types."""
    if schema is None or noun != "columns of features":
        return ""
    if (facts := Inputs.load(folder)) is not None and len(facts.node_types or ()) > 1:
        facts.check_node_types([name for name, _ in schema.node_types], folder)
    tables = zip(schema.node_types, schema.feature_tables or (), strict=False)
    return f" ({', '.join(f'{name} {table.width}' for (name, _), table in tables)})" * schema.several


def _check_time(job: RankJob, worker: Worker) -> None:
    """Reports sampling times that differ from training.

    Raises `UserError` if a model that samples by time would read all edges.
    """
    assert job.settings.checkpoint is not None, "a trained model was read"
    run_sampler, sampler = of_run(Path(job.settings.checkpoint)).get("sampler") or {}, worker.sampler
    run_arguments = {name: run_sampler.get(name, value) for name, value in TIME_ARGUMENTS.items()}
    job_arguments = run_arguments if sampler is None else {name: getattr(sampler, name) for name in TIME_ARGUMENTS}
    if job_arguments != run_arguments and worker.comm.rank == LEADER:
        differences = {
            name: {job_arguments[name], run_arguments[name]} != {default} for name, default in TIME_ARGUMENTS.items()
        }
        names = [name for name, differs in differences.items() if differs or name == "time"]
        texts = [
            " ".join(f"sampler.{name}={'null' if keys[name] is None else keys[name]}" for name in names)
            for keys in (job_arguments, run_arguments)
        ]
        say(f"{texts[0]}: the model was trained with {texts[1]}")
    rule = run_arguments["time"]
    if rule != "none" and not worker.samples_by_time:
        raise UserError(
            f"checkpoint={job.settings.checkpoint}: the model was trained with sampler.time={rule}, and this job reads all "
            "edges: leave out strategy and sampler, which are then the run's"
        )


def _check_classes(folder: Path, names: Iterable[str], data_names: Iterable[str]) -> None:
    """Raises `UserError` if a class of the data has another name in the model."""
    for number, (name, data_name) in enumerate(zip(names, data_names, strict=False)):
        if name != data_name:
            raise UserError(
                f"dataset has other class names than {folder}: class {number} is {shown(data_name)}, and {shown(name)} in "
                "the model, so figures would mix up classes"
            )
