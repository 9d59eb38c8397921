"""Row files and tables in the run folder."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gnnkit.comm import LEADER
from gnnkit.prepare.inputs import IDS
from gnnkit.strategy import Worker
from gnnkit.task.evaluation import columns_by_row, meet
from gnnkit.utils.storage import Array, naming, put_in_place, read_npy, reserve, write_atomically


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
