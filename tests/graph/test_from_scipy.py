from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from gnnkit.errors import UserError
from gnnkit.graph import Graph

DENSE = np.array([[0, 2.0, 0], [0, 0, 0], [1.5, 0, 1]])


@pytest.mark.parametrize("form", [sp.coo_array, sp.csr_array, sp.csc_matrix, sp.lil_array, sp.dok_array])
def test_rows_are_sources_columns_are_destinations(form: Any) -> None:
    graph = Graph.from_scipy(form(DENSE), labels=[0, 1, 0], split=["train", "", ""])
    np.testing.assert_array_equal(graph.csc.indptr, [0, 1, 2, 3])
    np.testing.assert_array_equal(graph.csc.indices, [2, 0, 2])
    np.testing.assert_array_equal(graph.csc.weight, [1.5, 2, 1])
    assert graph.split.tolist() == [1, 0, 0]
    assert Graph.from_scipy(form(DENSE != 0)).csc.weight is None


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (DENSE, r"expected a sparse matrix of SciPy, got ndarray: scipy\.sparse\.coo_array\(x\) makes one"),
        (sp.coo_array(DENSE[:2]), r"shape \[2, 3\], expected one row and one column for each node"),
        (sp.coo_array(DENSE * 1j), "the matrix holds complex128, expected numbers"),
        (sp.coo_array(np.full((1, 1), np.nan)), r"weight\[0\] = nan is not finite"),
    ],
)
def test_other_matrices_are_refused(matrix: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Graph.from_scipy(matrix)


@pytest.mark.parametrize("form", [sp.coo_array, sp.csr_array, sp.csc_matrix, sp.lil_array, sp.dok_array])
def test_a_sparse_matrix_is_read_as_features(form: Any) -> None:
    edges, nodes = pa.table({"src": [0], "dst": [1]}), pa.table({"id": [0, 1, 2]})
    plain = Graph.from_edges([0], [1], 3)
    for graph in (
        Graph.from_edges([0], [1], features=form(DENSE)),
        Graph.from_tables(edges, nodes, features=form(DENSE)),
        replace(plain, features=form(DENSE)),
    ):
        np.testing.assert_array_equal(np.asarray(graph.features), DENSE)


def test_entries_of_one_cell_of_features_add_up_and_the_matrix_stays() -> None:
    matrix = sp.csr_array((np.array([1.0, 2, 4]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    np.testing.assert_array_equal(np.asarray(Graph.from_edges([0], [1], features=matrix).features), [[0, 3], [4, 0]])
    assert matrix.nnz == 3
    with pytest.raises(UserError, match=r"nan is not finite"):
        Graph.from_edges([0], [1], features=sp.csr_array(np.array([[np.nan], [1]])))
    with pytest.raises(UserError, match=r"features has shape \[3, 3\], expected \[2, any\]"):
        Graph.from_edges([0], [1], 2, features=sp.csr_array(DENSE))
