"""The leader compares layouts that can be, and takes the least."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import memory
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.dataset.synthetic import Synthetic
from gnnkit.graph import Graph
from gnnkit.jobs.decide import compared
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid, make_grid, unequal_columns
from gnnkit.partition.hash import Hash
from gnnkit.partition.hdrf import Hdrf
from gnnkit.partition.quality import measure
from gnnkit.partition.streaming import Streaming
from gnnkit.plan import choose
from gnnkit.plan.choose import Cutter, Decision, alternatives, assign, candidates, least, overrides, promising, too_slow
from gnnkit.plan.machine import Link, Machine
from gnnkit.plan.predict import Load, predict
from gnnkit.plan.sample import sampled
from tests.cases import few

INSTALLED = ("contiguous", "balanced", "ldg", "buffered")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Synthetic("rmat", 1500, 7500, width=3).load()


def partition_of(graph: Graph, grid: Grid) -> Partition:
    owner = np.random.default_rng(0).choice(grid.world_size, graph.num_nodes, p=[0.1, 0.2, 0.3, 0.4])
    return Partition(owner.astype(np.int32), None, grid)


@pytest.mark.parametrize("grid", [Grid(4, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2)])
def test_a_sample_of_a_graph_looks_like_the_graph_to_each_rank(grid: Grid) -> None:
    graph = Synthetic("sbm", 8000, 60_000, width=1).load()
    partition = partition_of(graph, grid)
    whole, part = measure(graph, partition), measure(*sampled(graph, partition, 0.25))
    assert part.traffic.num_owned == pytest.approx(whole.traffic.num_owned / 4, abs=1)
    assert part.num_held == pytest.approx(whole.num_held / 4, rel=0.1)
    assert part.words == pytest.approx(whole.words / 4, rel=0.1)


def test_a_sample_has_the_in_edges_of_its_nodes_and_their_features(graph: Graph) -> None:
    partition = partition_of(graph, Grid(4, 1, 1))
    smaller, owners = sampled(graph, partition, 0.3)
    rows = {row.tobytes(): node for node, row in enumerate(graph.features)}
    nodes = np.array([rows[row.tobytes()] for row in smaller.features])
    assert (np.diff(nodes) > 0).all()  # in the order of the graph
    assert np.array_equal(np.diff(smaller.csc.indptr), np.diff(graph.csc.indptr)[nodes])
    assert np.array_equal(owners.node_rank, partition.node_rank[nodes])
    source_rank = owners.node_rank[smaller.csc.indices]
    ranges = zip(graph.csc.indptr[nodes], graph.csc.indptr[nodes + 1], strict=True)
    edges = np.concatenate([np.arange(first, last) for first, last in ranges])
    assert np.array_equal(source_rank, partition.node_rank[graph.csc.indices[edges]])


def test_a_sample_keeps_the_cells_of_a_vertex_cut(graph: Graph) -> None:
    partition = Hdrf().assign(graph, Grid(4, 1, 1))
    part = measure(*sampled(graph, partition, 0.5))
    assert part.num_held == pytest.approx(measure(graph, partition).num_held / 2, rel=0.3)


def test_the_whole_share_is_the_graph_itself(graph: Graph) -> None:
    partition = partition_of(graph, Grid(4, 1, 1))
    assert sampled(graph, partition, 1) == (graph, partition)


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 7, 8])
def test_candidates_fit_the_workers_and_no_grid_comes_twice(workers: int) -> None:
    found = candidates(workers, INSTALLED, grids=True)
    assert next(iter(found)) == "contiguous"
    plain = [
        (each.nodes.name, make_grid(each.grid, workers), unequal_columns(each.grid, workers, None))
        for each in found.values()
        if each.border == "none"
    ]
    assert len(set(plain)) == len(plain)
    assert len({overrides(each) for each in found.values()}) == len(found)
    assert all(each.grid == "1d" for each in candidates(workers, INSTALLED, grids=False).values())
    assert {each.nodes.name for each in found.values()} <= set(INSTALLED)


@pytest.mark.slow
@few("workers,first", [(1, 0), *((4, first) for first in range(5))], default=[(1, 0)])
def test_overrides_of_a_candidate_give_the_candidate(workers: int, first: int) -> None:
    for each in list(candidates(workers, INSTALLED, grids=True).values())[first::5]:
        given = settle(compose(["strategy=vertex_centric", f"workers={workers}", *overrides(each).split()])).partition
        assert (given.nodes.name, given.grid, given.border) == (each.nodes.name, each.grid, each.border)
        defaults, named = each.nodes.load()(), each.nodes.load()(**given.nodes.arguments)
        assert vars(defaults) == vars(named)  # options of the YAML are those of the constructor


@pytest.mark.slow
def test_layouts_that_another_one_beats_are_left_out(graph: Graph) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named = candidates(4, INSTALLED, grids=True)
    found = dict(promising(settings, graph, named))
    assert 1 < len(found) <= 6
    assert list(found) == [name for name in named if name in found]
    same = {**{f"again {name}": each for name, each in list(named.items())[:1]}}
    assert list(promising(settings, graph, {"contiguous": named["contiguous"], **same})) != []
    assert [name for name, _ in promising(settings, graph, {"contiguous": named["contiguous"], **same})] == [
        "contiguous"
    ]


def test_a_partitioner_of_any_package_takes_part_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compared()
    assert before[:4] == list(INSTALLED)
    assert "hash" not in before
    monkeypatch.setattr(Hash, "auto_seconds", 0.01)
    assert compared() == ["contiguous", "balanced", "hash", *before[2:]]


@pytest.mark.slow
def test_slow_partitioners_cut_no_large_graph(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hash, "auto_seconds", 1.0)
    named = candidates(4, [*INSTALLED, "hash"], grids=False)
    assert too_slow(named, 1_500_000) == []  # 0.01, 0.05, 0.3 and 1.5 seconds
    assert too_slow(named, 2_000_000) == ["hash"]
    assert too_slow(named, 20_000_000) == ["buffered", "hash"]
    assert too_slow(named, 2_000_000_000) == [*INSTALLED[1:], "hash"]
    settings, names = settle(compose(["strategy=vertex_centric", "workers=4"])), []

    def noted(self: Cutter, chosen: Any) -> Partition:
        names.append(chosen.nodes.name)
        return partition_of(graph, Grid(4, 1, 1))

    monkeypatch.setattr(Cutter, "cut", noted)
    list(promising(settings, graph, named))
    assert "hash" in names
    names.clear()
    monkeypatch.setattr(Hash, "auto_seconds", 4e6 / graph.num_edges)
    list(promising(settings, graph, named))
    assert set(names) == set(INSTALLED)


@pytest.mark.slow
def test_looks_at_borders_and_grids_of_a_large_graph_are_few(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named, seen = candidates(4, INSTALLED, grids=True), []

    def noted(self: Cutter, chosen: Any) -> Partition:
        seen.append((chosen.border, chosen.grid))
        return partition_of(graph, make_grid(chosen.grid, 4))

    monkeypatch.setattr(Cutter, "cut", noted)
    list(promising(settings, graph, named))
    assert sum(border != "none" for border, _ in seen) == 3 * len(INSTALLED)
    seen.clear()
    look = choose.MEASURING + choose.IMPROVING
    monkeypatch.setattr(choose, "LOOKING", 1.1 * look * graph.num_edges / 1e6)
    list(promising(settings, graph, named))
    assert [border for border, _ in seen if border != "none"] == ["min_words"]
    assert sum(grid == "1d" and border == "none" for border, grid in seen) == len(INSTALLED)


@pytest.mark.slow
def test_layouts_that_are_alike_are_tried_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named = candidates(4, ["contiguous", "balanced"], grids=False)
    first = partition_of(graph, Grid(4, 1, 1))
    owners = first.node_rank.copy()
    owners[np.flatnonzero(owners == 3)[0]] = 0  # the rank with most nodes has one less
    cuts = iter([first, Partition(owners, None, first.grid)])
    monkeypatch.setattr(Cutter, "cut", lambda self, chosen: next(cuts))
    assert list(dict(promising(settings, graph, dict(list(named.items())[:2])))) == ["contiguous"]


@pytest.mark.slow
def test_a_partitioner_far_from_the_best_is_tried_on_one_grid(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named, seen = candidates(4, INSTALLED, grids=True), []
    cut = Cutter.cut

    def noted(self: Cutter, chosen: Any) -> Partition:
        seen.append(chosen)
        return cut(self, chosen)

    monkeypatch.setattr(Cutter, "cut", noted)
    monkeypatch.setattr(choose, "WORSE", 1.0)
    list(promising(settings, graph, named))
    several = [each.nodes.name for each in seen if make_grid(each.grid, 4).num_cells > 1]
    assert several[: len(INSTALLED)] == list(INSTALLED)
    assert len(set(several[len(INSTALLED) :])) == 1
    assert any(make_grid(each.grid, 4).num_cells == 1 for each in seen), "no cell, where all partitioners are alike"


@pytest.mark.slow
def test_a_partitioner_finds_the_owners_of_all_grids_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4", "partition=ldg", "partition.border=min_words"]))
    named = candidates(4, INSTALLED, grids=True)
    cuts = {name: assign(graph, each, 4) for name, each in named.items()}
    calls: list[str] = []
    owners = Streaming.assign_nodes

    def counted(self: Streaming, graph: Graph, num_parts: int) -> Any:
        calls.append(type(self).__name__)
        return owners(self, graph, num_parts)

    monkeypatch.setattr(Streaming, "assign_nodes", counted)
    for name, quality in promising(settings, graph, named, most=len(named)):
        assert np.array_equal(quality.partition.node_rank, cuts[name].node_rank)
    assert calls == ["Ldg"]
    cutter = Cutter(graph, 4)
    chosen = measure(graph, cutter.cut(settings.partition))
    assert len(list(alternatives(settings, cutter, chosen))) > 1
    assert calls == ["Ldg", "Ldg"]


@pytest.mark.slow
def test_owners_of_a_partition_that_was_cut_are_not_found_again(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4", "partition=ldg"]))
    partition = assign(graph, settings.partition, 4)
    monkeypatch.setattr(Streaming, "assign_nodes", None)
    decision = Decision.of(settings, graph, measure(graph, partition))
    assert len(decision.layouts) > 2


def figures(
    seconds: float | None, work: int, host_memory: float = 0, words: int = 0, memory: int = 0
) -> dict[str, Any]:
    timed = {} if seconds is None else {"seconds": seconds, "host_memory": host_memory}
    return {"words": {"max": words}, "work": work, "memory_of_busiest_rank": {"features": memory}, **timed}


def test_the_least_seconds_win_and_ties_go_to_counted_work_then_order() -> None:
    assert least({"a": figures(2.0, 1), "b": figures(1.0, 9)}, math.inf) == "b"
    assert least({"a": figures(1.07, 5), "b": figures(1.0, 9)}, math.inf) == "a"
    assert least({"a": figures(1.09, 5), "b": figures(1.0, 9)}, math.inf) == "b"
    assert least({"a": figures(1.0, 5), "b": figures(1.0, 5)}, math.inf) == "a"
    assert least({"a": figures(1.0, 5, host_memory=100), "b": figures(2.0, 5, host_memory=80)}, 100) == "b"
    assert least({"a": figures(1.0, 5, host_memory=100)}, 100) is None
    assert least({"a": figures(None, 5, words=7), "b": figures(None, 5, words=3)}, 0) == "b"
    assert least({"a": figures(None, 5, words=3, memory=2), "b": figures(None, 5, words=3, memory=1)}, 0) == "b"


FAST = Link(0, math.inf)


def load(**changed: Any) -> Load:
    given = {
        "messages": [4, 2],
        "received": [1000, 3000],
        "tensors": [50, 100],
        "buffers": [5, 10],
        "gradient": 0,
        "tried": [1, 0],
        "shares": [0.5, 0.5],
        "far_messages": [0.0, 0.0],
        "far_bytes": [0.0, 0.0],
    }
    return Load.of(given | changed)


def test_a_prediction_adds_compute_and_exchange_of_the_slowest_ranks() -> None:
    one = Machine(1, Link(0.5, 1000), Link(9, 9), memory=1e9, ranks_per_host=2, base=7, step=0.25)
    found = predict(one, load(), [[3.0, 40], [2.0, 25]], slowdown=2)
    assert found.compute == 3.0 / 0.5 * 2
    assert found.exchange == max(4 * 0.5 + 1, 2 * 0.5 + 3)
    assert found.all_reduce == 2 * 0.5
    assert found.step == 2 * 0.25
    assert found.seconds == found.compute + found.exchange + found.all_reduce + found.step
    assert found.memory == [7 + 50 + 5, 7 + 100 + 10]  # 25 bytes for a half of rank 0, whose tensors take 50
    assert found.host_memory == 165
    assert Load.of(load().to_dict()).to_dict() == load().to_dict()


def test_what_comes_from_other_hosts_takes_their_link() -> None:
    one = Machine(1, Link(0.5, 1000), Link(2, 100), memory=1e9, ranks_per_host=1, base=7, step=0.0)
    found = predict(one, load(far_messages=[0.25, 1.0], far_bytes=[0.1, 1.0]), [[3.0, 40], [2.0, 25]], slowdown=1)
    near_and_far = 3 * 0.5 + 900 / 1000 + 1 * 2 + 100 / 100
    assert found.exchange == max(near_and_far, 2 * 2 + 3000 / 100)
    assert found.all_reduce == 2 * 2
    assert one.exchange_seconds(4, 1000, 0.25, 0.1) == pytest.approx(near_and_far)


def test_the_memory_of_a_host_is_that_of_its_ranks() -> None:
    one = Machine(1, FAST, FAST, memory=1e9, ranks_per_host=1, base=7, step=0.0)
    assert predict(one, load(), [[1, 50], [1, 25]], slowdown=1).host_memory == 110


@pytest.mark.parametrize(
    ("group", "version", "joined"),
    [
        ("", 2, None),
        ("memory", 1, None),
        ("slurm/job", 2, "0::/slurm/job/step\n"),
        ("memory/slurm/job", 1, "9:cpu,cpuacct:/other\n4:memory:/slurm/job/step\n0::/\n"),
    ],
)
def test_memory_at_hand_heeds_the_limit_of_a_container(
    group: str, version: int, joined: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   10 kB\n")
    if joined is not None:
        (tmp_path / "joined").write_text(joined)
    for name, path in (("_MEMORY", "meminfo"), ("_JOINED", "joined"), ("_GROUPS", "groups")):
        monkeypatch.setattr(memory, name, tmp_path / path)
    assert memory.available_memory() == 10 * 1024
    folder, limit = tmp_path / "groups" / group, memory._LIMIT[2 - version]
    folder.mkdir(parents=True)
    (folder / memory._USED[2 - version]).write_text("6000\n")
    (folder / "memory.stat").write_text(
        "anon 1\n" + ("inactive_file 500\n" if version == 2 else "total_inactive_file 500\n")
    )
    (folder / limit).write_text("max\n")
    assert memory.available_memory() == 10 * 1024
    (folder / limit).write_text("9000\n")
    assert memory.available_memory() == 9000 - 6000 + 500
