"""Row files and tables in the run folder."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gnnkit.prepare.inputs import IDS
from gnnkit.utils.storage import Array, read_npy, write_atomically


def write_rows(path: Path, joined: Tensor | None) -> None:
    """Writes rows as `.npy` on the leader. Other ranks pass None."""
    if joined is not None:
        buffer = io.BytesIO()
        np.save(buffer, joined.cpu().numpy(), allow_pickle=False)
        write_atomically(path, buffer.getvalue())


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
