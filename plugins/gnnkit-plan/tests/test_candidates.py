"""`partition=auto` measures few layouts, and tries those that may be best."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from gnnkit_plan import candidates as planning
from gnnkit_plan.candidates import (
    alternatives,
    auto_names,
    candidates,
    measure_candidates,
    slow_partitioners,
)
from gnnkit_plan.layout import LayoutFigures, Room, Trial, select_layout, to_try, with_trials

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.by_id import Hash
from gnnkit.partition.grid import Grid, make_grid, unequal_columns
from gnnkit.partition.streaming import Streaming
from gnnkit.prepare.run_partition import Cutter, assign, overrides
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


def test_a_partitioner_of_any_package_takes_part_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    before = auto_names()
    assert before[:4] == list(INSTALLED)
    assert "hash" not in before
    monkeypatch.setattr(Hash, "auto_seconds", 0.01)
    assert auto_names() == ["contiguous", "balanced", "hash", *before[2:]]


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
    measure_candidates(settings, graph, named)
    assert "hash" in names
    names.clear()
    monkeypatch.setattr(Hash, "auto_seconds", 4e6 / graph.num_edges)
    measure_candidates(settings, graph, named)
    assert set(names) == set(INSTALLED)


@pytest.mark.slow
def test_borders_and_grids_are_measured_for_the_best_partitioners_only(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4"]))
    named, seen = candidates(4, INSTALLED, grids=True), dict[str, Any]()
    cut = Cutter.cut

    def noted(self: Cutter, section: Any) -> Partition:
        seen[next(name for name in named if named[name] is section)] = section
        return cut(self, section)

    monkeypatch.setattr(Cutter, "cut", noted)
    measured = measure_candidates(settings, graph, named)
    assert list(measured) == [name for name in named if name in seen]
    assert set(INSTALLED) < set(measured)
    best = {section.nodes.name for section in seen.values() if section.border != "none"}
    plain = {name: measured[name] for name in INSTALLED}
    assert best == {
        min(plain, key=lambda name: planning.words_of(plain[name])),
        min(plain, key=lambda name: planning.work_of(plain[name])),
    }
    assert "contiguous [1,1,4]" in measured
    monkeypatch.setattr(planning, "BORDER_SECONDS", 1e9)
    assert all(named[name].border == "none" for name in measure_candidates(settings, graph, named))


@pytest.mark.parametrize("grid", ["1d", "1.5d"])
def test_a_prime_number_of_workers_has_each_layout_once(grid: str, graph: Graph) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=3", f"partition.grid={grid}"]))
    sections = {name: each for name, each in alternatives(settings).items() if each.nodes.name == "contiguous"}
    found = measure_candidates(settings, graph, sections)
    layouts = [quality.partition.layout for quality in found.values()]
    assert next(iter(found)) == "chosen"
    assert "3 x 1 x 1 grid" in layouts
    assert len(set(layouts)) == len(layouts)


@pytest.mark.parametrize("keys", ["partition=2d", "partition.border=min_words"])
def test_a_named_layout_is_the_only_candidate(keys: str, graph: Graph) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=4", keys]))
    assert list(measure_candidates(settings, graph, {"chosen": settings.partition})) == ["chosen"]
    with pytest.raises(UserError, match=r"partition.grid=\[3,1,1\] needs 3 workers"):
        measure_candidates(settings, graph, {"chosen": replace(settings.partition, grid=[3, 1, 1])})


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
    for name, quality in measure_candidates(settings, graph, named).items():
        assert np.array_equal(quality.partition.node_rank, cuts[name].node_rank)
    assert calls == ["Ldg"]
    grids = measure_candidates(settings, graph, alternatives(settings))
    assert set(grids) == {"chosen", "1.5d", "[1,1,4]", *auto_names()} - {"ldg"}
    assert calls == ["Ldg", "Ldg"]


def layout(
    seconds: float | None = None, words: int = 0, memory: int = 0, grid: int = 1, work: float = 0, base: int = 0
) -> LayoutFigures:
    trial = None if seconds is None else Trial(seconds, 0.0, [memory])
    counts: Any = {"max": words, "total": words, "per_rank": [words]}
    return LayoutFigures([1, 1, grid], counts, counts, counts, [10, 20], {}, 0.0, work, [memory], base, trial)


ROOM = Room(math.inf, None)


def test_the_least_seconds_win_and_ties_go_to_fewest_words_then_order() -> None:
    assert select_layout({"a": layout(2.0, 1), "b": layout(1.0, 9)}, ROOM) == "b"
    assert select_layout({"a": layout(1.07, 5), "b": layout(1.0, 9)}, ROOM) == "a"
    assert select_layout({"a": layout(1.09, 5), "b": layout(1.0, 9)}, ROOM) == "b"
    assert select_layout({"a": layout(1.0, 5), "b": layout(1.0, 5)}, ROOM) == "a"
    assert select_layout({"a": layout(None, 7), "b": layout(None, 3)}, ROOM) == "b"
    assert select_layout({"a": layout(None, 3, memory=2), "b": layout(None, 3, memory=1)}, ROOM) == "b"
    assert select_layout({"a": layout(None, 1), "b": layout(1.0, 9)}, ROOM) == "b"


def test_only_layouts_that_fit_are_chosen() -> None:
    room = Room(100, 1)
    assert select_layout({"a": layout(1.0, memory=91), "b": layout(2.0, memory=90)}, room) == "b"
    assert select_layout({"a": layout(1.0, memory=91)}, room) is None
    assert select_layout({"a": layout(1.0, memory=91, base=1)}, room) == "a"  # processes share what they import
    assert select_layout({"a": layout(1.0, memory=91, base=1)}, Room(100, None)) is None  # on a host of its own
    assert select_layout({"a": layout(1.0, memory=91), "b": layout(None, memory=1)}, room) == "b"
    ranks = replace(layout(1.0), memory_per_rank=[30, 50, 40])
    assert [Room(math.inf, number).needed(ranks) for number in (None, 1, 2, 3)] == [50, 50, 90, 120]


def test_layouts_of_fewest_words_the_best_plain_one_and_other_grids_are_tried() -> None:
    layouts = {
        "metis": layout(words=3, work=9),
        "balanced": layout(words=9, work=2),
        "metis cover": layout(words=1, work=9),
        "balanced cover": layout(words=2, work=1),
        "metis 2d": layout(words=5, work=7, grid=2),
        "metis 3d": layout(words=6, work=7, grid=3),
    }
    assert to_try(layouts) == ["metis cover", "balanced", "metis 2d"]
    del layouts["balanced"], layouts["metis"]
    assert to_try(layouts) == ["metis cover", "metis 2d", "metis 3d"]
    assert to_try({"only": layout()}) == ["only"]
    assert to_try({}) == []


def test_memory_of_other_layouts_follows_from_measured_peaks() -> None:
    layouts = {"tried": layout(), "counted": replace(layout(), tensors=[30, 10])}
    trial = Trial(1.0, 0.5, [107, 127])
    predicted = with_trials(layouts, {"tried": trial}, base=7)
    assert predicted["tried"].memory_per_rank == [107, 127]
    assert predicted["counted"].memory_per_rank == [7 + 10 * 30, 7 + 10 * 10]


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
