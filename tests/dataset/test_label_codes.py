"""Labels such as 01 are names of classes, which differ from the number 1."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import read_whole
from gnnkit_import.datasets import in_pieces

from gnnkit.graph import Graph


def load(folder: EdgeFolder) -> Graph:
    return folder.load()


def load_pieces(folder: EdgeFolder) -> Graph:
    return read_whole(in_pieces(folder))


@pytest.mark.parametrize("read", [load, load_pieces], ids=["load", "pieces"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("cells", "labels", "names"),
    [
        (["01", "1", "", "2"], [0, 1, -1, 2], ("01", "1", "2")),
        (["007", "010", "007", "-1"], [1, 2, 1, 0], ("-1", "007", "010")),
        (["0", "1", "NA", "10"], [0, 1, -1, 10], None),
        ([" 2", "0", "-1", "0"], [2, 0, -1, 0], None),
        (["00.5", "1.5", "", "2"], [0.5, 1.5, None, 2.0], None),
    ],
    ids=["both", "zeros", "numbers", "blanks", "targets"],
)
def test_labels_with_leading_zeros_are_names(
    tmp_path: Path,
    cells: list[str],
    labels: list[float | None],
    names: tuple[str, ...] | None,
    form: str,
    read: Callable[[EdgeFolder], Graph],
) -> None:
    if form == "csv":
        rows = "\n".join(f"{row},{cell}" for row, cell in enumerate(cells))
        (tmp_path / "nodes.csv").write_text(f"id,label\n{rows}\n")
    else:
        pa.parquet.write_table(pa.table({"id": range(len(cells)), "label": cells}), tmp_path / "nodes.parquet")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,0\n")
    with warnings.catch_warnings(record=True):
        graph = read(EdgeFolder(str(tmp_path)))
    assert graph.class_names == names
    assert [None if label != label else label for label in graph.labels.tolist()] == labels  # noqa: PLR0124 - NaN
