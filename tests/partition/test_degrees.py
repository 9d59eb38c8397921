"""Degrees of all nodes, shared by the ranks of a process, and from the parts."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gnnkit.graph import CSC, Graph
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.partition import degrees as module
from gnnkit.partition.degrees import Degrees, save

NODES = np.array([5, 0, 19, 5])


def graph(*, weighted: bool) -> Graph:
    rng = np.random.default_rng(0)
    ends, weight = rng.integers(0, 20, (2, 90)), rng.random(90) if weighted else None
    return Graph.from_edges(*ends, 20, weight=weight)


def expected(csc: CSC) -> list[list[float]]:
    loops = [v in csc.indices[csc.indptr[v] : csc.indptr[v + 1]] for v in range(csc.num_nodes)]
    return [values[NODES].tolist() for values in (csc.in_degree(), csc.out_degree(), np.array(loops))]


def find_degrees(csc: CSC) -> list[list[float]]:
    degrees = Degrees.of(csc)
    return [read(NODES).tolist() for read in (degrees.in_degree, degrees.out_degree, degrees.looped)]


@pytest.mark.parametrize("weighted", [True, False])
def test_ranks_of_a_process_make_each_array_once(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    csc, instances = graph(weighted=weighted).csc, []
    monkeypatch.setattr(module, "looped", lambda csc: instances.append(1) or np.zeros(csc.num_nodes, bool))
    with ThreadPoolExecutor(4) as pool:
        every = list(pool.map(lambda _: find_degrees(csc), range(8)))
    assert every == [[*expected(csc)[:2], [False] * 4]] * 8
    assert len(instances) == 1
    assert set(Degrees.of(csc)._arrays) == {"out_degree", "looped", *(["in_degree"] if weighted else [])}


@pytest.mark.parametrize("weighted", [True, False])
def test_those_of_the_parts_are_those_of_the_graph(weighted: bool, tmp_path: Path) -> None:
    full_graph = graph(weighted=weighted)
    parts = Partition(np.arange(20, dtype=np.int32) % 3, None, Grid(3, 1, 1))
    save(list(cut_all(full_graph, parts)), tmp_path / "degrees")
    copy = CSC(full_graph.csc.indptr, full_graph.csc.indices, full_graph.csc.weight)
    Degrees.load(copy, tmp_path / "degrees")
    assert {"out_degree", "looped"} <= set(Degrees.of(copy)._arrays)
    assert find_degrees(copy) == expected(full_graph.csc)


@pytest.mark.slow
def test_they_go_with_their_graph() -> None:
    csc = graph(weighted=False).csc
    find_degrees(csc)
    gc.collect()  # graphs of other tests, which cycles hold
    before = len(module._KNOWN)
    del csc
    gc.collect()
    assert len(module._KNOWN) == before - 1
