"""KaMinPar as a plugin: what it promises, and what it must survive."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from gnnkit_kaminpar import KaMinPar, Preset, write_parhip

from gnnkit import plugins
from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.graph import CSC, Graph, Split
from gnnkit.partition import Balance, node_weights, undirected
from gnnkit.partition.by_id import Contiguous
from gnnkit.testing import check_partitioner
from tests.cases import exhaustive
from tests.runs import within_process

PRESETS = get_args(Preset)


def lattice(side: int) -> Graph:
    """A directed lattice whose numbers say nothing about places."""
    ids = np.random.default_rng(0).permutation(side * side).reshape(side, side)
    src = np.concatenate([ids[:-1].ravel(), ids[:, :-1].ravel()])
    dst = np.concatenate([ids[1:].ravel(), ids[:, 1:].ravel()])
    split = np.zeros(side * side, np.int8)
    split[: side * side // 4] = Split.TRAIN
    return Graph.from_edges(src, dst, features=np.ones((side * side, 2)), labels=split.astype(np.int64), split=split)


def hubs(num_nodes: int, num_edges: int) -> Graph:
    """A graph with hubs, parallel edges, loops and nodes without edges."""
    src, dst = (num_nodes * np.random.default_rng(0).random((2, num_edges)) ** 3).astype(int)
    return Graph.from_edges(src, dst, num_nodes)


def cut(graph: Graph, owners: np.ndarray) -> int:
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return int(np.count_nonzero(owners[graph.csc.indices] != owners[dst]))


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_kaminpar_keeps_the_promises_of_partitioners(preset: Preset) -> None:
    check_partitioner(KaMinPar(preset=preset))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_cut_of_a_lattice_is_near_its_shortest(preset: Preset) -> None:
    graph = lattice(24)
    shortest = 2 * 24  # two straight lines
    assert cut(graph, KaMinPar(preset=preset).assign_nodes(graph, 4)) <= 1.5 * shortest
    assert cut(graph, Contiguous().assign_nodes(graph, 4)) > 10 * shortest


@pytest.mark.parametrize("num_parts", [2, 4, 7])
@pytest.mark.parametrize("balance", get_args(Balance))
def test_what_is_balanced_is_balanced(num_parts: int, balance: Balance) -> None:
    for graph in (lattice(24), hubs(2000, 12000)):
        weight, parts = node_weights(graph, balance), KaMinPar(balance).assign_nodes(graph, num_parts)
        load = np.bincount(parts, weight, num_parts)
        assert load.max() <= load.mean() * 1.03 + 2 * weight.max()


def test_seeds_repeat_and_differ() -> None:
    graph = lattice(24)
    first, again, other = (KaMinPar(seed=seed).assign_nodes(graph, 4) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("preset", "graphs"), [("eco", 25), *(exhaustive((preset, 50)) for preset in PRESETS)])
def test_a_cut_of_many_small_graphs_repeats(preset: Preset, graphs: int) -> None:
    """Fails for compressed graphs, and where threads of the reader join a cut."""
    for number in range(graphs):
        graph = hubs(260 + number, 20 * (260 + number))
        first, again = (KaMinPar(preset=preset, seed=number).assign_nodes(graph, 7) for _ in range(2))
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("preset", PRESETS)
def test_graphs_without_edges_and_parts_without_nodes_are_cut(preset: Preset) -> None:
    partitioner = KaMinPar(preset=preset)
    assert np.bincount(partitioner.assign_nodes(Graph.from_edges([], [], 20), 4)).max() <= 6
    assert partitioner.assign_nodes(Graph.from_edges([0], [1], 3), 5).tolist() == [0, 1, 2]
    assert partitioner.assign_nodes(lattice(3), 1).tolist() == [0] * 9


def test_the_file_is_the_graph(tmp_path: Path) -> None:
    import kaminpar

    adjacency, weight = undirected(CSC.from_edges([0, 0, 0, 1, 2, 3], [1, 1, 0, 0, 3, 3], 5))
    write_parhip(tmp_path / "graph", adjacency, weight, np.array([1, 2, 3, 4, 5]))
    read = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP)
    assert [read.neighbors(node) for node in range(read.n())] == [[(1, 3)], [(0, 3)], [(3, 1)], [(2, 1)], []]
    assert [read.node_weight(node) for node in range(read.n())] == [1, 2, 3, 4, 5]


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_parhip(Path("/dev/full"), *undirected(lattice(24).csc), np.ones(576, np.int64))


@pytest.mark.parametrize("column", [-1, 4, 2**31 - 1])
def test_a_bad_column_is_an_error_and_not_a_crash(column: int) -> None:
    indices = np.array([3, 0, 1, 2])
    graph = Graph(CSC(np.arange(5), indices), np.ones((4, 1)), np.zeros(4, np.int64), np.zeros(4, np.int8))
    indices[2] = column  # behind the back of the graph's own check
    with pytest.raises(ValueError, match="out of range"):
        KaMinPar().assign_nodes(graph, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [("balance", "all"), ("imbalance", 0), ("imbalance", 2), ("preset", "jet"), ("seed", -1), ("seed", 2**31)],
)
def test_bad_options_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key}={value} (must be|is not known)"):
        KaMinPar(**{key: value})  # type: ignore[arg-type]


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    monkeypatch.delitem(sys.modules, "gnnkit_kaminpar")
    with pytest.raises(ValueError, match="KaMinPar is not installed: pip install kaminpar"):
        plugins.load("partition", "kaminpar")


@pytest.mark.slow
def test_both_spellings_are_one_configuration() -> None:
    chosen = compose(["strategy=vertex_centric", "partition=kaminpar", "partition.grid=2d"])["partition"]
    assert chosen["options"] == {"balance": "nodes", "imbalance": 0.03, "preset": "eco", "seed": 0}
    other = compose(["strategy=vertex_centric", "partition=2d", "partition.nodes=kaminpar"])["partition"]
    assert {**other, "options": chosen["options"]} == chosen


@pytest.mark.slow
def test_a_job_runs_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = lattice(12)
    np.savez(
        tmp_path / "graph.npz",
        indptr=graph.csc.indptr,
        indices=graph.csc.indices,
        x=graph.features,
        y=graph.labels,
        **{f"{split.name.lower()}_mask": graph.split == split for split in (Split.TRAIN, Split.VAL, Split.TEST)},
    )
    monkeypatch.chdir(tmp_path)
    common = ["strategy=vertex_centric", "dataset=npz", "dataset.root=graph.npz", "workers=4", "threads=1"]
    chosen = ["partition=kaminpar", "partition.grid=2d", "partition.options.balance=edges"]
    with within_process():
        assert main([*common, "comm=threads", "trainer.max_epochs=2", "report=false", "logger=none", *chosen]) == 0
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    run = json.loads(result.read_text())
    assert (run["nodes"], run["world_size"], run["grid"]) == ("kaminpar", 4, [2, 2, 1])
