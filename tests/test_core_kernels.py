"""The native kernels against loops that anybody can check."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit import _core

Array = npt.NDArray[Any]

WIDTHS = [*range(41), 64, 100, 128, 129, 300]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}


class Edges(NamedTuple):
    indptr: Array  # [num_destinations + 1]
    indices: Array  # [num_edges]
    num_sources: int

    @property
    def targets(self) -> Array:  # [num_edges]
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def aggregator(self) -> _core.Aggregator:
        return _core.Aggregator(self.indptr, self.indices, self.num_sources)


def from_degrees(degrees: Array, num_sources: int, rng: np.random.Generator, dtype: Any = np.int64) -> Edges:
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return Edges(indptr, rng.integers(0, max(num_sources, 1), indptr[-1]).astype(dtype), num_sources)


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    """Draws any shape: no sources, no edges, parallel edges, hubs beside empty rows."""
    num_sources = draw(st.integers(0, 12))
    degrees = draw(st.lists(st.integers(0, 9 if num_sources else 0), max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    return from_degrees(np.array(degrees, dtype=np.int64), num_sources, rng, dtype)


def reference_sum(edges: Edges, weight: Array, x: Array) -> Array:
    """`weight` [m, heads], `x` [n, heads, d]."""
    out = np.zeros((len(edges.indptr) - 1, *x.shape[1:]))
    np.add.at(out, edges.targets, weight[:, :, None] * x[edges.indices])
    return out


def reference_max(edges: Edges, x: Array) -> tuple[Array, Array]:
    shape = (len(edges.indptr) - 1, x.shape[1])
    out, arg = np.full(shape, -np.inf, dtype=x.dtype), np.full(shape, -1)
    for edge, (u, v) in enumerate(zip(edges.indices, edges.targets, strict=True)):
        better = (arg[v] < 0) | (x[u] > out[v])
        out[v, better], arg[v, better] = x[u, better], edge
    return out, arg


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float64) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def on_every_thread_count(call: Callable[[Array, int], None], shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns the result of `call(out, threads)`, equal on any number of threads."""
    results = []
    for threads in (1, 2, 3, 8):
        results.append(np.full(shape, 7, dtype=dtype))
        call(results[-1], threads)
    for result in results[1:]:
        assert results[0].tobytes() == result.tobytes()
    return results[0]


