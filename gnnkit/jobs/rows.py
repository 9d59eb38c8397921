"""Rows and counts of all ranks, joined at the leader."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.jobs.rank_job import RankJob
from gnnkit.prepare.inputs import IDS
from gnnkit.result.folder import CLASSES
from gnnkit.storage import Array, read_npy, write_atomically
from gnnkit.strategy import Worker

EMBEDDING = "embedding.npy"  # learned input rows, in the run folder


Columns = Callable[[Array, Array], Mapping[str, Any]]  # rows, ids of nodes -> columns of a table


def write_rows(path: Path, joined: Tensor | None) -> None:
    """Writes rows as `.npy`, on the leader. Other ranks have no rows."""
    if joined is not None:
        buffer = io.BytesIO()
        np.save(buffer, joined.cpu().numpy(), allow_pickle=False)
        write_atomically(path, buffer.getvalue())


def write_named(job: RankJob, worker: Worker, name: str, joined: Tensor | None, columns: Columns) -> None:
    """Writes rows as `write_format` says, on the leader.

    Args:
        job: The job.
        worker: This rank.
        name: Of the file, without the form.
        joined: Rows in the order of the data set, or None on other ranks.
        columns: Makes the table of a Parquet or CSV file from the rows and the ids.
    """
    form = job.settings.write_format
    if form == "npy":
        write_rows(job.folder / f"{name}.npy", joined)
    elif joined is not None:
        rows = joined.cpu().numpy()
        _write_table(job.folder / f"{name}.{form}", columns(rows, _ids(job.folder, worker.shard.num_nodes)))


def _ids(folder: Path, num_nodes: int) -> Array:  # [num_nodes]
    """Reads the user's ids of nodes. Without any, ids are 0, 1, ..."""
    path = folder / IDS
    return read_npy(path) if path.exists() else np.arange(num_nodes)


def _write_table(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    buffer = io.BytesIO()
    arrays = {name: pyarrow.array(values) for name, values in columns.items()}
    if path.suffix == ".csv":
        cells = {name: _joined(column) for name, column in arrays.items()}
        pyarrow.csv.write_csv(pyarrow.table(cells), buffer)
    else:
        pyarrow.parquet.write_table(pyarrow.table(arrays), buffer)
    write_atomically(path, buffer.getvalue())


def _joined(column: Any) -> Any:
    """Returns a column whose lists are texts, joined as tables of labels join these."""
    import pyarrow

    if not pyarrow.types.is_list(column.type):
        return column
    return pyarrow.array([";".join(map(str, each)) for each in column.to_pylist()], pyarrow.string())


def write_names(job: RankJob, names: Sequence[str] | None) -> None:
    """Writes the user's name of each class, where there are names."""
    if names is not None:
        write_atomically(job.folder / CLASSES, json.dumps(names).encode())


def scratch(job: RankJob, comm: Communicator) -> Path | None:
    """Returns the run folder where all ranks are of one host and share its pages."""
    processes = job.settings.processes or (1 if comm.in_threads else job.settings.world_size)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return job.folder if here == processes else None


def all_ranks(counts: Mapping[str, int], worker: Worker) -> dict[str, Any]:
    """Returns the largest count of all ranks by name, and all counts under `per_rank`.

    Collective.
    """
    table = torch.zeros(worker.comm.world_size, len(counts), dtype=torch.int64, device=worker.device)
    table[worker.comm.rank] = torch.tensor(list(counts.values()))
    columns = dict(zip(counts, worker.comm.all_reduce(table).t().tolist(), strict=True))
    return {**{name: max(values) for name, values in columns.items()}, "per_rank": columns}
