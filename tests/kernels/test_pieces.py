"""Products of rows that are read in pieces are those of all rows at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnnkit.graph import Ids
from gnnkit.kernels import pieces, products
from gnnkit.kernels.dropout import dropout
from gnnkit.kernels.pieces import RowsInPieces, RowTable
from gnnkit.kernels.products import CHUNK, fast_products

WIDTH = 96


class InMemory(RowTable):
    """Rows of a tensor, with the sizes of the pieces that were read."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.width, self.dtype, self.device = x, x.shape[1], x.dtype, x.device
        self.read: list[tuple[int, bool]] = []

    def pieces(self, ids: Ids, size: int, *, count_reads: bool) -> Iterator[Tensor]:
        rows = self.x[torch.from_numpy(ids)]
        for first in range(0, max(len(rows), 1), size):
            self.read.append((len(rows[first : first + size]), count_reads))
            yield rows[first : first + size]


def table(n: int, dtype: torch.dtype = torch.float64) -> tuple[InMemory, RowsInPieces, Tensor]:
    x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n), dtype=dtype)
    actual, ids = InMemory(x), torch.randperm(n, generator=torch.Generator().manual_seed(1))
    return actual, RowsInPieces(actual, ids.numpy()), x[ids]


def weight(dtype: torch.dtype, *, turned: bool, k: int = 32) -> Tensor:
    shape = (k, WIDTH) if turned else (WIDTH, k)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype).requires_grad_()


def answers(x: Tensor | RowsInPieces, w: Tensor, *, turned: bool) -> list[Tensor]:
    out = x @ (w.t() if turned else w)
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), w)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("n", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 17])
def test_products_and_gradients_are_those_of_all_rows(n: int, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1)  # pieces are as small as they get
    read, rows, x = table(n)
    w = weight(x.dtype, turned=turned)
    for got, reference in zip(answers(rows, w, turned=turned), answers(x, w, turned=turned), strict=True):
        torch.testing.assert_close(got, reference, rtol=1e-12, atol=1e-11)
    each = [min(CHUNK, n - first) for first in range(0, max(n, 1), CHUNK)]
    assert read.read == [(size, True) for size in each] * 2


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("k", [32, 128])
@pytest.mark.parametrize("n", [CHUNK, CHUNK + 1, 2 * CHUNK + 17])
def test_onednn_gives_the_bits_of_all_rows(
    n: int, k: int, turned: bool, product_shapes: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1)
    _, rows, x = table(n, torch.float32)
    w = weight(x.dtype, turned=turned, k=k)
    with fast_products():
        actual, reference = answers(rows, w, turned=turned), answers(x, w, turned=turned)
    assert product_shapes
    assert all(torch.equal(a, b) for a, b in zip(actual, reference, strict=True))


@pytest.mark.parametrize("turned", [False, True])
def test_one_piece_has_the_bits_of_torch(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "library", lambda: "torch")
    _, rows, x = table(3000, torch.float32)
    w = weight(x.dtype, turned=turned)
    actual, reference = answers(rows, w, turned=turned), answers(x, w, turned=turned)
    assert all(torch.equal(a, b) for a, b in zip(actual, reference, strict=True))


def test_dropout_is_made_anew_in_each_reading_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1)
    n = CHUNK + 100
    _, rows, x = table(n)
    ids = torch.randperm(10 * n)[:n]
    noisy_rows, reference = (
        rows.dropout(ids, 0.4, 5).dropout(ids, 0.1, 6),
        dropout(dropout(x, ids, 0.4, 5), ids, 0.1, 6),
    )
    for _ in range(2):
        assert torch.equal(torch.cat(list(noisy_rows.pieces(count_reads=False))), reference)
    first = noisy_rows[: CHUNK + 1]
    assert first.shape == (CHUNK + 1, WIDTH)
    assert torch.equal(torch.cat(list(first.pieces(count_reads=False))), reference[: CHUNK + 1])
    positions = torch.arange(0, n, 7)
    assert torch.equal(
        torch.cat(list(noisy_rows.take(positions.numpy()).pieces(count_reads=False))), reference[positions]
    )
    assert noisy_rows[:n] is noisy_rows
    with pytest.raises(IndexError, match="expected a slice of the first rows"):
        noisy_rows[1:3]


def test_a_weight_without_gradient_reads_the_rows_once_and_evaluation_is_not_counted() -> None:
    read, rows, x = table(10)
    w = weight(x.dtype, turned=False)
    with torch.no_grad():
        torch.testing.assert_close(rows @ w, x @ w)
    assert read.read == [(10, False)]
    assert not (rows @ w.detach()).requires_grad
    assert len(read.read) == 2


def test_rows_that_are_not_finite_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1)
    read, rows, _ = table(CHUNK + 5)
    assert bool(rows.isfinite().all())
    read.x[3, 2] = torch.nan
    assert not bool(rows.isfinite().all())