@pytest.mark.slow
@given(edges=graphs(), heads=st.sampled_from([1, 2, 3]), each=st.integers(0, 5), seed=st.integers(0, 99))
def test_sums_their_transposes_and_gradients_equal_the_loop(edges: Edges, heads: int, each: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    aggregator, n, m = edges.aggregator(), len(edges.indptr) - 1, len(edges.indices)
    x, grad = normal(rng, edges.num_sources, heads, each), normal(rng, n, heads, each)
    weight, ones = normal(rng, m, heads), np.ones((m, heads))

    out = np.full((n, heads, each), 7.0)
    aggregator.sum(x, out, weight=weight)
    np.testing.assert_allclose(out, reference_sum(edges, weight, x), rtol=1e-12, atol=1e-12)
    aggregator.sum(x, out)
    np.testing.assert_allclose(out, reference_sum(edges, ones, x), rtol=1e-12, atol=1e-12)

    back = np.full((edges.num_sources, heads, each), 7.0)
    reference = np.zeros_like(back)
    np.add.at(reference, edges.indices, weight[:, :, None] * grad[edges.targets])
    aggregator.transpose().sum(grad, back, weight=weight)
    np.testing.assert_allclose(back, reference, rtol=1e-12, atol=1e-12)
    aggregator.transpose().transpose().sum(x, out, weight=weight)
    np.testing.assert_allclose(out, reference_sum(edges, weight, x), rtol=1e-12, atol=1e-12)

    dots = np.full((m, heads), 7.0)
    aggregator.edge_dot(x, grad, dots)
    reference = (x[edges.indices] * grad[edges.targets]).sum(axis=2)
    np.testing.assert_allclose(dots, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(degrees=st.lists(st.integers(0, 9), min_size=1, max_size=8), width=st.integers(0, 40), seed=st.integers(0, 99))
def test_sums_beside_own_rows_and_their_gradients_equal_the_loop(degrees: list[int], width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges, n = from_degrees(np.array(degrees), len(degrees) + 3, rng), len(degrees)
    weight, x, grad = normal(rng, len(edges.indices)), normal(rng, n + 3, width), normal(rng, n, 2 * width)

    out = on_every_thread_count(
        lambda o, t: edges.aggregator().sum_beside(x, o, t, weight=weight), (n, 2 * width), np.float64
    )
    np.testing.assert_allclose(out[:, :width], reference_sum(edges, weight[:, None], x[:, None])[:, 0], atol=1e-12)
    np.testing.assert_array_equal(out[:, width:], x[:n])

    reference = np.zeros_like(x)
    np.add.at(reference, edges.indices, weight[:, None] * grad[edges.targets, :width])
    reference[:n] += grad[:, width:]
    transposed = edges.aggregator().transpose()
    back = on_every_thread_count(
        lambda o, t: transposed.sum_beside_backward(grad, o, t, weight=weight), x.shape, np.float64
    )
    np.testing.assert_allclose(back, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(edges=graphs(), width=st.integers(0, 40), wider=st.integers(0, 5), seed=st.integers(0, 99))
def test_factors_of_nodes_and_what_is_added_equal_the_loop(edges: Edges, width: int, wider: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, sources = len(edges.indptr) - 1, edges.num_sources
    x, source, destination = normal(rng, sources, width + wider), normal(rng, sources), normal(rng, n)
    weights = (source[edges.indices] * destination[edges.targets])[:, None]
    reference = reference_sum(edges, weights, x[:, None, :width])[:, 0]
    before = normal(rng, n, width + 2 * wider)

    def added(out: Array, threads: int) -> None:
        out[:] = before
        factors = {"source": source, "destination": destination}
        edges.aggregator().sum(x, out, threads, **factors, add=True, width=width)

    out = on_every_thread_count(added, before.shape, np.float64)
    np.testing.assert_allclose(out[:, :width], before[:, :width] + reference, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(out[:, width:], before[:, width:])
    if n <= sources:
        own = np.empty((n, width + wider))
        edges.aggregator().sum(x, own, destination=destination, own=-1.5)
        plain = reference_sum(edges, destination[edges.targets][:, None], x[:, None])[:, 0]
        np.testing.assert_allclose(own, plain - 1.5 * x[:n], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(degrees=st.lists(st.integers(0, 9), min_size=1, max_size=8), width=st.integers(0, 40), seed=st.integers(0, 99))
def test_sums_beside_own_rows_take_factors_of_nodes(degrees: list[int], width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges, n = from_degrees(np.array(degrees), len(degrees) + 3, rng), len(degrees)
    x, grad, source, destination = (normal(rng, *shape) for shape in ((n + 3, width), (n, 2 * width), (n + 3,), (n,)))
    aggregator, weight = edges.aggregator(), source[edges.indices] * destination[edges.targets]
    actual, reference = np.empty((2, n, 2 * width))
    aggregator.sum_beside(x, actual, source=source, destination=destination)
    aggregator.sum_beside(x, reference, weight=weight)
    np.testing.assert_allclose(actual, reference, rtol=1e-12, atol=1e-12)
    back, reference = np.empty((2, n + 3, width))
    aggregator.transpose().sum_beside_backward(grad, back, source=destination, destination=source)
    aggregator.transpose().sum_beside_backward(grad, reference, weight=weight)
    np.testing.assert_allclose(back, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(edges=graphs(), width=st.integers(0, 9), seed=st.integers(0, 99))
def test_a_maximum_goes_to_the_first_edge_that_has_it_and_so_does_its_gradient(
    edges: Edges, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (edges.num_sources, width)).astype(np.float64)  # many ties
    grad = normal(rng, len(edges.indptr) - 1, width)
    reference, places = reference_max(edges, x)
    out, arg = np.full(grad.shape, 7.0), np.full(grad.shape, 7)
    edges.aggregator().max(x, out, arg)
    np.testing.assert_array_equal(out, reference)
    np.testing.assert_array_equal(arg, places)

    back, routed = np.full(x.shape, 7.0), np.zeros_like(x)
    rows, columns = np.nonzero(places >= 0)
    np.add.at(routed, (edges.indices[places[rows, columns]], columns), grad[rows, columns])
    edges.aggregator().max_backward(grad, arg, back)
    np.testing.assert_allclose(back, routed, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_equals_the_loop_and_has_the_same_bits_on_any_number_of_threads(width: int, dtype: Any) -> None:
    rng = np.random.default_rng(width)
    degrees = rng.geometric(0.1, 120) - 1
    degrees[3] = 900  # a hub, so that the work is worth several threads and its rows are uneven
    edges = from_degrees(degrees, 50, rng, np.int32)
    aggregator, shape = edges.aggregator(), (len(degrees), width)
    x, grad = normal(rng, 50, width, dtype=dtype), normal(rng, *shape, dtype=dtype)
    weight = normal(rng, len(edges.indices), dtype=dtype)
    rtol, atol = TOLERANCE[dtype], 50 * TOLERANCE[dtype]

    out = on_every_thread_count(lambda o, t: aggregator.sum(x, o, t, weight=weight), shape, dtype)
    np.testing.assert_allclose(out, reference_sum(edges, weight[:, None], x[:, None])[:, 0], rtol=rtol, atol=atol)
    out = on_every_thread_count(lambda o, t: aggregator.sum(x, o, t), shape, dtype)
    np.testing.assert_allclose(
        out, reference_sum(edges, np.ones_like(weight)[:, None], x[:, None])[:, 0], rtol=rtol, atol=atol
    )
    dots = on_every_thread_count(lambda o, t: aggregator.edge_dot(x, grad, o, t), weight.shape, dtype)
    np.testing.assert_allclose(dots, np.einsum("ej,ej->e", x[edges.indices], grad[edges.targets]), rtol=rtol, atol=atol)

    reference, places = reference_max(edges, x)
    arg = np.empty(shape, dtype=np.int64)
    out = on_every_thread_count(lambda o, t: aggregator.max(x, o, arg, t), shape, dtype)
    np.testing.assert_array_equal(out, reference)
    np.testing.assert_array_equal(arg, places)


@pytest.mark.parametrize("each", [1, 4, 5, 8, 16, 32, 64, 200])
@pytest.mark.parametrize("heads", [2, 3, 8, 21])
def test_any_number_of_heads_of_any_width_equals_the_loop(heads: int, each: int) -> None:
    rng = np.random.default_rng(heads)
    edges = from_degrees(rng.integers(0, 12, 30), 20, rng)
    aggregator, m = edges.aggregator(), len(edges.indices)
    x, grad, weight = normal(rng, 20, heads, each), normal(rng, 30, heads, each), normal(rng, m, heads)
    out, back, dots = np.empty_like(grad), np.empty_like(x), np.empty_like(weight)
    aggregator.sum(x, out, weight=weight)
    np.testing.assert_allclose(out, reference_sum(edges, weight, x), rtol=1e-12, atol=1e-12)
    aggregator.transpose().sum(grad, back, weight=weight)
    reference = np.zeros_like(x)
    np.add.at(reference, edges.indices, weight[:, :, None] * grad[edges.targets])
    np.testing.assert_allclose(back, reference, rtol=1e-12, atol=1e-12)
    aggregator.edge_dot(x, grad, dots)
    np.testing.assert_allclose(dots, (x[edges.indices] * grad[edges.targets]).sum(axis=2), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_threads_share_the_work_of_a_large_graph_without_changing_a_bit() -> None:
    rng = np.random.default_rng(0)
    edges = from_degrees(rng.zipf(1.7, 5_000).clip(max=3_000), 4_000, rng)
    x, weight = normal(rng, 4_000, 40, dtype=np.float32), normal(rng, len(edges.indices), 4, dtype=np.float32)
    for aggregator in (edges.aggregator(), Edges(edges.indptr, edges.indices, 5_000).aggregator().transpose()):
        rows = normal(rng, aggregator.num_sources, 40, dtype=np.float32)
        shape = (aggregator.num_destinations, 40)
        on_every_thread_count(lambda o, t: aggregator.sum(rows, o, t, weight=weight), shape, np.float32)  # noqa: B023
    rows = normal(rng, 5_000, 40, dtype=np.float32)
    on_every_thread_count(lambda o, t: edges.aggregator().edge_dot(x, rows, o, t), weight.shape, np.float32)
    arg = rng.integers(-1, len(edges.indices), rows.shape)
    back = on_every_thread_count(lambda o, t: edges.aggregator().max_backward(rows, arg, o, t), x.shape, np.float32)
    reference, (at, columns) = np.zeros_like(x), np.nonzero(arg >= 0)
    np.add.at(reference, (edges.indices[arg[at, columns]], columns), rows[at, columns])
    np.testing.assert_array_equal(back, reference)


def test_places_that_are_no_edges_get_no_gradient() -> None:
    aggregator = Edges(np.array([0, 1]), np.array([1]), 2).aggregator()
    out = np.full((2, 4), 7.0)
    aggregator.max_backward(np.ones((1, 4)), np.array([[0, -1, 1, 2**63 - 1]]), out)
    np.testing.assert_array_equal(out, [[0, 0, 0, 0], [1, 0, 0, 0]])
    with pytest.raises(ValueError, match="transpose"):
        aggregator.transpose().max_backward(np.ones((2, 4)), np.zeros((2, 4), np.int64), np.ones((1, 4)))


def test_nan_is_a_maximum_and_infinities_pass() -> None:
    aggregator = Edges(np.array([0, 3]), np.array([0, 1, 2]), 3).aggregator()
    x = np.array([[1, np.nan, -np.inf], [np.nan, 2, -np.inf], [np.nan, np.nan, -np.inf]])
    out, arg = np.empty((1, 3)), np.empty((1, 3), dtype=np.int64)
    aggregator.max(x, out, arg)
    np.testing.assert_array_equal(arg, [[1, 0, 0]])
    np.testing.assert_array_equal(out, [[np.nan, np.nan, -np.inf]])


def test_nobody_can_change_the_edges_afterwards() -> None:
    edges = Edges(np.array([0, 2]), np.array([0, 1]), 2)
    aggregator, out = edges.aggregator(), np.empty((1, 1))
    edges.indices[:] = 10**9
    edges.indptr[:] = 10**9
    aggregator.sum(np.array([[1.0], [2.0]]), out)
    assert out == 3.0


ONE = Edges(np.array([0, 1]), np.array([0]), 1)
SHARED = np.zeros((4, 2))
READ_ONLY = np.zeros((1, 2))
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.sum(np.zeros((2, 2)), np.zeros((1, 2))), "x has 4 entries, expected 2"),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((3, 2))), "out has 6 entries, expected 2"),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 3))), "out: has 3 columns, x has 2"),
        (lambda a: a.sum(np.float64(1), np.zeros((1, 1))), "x: must be a NumPy array of float32 or float64"),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 2), np.float32)), "out: must be a NumPy array of dtype"),
        (lambda a: a.sum(np.zeros((1, 2), np.int64), np.zeros((1, 2))), "x: must be a NumPy array of float32 or"),
        (lambda a: a.sum(np.zeros((1, 4))[:, ::2], np.zeros((1, 2))), "x: must be C-contiguous"),
        (lambda a: a.sum(np.zeros((3, 2), order="F"), np.zeros((1, 2))), "x: must be C-contiguous"),
        (lambda a: a.sum(np.zeros((1, 2)), READ_ONLY), "out: The given array is not writeable"),
        (lambda a: a.sum(SHARED[:1], SHARED[:1]), "out: The given array is already borrowed"),
        (lambda a: a.sum(np.zeros((1, 2)).astype(">f8"), np.zeros((1, 2))), "x: must be a NumPy array"),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 2)), weight=np.zeros(2)), "weight has 2 entries, expected 1"),
        (
            lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 2)), weight=np.zeros((1, 3))),
            "2 columns do not divide into 3 heads",
        ),
        (
            lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 2)), weight=np.zeros(1), source=np.zeros(1)),
            "source: goes without weight",
        ),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 2)), source=np.zeros(3)), "source has 3 entries, expected 1"),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 2)), destination=np.zeros(0)), "destination has 0 entries"),
        (lambda a: a.sum(np.zeros((1, 2)), np.zeros((1, 4)), width=3), "x has 2 columns, 3 are asked for"),
        (lambda a: a.sum(np.zeros((1, 4)), np.zeros((1, 2)), width=3), "out has 2 columns, 3 are asked for"),
        (
            lambda a: a.drop_stored(np.zeros(2), np.zeros(1, int), 0.5, 1, np.zeros(1)),
            "values has 2 entries, expected 1",
        ),
        (lambda a: a.drop_stored(np.zeros(1), np.zeros(3, int), 0.5, 1, np.zeros(1)), "ids has 3 entries, expected 1"),
        (lambda a: a.drop_stored(np.zeros(1), np.zeros(1, int), 2, 1, np.zeros(1)), "p = 2 is not a probability"),
        (
            lambda a: a.transpose().drop_stored(np.zeros(1), np.zeros(1, int), 0.5, 1, np.zeros(1)),
            "drop_stored of values needs the original aggregator",
        ),
        (lambda a: a.transpose().edge_dot(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros(1)), "transposed aggregator"),
        (lambda a: a.max(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 1), np.int64)), "arg has 1 entries"),
        (lambda a: a.max(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2), np.int32)), "arg: must be a NumPy array"),
    ],
)
def test_wrong_arrays_are_refused_by_name(call: Callable[[_core.Aggregator], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(ONE.aggregator())


def test_tensors_that_share_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.zeros(4, 2, dtype=torch.float64)
    aggregator = Edges(np.array([0, 1, 2]), np.array([0, 1]), 2).aggregator()
    with pytest.raises(ValueError, match="out: shares memory with x"):
        aggregator.sum(rows[:2].numpy(), rows[1:3].numpy())
    aggregator.sum(rows[:2].numpy(), rows[2:].numpy())


def test_bad_edges_are_refused_with_their_place() -> None:
    for indptr, indices, message in [
        ([0, 2], [0, 3], r"indices\[1\] = 3 is out of range for 3 nodes"),
        ([0, 2], [0, -1], r"indices\[1\] = -1 is out of range for 3 nodes"),
        ([0, 2, 1], [0, 1], r"indptr\[2\] = 1 is below indptr\[1\] = 2"),
        ([], [], "indptr has 0 entries"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.Aggregator(np.array(indptr, dtype=np.int64), np.array(indices, dtype=np.int64), 3)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def kept_bits(key: int, ids: Array, width: int, p: float) -> Array:  # [len(ids), width]
    columns = np.arange(width, dtype=np.uint64)
    rows = mix(np.uint64(key) ^ mix(ids.astype(np.int64).view(np.uint64) + GOLDEN))[:, None]
    words = mix(rows + GOLDEN * (columns // np.uint64(4) + np.uint64(1)))
    lanes = (words >> (np.uint64(16) * (columns % np.uint64(4)))) & np.uint64(0xFFFF)
    return lanes >= int(p * 65536 + 0.5)


def reference_dropout(x: Array, ids: Array, p: float, key: int) -> Array:
    threshold = int(p * 65536 + 0.5)
    scale = x.dtype.type(65536 / (65536 - threshold)) if threshold < 65536 else x.dtype.type(0)
    return np.where(kept_bits(key, ids, x.shape[1], p), x * scale, x.dtype.type(0))


@pytest.mark.slow
@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6),
    width=st.integers(0, 70),
    p=st.floats(0, 1),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_dropout_follows_its_definition(ids: list[int], width: int, p: float, key: int, dtype: Any) -> None:
    rows = np.array(ids, dtype=np.int64)
    x = normal(np.random.default_rng(0), len(ids), width, dtype=dtype)
    out = np.full_like(x, 7)
    _core.dropout(x, rows, p, key, out)
    np.testing.assert_array_equal(out, reference_dropout(x, rows, p, key))
    _core.dropout(x, rows, p, key, out, gate=x)
    np.testing.assert_array_equal(out, reference_dropout(np.maximum(x, 0), rows, p, key))


@pytest.mark.slow
@given(
    num_rows=st.integers(0, 5),
    width=st.integers(0, 70),
    p=st.floats(0, 0.99),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_rectified_rows_and_gradients_are_those_of_relu_and_dropout(
    num_rows: int, width: int, p: float, key: int, dtype: Any
) -> None:
    rng, ids = np.random.default_rng(0), np.arange(num_rows) * 7
    x, grad = normal(rng, num_rows, width, dtype=dtype), normal(rng, num_rows, width, dtype=dtype)
    out, kept_bits = np.full_like(x, 7), np.full((num_rows, -(-width // 32)), 7, np.uint32)
    _core.rectify(x, ids, p, key, out, kept_bits)
    np.testing.assert_array_equal(out, reference_dropout(np.maximum(x, 0), ids, p, key))
    back = np.full_like(x, 7)
    _core.rectify_backward(grad, kept_bits, p, back)
    np.testing.assert_array_equal(back, np.where(x > 0, reference_dropout(grad, ids, p, key), 0))


def test_dropout_does_not_depend_on_where_a_row_is_or_who_computes_it() -> None:
    rng = np.random.default_rng(0)
    x, ids, order = normal(rng, 3_000, 33, dtype=np.float32), np.arange(3_000, dtype=np.int32), rng.permutation(3_000)
    out = on_every_thread_count(lambda o, t: _core.dropout(x, ids, 0.4, 9, o, threads=t), x.shape, np.float32)
    moved = np.empty_like(x)
    _core.dropout(x[order], ids[order].astype(np.int64), 0.4, 9, moved)
    assert moved.tobytes() == out[order].tobytes()


def test_dropout_keeps_the_expected_share_and_mean_in_every_lane() -> None:
    ids, p = np.arange(50_000), 0.3
    x, out = np.ones((50_000, 8)), np.empty((50_000, 8))
    _core.dropout(x, ids, p, 1, out)
    share = (out > 0).mean(axis=0)
    np.testing.assert_allclose(share, 1 - p, atol=5 * np.sqrt(p * (1 - p) / 50_000))
    pairs = np.corrcoef(out.T)[np.triu_indices(8, 1)]
    assert np.abs(pairs).max() < 5 / np.sqrt(50_000)
    np.testing.assert_allclose(out.mean(), 1, atol=5 * np.sqrt(p / (1 - p) / out.size))


def test_dropped_infinities_are_zero_and_kept_nan_stays() -> None:
    x, ids = np.array([[np.inf, np.nan] * 50]), np.array([3])
    out = np.empty_like(x)
    _core.dropout(x, ids, 0.5, 0, out)
    keep = kept_bits(0, ids, 100, 0.5)
    np.testing.assert_array_equal(out, np.where(keep, x, 0))
    _core.dropout(x, ids, 1.0, 0, out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": 1.5}, "p = 1.5 is not a probability"),
        ({"p": float("nan")}, "p = NaN is not a probability"),
        ({"ids": np.arange(4)}, "x has 6 entries, expected 8"),
        ({"out": np.zeros((3, 1))}, "out: has 1 columns, x has 2"),
        ({"gate": np.zeros((2, 2))}, "gate has 4 entries, expected 6"),
        ({"gate": np.zeros((3, 2), np.float32)}, "gate: must be a NumPy array of dtype"),
    ],
)
def test_wrong_arguments_of_dropout_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    arguments = {"x": np.zeros((3, 2)), "ids": np.arange(3), "p": 0.5, "key": 0, "out": np.zeros((3, 2)), **change}
    with pytest.raises(ValueError, match=message):
        _core.dropout(**arguments)


def sums_of_a_large_graph() -> bytes:
    rng = np.random.default_rng(1)
    edges = from_degrees(np.full(4_000, 10), 4_000, rng)
    x, out = normal(rng, 4_000, 32), np.empty((4_000, 32))
    edges.aggregator().sum(x, out, threads=2)
    return out.tobytes()


@pytest.mark.slow
def test_a_child_forked_after_threads_ran_has_threads_of_its_own() -> None:
    reference = sums_of_a_large_graph()
    with multiprocessing.get_context("fork").Pool(1) as children:
        assert children.apply_async(sums_of_a_large_graph).get(timeout=120) == reference
