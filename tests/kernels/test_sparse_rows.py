"""Sparse input rows compute what dense rows compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnkit.engine import SparseRows
from gnnkit.graph import SparseFeatures
from gnnkit.kernels.dropout import dropout


def rows(num_rows: int = 23, width: int = 70, dtype: torch.dtype = torch.float64) -> tuple[SparseRows, Tensor]:
    """Sparse rows, and the same dense. Some rows and columns are all 0."""
    rng = np.random.default_rng(5)
    dense = rng.standard_normal((num_rows, width)) * (rng.random((num_rows, width)) < 0.1)
    dense[::4], dense[:, ::3] = 0, 0
    return SparseRows.of(SparseFeatures.of(dense), dtype), torch.tensor(dense, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(23, 70), (1, 4), (0, 5), (3, 0)])
def test_a_product_and_its_gradient_are_the_dense_ones(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    sparse, dense = rows(*shape, dtype)
    rng = np.random.default_rng(2)
    gradient = torch.tensor(rng.standard_normal((6, shape[1])), dtype=dtype)
    weights = [gradient.clone().requires_grad_() for _ in range(2)]
    pull = torch.tensor(rng.standard_normal((shape[0], 6)), dtype=dtype)
    for x, weight in zip((sparse, dense), weights, strict=True):
        ((x @ weight.t()) * pull).sum().backward()
    accuracy = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(sparse @ gradient.t(), dense @ gradient.t(), **accuracy)
    torch.testing.assert_close(weights[0].grad, weights[1].grad, **accuracy)


def dense_rows(rows: SparseRows) -> torch.Tensor:
    return rows @ torch.eye(rows.shape[1], dtype=rows.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
def test_dropout_has_the_bits_of_dense_dropout(dtype: torch.dtype, p: float) -> None:
    sparse, dense = rows(4000, 40, dtype)
    ids = torch.arange(len(sparse)) * 7 + 2**40
    noisy_rows = dropout(sparse, ids, p, 9)
    assert torch.equal(dense_rows(noisy_rows), dropout(dense, ids, p, 9))
    assert torch.equal(dense_rows(noisy_rows), dense) == (p == 0)
    assert torch.equal(dense_rows(sparse), dense)  # which stay as they are


def test_the_first_rows_are_rows() -> None:
    sparse, dense = rows()
    assert torch.equal(dense_rows(sparse[:9]), dense[:9])
    assert torch.equal(dense_rows(sparse[:0]), dense[:0])
    assert sparse[: len(sparse)] is sparse
    with pytest.raises(IndexError, match="expected a slice of the first rows"):
        sparse[1:]


def test_rows_are_finite_if_all_kept_numbers_are() -> None:
    sparse, _ = rows()
    assert sparse.isfinite().all()
    sparse.values[3] = torch.nan
    assert not sparse.isfinite().all()


@pytest.mark.parametrize("stop", [0, 1, 22, 23, 40, -2])
def test_first_rows_are_views_of_the_same_numbers(stop: int) -> None:
    sparse, dense = rows()
    first, weight = sparse[:stop], torch.ones(70, 2, dtype=torch.float64)
    assert first.shape == dense[:stop].shape
    torch.testing.assert_close(first @ weight, dense[:stop] @ weight)
    assert not first.places.table.csr.num_edges or np.shares_memory(
        first.places.table.values, sparse.places.table.values
    )


@pytest.mark.parametrize(
    "ids", [slice(2, 9), np.arange(23) % 3 == 0, [5, 0, 5], np.zeros(0, np.int64), slice(None, None, -2)]
)
def test_rows_of_a_table_are_selected_as_from_an_array(ids: Any) -> None:
    _, dense = rows()
    np.testing.assert_array_equal(np.asarray(SparseFeatures.of(dense.numpy())[ids]), dense.numpy()[ids])
