"""What GPUs run equals what CPUs run, on the CPU."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnkit.graph import CSC
from gnnkit.kernels.dropout import _lanes, dropout, dropout_bits, keep, relu_dropout
from gnnkit.kernels.sums import EdgeKernels, Factors, TorchKernels

CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


@pytest.mark.parametrize("num_edges", [0, 1, 60])
def test_kernels_of_torch_equal_the_native_ones(num_edges: int) -> None:
    rng = np.random.default_rng(num_edges)
    csc = CSC.from_edges(rng.integers(0, 9, num_edges), rng.integers(0, 9, num_edges), 9)
    native, of_torch = EdgeKernels.of(csc, CPU), TorchKernels.of_csc(csc, CPU)
    x, grad = torch.randn(9, 2, 3, dtype=torch.float64), torch.randn(9, 2, 3, dtype=torch.float64)
    weight = torch.randn(num_edges, 2, dtype=torch.float64)
    for a, b in [(native, of_torch), (native.transpose(), of_torch.transpose())]:
        torch.testing.assert_close(a.sum(x), b.sum(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(a.sum(x, Factors(weight)), b.sum(x, Factors(weight)), rtol=1e-12, atol=1e-12)
        nodes = Factors(None, torch.randn(9).double(), torch.randn(9).double())
        torch.testing.assert_close(a.sum(x, nodes, own=0.7), b.sum(x, nodes, own=0.7), rtol=1e-12, atol=1e-12)
        total, reference = torch.ones(2, 9, 8, dtype=torch.float64)
        a.add_sum(x.flatten(1), nodes, total)
        b.add_sum(x.flatten(1), nodes, reference)
        torch.testing.assert_close(total, reference, rtol=1e-12, atol=1e-12)
    rows, wide, first_weight = torch.randn(9, 4).double(), torch.randn(9, 8).double(), weight[:, :1]
    reference = of_torch.sum_beside(rows, Factors(first_weight))
    torch.testing.assert_close(native.sum_beside(rows, Factors(first_weight)), reference, rtol=1e-12, atol=1e-12)
    back, reference = (each.transpose().sum_beside_backward(wide, Factors(first_weight)) for each in (native, of_torch))
    torch.testing.assert_close(back, reference, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(native.edge_dot(x, grad), of_torch.edge_dot(x, grad), rtol=1e-12, atol=1e-12)
    flat = torch.randint(0, 3, (9, 4)).double()  # with ties
    (values, arg), (same_values, same_arg) = native.max(flat), of_torch.max(flat)
    assert torch.equal(values, same_values)
    assert torch.equal(arg, same_arg)
    back = torch.randn(9, 4, dtype=torch.float64)
    reference = native.max_backward(back, arg)
    torch.testing.assert_close(of_torch.max_backward(back, arg), reference, rtol=1e-12, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("rows", ["fp32", "bf16", "fp64"])
def test_kernels_of_triton_compile_without_a_gpu(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gnnkit.kernels import triton as triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wide = "fp64" if rows == "fp64" else "fp32"
    types = dict.fromkeys(("out", "x", "grad", "own", "best"), f"*{rows}")
    types |= dict.fromkeys(("weight", "source", "destination", "scale"), f"*{wide}")
    types |= dict.fromkeys(("begin", "end", "src", "dst", "order"), "*i32")
    types |= dict.fromkeys(("rows", "arg", "places"), "*i64")
    flags = {"HEADS": 2, "BESIDE": False, "ADD": True, "WIDE": tl.float64 if rows == "fp64" else tl.float32}
    tile = {"ROWS": 2, "EDGES": 4, "COLUMNS": 64}
    for kernel in (triton_kernels._sum, triton_kernels._max, triton_kernels._dot):
        constants = {name: value for name, value in {**flags, **tile}.items() if name in kernel.arg_names}
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
        source = ASTSource(kernel, signature, constexprs=constants)
        done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=triton_kernels._LAUNCH)
        assert done.asm["cubin"]


@pytest.mark.slow
def test_kernels_of_torch_serve_where_triton_does_not_run() -> None:
    csc = CSC(np.array([0, 1]), np.array([0]))
    with pytest.warns(UserWarning, match="TorchKernels sum on meta, .* Triton is unavailable"):
        assert isinstance(EdgeKernels.of(csc, torch.device("meta")), TorchKernels)


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


def random_edges() -> tuple[EdgeKernels, torch.Tensor]:
    """Edges between 40 sources and 40 destinations, and weights [num_edges, 1]."""
    rng = np.random.default_rng(3)
    csc = CSC.from_edges(rng.integers(0, 40, 300), rng.integers(0, 40, 300), 40)
    return EdgeKernels.of(csc, CPU), torch.tensor(rng.random((300, 1)), dtype=torch.float32)


@pytest.mark.parametrize("width", [1, 16, 33, 100])
def test_sums_of_bfloat16_are_exact_sums_rounded_once(width: int) -> None:
    kernels, weight = random_edges()
    x, grad = torch.randn(40, width).bfloat16(), torch.randn(40, 2 * width).bfloat16()
    results = {
        "sum": kernels.sum(x),
        "weighted": kernels.sum(x, Factors(weight)),
        "beside": kernels.sum_beside(x, Factors(weight)),
        "backward": kernels.transpose().sum_beside_backward(grad, Factors(weight)),
    }
    x, grad, weight = x.double(), grad.double(), weight.double()
    reference = {
        "sum": kernels.sum(x),
        "weighted": kernels.sum(x, Factors(weight)),
        "beside": kernels.sum_beside(x, Factors(weight)),
        "backward": kernels.transpose().sum_beside_backward(grad, Factors(weight)),
    }
    for name, rows in results.items():
        assert rows.dtype == torch.bfloat16
        # Half a unit in the last of 8 bits, and errors of sums in float32.
        torch.testing.assert_close(rows.double(), reference[name], rtol=2**-8, atol=1e-5, msg=name)


def test_kernels_that_compute_in_float32_serve_bfloat16() -> None:
    kernels, _ = random_edges()
    x, grad = torch.randn(40, 2, 3).bfloat16(), torch.randn(40, 2, 3).bfloat16()
    assert torch.equal(kernels.edge_dot(x, grad), kernels.edge_dot(x.float(), grad.float()))
    rows, slope = x[:, 0], grad[:, 0]
    (best, arg), (reference, same_arg) = kernels.max(rows), kernels.max(rows.float())
    assert torch.equal(best.float(), reference)
    assert torch.equal(arg, same_arg)
    assert torch.equal(kernels.max_backward(slope, arg), kernels.max_backward(slope.float(), arg).bfloat16())


def test_bfloat16_keeps_infinities_and_nan_and_has_the_same_bits_on_any_threads() -> None:
    kernels, weight = random_edges()
    x = torch.randn(40, 100).bfloat16()
    x[3, 5], x[4, 6], x[7, 8] = torch.inf, -torch.inf, torch.nan
    reference, before = kernels.sum_beside(x.float(), Factors(weight)), torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            actual = kernels.sum_beside(x, Factors(weight))
            torch.testing.assert_close(actual, reference.bfloat16(), rtol=0, atol=0, equal_nan=True)
    finally:
        torch.set_num_threads(before)
    assert not reference.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 4, 31, 33, 100])
def test_bits_and_values_of_dropout_agree(width: int, dtype: torch.dtype) -> None:
    x, ids = torch.randn(7, width).to(dtype), torch.arange(7) * 3
    bits = dropout_bits(ids, width, 0.3, 5)
    assert torch.equal(keep(x, bits, 0.3), dropout(x, ids, 0.3, 5))


@pytest.mark.parametrize("width", [1, 32, 100])
def test_relu_and_dropout_of_bfloat16_round_once(width: int) -> None:
    x, ids = torch.randn(7, width).bfloat16().requires_grad_(), torch.arange(7) * 3
    assert torch.equal(relu_dropout(x, ids, 0.3, 5), relu_dropout(x.float(), ids, 0.3, 5).bfloat16())
    (slope,) = torch.autograd.grad(relu_dropout(x, ids, 0.3, 5).sum(), x)
    assert slope.dtype == torch.bfloat16
