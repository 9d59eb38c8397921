from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.sampler.batching import BatchSchedule, Epoch, tree_sizes

sizes = st.integers(1, 9)


def plan_epoch(
    seeds: np.ndarray, batch_size: int, *, key: int | None = 0, costs: np.ndarray | None = None, **options: Any
) -> Epoch:
    """Balances by costs if there are any, and shuffles if there is a key."""
    batching = "plain" if costs is None else "balanced"
    ids = np.ascontiguousarray(seeds)
    schedule = BatchSchedule(ids, batch_size, batching=batching, shuffle=key is not None, **options)
    return schedule.epoch(key or 0, costs)


def batches(epoch: Epoch) -> list[list[np.ndarray]]:
    """The batches of each step."""
    return [[epoch.batch(step, rank) for rank in range(epoch.world_size)] for step in range(epoch.num_steps)]


def imbalance(sums: np.ndarray) -> float:  # [..., world_size]
    return float((sums.max(-1) / sums.mean(-1)).max())


def random_graph(num_nodes: int, num_edges: int, key: int) -> CSC:
    rng = np.random.default_rng(key)
    skewed = (num_nodes * rng.random(num_edges) ** 3).astype(np.int64)
    return CSC.from_edges(rng.integers(0, num_nodes, num_edges), skewed, num_nodes)


@pytest.mark.slow
@given(st.sets(st.integers(0, 10**12)), sizes, sizes, st.none() | st.integers(0, 9), sizes, st.booleans())
def test_an_epoch_holds_every_seed_once(
    seeds: set[int], batch_size: int, world_size: int, key: int | None, window: int, even: bool
) -> None:
    ids = np.array(sorted(seeds), np.int64)
    costs = ids % 7 + 0.5 if even else None
    epoch = plan_epoch(ids, batch_size, world_size=world_size, key=key, costs=costs, window=window)
    steps = batches(epoch)
    held = np.concatenate([np.empty(0, np.int64), *(batch for step in steps for batch in step)])
    np.testing.assert_array_equal(np.sort(held), np.arange(len(ids)))
    counts = np.array([[len(batch) for batch in step] for step in steps]).reshape(-1, world_size)
    assert (counts[:-1] == batch_size).all()
    assert (np.ptp(counts, axis=1) <= 1).all()
    assert (np.diff(counts, axis=1) <= 0).all()
    for rank in range(world_size):
        own, offsets = epoch.of_rank(rank)
        assert len(offsets) == epoch.num_steps + 1
        for step, (start, stop) in enumerate(pairwise(offsets)):
            np.testing.assert_array_equal(own[start:stop], steps[step][rank])


@pytest.mark.slow
@given(sizes, sizes, st.integers(0, 200), st.booleans())
def test_dropping_the_last_step_leaves_whole_ones(batch_size: int, world_size: int, count: int, even: bool) -> None:
    costs = np.arange(count) % 5.0 if even else None
    epoch = plan_epoch(np.arange(count), batch_size, world_size=world_size, costs=costs, drop_last=True)
    assert epoch.num_steps == count // (batch_size * world_size)
    assert all(len(batch) == batch_size for step in batches(epoch) for batch in step)


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_shares_deal_the_same_seeds_of_each_step_out_in_proportion(count: int, size: int, parts: list[int]) -> None:
    shares = [(part + 0.1) / sum(other + 0.1 for other in parts) for part in parts]
    even = plan_epoch(np.arange(count), size, world_size=len(parts), key=1)
    dealt = plan_epoch(np.arange(count), size, world_size=len(parts), key=1, shares=shares)
    np.testing.assert_array_equal(dealt.order, even.order)
    np.testing.assert_array_equal(dealt.bounds[:, [0, -1]], even.bounds[:, [0, -1]])
    sizes = np.diff(dealt.bounds, axis=1)
    assert (np.abs(sizes - sizes.sum(1, keepdims=True) * shares) <= 1).all()


def test_without_a_key_seeds_keep_their_order() -> None:
    seeds = np.array([5, 3, 9, 1, 7])
    np.testing.assert_array_equal(seeds[plan_epoch(seeds, 2, key=None).order], seeds)


def test_the_shuffle_follows_from_the_key_and_the_set_of_seeds() -> None:
    seeds = np.arange(100)
    shuffled = seeds[plan_epoch(seeds, 7, key=3).order]
    np.testing.assert_array_equal(seeds[::-1][plan_epoch(seeds[::-1], 7, key=3).order], shuffled)
    assert (seeds[plan_epoch(seeds, 7, key=4).order] != shuffled).any()


@pytest.mark.slow
def test_every_order_is_equally_likely() -> None:
    counts = np.zeros((4, 4))
    for key in range(4_000):
        counts[np.arange(4), plan_epoch(np.arange(4), 1, key=key).order] += 1
    chi_square = ((counts - 1_000) ** 2 / 1_000).sum()
    assert chi_square < 27.9  # 9 degrees of freedom, p = 0.001


