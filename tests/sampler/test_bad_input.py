"""Inputs that crash other samplers, or make others draw nodes that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    FullSampler,
    LaborSampler,
    MetropolisHastingsSampler,
    NativeSampler,
    NeighborSampler,
    WeightedSampler,
)


def ring(num_nodes: int = 1000, dtype: type[np.integer] = np.int64) -> CSC:
    """In-edges from the two nodes before."""
    nodes = np.arange(num_nodes)
    indices = np.stack([(nodes - 1) % num_nodes, (nodes - 2) % num_nodes], axis=1)
    return CSC(np.arange(0, 2 * num_nodes + 1, 2), indices.ravel().astype(dtype))


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([0, 1000], r"seeds\[1\] = 1000 is out of range for 1000 nodes"),
        ([10**9], r"seeds\[0\] = 1000000000 is out of range"),
        ([2**40], r"seeds\[0\] = 1099511627776 is out of range"),
        ([3, 4, -1], r"seeds\[2\] = -1 is out of range"),
        ([5, 6, 5], r"seeds\[2\] = 5 repeats seeds\[0\]"),
        ([0.5], "seeds has dtype float64, expected integers"),
        ([[1, 2]], r"seeds has shape \[1, 2\], expected one dimension of integers"),
        (["a"], "seeds has dtype <U1, expected integers"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bad_seeds_are_named(seeds: Sequence[object], message: str, dtype: type[np.integer]) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborSampler([2, 2]).sample(ring(dtype=dtype), np.array(seeds), key=1)


def test_bad_nodes_and_hops_are_named() -> None:
    sampler = NeighborSampler([2, 2])
    with pytest.raises(ValueError, match=r"nodes\[0\] = 1000 is out of range for 1000 nodes"):
        sampler.draw(ring(), np.array([1000]), 0, key=1)
    with pytest.raises(ValueError, match="hop 2 is out of range for 2 hops"):
        sampler.draw(ring(), np.array([0]), 2, key=1)


@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        ([5, -2], r"sampler\.fanouts\[1\]=-2 must be a whole number from -1 to 2147483647"),
        ([2, 2.5], r"sampler\.fanouts\[1\]=2\.5 must be a whole number"),
        ([2**70], r"sampler\.fanouts\[0\]=1180591620717411303424 must be a whole number"),
        ([True], r"sampler\.fanouts\[0\]=True must be a whole number"),
        ([5, "a"], r"sampler\.fanouts\[1\]=a must be a whole number"),
        ([5, None], r"sampler\.fanouts\[1\]=None must be a whole number"),
        ([], r"sampler\.fanouts has 0 hops, expected 1 to 1000"),
        ([1] * 1001, r"sampler\.fanouts has 1001 hops, expected 1 to 1000"),
        (5, r"sampler\.fanouts=5 must be a list of whole numbers, one per hop"),
        (None, r"sampler\.fanouts=None must be a list"),
    ],
)
@pytest.mark.parametrize(
    "kind", [NeighborSampler, WeightedSampler, BalancedSampler, LaborSampler, MetropolisHastingsSampler]
)
def test_bad_fanouts_are_named(kind: type[NativeSampler], fanouts: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(fanouts)


def test_fanouts_are_whole_numbers_of_any_type() -> None:
    for fanouts in ((4, 3), np.array([4, 3], np.uint8), torch.tensor([4, 3]), [np.int64(4), 3]):
        assert NeighborSampler(fanouts).fanouts == [4, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FullSampler(0), r"sampler\.num_hops=0 must be a whole number from 1 to 1000"),
        (lambda: FullSampler(2.0), r"sampler\.num_hops=2\.0 must be a whole number"),
        (lambda: ClusterSampler([0], 2**40), r"sampler\.num_hops=1099511627776 must be a whole number"),
        (
            lambda: NeighborSampler([1], threads=2**20),
            r"sampler\.threads=1048576 must be a whole number from 1 to 1024",
        ),
        (lambda: LaborSampler([1], importance="max"), r"sampler\.importance=max must be mean, sum or null"),
        (lambda: WeightedSampler([1], alpha="high"), r"sampler\.options\.alpha=high must be finite"),
        (
            lambda: MetropolisHastingsSampler([1], num_walks=2**40),
            r"sampler\.options\.num_walks=1099511627776 must be a whole",
        ),
        (
            lambda: MetropolisHastingsSampler([1], walk_length=2**62),
            r"sampler\.options\.walk_length=4611686018427387904 must",
        ),
        (
            lambda: MetropolisHastingsSampler([1], walk_length=2**13, num_walks=2**12),
            r"sampler\.options\.num_walks=4096 times sampler\.options\.walk_length=8192 must be at most 16777216 steps",
        ),
        (lambda: ClusterSampler(None), r"sampler\.clusters has shape \[\], expected one dimension"),
        (lambda: ClusterSampler(torch.eye(2).to_sparse()), r"sampler\.clusters cannot be read as an array"),
        (
            lambda: NeighborSampler([1]).sample(ring(), [2**70], key=1),
            r"seeds has dtype object, expected integers below",
        ),
        (lambda: NeighborSampler([1]).sample(ring(), None, key=1), r"seeds has shape \[\]"),
        (lambda: NeighborSampler([1]).sample(ring(), [1], key=0.5), r"key=0\.5 must be a whole number"),
        (lambda: NeighborSampler([1]).draw(ring(), [1], -1, key=1), r"hop=-1 must be a whole number"),
        (
            lambda: NeighborSampler([1]).sample(ring(), torch.ones(2).bfloat16(), key=1),
            "seeds has dtype float32, expected integers",
        ),
    ],
)
def test_numbers_and_arrays_out_of_range_name_the_argument(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_bad_importance_is_named() -> None:
    with pytest.raises(ValueError, match="importance=max must be mean, sum or null"):
        NeighborSampler([1], importance="max")


def test_seeds_of_any_integer_type_and_stride_are_read() -> None:
    graph, sampler = ring(), NeighborSampler([1, 1])
    expected = sampler.sample(graph, np.arange(0, 100, 2), key=1).input_nodes
    for seeds in (np.arange(100)[::2], np.arange(0, 100, 2, dtype=np.uint8), list(range(0, 100, 2))):
        np.testing.assert_array_equal(sampler.sample(graph, seeds, key=1).input_nodes, expected)


def test_graphs_of_other_sources_have_one_hop_only() -> None:
    graph = CSC(np.array([0, 2]), np.array([4, 3]), num_sources=5)
    sampler = NeighborSampler([-1, -1])
    np.testing.assert_array_equal(sampler.draw(graph, np.array([0]), 1, key=1).sources, [4, 3])
    with pytest.raises(ValueError, match="5 sources and 1 destinations"):
        sampler.sample(graph, np.array([0]), key=1)


@pytest.mark.parametrize(
    ("array", "position", "value", "message"),
    [
        ("indptr", 500, 10**6, r"indptr\[499..=500\] = 998, 1000000 is not a range of 2000 edges"),
        ("indptr", 500, 3, r"indptr\[499..=500\] = 998, 3 is not a range"),
        ("indptr", 500, -1, r"indptr\[499..=500\] = 998, -1 is not a range"),
        ("indptr", 0, -(2**62), r"indptr\[0..=1\] = -4611686018427387904, 2 is not a range"),
        ("indices", 1000, 1005, r"indices\[1000\] = 1005 is out of range for 1000 nodes"),
        ("indices", 1000, -7, r"indices\[1000\] = -7 is out of range"),
        ("indices", 1000, 2**31 - 1, r"indices\[1000\] = 2147483647 is out of range"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_graphs_that_change_after_they_were_checked_are_errors(
    array: str, position: int, value: int, message: str, dtype: type[np.integer]
) -> None:
    graph = ring(dtype=dtype)
    getattr(graph, array)[position] = value
    for fanouts in ([2, 2], [-1], [0, 5], [1]):
        sampler = NeighborSampler(fanouts, redraw=True)
        if array == "indices" and fanouts in ([1], [0, 5]):
            sampler.sample(graph, np.arange(1), key=1)  # does not read the edge
            continue
        with pytest.raises(ValueError, match=message):
            sampler.sample(graph, np.arange(1000), key=1)
        with pytest.raises(ValueError, match=message):
            sampler.draw(graph, np.arange(1000), 0, key=1)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("value", "text"), [(-1.0, "-1"), (np.nan, "NaN"), (np.inf, "inf")])
def test_bad_weights_are_named(replace: bool, value: float, text: str) -> None:
    plain = ring()
    for dtype in (np.float32, np.float64):
        graph = CSC(plain.indptr, plain.indices, np.ones(2000, dtype))
        assert graph.weight is not None
        graph.weight[7] = value
        sampler = WeightedSampler([1], replace=replace)
        sampler.sample(graph, np.arange(3), key=1)  # does not read the edge
        with pytest.raises(ValueError, match=rf"weight\[7\] = {text} is not a finite number of at least 0"):
            sampler.sample(graph, np.arange(10), key=1)


def test_weights_that_sum_to_infinity_are_an_error() -> None:
    graph = CSC(np.array([0, 2, 2]), np.array([1, 1]), np.full(2, 1e308))
    with pytest.raises(ValueError, match="edges into node 0 sum to infinity"):
        WeightedSampler([1], replace=True).draw(graph, np.array([0]), 0, key=1)
    assert len(WeightedSampler([1]).draw(graph, np.array([0]), 0, key=1).sources) == 1


def test_nodes_without_positive_weights_draw_nothing() -> None:
    graph = CSC(np.array([0, 2, 4]), np.array([1, 1, 0, 1]), np.array([0.0, 0.0, 1.0, 0.0]))
    for replace in (False, True):
        for fanout, expected in ((1, [0, 0, 1]), (-1, [0, 0, 1]), (0, [0, 0, 0])):
            hop = WeightedSampler([fanout], replace=replace, importance="sum").draw(graph, np.arange(2), 0, key=1)
            assert hop.indptr.tolist() == expected
            assert hop.edge_ids is not None
            assert (hop.edge_ids == 2).all()


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"degrees\[1\] = -2 is out of range"):
        _core.water_fill(np.array([1, -2]), 1)
    with pytest.raises(ValueError, match="alpha=inf must be finite"):
        WeightedSampler([1], alpha=np.inf)


@pytest.mark.slow
def test_random_garbage_in_a_graph_never_crashes() -> None:
    random = np.random.default_rng(0)
    sampler = NeighborSampler([3, 2, 2])
    for _ in range(300):
        graph = ring(50, np.int32 if random.random() < 0.5 else np.int64)
        for _ in range(3):
            array = graph.indptr if random.random() < 0.5 else graph.indices
            array[random.integers(len(array))] = random.choice([-(2**31), -1, 0, 49, 50, 51, 2**31 - 1])
        try:
            batch = sampler.sample(graph, random.permutation(50)[:20], key=1)
        except ValueError:
            continue
        assert ((batch.input_nodes >= 0) & (batch.input_nodes < 50)).all()
