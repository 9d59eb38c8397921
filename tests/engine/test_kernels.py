"""What GPUs run equals what CPUs run, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnkit.engine.dropout import _lanes, dropout, relu_dropout
from gnnkit.engine.kernels import EdgeKernels, TorchKernels
from gnnkit.graph import CSC

CPU = torch.device("cpu")


@pytest.mark.parametrize("num_edges", [0, 1, 60])
def test_kernels_of_torch_equal_the_native_ones(num_edges: int) -> None:
    rng = np.random.default_rng(num_edges)
    csc = CSC.from_edges(rng.integers(0, 9, num_edges), rng.integers(0, 9, num_edges), 9)
    native, of_torch = EdgeKernels.of(csc, CPU), TorchKernels.of_csc(csc, CPU)
    x, grad = torch.randn(9, 2, 3, dtype=torch.float64), torch.randn(9, 2, 3, dtype=torch.float64)
    weight = torch.randn(num_edges, 2, dtype=torch.float64)
    for a, b in [(native, of_torch), (native.transpose(), of_torch.transpose())]:
        torch.testing.assert_close(a.sum(x), b.sum(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(a.sum(x, weight), b.sum(x, weight), rtol=1e-12, atol=1e-12)
    rows, wide, one = torch.randn(9, 4).double(), torch.randn(9, 8).double(), weight[:, :1]
    expected = of_torch.sum_beside(rows, one)
    torch.testing.assert_close(native.sum_beside(rows, one), expected, rtol=1e-12, atol=1e-12)
    back, expected = (each.transpose().sum_beside_backward(wide, one) for each in (native, of_torch))
    torch.testing.assert_close(back, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(native.edge_dot(x, grad), of_torch.edge_dot(x, grad), rtol=1e-12, atol=1e-12)
    flat = torch.randint(0, 3, (9, 4)).double()  # with ties
    (values, arg), (same_values, same_arg) = native.max(flat), of_torch.max(flat)
    assert torch.equal(values, same_values)
    assert torch.equal(arg, same_arg)
    back = torch.randn(9, 4, dtype=torch.float64)
    expected = native.max_backward(back, arg)
    torch.testing.assert_close(of_torch.max_backward(back, arg), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.6])
def test_dropout_of_torch_keeps_what_the_native_one_keeps(p: float) -> None:
    ids = torch.tensor([0, 5, 2**40])
    key = 2**64 - 3
    dropped = dropout(torch.ones(3, 13, dtype=torch.float64), ids, p, key)
    assert torch.equal(dropped != 0, _lanes(ids, 13, key) >= int(65536 * p + 0.5))


@pytest.mark.parametrize("width", [0, 1, 31, 32, 33, 100])
def test_relu_and_dropout_in_one_pass_are_those_in_two(width: int) -> None:
    x, ids = torch.randn(7, width, requires_grad=True), torch.arange(7) * 3
    at_once, in_turn = relu_dropout(x, ids, 0.3, 5), dropout(x.relu(), ids, 0.3, 5)
    assert torch.equal(at_once, in_turn)
    slopes = [torch.autograd.grad(z.sin().sum(), x)[0] for z in (at_once, in_turn)]
    assert torch.equal(*slopes)
