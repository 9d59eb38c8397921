"""The rows that a run writes, and counts gathered from all ranks.

Link prediction also writes recommended items, and the score's vectors.
"""

from __future__ import annotations

import functools
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit import plugins
from gnnkit.comm import LEADER
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph.types import Ids
from gnnkit.jobs import weights
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import warn
from gnnkit.prepare.inputs import IDS
from gnnkit.result.result import CLASSES, TOP, VECTORS
from gnnkit.sampler.targets import targets_of
from gnnkit.strategy import Worker
from gnnkit.task import Task, name_columns
from gnnkit.task.evaluation import Evaluation, by_node, by_row, columns_by_row, meet
from gnnkit.utils.ranges import file_name
from gnnkit.utils.storage import Array, naming, put_in_place, read_npy, reserve, save_array, write_atomically


def write_rows(path: Path, rows: Tensor | None) -> None:
    """Writes rows as `.npy` on the leader. Other ranks pass None."""
    if rows is not None:
        buffer = io.BytesIO()
        np.save(buffer, rows.cpu().numpy(), allow_pickle=False)
        write_atomically(path, buffer.getvalue())


def write_columns(path: Path, rows: Tensor, worker: Worker, *, of_nodes: bool = True) -> None:
    """Writes all ranks' rows as `.npy` in Fortran order, where columns are contiguous.

    Collective. Each rank writes a range of columns, so no rank holds the entire matrix.

    Args:
        path: The file, in a folder that all ranks see.
        rows: [k] or [k, width] values of this rank's rows. A vector is one column.
        worker: This rank.
        of_nodes: Whether rows are nodes, or else the rows that the task predicts.
    """
    num_nodes = worker.shard.num_nodes
    ids, count = (worker.owned, num_nodes) if of_nodes else (worker.targets.ids, worker.rows.num_rows(num_nodes))
    comm, temporary_path = worker.comm, path.with_name(f".{path.name}.columns")
    try:
        offset = comm.share(_make_fortran(temporary_path, rows, count) if comm.rank == LEADER else None)
        # Opened for writing only: a host that has read a page of a network file system
        # may write the entire page back, which would undo another host's write.
        with naming(path), open(temporary_path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY)) as file:
            for number, column in columns_by_row(rows if rows.ndim > 1 else rows[:, None], ids, worker):
                file.seek(offset + number * column.nbytes)
                file.write(column.cpu().numpy().data)
            file.flush()
            os.fsync(file.fileno())
        meet(worker)
        if comm.rank == LEADER:
            put_in_place(temporary_path, path)
    finally:
        if comm.rank == LEADER:
            temporary_path.unlink(missing_ok=True)


def _make_fortran(path: Path, rows: Tensor, count: int) -> int:
    """Creates the file for all ranks' rows, and returns the first column's offset."""
    shape, dtype = (count, *rows.shape[1:]), rows[:0].cpu().numpy().dtype
    with naming(path):
        table = np.lib.format.open_memmap(path, "w+", dtype, shape, fortran_order=True)
    reserve(path)
    return int(table.offset)


def node_ids(folder: Path, num_nodes: int) -> Array:  # [num_nodes]
    """Reads the user's node ids. Default: 0, 1, ..."""
    path = folder / IDS
    return read_npy(path) if path.exists() else np.arange(num_nodes)


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    buffer = io.BytesIO()
    arrays = {name: pyarrow.array(values) for name, values in columns.items()}
    if path.suffix == ".csv":
        cells = {name: _join_lists(column) for name, column in arrays.items()}
        pyarrow.csv.write_csv(pyarrow.table(cells), buffer)
    else:
        pyarrow.parquet.write_table(pyarrow.table(arrays), buffer)
    write_atomically(path, buffer.getvalue())


def _join_lists(column: Any) -> Any:
    """Joins each list into a text, as label tables do. Other columns stay."""
    import pyarrow

    if not pyarrow.types.is_list(column.type):
        return column
    return pyarrow.array([";".join(map(str, cell)) for cell in column.to_pylist()], pyarrow.string())