@pytest.mark.slow
def test_a_seed_is_equally_likely_in_each_batch_of_an_even_window() -> None:
    costs = np.array([100.0, 50, 3, 2, 1, 1, 1, 0])
    places = np.zeros((8, 4))
    for key in range(2_000):
        epoch = plan_epoch(np.arange(8), 2, world_size=2, costs=costs, window=2, key=key)
        places[epoch.order, np.arange(8) // 2] += 1
    chi_square = ((places - 500) ** 2 / 500).sum(axis=1)
    assert (chi_square < 21).all(), chi_square  # 3 degrees of freedom, p = 0.001 for each of 8


def test_even_batches_compute_the_seeds_of_plain_ones_at_each_step() -> None:
    rng = np.random.default_rng(0)
    seeds, costs = rng.permutation(10_000)[:1_003], rng.pareto(1.0, 1_003)
    plain = plan_epoch(seeds, 16, world_size=4, key=5)
    even = plan_epoch(seeds, 16, world_size=4, key=5, costs=costs, window=1)
    for step in range(plain.num_steps):
        of_step = [np.sort(np.concatenate([e.batch(step, rank) for rank in range(4)])) for e in (plain, even)]
        np.testing.assert_array_equal(*of_step)


def test_even_batches_cost_the_same_over_ranks_and_steps() -> None:
    rng = np.random.default_rng(0)
    costs = np.minimum(rng.pareto(1.0, 16_384), 900.0)
    sums = {
        even: np.array([[costs[batch].sum() for batch in step] for step in batches(epoch)])
        for even, epoch in (
            (False, plan_epoch(np.arange(16_384), 256, world_size=8)),
            (True, plan_epoch(np.arange(16_384), 256, world_size=8, costs=costs)),
        )
    }
    assert imbalance(sums[False]) > 1.1
    assert imbalance(sums[True].ravel()) < 1.001


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
def test_tree_sizes_are_the_means_of_sampled_trees(replace: bool) -> None:
    graph = random_graph(40, 300, key=1)
    fanouts = [3, -1, 2]
    rng = np.random.default_rng(2)

    def sampled(node: int, hop: int) -> int:
        sources = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        if hop == len(fanouts) or len(sources) == 0:
            return 0
        fanout = fanouts[hop]
        if fanout == -1:
            drawn = sources
        elif replace:
            drawn = rng.choice(sources, fanout)
        else:
            drawn = rng.choice(sources, min(fanout, len(sources)), replace=False)
        return len(drawn) + sum(sampled(int(source), hop + 1) for source in drawn)

    seeds = np.array([0, 3, 39])
    trees = np.array([[sampled(int(seed), 0) for seed in seeds] for _ in range(300)])
    error = trees.std(axis=0) / np.sqrt(len(trees))
    assert (np.abs(trees.mean(axis=0) - tree_sizes(graph, seeds, fanouts, replace=replace)) <= 4 * error + 1e-9).all()


@pytest.mark.slow
def test_tree_sizes_have_the_same_bits_on_any_number_of_threads() -> None:
    graph = random_graph(50_000, 3_000_000, key=0)
    seeds = np.arange(0, 50_000, 3)
    once = tree_sizes(graph, seeds, [15, 10, 5])
    for threads in (2, 3, 16):
        np.testing.assert_array_equal(tree_sizes(graph, seeds, [15, 10, 5], threads=threads), once)


def test_bad_input_names_the_rule_and_the_value() -> None:
    seeds = np.arange(4)
    for name in ("batch_size", "world_size", "window"):
        for size in (0, 1.5, 2**40):
            with pytest.raises(UserError, match=f"{name}={size} must be a whole number from 1 to"):
                plan_epoch(seeds, **{"batch_size": 2, name: size})
    with pytest.raises(ValueError, match=r"costs\[\d\] = NaN is not finite"):
        plan_epoch(seeds, 2, costs=np.array([0, 1, np.nan, 2]))
    with pytest.raises(ValueError, match="costs must be a number for each of 4 seeds, got float64 of shape"):
        plan_epoch(seeds, 2, costs=np.ones(3))
    with pytest.raises(ValueError, match=r"seeds\[1\] = 40 is out of range for 40 nodes"):
        tree_sizes(random_graph(40, 30, key=0), np.array([0, 40]), [3])
    with pytest.raises(UserError, match=r"fanouts\[0\]=2.5 must be a whole number"):
        tree_sizes(random_graph(40, 30, key=0), seeds, [2.5])
    with pytest.raises(UserError, match="groups has 3 entries, expected 4"):
        plan_epoch(seeds, 2, groups=np.arange(3))


def test_the_identity_of_batches_names_seeds_and_costs() -> None:
    def of(seeds: list[int], costs: list[float] | None) -> dict[str, object]:
        plan = BatchSchedule(np.array(seeds), 2)
        return plan.identity(None if costs is None else np.array(costs))

    found = [of([1, 2], None), of([1, 3], None), of([1, 2], [1.0, 2.0]), of([1, 2], [1.0, 3.0])]
    assert len({str(each) for each in found}) == 4
    assert of([1, 2], [1.0, 2.0]) == found[2]


@pytest.mark.parametrize("grouped", [False, True])
def test_repeated_seeds_leave_no_batch_empty_and_change_no_other_step(grouped: bool) -> None:
    for num_units, size, world_size in itertools.product((0, 1, 2, 3, 5, 8, 9), (1, 2, 3), (1, 2, 3, 4)):
        seeds = np.arange(2 * num_units if grouped else num_units) * 3
        keys = {"world_size": world_size, "key": 5, "groups": seeds // 6 if grouped else None}
        plain, full = (plan_epoch(seeds, size, **keys, repeat=repeat) for repeat in (False, True))
        assert full.num_steps == plain.num_steps
        ranks = range(world_size)
        for step in range(plain.num_steps):
            before, after = ([each.batch(step, rank) for rank in ranks] for each in (plain, full))
            assert all(map(len, after)), (num_units, size, world_size)
            assert {*np.concatenate(after).tolist()} == {*np.concatenate(before).tolist()}
            if all(map(len, before)):
                assert all(map(np.array_equal, before, after))
