from __future__ import annotations

from typing import Any

import numpy as np
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
