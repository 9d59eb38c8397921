"""A transform reads a table in pieces of any size, and gives the rows of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.prepare.columns import NumericTable, TrainedColumns
from gnnkit.prepare.transform import InputTransform
from tests.prepare.test_fill import NAMES, holed


@pytest.mark.parametrize("scale", ["standard", "row", "none", "auto"])
@pytest.mark.parametrize("fill", ["mean", "zero", "drop"])
def test_pieces_of_any_size_are_the_rows_of_the_whole(fill: str, scale: str) -> None:
    graph = holed(2)
    table = NumericTable.of_nodes(graph)
    shuffled = replace(table, missing=np.random.default_rng(0).permutation(table.missing))  # type: ignore[arg-type]
    transform, _, _ = InputTransform.fit(table, graph.split, fill=fill, scale=scale)
    whole = transform.read(table).load()
    assert (whole.width, whole.missing) == (3 if fill == "drop" else 4, None)
    for step in (1, 7, 500):
        rows = np.concatenate(list(transform.read(shuffled).pieces(step)))
        np.testing.assert_array_equal(rows, whole.rows)
    order = np.random.default_rng(1).permutation(120)[:50]
    np.testing.assert_array_equal(transform.read(table)[order], np.asarray(whole.rows)[order])


def test_a_fit_that_reads_filled_rows_equals_one_of_filled_columns() -> None:
    graph = holed(2)
    table = NumericTable.of_nodes(graph)
    both, _, why = InputTransform.fit(table, graph.split, fill="mean", scale="standard")
    filled = InputTransform(both.fill).read(table).load()
    transform, _, reason = InputTransform.fit(filled, graph.split, scale="standard")
    assert (transform, reason) == (InputTransform(scale=both.scale), why)


@pytest.mark.parametrize("fill", ["mean", "zero", "drop"])
def test_a_mapped_table_is_filled_on_reading_with_the_same_rows(fill: str, tmp_path: Path) -> None:
    graph = holed(2)
    table = NumericTable.of_nodes(graph)
    np.save(tmp_path / "rows.npy", table.rows)
    mapped = replace(table, rows=np.load(tmp_path / "rows.npy", mmap_mode="r"))
    transform, filled, _ = InputTransform.fit(table, graph.split, fill=fill, scale="standard")
    again, unfilled, _ = InputTransform.fit(mapped, graph.split, fill=fill, scale="standard")
    assert again == transform
    assert (filled.table.missing, unfilled.table) == (None, mapped)
    np.testing.assert_array_equal(filled[:], unfilled[:])
    np.testing.assert_array_equal(transform.read(mapped).load().rows, transform.read(table).load().rows)


def test_columns_are_selected_by_name_with_their_empty_cells() -> None:
    table = NumericTable.of_nodes(holed(1))
    columns = TrainedColumns(("sales", "age", "pay", "height"), None, "one_hot", "node", Path("run"))
    selected = columns.select(table)
    assert selected.missing is not None
    assert table.missing is not None
    np.testing.assert_array_equal(selected.rows, np.asarray(table.rows)[:, [3, 1, 0, 2]])
    np.testing.assert_array_equal(selected.missing, table.missing)
    assert replace(columns, names=list(NAMES)).select(table) is table
    with pytest.raises(UserError, match=r"^dataset lacks size and also has height: the model of run reads the columns"):
        replace(columns, names=("sales", "age", "pay", "size")).select(table)