def write_top(job: RankJob, task: Task, outputs: Tensor, worker: Worker) -> None:
    """Writes each source's best new items as `topk.parquet`, if the task ranks items.

    Collective. The columns are the source's id under the name of its type, the rank
    from 1, the item's id under the name of its type, and the score.
    """
    top = task.recommend(outputs, worker)
    if top is None:
        return
    schema, target = job.schema, worker.rows.relation
    assert schema is not None
    assert schema.relations is not None
    assert target is not None
    relation = schema.relations[target.number]
    ids = node_ids(job.folder, worker.shard.num_nodes)
    sources, items = ids[schema.nodes(relation.source)], ids[schema.nodes(relation.destination)]
    scores = top.scores.cpu().numpy()
    rows, places = np.nonzero(np.isfinite(scores))
    columns = {
        relation.source: sources[rows],
        "rank": places + 1,
        relation.destination: items[top.items.cpu().numpy()[rows, places]],
        "score": scores[rows, places],
    }
    write_table(job.folder / TOP, columns)


def write_vectors(job: RankJob, outputs: Tensor, worker: Worker) -> None:
    """Writes the vectors whose dot product is the score, by node type. Collective.

    `vectors/TYPE.npy` has a row per node of the type, and `vectors/TYPE_ids.npy` its
    id. A graph without node types has the single type `node`. Does nothing unless
    `write` contains `vectors`.
    """
    if "vectors" not in job.settings.write:
        return
    vectors = by_node(outputs.to(torch.float32), worker)
    if vectors is None:
        return
    folder, schema = job.folder / VECTORS, job.schema
    ids = node_ids(job.folder, worker.shard.num_nodes)
    folder.mkdir(exist_ok=True)
    for name, _ in (("", len(ids)),) if schema is None else schema.node_types:
        nodes, file = slice(None) if schema is None else schema.nodes(name), file_name(name) or "node"
        write_rows(folder / f"{file}.npy", vectors[nodes])
        save_array(folder / f"{file}_ids.npy", ids[nodes])


Make = Callable[[nn.Module], Evaluation]
_SINGULAR = {"logits": "logit", "probabilities": "probability", "embeddings": "embedding"}  # column prefix by file name


@dataclass(frozen=True, slots=True)
class Scores:
    """The task's measurements on all nodes. Empty if none were requested."""

    figures: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)  # from `Task.details`, by split
    chance: dict[str, float] = field(default_factory=dict)  # from `Task.chance`, only after training


def write_outputs(
    job: RankJob, task: Task, model: nn.Module, make: Make, names: Sequence[str] | None, *, measures: bool = True
) -> Scores:
    """Writes the rows that `write` selects, and measures. Collective.

    Args:
        job: The job.
        task: Computes predictions, probabilities and figures.
        model: The model.
        make: Makes the evaluation of a model. Collective.
        names: Class names, or None.
        measures: Whether to compute figures. Default: yes.
    """
    kinds = job.settings.write

    def keep(name: str, rows: Tensor, worker: Worker, *, of_nodes: bool = False) -> None:
        if name in kinds:
            columns = functools.partial(_columns, _SINGULAR[name], None if of_nodes else task.output_names(names))
            write_targets(job, worker, name, rows, columns, of_nodes=of_nodes)

    def read(outputs: Tensor, worker: Worker) -> Scores:
        logits = task.row_outputs(outputs, worker)
        _check_finite(outputs if worker.embed is None else logits, worker, job.settings.checkpoint)
        if job.settings.checkpoint is None:
            _calibrate(task, logits, worker, job)
        if "predictions" in kinds:
            if measures or not worker.rows.drawn:  # job=predict holds out no edges
                write_predictions(job, worker, task, logits, names)
            write_top(job, task, logits, worker)
        write_vectors(job, logits, worker)
        keep("logits", logits, worker)
        if "probabilities" in kinds:
            keep("probabilities", task.probabilities(logits), worker)
        return _measure(task, logits, worker, chance=job.settings.checkpoint is None) if measures else Scores()

    scores = make(model).read(model, read)
    if "embeddings" in kinds:
        check_layers(model)
        make(body := Body(model)).read(body, lambda rows, worker: keep("embeddings", rows, worker, of_nodes=True))
    return scores


