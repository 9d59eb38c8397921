"""Products by oneDNN are torch's, in every form, forward and backward."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gnnkit.kernels import products
from gnnkit.kernels.products import CHUNK, fast_products

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")
FORMS = {
    "linear": lambda x, w, b: F.linear(x, w.t(), b),
    "linear without a bias": lambda x, w, b: F.linear(x, w.t()),
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
    "matmul": lambda x, w, b: x @ w,
    "mm": lambda x, w, b: torch.mm(x, w),
    "by name": lambda x, w, b: F.linear(input=x, weight=w.t(), bias=b),
}


def operands(n, f, k, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    shapes = ((n, f), (f, k), (k,))
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def run(form, given):
    out = form(*given)
    inputs = [tensor for tensor in given if tensor.requires_grad]
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)]


@pytest.mark.parametrize(("f", "k"), [(96, 32), (32, 96)])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_products_and_gradients_are_those_of_torch(product_shapes, form, f, k):
    factors = operands(2 * CHUNK + 17, f, k)
    reference = run(form, factors)
    with fast_products():
        result = run(form, factors)
    for got, target in zip(result, reference, strict=True):
        if target is not None:
            torch.testing.assert_close(got, target, rtol=1e-4, atol=1e-5 * float(target.abs().max()))
    assert bool(product_shapes) == (form is not FORMS["by name"])


@pytest.mark.slow
def test_rows_without_gradient_cost_no_product(product_shapes):
    x, w, b = operands(CHUNK, 64, 64)
    with fast_products():
        torch.addmm(b, x.detach(), w).sum().backward()
    assert [left[0] for left, _ in product_shapes] == [CHUNK, 64]  # forward, and the weight's gradient


def test_second_gradients_are_those_of_torch(product_shapes):
    x, w, _ = operands(CHUNK, 64, 64)

    def penalty():
        (rows,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(rows.square().sum(), w)[0]

    reference = penalty()
    with fast_products():
        torch.testing.assert_close(penalty(), reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()))
    assert product_shapes


@pytest.mark.parametrize(
    "given",
    [operands(CHUNK - 1, 64, 64), operands(CHUNK, 64, 64, torch.float64), operands(CHUNK, 64, 64, torch.bfloat16)],
    ids=["small", "float64", "bfloat16"],
)
def test_torch_computes_what_onednn_would_not_do_better(product_shapes, given):
    with fast_products():
        run(FORMS["addmm"], given)
    assert not product_shapes


@pytest.mark.exhaustive
def test_autocast_and_transforms_see_the_product(product_shapes):
    x, w, b = operands(4096, 64, 64)
    with fast_products():
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(x, w.t(), b).dtype == torch.bfloat16
        assert torch.vmap(lambda rows: rows @ w)(x[None]).shape == (1, 4096, 64)
        assert torch.func.grad(lambda weight: (x @ weight).sum())(w).shape == w.shape
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            x @ w[:5]
        assert (x @ w[:, 0]).shape == (4096,)
    assert not product_shapes


@pytest.mark.slow
def test_any_number_of_rows_asks_for_few_programs(product_shapes):
    with fast_products():
        for n in range(CHUNK, 2 * CHUNK, 500):
            run(FORMS["addmm"], operands(n, 64, 32))
    assert set(product_shapes) == {((CHUNK, 64), (32, 64)), ((CHUNK, 32), (64, 32)), ((32, CHUNK), (64, CHUNK))}


def test_less_precision_is_left_to_torch(product_shapes):
    torch.set_float32_matmul_precision("medium")
    try:
        with fast_products():
            run(FORMS["addmm"], operands(CHUNK, 64, 64))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not product_shapes


def test_sparse_matrices_are_left_to_torch(product_shapes):
    x, w, _ = operands(4096, 64, 64)
    rows = torch.relu(x - 2)
    for sparse in (rows.to_sparse_csr(), rows.to_sparse_coo()):
        with fast_products():
            torch.testing.assert_close(sparse @ w, rows @ w)
            product_shapes.clear()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_modules_of_users_are_served(product_shapes):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    with fast_products():
        model(torch.randn(4096, 64)).sum().backward()
    assert len(product_shapes) > 4


def test_the_processor_chooses(monkeypatch, tmp_path):
    def choose_library(vendor, capability):
        path = tmp_path / "cpuinfo"
        path.write_text(f"vendor_id\t: {vendor}\n")
        monkeypatch.setattr(products, "_PROCESSOR", path)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        products.library.cache_clear()
        return products.library()

    assert choose_library("AuthenticAMD", "AVX512") == "oneDNN"
    assert choose_library("AuthenticAMD", "AVX2") == "torch"
    assert choose_library("GenuineIntel", "AVX512") == "torch"
    monkeypatch.undo()
    products.library.cache_clear()


@pytest.mark.parametrize("form", [form for name, form in FORMS.items() if name != "by name"])
def test_without_instructions_for_bfloat16_products_are_computed_in_float32_and_rounded_once(monkeypatch, form):
    monkeypatch.setattr(products, "lacks_bfloat16", lambda: True)
    factors = operands(CHUNK + 17, 96, 32)
    with torch.autocast("cpu", torch.bfloat16), fast_products():
        out = form(*factors)
        actual = torch.autograd.grad(out.float().square().sum(), factors, allow_unused=True)
    assert "_Rounded" in out.grad_fn.name()
    exact = [each.detach().bfloat16().double().requires_grad_() for each in factors]
    target = form(*exact)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), target, rtol=2**-8, atol=1e-4)  # half of the last place
    reference = torch.autograd.grad(target.square().sum(), exact, allow_unused=True)
    for got, true, one in zip(actual, reference, factors, strict=True):
        assert (got is None) == (true is None)
        if got is not None:
            assert got.dtype == one.dtype
            torch.testing.assert_close(got.double(), true, rtol=0.02, atol=0.004 * float(true.abs().max()))


def test_bfloat16_is_left_to_a_processor_that_has_it(monkeypatch):
    monkeypatch.setattr(products, "lacks_bfloat16", lambda: False)
    x, w, b = operands(CHUNK, 64, 64)
    with torch.autocast("cpu", torch.bfloat16), fast_products():
        assert "_Rounded" not in torch.addmm(b, x, w).grad_fn.name()
    monkeypatch.setattr(products, "lacks_bfloat16", lambda: True)
    with torch.autocast("cpu", torch.bfloat16), fast_products():
        assert "_Rounded" not in torch.addmm(b.double(), x.double(), w.double()).grad_fn.name()


def test_pieces_of_bfloat16_are_multiplied_as_a_whole(monkeypatch):
    monkeypatch.setattr(products, "lacks_bfloat16", lambda: True)
    x, w, _ = operands(2 * CHUNK + 5, 64, 32)
    rows, grad = x.detach().bfloat16(), torch.randn(len(x), 32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16), fast_products():
        whole, (by_weight,) = rows @ w, torch.autograd.grad(rows @ w, w, grad)
        pieces = rows.split(CHUNK)
        product, fast = products.product_of_pieces(pieces, len(x), w.detach())
    assert not fast
    assert torch.equal(product, whole)
    pairs = zip(pieces, grad.split(CHUNK), strict=True)
    assert torch.equal(products.outer_of_pieces(pairs, w.detach(), fast=False), by_weight)
