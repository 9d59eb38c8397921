"""Triton's kernels equal the native ones, as Triton's interpreter runs them."""

from __future__ import annotations

import importlib
import itertools
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gnnkit.kernels
from gnnkit.graph import CSC
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import EdgeKernels, Factors, NativeKernels, wide
from tests.cases import few
from tests.turns import turns

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
CPU = torch.device("cpu")
NUM_DST, NUM_SRC = 9, 13  # few: an interpreted program takes milliseconds
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
F64 = torch.float64


def make_edges(name: str) -> CSC:
    """Edges from 13 rows into 9, of which row 3 and the last rows have none."""
    rng = np.random.default_rng(7)
    if name == "no edges":
        return CSC(np.zeros(NUM_DST + 1, np.int64), np.zeros(0, np.int32), num_sources=NUM_SRC)
    dst = rng.integers(0, NUM_DST - 2, 30)
    dst[:12] = 5  # a hub
    dst[dst == 3] = 4
    src = rng.integers(0, NUM_SRC, 30)
    src[8:12] = 9  # parallel edges
    src[16:25] = 11  # a hub of the transpose
    return CSC.from_edges(src, dst, NUM_DST, num_sources=NUM_SRC)


@pytest.fixture(scope="module")
def triton_module() -> Any:
    """A second copy of the module of kernels, which Triton's interpreter runs.

    Triton decides as it is imported, so it is imported anew, and the copy in use put
    back. Its library has one copy.
    """

    def modules() -> list[str]:
        ours = "gnnkit.kernels.triton"
        return [n for n in sys.modules if n == ours or (f"{n}.".startswith("triton.") and n[:9] != "triton._C")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(gnnkit.kernels, "triton", None, raising=False)
        before = {name: sys.modules.pop(name) for name in modules()}
        try:
            module = importlib.import_module("gnnkit.kernels.triton")
        finally:
            for name in modules():
                del sys.modules[name]
            sys.modules.update(before)
    module._COLUMNS = 16  # of a tile
    return module


KINDS = ["some", "in pieces", "no edges"]
Pair = tuple[EdgeKernels, EdgeKernels]


@pytest.fixture
def pair(kind: str, triton_module: Any, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The native kernels and those of Triton over the same edges, in narrow tiles.

    A result of 18 columns has several tiles along both sides. The last are not full.
    """
    if kind == "in pieces":
        monkeypatch.setattr(triton_module, "LONG", 4)
    of_triton = triton_module.TritonKernels.of_csc(make_edges(kind), CPU)
    native = EdgeKernels.of(make_edges(kind), CPU)
    assert isinstance(native, NativeKernels)
    assert (of_triton._pieces is not None) == (kind == "in pieces")
    return native, of_triton


def draw_rows(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype = F64) -> None:
    """Checks numbers that were computed from numbers of a type."""
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=tolerance, atol=4 * tolerance)


@pytest.mark.slow
@few(
    "kind,rows",
    itertools.product(KINDS, [(1, F64), (3, torch.bfloat16), (16, torch.float32), (18, torch.float16)]),
    default=[("some", (1, F64)), ("in pieces", (3, torch.bfloat16)), ("no edges", (16, torch.float32))],
)
def test_sums_by_all_factors(pair: Pair, rows: tuple[int, torch.dtype]) -> None:
    (native, of_triton), (width, dtype) = pair, rows
    for a, b in [(native, of_triton), (native.transpose(), of_triton.transpose())]:
        x, before = draw_rows(a.num_src, width, dtype=dtype), draw_rows(a.num_dst, width + 2, dtype=dtype)
        edge = draw_rows(a.num_edges, 1, dtype=wide(dtype))
        source, destination = draw_rows(a.num_src, dtype=wide(dtype)), draw_rows(a.num_dst, dtype=wide(dtype))
        for factors in (Factors(), Factors(edge), Factors(None, source, destination), Factors(edge, None, destination)):
            exact = Factors(
                *(v if v is None else v.double() for v in (factors.edge, factors.source, factors.destination))
            )
            actual = b.sum(x, factors)
            assert actual.dtype == dtype
            close(actual, a.sum(x.double(), exact), dtype)
        total, reference = before.clone(), before.to(F64, copy=True)
        b.add_sum(x, factors, total)
        a.add_sum(x.double(), exact, reference)
        close(total, reference, dtype)
        assert torch.equal(total[:, width:], before[:, width:])
        narrow, reference = before[:, :1].contiguous(), before[:, :1].to(F64, copy=True).contiguous()
        b.add_sum(x, Factors(edge), narrow)
        a.add_sum(x.double(), Factors(edge.double()), reference)
        close(narrow, reference, dtype)


@pytest.mark.slow
@turns(kind=KINDS, width=[(3, 6), (2, 5), (3, 1), (1, 18)])
def test_heads_have_factors_and_products_of_their_own(pair: Pair, width: tuple[int, int]) -> None:
    (native, of_triton), (heads, of_head) = pair, width
    weight = draw_rows(native.num_edges, heads)
    for a, b in [(native, of_triton), (native.transpose(), of_triton.transpose())]:
        x = draw_rows(a.num_src, heads, of_head)
        close(b.sum(x, Factors(weight)), a.sum(x, Factors(weight)))
        close(b.sum(x), a.sum(x))
    x, grad = draw_rows(NUM_SRC, heads, of_head), draw_rows(NUM_DST, heads, of_head)
    close(of_triton.edge_dot(x, grad), native.edge_dot(x, grad))
    half = of_triton.edge_dot(x.bfloat16(), grad.bfloat16())
    assert half.dtype == torch.float32
    close(half, native.edge_dot(x.bfloat16(), grad.bfloat16()), torch.float32)


@pytest.mark.slow
@few(
    "kind,rows",
    itertools.product(KINDS, [(18, F64), (1, torch.bfloat16)]),
    default=[("some", (18, F64)), ("no edges", (18, F64))],
)
def test_own_rows_are_added_or_stand_beside(pair: Pair, rows: tuple[int, torch.dtype]) -> None:
    (native, of_triton), (width, dtype) = pair, rows
    x, grad = draw_rows(NUM_SRC, width, dtype=dtype), draw_rows(NUM_DST, 2 * width, dtype=dtype)
    edge, destination = draw_rows(native.num_edges, 1, dtype=wide(dtype)), draw_rows(NUM_DST, dtype=wide(dtype))
    close(of_triton.sum(x, Factors(edge), own=0.7), native.sum(x, Factors(edge), own=0.7), dtype)
    close(of_triton.sum(x.view(NUM_SRC, width, 1), own=-2), native.sum(x.view(NUM_SRC, width, 1), own=-2), dtype)
    for factors in (Factors(), Factors(edge), Factors(None, None, destination)):
        close(of_triton.sum_beside(x, factors), native.sum_beside(x, factors), dtype)
        actual = of_triton.transpose().sum_beside_backward(grad, factors.transpose)
        close(actual, native.transpose().sum_beside_backward(grad, factors.transpose), dtype)


@pytest.mark.slow
@turns(kind=KINDS, rows=[(18, torch.float32), (3, torch.float16), (1, F64)])
def test_maxima_are_of_the_first_edge_and_nan_is_the_largest(pair: Pair, rows: tuple[int, torch.dtype]) -> None:
    (native, of_triton), (width, dtype) = pair, rows
    for a, b in [(native, of_triton), (native.transpose(), of_triton.transpose())]:
        x = draw_rows(a.num_src, width, dtype=dtype).round()  # with ties
        x[2, 0], x[-4, 0], x[-2, 0], x[-1] = -torch.inf, torch.nan, torch.inf, -torch.inf
        (best, arg), (reference, same_arg) = b.max(x), a.max(x)
        torch.testing.assert_close(best, reference, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(arg, same_arg)
    x, grad = draw_rows(NUM_SRC, width, dtype=dtype).round(), draw_rows(NUM_DST, width, dtype=dtype)
    best, arg = of_triton.max(x)
    close(of_triton.max_backward(grad, arg), native.max_backward(grad, arg), dtype)


@pytest.mark.slow
def test_the_first_edge_has_the_maximum_of_rows_of_minus_infinity(triton_module: Any) -> None:
    kernels = triton_module.TritonKernels.of_csc(make_edges("some"), CPU)
    best, arg = kernels.max(torch.full((NUM_SRC, 2), -torch.inf))
    assert (best == -torch.inf).all()
    first = torch.where(kernels.indptr.diff() > 0, kernels.indptr[:-1], -1)
    assert torch.equal(arg, first[:, None].expand(-1, 2).long())


def test_results_without_numbers(triton_module: Any) -> None:
    for csc in (CSC(np.zeros(1, np.int64), np.zeros(0, np.int32), num_sources=0), make_edges("some")):
        kernels = triton_module.TritonKernels.of_csc(csc, CPU)
        assert kernels.sum(torch.ones(kernels.num_src, 0)).shape == (kernels.num_dst, 0)
        assert kernels.max(torch.ones(kernels.num_src, 0))[0].shape == (kernels.num_dst, 0)
        assert kernels.transpose().sum(torch.ones(kernels.num_dst, 2)).shape == (kernels.num_src, 2)


@pytest.mark.slow
def test_attention_by_kernels_of_triton_has_the_gradients_of_the_native_ones(
    triton_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attention() -> list[Tensor]:
        edges = HeldEdges(make_edges("some"), CPU)
        scores, x = draw_rows(NUM_SRC, 3).requires_grad_(), draw_rows(NUM_SRC, 3, 5).requires_grad_()
        by_destination = edges.by_destination
        of_edges = edges.of_sources.sum(scores)
        largest = by_destination.kernels.max(of_edges.detach())[0]
        powers = (of_edges - by_destination.spread(torch.where(largest.isfinite(), largest, 0))).exp()
        z = edges.weighted_sum(x, powers / by_destination.spread(by_destination.sum(powers)))
        return [z, *torch.autograd.grad(z.sin().sum(), (scores, x))]

    reference = attention()
    monkeypatch.setattr(EdgeKernels, "of", triton_module.TritonKernels.of_csc)
    for actual, same in zip(attention(), reference, strict=True):
        close(actual, same)