def _calibrate(task: Task, logits: Tensor, worker: Worker, job: RankJob) -> None:
    """Chooses the task's thresholds after training, and saves them. Collective."""
    lines = task.calibrate(logits.detach(), worker)
    if worker.comm.rank == LEADER:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
        weights.save_facts(task.facts(), job.folder)


def _measure(task: Task, logits: Tensor, worker: Worker, *, chance: bool) -> Scores:
    """Computes the figures, and prints warnings on the leader. Collective.

    Args:
        task: Computes the figures.
        logits: [num_owned, width] outputs for this rank's nodes.
        worker: This rank.
        chance: Whether to include figures for a model without skill.
    """
    metrics = task.measure(logits, worker)
    for line in task.score_warnings(metrics) if worker.comm.rank == LEADER else ():
        warn(line)
    scores = Scores(metrics, task.details(logits, worker))
    return replace(scores, chance=task.chance(logits, worker)) if chance else scores


def _check_finite(logits: Tensor, worker: Worker, checkpoint: str | None) -> None:
    """Raises `UserError` for non-finite outputs of a trained model. Collective.

    After training, the leader prints a warning instead.
    """
    bad = (~torch.isfinite(logits)).reshape(len(logits), logits.numel() // max(len(logits), 1)).any(1).sum()
    count = int(worker.comm.all_reduce(bad[None]))
    problem = f"outputs of {count:,} of {worker.shard.num_nodes:,} nodes are not finite"
    if count and checkpoint is not None:
        raise UserError(
            f"checkpoint={checkpoint}: {problem}: look for buffers of the model that are not finite, and for features far "
            "larger than in training"
        )
    if count and worker.comm.rank == LEADER:
        hint = "look for features that are not finite (job=verify checks every byte of a store)"
        warn(f"{problem}, so figures may be null: {hint}")


def _columns(name: str, titles: Sequence[str] | None, rows: Array, ids: Array) -> dict[str, Array]:
    """Returns the table columns for rows [num_nodes, width]."""
    return {"id": ids, **name_columns(name, rows, titles)}


class Body(nn.Module):
    """A model without the last layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.num_layers: int = model.num_layers - 1  # type: ignore[operator, assignment]
        self.self_loops = getattr(model, "self_loops", False)
        self.model, self.layer = model, model.layer

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes the input rows of the last layer, [num_dst, width]."""
        for index, adjacency in enumerate(adjacencies):
            x = self.layer(index, x, adjacency)  # type: ignore[operator]
        return x


def check_layers(model: object) -> None:
    """Raises `UserError` for a model without hidden rows."""
    if not hasattr(model, "layer") or getattr(model, "num_layers", 0) < 2:
        raise UserError(
            f"write=[embeddings]: model={type(model).__name__} has no hidden rows: embeddings need a "
            "model with `layer` and at least two layers"
        )


EMBEDDING = "embedding.npy"  # learned input rows, in the run folder


Columns = Callable[[Array, Array], Mapping[str, Any]]  # (rows, node ids) -> table columns


def write_predictions(job: RankJob, worker: Worker, task: Task, outputs: Tensor, names: Sequence[str] | None) -> None:
    """Writes the task's predictions. Collective.

    Args:
        job: The job.
        worker: This rank.
        task: Computes the predictions.
        outputs: [k, width] outputs of this rank's rows.
        names: Class names, or None.
    """
    columns = functools.partial(task.columns, classes=names)
    if (rows := task.predict_rows(outputs)) is not None:
        write_targets(job, worker, "predictions", rows, columns)
    else:  # not one row per node or labelled edge
        _write_joined(job, worker, "predictions", task.predictions(outputs, worker), columns)


def write_targets(
    job: RankJob, worker: Worker, name: str, rows: Tensor, columns: Columns, *, of_nodes: bool = False
) -> None:
    """Writes the rows that the task predicts, by `write_format` and `write_by`.

    Collective.

    Args:
        job: The job.
        worker: This rank.
        name: File name without suffix.
        rows: [k] or [k, width] values of this rank's rows.
        columns: As for `_write_joined`.
        of_nodes: Whether the rows are nodes, for any task.
    """
    if job.settings.write_format == "npy":
        write_array(job, worker, f"{name}.npy", rows, of_nodes=of_nodes)
    elif of_nodes or worker.targets.rows.ndim == 1:

        def of_predicted(rows: Array, ids: Array) -> Mapping[str, Any]:
            selection = slice(None) if of_nodes else _predicted_nodes(job, ids)
            table, types = dict(columns(rows[selection], ids[selection])), _types_of(job, len(ids))[selection]
            return table if len(set(types)) < 2 else {"id": table.pop("id"), "type": types, **table}

        _write_joined(job, worker, name, by_node(rows, worker), of_predicted)
    else:
        _write_joined(job, worker, name, by_row(rows, worker), functools.partial(_edge_columns, worker, columns))


def _predicted_nodes(job: RankJob, ids: Array) -> slice | Ids:
    """Returns the nodes that tables list, by the data set, unless it is from Python."""
    dataset, schema = job.settings.dataset, job.schema
    is_known = schema is not None and dataset.name in plugins.names("dataset")
    return dataset.create().predicted_nodes(schema, ids) if is_known else slice(None)


def _types_of(job: RankJob, num_nodes: int) -> Array:  # [num_nodes]
    """Returns the name of each node's type."""
    names, sizes = zip(*(("", num_nodes),) if job.schema is None else job.schema.node_types, strict=True)
    return np.repeat(names, sizes)


def _edge_columns(worker: Worker, columns: Columns, rows: Array, node_ids: Array) -> dict[str, Any]:
    """Returns the columns of pairs: their positions in the edge list, and ends."""
    edges = targets_of(worker.rows)
    table = dict(columns(rows, np.asarray(edges.ids if edges.positions is None else edges.positions)))
    return {"id": table.pop("id"), "src": node_ids[edges.rows[:, 0]], "dst": node_ids[edges.rows[:, 1]], **table}


def write_array(job: RankJob, worker: Worker, name: str, rows: Tensor, *, of_nodes: bool = True) -> None:
    """Writes rows as `.npy` according to `write_by`. Collective.

    Arguments as for `write_targets`, with the suffix in the name.
    """
    if job.settings.write_by == "columns":
        write_columns(job.folder / name, rows, worker, of_nodes=of_nodes)
    else:
        write_rows(job.folder / name, by_node(rows, worker) if of_nodes else by_row(rows, worker))


def _write_joined(job: RankJob, worker: Worker, name: str, all_rows: Tensor | None, columns: Columns) -> None:
    """Writes rows in the format `write_format`, on the leader.

    Args:
        job: The job.
        worker: This rank.
        name: File name without suffix.
        all_rows: Rows in data set order, or None on other ranks.
        columns: Makes the Parquet or CSV columns from the rows and ids.
    """
    form = job.settings.write_format
    if form == "npy":
        write_rows(job.folder / f"{name}.npy", all_rows)
    elif all_rows is not None:
        rows = all_rows.cpu().numpy()
        write_table(job.folder / f"{name}.{form}", columns(rows, node_ids(job.folder, worker.shard.num_nodes)))


def write_names(job: RankJob, names: Sequence[str] | None) -> None:
    """Writes the class names, if any."""
    if names is not None:
        write_atomically(job.folder / CLASSES, json.dumps(names).encode())
