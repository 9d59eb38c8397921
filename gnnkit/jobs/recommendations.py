"""Link prediction's files: recommended items, and the score's vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.row_files import node_ids, write_rows, write_table
from gnnkit.result.folder import TOP, VECTORS
from gnnkit.strategy import Worker
from gnnkit.task import Task
from gnnkit.task.evaluation import by_node
from gnnkit.utils.ranges import file_name
from gnnkit.utils.storage import save_array


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
