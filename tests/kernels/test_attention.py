"""Attention in one pass equals attention step by step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.graph import CSC
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import Weighing, attend
from gnnkit.kernels.dropout import dropout

CPU = torch.device("cpu")
SLOPE, KEY = 0.2, 2**63 + 5


def make_edges(num_nodes: int, num_edges: int) -> HeldEdges:
    """Random edges: parallel ones, loops, hubs and nodes without in-edges."""
    rng = np.random.default_rng(num_edges)
    into = np.minimum(rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges))
    return HeldEdges(CSC.from_edges(rng.integers(0, num_nodes, num_edges), into, num_nodes), CPU)


def inputs(edges: HeldEdges, heads: int, width: int, of_edges: bool, dtype: torch.dtype) -> list[Tensor | None]:
    """Returns rows, scores of sources and destinations, and scores of edges."""
    draw = torch.Generator().manual_seed(heads * width)
    shapes = [(edges.num_src, heads, width), (edges.num_src, heads), (edges.num_dst, heads), (edges.num_edges, heads)]
    tensors: list[Tensor | None] = [
        torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    ]
    return tensors if of_edges else [*tensors[:3], None]


def weighing(edges: HeldEdges, p: float) -> Weighing:
    return Weighing(SLOPE, p, KEY, torch.arange(edges.num_edges) * 7 - 3) if p else Weighing(SLOPE)


def step_by_step(
    edges: HeldEdges, h: Tensor, source: Tensor, destination: Tensor, edge: Tensor | None, how: Weighing
) -> Tensor:
    """Softmax and sum from torch alone, one destination after the other."""
    indptr, sources = edges.csc.indptr, edges.source_of_edge
    targets = torch.repeat_interleave(torch.arange(edges.num_dst), torch.tensor(np.diff(indptr)))
    scores = source[sources] + destination[targets]
    scores = F.leaky_relu(scores if edge is None else scores + edge, how.slope)
    parts = [scores[start:end].softmax(0) for start, end in pairwise(indptr)]
    weight = torch.cat([*parts, scores[:0]])
    if how.ids is not None:
        weight = dropout(weight, how.ids, how.p, how.key)
    out = h.new_zeros(edges.num_dst, *h.shape[1:])
    return out.index_add(0, targets, weight[:, :, None] * h[sources])


def gradients(z: Tensor, given: list[Tensor | None]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    loss = (z * torch.randn(z.shape, generator=draw, dtype=torch.float64).to(z.dtype)).sum()
    return list(torch.autograd.grad(loss, [x for x in given if x is not None]))


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(
        float((a - b).abs().max()) / max(1.0, float(b.abs().max()))
        for a, b in zip((x.detach().double() for x in found), (x.detach().double() for x in expected), strict=True)
        if b.numel()
    )


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2, 3, 8, 11])
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(1, 0), (1, 3), (6, 9), (40, 300), (2, 3000)])
def test_one_pass_equals_steps(num_nodes: int, num_edges: int, heads: int) -> None:
    edges = make_edges(num_nodes, num_edges)
    for width in (1, 16, 33):
        for p, of_edges in ((0.0, False), (0.6, False), (0.3, True)):
            tensors, rule = inputs(edges, heads, width, of_edges, torch.float64), weighing(edges, p)
            actual, reference = attend(edges, *tensors, rule), step_by_step(edges, *tensors, rule)  # type: ignore[arg-type]
            error = largest_error([actual, *gradients(actual, tensors)], [reference, *gradients(reference, tensors)])
            assert error <= 1e-10
            with torch.no_grad():
                assert torch.equal(attend(edges, *tensors, rule), actual)  # type: ignore[arg-type]


def test_float32_is_as_near_to_float64_as_its_digits() -> None:
    edges = make_edges(40, 300)
    tensors, rule = inputs(edges, 8, 16, True, torch.float32), weighing(edges, 0.5)
    wide = [None if x is None else x.detach().double().requires_grad_() for x in tensors]
    actual, reference = attend(edges, *tensors, rule), attend(edges, *wide, rule)  # type: ignore[arg-type]
    assert actual.dtype == torch.float32
    assert largest_error([actual, *gradients(actual, tensors)], [reference, *gradients(reference, wide)]) <= 1e-5


@pytest.mark.slow
def test_gradients_are_those_of_small_differences() -> None:
    edges = make_edges(5, 12)
    tensors, how = inputs(edges, 2, 3, True, torch.float64), weighing(edges, 0.4)
    assert torch.autograd.gradcheck(lambda *x: attend(edges, *x, how), tensors)


@pytest.mark.slow
def test_bits_do_not_depend_on_threads() -> None:
    edges = make_edges(3000, 60_000)
    tensors, how = inputs(edges, 8, 16, True, torch.float32), weighing(edges, 0.4)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            z = attend(edges, *tensors, how)  # type: ignore[arg-type]
            results.append([z, *gradients(z, tensors)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(results[0], result, strict=True))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_none_reach_the_rows_that_read_them(value: float) -> None:
    edges = make_edges(40, 100)
    tensors, rule = inputs(edges, 3, 4, False, torch.float64), weighing(edges, 0.0)
    h, source, destination, _ = (None if x is None else x.detach() for x in tensors)
    for rows in (h, source):
        assert rows is not None
        rows[7, 1] = value
        actual = attend(edges, h, source, destination, None, rule)  # type: ignore[arg-type]
        assert torch.equal(actual.isnan(), step_by_step(edges, h, source, destination, None, rule).isnan())  # type: ignore[arg-type]
        rows[7, 1] = 1


def test_sources_whose_scores_are_minus_infinity_have_no_weight() -> None:
    edges = make_edges(40, 300)
    h, source, destination, _ = (None if x is None else x.detach() for x in inputs(edges, 2, 4, False, torch.float64))
    assert source is not None
    source[7:9] = -torch.inf
    rule = replace(weighing(edges, 0.0), slope=1.0)
    actual = attend(edges, h, source, destination, None, rule)  # type: ignore[arg-type]
    reference = step_by_step(edges, h, source, destination, None, rule)  # type: ignore[arg-type]
    torch.testing.assert_close(actual, reference, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_autograd_keeps_nothing_for_an_edge() -> None:
    edges = make_edges(40, 5000)
    tensors = inputs(edges, 8, 2, False, torch.float64)
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        attend(edges, *tensors, weighing(edges, 0.5))  # type: ignore[arg-type]
    assert max(kept) <= edges.num_src * 8 * 3
