"""The leader compares layouts that can be, and takes the least."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.dataset.synthetic import Synthetic
from gnnkit.graph import Graph
from gnnkit.jobs.decide import compared
from gnnkit.leader.plan import choose
from gnnkit.leader.plan.choose import (
    Cutter,
    Decision,
    alternatives,
    assign,
    candidates,
    measure_candidates,
    overrides,
    select_layout,
    slow_partitioners,
)
from gnnkit.leader.plan.layout import LayoutFigures, StepLoad, Timing
from gnnkit.leader.plan.machine import Machine, MachineLink, Tried
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid, make_grid, unequal_columns
from gnnkit.partition.hash import Hash
from gnnkit.partition.quality import measure
from gnnkit.partition.streaming import Streaming
from gnnkit.utils import memory
from tests.cases import few

INSTALLED = ("contiguous", "balanced", "ldg", "buffered")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Synthetic("rmat", 1500, 7500, width=3).load()


def partition_of(graph: Graph, grid: Grid) -> Partition:
    owner = np.random.default_rng(0).choice(grid.world_size, graph.num_nodes, p=[0.1, 0.2, 0.3, 0.4])
    return Partition(owner.astype(np.int32), None, grid)


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
    found = dict(measure_candidates(settings, graph, named))
    assert 1 < len(found) <= 6
    assert list(found) == [name for name in named if name in found]
    same = {**{f"again {name}": each for name, each in list(named.items())[:1]}}
    assert list(measure_candidates(settings, graph, {"contiguous": named["contiguous"], **same})) != []
    assert [name for name, _ in measure_candidates(settings, graph, {"contiguous": named["contiguous"], **same})] == [
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
    assert slow_partitioners(named, 1_500_000) == []  # 0.01, 0.05, 0.3 and 1.5 seconds
    assert slow_partitioners(named, 2_000_000) == ["hash"]
    assert slow_partitioners(named, 20_000_000) == ["buffered", "hash"]
    assert slow_partitioners(named, 2_000_000_000) == [*INSTALLED[1:], "hash"]
    settings, names = settle(compose(["strategy=vertex_centric", "workers=4"])), []

    def noted(self: Cutter, chosen: Any) -> Partition:
        names.append(chosen.nodes.name)
        return partition_of(graph, Grid(4, 1, 1))

    monkeypatch.setattr(Cutter, "cut", noted)
    list(measure_candidates(settings, graph, named))
    assert "hash" in names
    names.clear()
    monkeypatch.setattr(Hash, "auto_seconds", 4e6 / graph.num_edges)
    list(measure_candidates(settings, graph, named))
    assert set(names) == set(INSTALLED)


@pytest.mark.slow
def test_looks_at_borders_and_grids_of_a_large_graph_are_few(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named, seen = candidates(4, INSTALLED, grids=True), []

    def noted(self: Cutter, chosen: Any) -> Partition:
        seen.append((chosen.border, chosen.grid))
        return partition_of(graph, make_grid(chosen.grid, 4))

    monkeypatch.setattr(Cutter, "cut", noted)
    list(measure_candidates(settings, graph, named))
    assert sum(border != "none" for border, _ in seen) == 3 * len(INSTALLED)
    seen.clear()
    look = choose.LAYOUT_SECONDS + choose.BORDER_SECONDS
    monkeypatch.setattr(choose, "MEASURING_BUDGET", 1.1 * look * graph.num_edges / 1e6)
    list(measure_candidates(settings, graph, named))
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
    assert list(dict(measure_candidates(settings, graph, dict(list(named.items())[:2])))) == ["contiguous"]


@pytest.mark.slow
def test_a_partitioner_far_from_the_best_is_tried_on_one_grid(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named, seen = candidates(4, INSTALLED, grids=True), []
    cut = Cutter.cut

    def noted(self: Cutter, chosen: Any) -> Partition:
        seen.append(chosen)
        return cut(self, chosen)

    monkeypatch.setattr(Cutter, "cut", noted)
    monkeypatch.setattr(choose, "MAX_WORK_RATIO", 1.0)
    list(measure_candidates(settings, graph, named))
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
    for name, quality in measure_candidates(settings, graph, named, most=len(named)):
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


def layout(
    seconds: float | None, work: int, host_memory: float = 0, words: int = 0, memory: int = 0, counted: float = 0
) -> LayoutFigures:
    timing = None if seconds is None else Timing(seconds, 0.0, 0.0, 0.0, [0], host_memory)
    return LayoutFigures([1, 1, 1], {"max": words}, {}, {}, memory, {}, {}, work, counted, timing)


def test_the_least_seconds_win_and_ties_go_to_counted_work_then_order() -> None:
    assert select_layout({"a": layout(2.0, 1), "b": layout(1.0, 9)}, math.inf) == "b"
    assert select_layout({"a": layout(1.07, 5), "b": layout(1.0, 9)}, math.inf) == "a"
    assert select_layout({"a": layout(1.09, 5), "b": layout(1.0, 9)}, math.inf) == "b"
    assert select_layout({"a": layout(1.0, 5), "b": layout(1.0, 5)}, math.inf) == "a"
    assert select_layout({"a": layout(1.0, 5, host_memory=100), "b": layout(2.0, 5, host_memory=80)}, 100) == "b"
    assert select_layout({"a": layout(1.0, 5, host_memory=100)}, 100) is None
    assert select_layout({"a": layout(None, 5, words=7), "b": layout(None, 5, words=3)}, 0) == "b"
    assert select_layout({"a": layout(None, 5, words=3, memory=2), "b": layout(None, 5, words=3, memory=1)}, 0) == "b"


def test_a_layout_that_was_not_tried_is_chosen_only_if_none_was_and_its_counts_fit() -> None:
    assert select_layout({"a": layout(None, 1), "b": layout(1.0, 9)}, math.inf) == "b"
    assert select_layout({"a": layout(None, 1), "b": layout(1.0, 9, host_memory=100)}, 100) is None
    assert select_layout({"a": layout(None, 1, words=1, counted=100), "b": layout(None, 9, words=2)}, 100) == "b"
    assert select_layout({"a": layout(None, 1, counted=60)}, 100) is None
    assert select_layout({"a": layout(None, 1, counted=50)}, 100) == "a"


FAST = MachineLink(0, math.inf)
TRIED = [Tried(1, 3.0, 200), Tried(0, 2.0, 50)]


def load(**changed: Any) -> StepLoad:
    lists = {"messages": [4, 2], "received": [1000, 3000], "tensors": [50, 100], "buffers": [5, 10]}
    return StepLoad(**lists | {"far_messages": [0.0, 0.0], "far_bytes": [0.0, 0.0], "gradient": 0} | changed)


def test_the_formula_adds_compute_and_exchange_of_the_slowest_ranks() -> None:
    machine = Machine(1, MachineLink(0.5, 1000), MachineLink(9, 9), memory=1e9, ranks_per_host=2, base=7)
    timing = machine.timing(load(), TRIED, slowdown=2)
    assert timing.compute == 3.0 * 2
    assert timing.exchange == max(4 * 0.5 + 1, 2 * 0.5 + 3)
    assert timing.all_reduce == 2 * 0.5
    assert timing.seconds == timing.compute + timing.exchange + timing.all_reduce
    assert timing.memory == [7 + 100 + 5, 7 + 200 + 10]  # 200 bytes for rank 1, whose tensors take 100
    assert timing.host_memory == 315


def test_what_comes_from_other_hosts_takes_their_link() -> None:
    machine = Machine(1, MachineLink(0.5, 1000), MachineLink(2, 100), memory=1e9, ranks_per_host=1, base=7)
    timing = machine.timing(load(far_messages=[0.25, 1.0], far_bytes=[0.1, 1.0]), TRIED, slowdown=1)
    near_and_far = 3 * 0.5 + 900 / 1000 + 1 * 2 + 100 / 100
    assert timing.exchange == max(near_and_far, 2 * 2 + 3000 / 100)
    assert timing.all_reduce == 2 * 2


def test_the_memory_of_a_host_is_that_of_its_ranks() -> None:
    machine = Machine(1, FAST, FAST, memory=1e9, ranks_per_host=1, base=7)
    assert machine.timing(load(), TRIED, slowdown=1).host_memory == 210
    assert (load().host_tensors(1), load().host_tensors(2)) == (110, 165)


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
