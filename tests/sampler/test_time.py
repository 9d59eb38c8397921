"""Seeds see the edges of the past only, and a node at two times is two rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, MiniBatch, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import ALWAYS, NEVER, PathOccurrences, latest_visible
from gnnkit.sampler import FullSampler, LaborSampler, NeighborSampler, WeightedSampler
from gnnkit.sampler.base import NativeSampler

# Eight events of six nodes, two of them at time 4. Node 5 has an edge without a time.
SRC = [1, 2, 3, 0, 4, 1, 2, 5]
DST = [0, 0, 0, 1, 1, 2, 3, 0]
TIME = [2, 4, 4, 1, 3, 3, 2, NEVER]


def events() -> CSC:
    graph = in_time_order(Graph.from_edges(SRC, DST, 6, edge_time=TIME))
    return CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time)


def in_window(window: int, fanout: int = -1, **options: Any) -> NeighborSampler:
    return NeighborSampler([fanout], time="window", window=window, **options)


def tree(batch: MiniBatch) -> list[list[tuple[int, int]]]:
    """Returns the neighbours (node, time) of each row that draws."""
    outer = batch.blocks[0]
    assert batch.nodes is not None
    assert batch.times is not None
    rows = list(zip(batch.nodes.tolist(), batch.times.tolist(), strict=True))
    indices = outer.indices.tolist()
    return [
        sorted(rows[place] for place in indices[first:last])
        for first, last in zip(outer.indptr[:-1], outer.indptr[1:], strict=True)
    ]


def rows(batch: MiniBatch) -> list[tuple[int, int]]:
    assert batch.nodes is not None
    assert batch.times is not None
    return list(zip(batch.nodes.tolist(), batch.times.tolist(), strict=True))


@pytest.mark.parametrize(
    ("rule", "time", "expected"),
    [
        ("strict", 1, []),
        ("strict", 2, []),
        ("strict", 3, [1]),
        ("strict", 4, [1]),
        ("strict", 5, [1, 2, 3]),
        ("strict", NEVER, [1, 2, 3]),
        ("inclusive", 1, []),
        ("inclusive", 2, [1]),
        ("inclusive", 4, [1, 2, 3]),
        ("inclusive", NEVER, [1, 2, 3]),
        (1, 2, []),
        (1, 3, [1]),
        (1, 4, []),
        (2, 4, [1]),
        (1, 5, [2, 3]),
        (3, 5, [1, 2, 3]),
        (NEVER, 5, [1, 2, 3]),
        (2, ALWAYS + 1, []),
    ],
)
def test_a_seed_sees_the_edges_before_its_time(rule: str | int, time: int, expected: list[int]) -> None:
    sampler = NeighborSampler([-1], time=rule) if isinstance(rule, str) else in_window(rule)
    batch = sampler.sample(events(), np.array([0]), key=0, times=np.array([time]))
    assert [node for node, _ in tree(batch)[0]] == expected


def test_hops_are_bounded_by_the_edges_of_the_path() -> None:
    sampler = FullSampler(2, time="strict", time_bound="path")
    batch = sampler.sample(events(), np.array([0, 0, 1]), key=0, times=np.array([3, 5, 5]))
    since = events().time
    assert since is not None
    outer = batch.blocks[0]
    assert outer.edge_ids is not None
    places, drawn = rows(batch), np.diff(outer.indptr)
    for row, source, edge in zip(
        np.repeat(np.arange(outer.num_dst), drawn), outer.indices, outer.edge_ids, strict=True
    ):
        time = places[row][1]
        assert since[edge] < time
        assert places[source][1] == (time if since[edge] == ALWAYS else since[edge])
    assert {time for _, time in places} > {3, 5}


@pytest.mark.parametrize("disjoint", [False, True])
def test_threads_and_owners_number_the_trees_of_paths_alike(disjoint: bool) -> None:
    rng, count = np.random.default_rng(0), 40_000
    dst = np.sort(rng.integers(0, 500, count))
    times = rng.integers(0, 50, count)
    csc = CSC(
        np.append(0, np.cumsum(np.bincount(dst, minlength=500))),
        rng.integers(0, 500, count),
        time=times[np.lexsort((times, dst))],
    )
    seeds, at = rng.choice(500, 300, replace=False), rng.integers(20, 50, 300)
    one, many = (
        NeighborSampler([20, 20], time="strict", time_bound="path", threads=threads).sample(
            csc, seeds, key=1, times=at, disjoint=disjoint
        )
        for threads in (1, 4)
    )
    assert len(one.blocks[0].indices) > 80_000, "so that several threads draw"
    np.testing.assert_array_equal(one.nodes, many.nodes)
    np.testing.assert_array_equal(one.times, many.times)
    np.testing.assert_array_equal(one.blocks[0].indices, many.blocks[0].indices)
    of, known = PathOccurrences(np.array([3, 5, 5][: 3 if disjoint else 2]), 10, disjoint=disjoint), {}
    for tree, time in enumerate(of.times.tolist()):
        known[tree if disjoint else 0, time] = tree
    for _ in range(3):
        trees, since = rng.integers(0, len(of.times), 30), rng.choice([ALWAYS, 0, 1, 2, 3, 4, 5], 30)
        roots = of._roots[trees].tolist()
        for tree, root, time, followed in zip(
            trees.tolist(), roots, since.tolist(), of.follow(trees, since), strict=True
        ):
            assert followed == (tree if time == ALWAYS else known.setdefault((root, time), followed))
    assert len(of.times) == len(known) == len(set(known.values()))


def test_all_hops_are_bounded_by_the_time_of_the_seed() -> None:
    sampler = NeighborSampler([-1, -1], time="strict")
    batch = sampler.sample(events(), np.array([0, 0, 1]), key=0, times=np.array([3, 5, 5]))
    found = dict(zip(rows(batch), tree(batch), strict=False))
    assert found == {
        (0, 3): [(1, 3)],
        (0, 5): [(1, 5), (2, 5), (3, 5)],
        (1, 5): [(0, 5), (4, 5)],
        (1, 3): [(0, 3)],
        (2, 5): [(1, 5)],
        (3, 5): [(2, 5)],
        (4, 5): [],
    }
    assert rows(batch)[:3] == [(0, 3), (0, 5), (1, 5)]
    assert batch.seeds.tolist() == [0, 0, 1]
    assert len(set(rows(batch))) == len(rows(batch))  # seeds of one time share rows


def test_seeds_that_are_disjoint_share_no_rows() -> None:
    sampler = NeighborSampler([-1, -1], time="strict")
    seeds, times = np.array([0, 0, 1]), np.array([5, 5, 5])
    batch = sampler.sample(events(), seeds, key=0, times=times, disjoint=True)
    (first, second, third, *_) = tree(batch)
    assert first == second == [(1, 5), (2, 5), (3, 5)]
    assert third == [(0, 5), (4, 5)]
    assert rows(batch).count((0, 5)) == 3
    with pytest.raises(UserError, match="repeat"):
        sampler.sample(events(), seeds, key=0, times=times)


def test_the_last_edges_are_the_latest_that_a_seed_sees() -> None:
    sampler = NeighborSampler([2], time="strict", pick="last")
    csc = events()
    for key in range(5):
        batch = sampler.sample(csc, np.array([0, 1]), key=key, times=np.array([4, 4]))
        assert [[node for node, _ in row] for row in tree(batch)] == [[1], [0, 4]]
        batch = sampler.sample(csc, np.array([0]), key=key, times=np.array([9]))
        assert [node for node, _ in tree(batch)[0]] == [2, 3]


def test_an_edge_is_visible_from_its_time_and_its_sources() -> None:
    graph = Graph.from_edges([1, 2, 3, 4], [0, 0, 0, 0], 5, edge_time=[5, 1, ALWAYS, 2], node_time=[9, 2, 7, 3, NEVER])
    timed = in_time_order(graph)
    assert timed.edge_time is not None
    assert list(zip(timed.csc.indices.tolist(), timed.edge_time.tolist(), strict=True)) == [
        (3, 3),
        (1, 5),
        (2, 7),
        (4, NEVER),
    ]
    static = in_time_order(Graph.from_edges([1, 2], [0, 0], 3, node_time=[9, 2, 1]))
    assert static.edge_time is not None
    assert static.csc.indices.tolist() == [2, 1]


def random_events(seed: int, typed: bool) -> tuple[CSC | RelationGroups, Graph]:
    rng = np.random.default_rng(seed)
    n, m = 20, 160
    graph = in_time_order(
        Graph.from_edges(
            rng.integers(0, n, m),
            rng.integers(0, n, m),
            n,
            edge_time=rng.integers(0, 12, m),
            node_time=rng.integers(0, 8, n),
            edge_types=rng.integers(0, 3, m) if typed else None,
        )
    )
    csc = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time)
    return (RelationGroups.of(csc, graph.edge_types, ("a", "b", "c")) if typed else csc), graph


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("pick", ["uniform", "last"])
def test_draws_equal_brute_force_over_the_edge_list(typed: bool, pick: str) -> None:
    fanout = 2
    for seed in range(20):
        drawn, graph = random_events(seed, typed)
        dst = np.repeat(np.arange(20), np.diff(graph.csc.indptr))
        types = np.zeros(len(dst), int) if graph.edge_types is None else graph.edge_types
        rng = np.random.default_rng(seed)
        seeds, times = rng.integers(0, 20, 9), rng.integers(0, 14, 9)
        for rule in ("strict", "inclusive"):
            sampler = NeighborSampler([fanout, fanout], time=rule, pick=pick)
            batch = sampler.sample(drawn, seeds, key=seed, times=times, disjoint=True)
            outer = batch.blocks[0]
            bound = latest_visible(np.asarray(batch.times), rule)
            assert outer.edge_ids is not None
            for row in range(outer.num_dst):
                ids = outer.edge_ids[outer.indptr[row] : outer.indptr[row + 1]]
                node = np.asarray(batch.nodes)[row]
                for relation in range(3):
                    in_row = (dst == node) & (types == relation)
                    seen = np.flatnonzero(in_row & (np.asarray(graph.edge_time) <= bound[row]))
                    ids_of = ids[types[ids] == relation]
                    assert len(ids_of) == min(fanout, len(seen))
                    assert set(ids_of) <= set(seen[-fanout:] if pick == "last" else seen)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("time", ["none", "strict"])
def test_a_weighted_pick_is_the_weighted_sampler(time: str, replace: bool) -> None:
    drawn, graph = random_events(5, typed=False)
    assert isinstance(drawn, CSC)
    weight = np.random.default_rng(5).integers(0, 4, graph.num_edges).astype(np.float32)
    csc = CSC(drawn.indptr, drawn.indices, weight, time=drawn.time)
    times = None if time == "none" else np.full(20, 9)
    batches = [
        sampler.sample(csc, np.arange(20), key=7, times=times)
        for sampler in (
            NeighborSampler([2, 2], replace=replace, time=time, pick="weighted"),
            WeightedSampler([2, 2], replace=replace, time=time),
        )
    ]
    first, second = (batch.blocks[0] for batch in batches)
    assert first.edge_ids is not None
    np.testing.assert_array_equal(first.edge_ids, second.edge_ids)
    assert weight[first.edge_ids].min() > 0
    uniform = NeighborSampler([2, 2], replace=replace, time=time).sample(csc, np.arange(20), key=7, times=times)
    assert not np.array_equal(uniform.blocks[0].edge_ids, first.edge_ids)  # type: ignore[arg-type]


def test_draws_follow_from_node_time_and_key_alone() -> None:
    drawn, _ = random_events(3, typed=False)
    sampler = NeighborSampler([2, 2], time="strict")
    seeds, times = np.repeat(np.arange(20), 3), np.tile([5, 8, 11], 20)
    whole = sampler.sample(drawn, seeds, key=4, times=times)
    by_row = dict(zip(rows(whole), tree(whole), strict=False))
    for i in range(len(seeds)):
        alone = sampler.sample(drawn, seeds[i : i + 1], key=4, times=times[i : i + 1])
        assert all(by_row[row] == neighbours for row, neighbours in zip(rows(alone), tree(alone), strict=False))


def test_edges_without_a_time_are_in_every_window() -> None:
    graph = in_time_order(Graph.from_edges([1, 2, 3, 4], [0, 0, 0, 0], 5, edge_time=[ALWAYS, 1, 5, ALWAYS]))
    csc = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time)
    seed = np.array([0])
    for sampler, time, expected in (
        (in_window(2), 7, [1, 3, 4]),
        (in_window(2), 9, [1, 4]),
        (in_window(2), 3, [1, 2, 4]),
        (in_window(2, 2, pick="last"), 7, [3, 4]),
        (in_window(2, 1, pick="last"), 9, [4]),
    ):
        batch = sampler.sample(csc, seed, key=0, times=np.array([time]))
        assert [node for node, _ in tree(batch)[0]] == expected
    draws = [in_window(2, 2).sample(csc, seed, key=key, times=np.array([7])) for key in range(50)]
    assert {node for batch in draws for node, _ in tree(batch)[0]} == {1, 3, 4}


@pytest.mark.parametrize("replace", [False, True])
def test_weights_are_those_of_the_edges_in_the_window(replace: bool) -> None:
    weight = np.array([1.0, 100.0, 100.0, 3.0])  # in order of time, of which the second and third are too early
    csc = CSC(np.array([0, 4, 4, 4, 4, 4]), np.array([1, 2, 3, 4]), weight, time=np.array([ALWAYS, 1, 2, 5]))
    sampler = WeightedSampler([1], replace=replace, time="window", window=2, importance="sum")
    batches = [sampler.sample(csc, np.array([0]), key=key, times=np.array([7])) for key in range(400)]
    drawn = np.array([tree(batch)[0][0][0] for batch in batches])
    assert set(drawn) == {1, 4}
    assert 0.65 < (drawn == 4).mean() < 0.85
    if replace:  # 1 / probability
        weights = {float(np.asarray(batch.blocks[0].weight)[0]) for batch in batches}
        assert sorted(weights) == pytest.approx([4 / 3, 4])


@pytest.mark.parametrize("make", [NeighborSampler, WeightedSampler])
def test_edges_after_a_seed_change_no_draw(make: type[NativeSampler]) -> None:
    rng, n, m = np.random.default_rng(0), 12, 120
    src, dst, time = rng.integers(0, n, m), rng.integers(0, n, m), rng.integers(0, 20, m)
    cut = time >= 10

    def draw(other: Ids) -> list[object]:
        graph = in_time_order(Graph.from_edges(np.where(cut, other, src), dst, n, edge_time=time))
        csc = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time)
        sampler = make([3, 3], time="strict", importance="sum")  # type: ignore[call-arg]
        batch = sampler.sample(csc, np.arange(n), key=1, times=np.arange(n) % 11)
        return [rows(batch), tree(batch), [np.asarray(block.weight).tolist() for block in batch.blocks]]

    assert draw(src) == draw(rng.integers(0, n, m)) == draw(rng.integers(0, n, m))


def test_threads_change_no_draw() -> None:
    rng, n, m = np.random.default_rng(1), 3000, 60_000
    graph = in_time_order(
        Graph.from_edges(rng.integers(0, n, m), rng.integers(0, n, m), n, edge_time=rng.integers(0, 50, m))
    )
    csc = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time)
    seeds, times = np.arange(n), rng.integers(0, 50, n)
    batches = [
        NeighborSampler([5, 4], time="strict", threads=threads).sample(csc, seeds, key=1, times=times)
        for threads in (1, 2)
    ]
    assert rows(batches[0]) == rows(batches[1])
    np.testing.assert_array_equal(batches[0].blocks[0].indices, batches[1].blocks[0].indices)


def test_what_cannot_be_sampled_by_time_is_refused() -> None:
    csc, seeds, times = events(), np.array([0]), np.array([3])
    with pytest.raises(UserError, match=r"time\[1\] = 1 is before time\[0\] = 2 of the same node"):
        CSC(np.array([0, 2, 2]), np.array([0, 1]), time=np.array([2, 1]))
    assert CSC(np.array([0, 1, 2]), np.array([0, 1]), time=np.array([2, 1])).time is not None
    with pytest.raises(UserError, match=r"sampler.time=strict: expected times of seeds"):
        NeighborSampler([2], time="strict").sample(csc, seeds, key=0)
    with pytest.raises(UserError, match=r"sampler.time=none: expected no times of seeds"):
        NeighborSampler([2]).sample(csc, seeds, key=0, times=times)
    with pytest.raises(UserError, match=r"sampler.time=strict: the graph's edges have no times"):
        NeighborSampler([2], time="strict").sample(CSC(csc.indptr, csc.indices), seeds, key=0, times=times)
    with pytest.raises(UserError, match=r"sampler.pick=last needs times"):
        NeighborSampler([2], pick="last")
    with pytest.raises(UserError, match=r"sampler.pick=last takes each edge once"):
        NeighborSampler([2], time="strict", pick="last", replace=True)
    with pytest.raises(UserError, match=r"sampler.pick=last draws once"):
        NeighborSampler([2], time="strict", pick="last", redraw=True)
    with pytest.raises(UserError, match=r"sampler.pick=last takes each edge once: use sampler.options.fill=false"):
        NeighborSampler([2], time="strict", pick="last", fill=True)
    with pytest.raises(UserError, match=r"sampler.pick=weighted takes each edge once: use sampler.options.fill=false"):
        NeighborSampler([2], pick="weighted", fill=True)
    with pytest.raises(UserError, match=r"sampler.options.alpha=0.5 counts out-edges of all times"):
        WeightedSampler([2], time="strict", alpha=0.5)
    with pytest.raises(UserError, match=r"sampler.time=strict: draw needs a reading with bounds"):
        NeighborSampler([2], time="strict").draw(csc, seeds, 0, key=0)
    with pytest.raises(UserError, match=r"sampler.time=window with sampler.window=null: .*; set both or neither"):
        NeighborSampler([2], time="window")
    with pytest.raises(UserError, match=r"sampler.time=strict with sampler.window=3: .*; set both or neither"):
        NeighborSampler([2], time="strict", window=3)
    with pytest.raises(UserError, match=r"sampler.window=0 must be a whole number from 1"):
        in_window(0)
    with pytest.raises(UserError, match=r"sampler.time=window: 1 of 2 seeds have no time, so no window"):
        in_window(3).sample(csc, np.array([0, 1]), key=0, times=np.array([3, NEVER]))
    with pytest.raises(UserError, match=r"sampler.time=past"):
        FullSampler(2, time="past")
    with pytest.raises(TypeError):
        LaborSampler([2], time="strict")  # type: ignore[call-arg]
