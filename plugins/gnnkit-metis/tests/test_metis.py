"""METIS as a plugin: what it promises, and what it must survive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import networkx as nx
import numpy as np
import pytest
from gnnkit_metis import Balance, Metis

from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.graph import CSC, Graph, Split
from gnnkit.partition import Grid, measure
from gnnkit.partition.by_id import Contiguous
from gnnkit.testing import check_partitioner
from tests.cases import exhaustive
from tests.runs import within_process


def lattice(side: int, *, shuffle: bool = True) -> Graph:
    """A directed lattice whose numbers say nothing about places."""
    ids = np.random.default_rng(0).permutation(side * side) if shuffle else np.arange(side * side)
    ids = ids.reshape(side, side)
    src = np.concatenate([ids[:-1].ravel(), ids[:, :-1].ravel()])
    dst = np.concatenate([ids[1:].ravel(), ids[:, 1:].ravel()])
    split = np.zeros(side * side, np.int8)
    split[: side * side // 4] = Split.TRAIN
    return Graph.from_edges(src, dst, features=np.ones((side * side, 2)), labels=split.astype(np.int64), split=split)


def cut(graph: Graph, owners: np.ndarray) -> int:
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return int(np.count_nonzero(owners[graph.csc.indices] != owners[dst]))


@pytest.mark.slow
@pytest.mark.parametrize("balance", get_args(Balance))
def test_metis_keeps_the_promises_of_partitioners(balance: Balance) -> None:
    check_partitioner(Metis(balance=balance))


def test_the_cut_of_a_lattice_is_near_its_shortest() -> None:
    graph = lattice(24)
    shortest = 2 * 24  # two straight lines
    assert cut(graph, Metis().assign_nodes(graph, 4)) <= 1.5 * shortest
    assert cut(graph, Contiguous().assign_nodes(graph, 4)) > 10 * shortest


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [2, 4, 7])
def test_what_is_balanced_is_balanced(num_parts: int) -> None:
    graph = lattice(24)
    for balance in get_args(Balance):
        partitioner = Metis(balance=balance)
        weights, parts = partitioner._node_weights(graph), partitioner.assign_nodes(graph, num_parts)
        for weight in weights.T:
            load = np.bincount(parts, weight, num_parts)
            assert load.max() <= load.mean() * 1.03 + 2 * weight.max()


def classes(num_classes: int) -> Graph:
    """A lattice with corners of one class, each fourth node to train on."""
    graph, side = lattice(24, shuffle=False), 24
    row, column = np.divmod(np.arange(side**2), side)
    labels = (row * 2 // side * 2 + column * 2 // side) % num_classes
    split = np.where((row + column) % 4 == 0, Split.TRAIN, Split.TEST)
    return replace(graph, labels=labels, split=split.astype(np.int8))


def shares(graph: Graph, parts: np.ndarray, num_parts: int) -> np.ndarray:
    """Counts the training nodes by part and class."""
    train = graph.split == Split.TRAIN
    return np.stack(
        [np.bincount(parts[train & (graph.labels == each)], minlength=num_parts) for each in np.unique(graph.labels)], 1
    )


@pytest.mark.slow
def test_parts_share_the_training_nodes_of_each_class() -> None:
    graph = classes(4)
    few, even = (Metis(balance=balance).assign_nodes(graph, 4) for balance in ("all", "classes"))
    apart, together = shares(graph, few, 4), shares(graph, even, 4)
    assert apart.max() > 2 * apart.mean(), "the fewest edges are cut where parts follow classes"
    assert together.max() <= 1.03 * together.mean() + 1
    assert cut(graph, few) < cut(graph, even) < 4 * cut(graph, few)
    for parts in (few, even):
        for weight in Metis(balance="all")._node_weights(graph).T:
            load = np.bincount(parts, weight, 4)
            assert load.max() <= load.mean() * 1.03 + weight.max()


@pytest.mark.slow
def test_a_class_of_fewer_training_nodes_than_parts_is_spread() -> None:
    graph = classes(4)
    rare = np.flatnonzero((graph.labels == 3) & (graph.split == Split.TRAIN))[2:]
    split = graph.split.copy()
    split[rare] = Split.TEST
    graph = replace(graph, split=split)
    assert shares(graph, Metis(balance="classes").assign_nodes(graph, 4), 4)[:, 3].max() == 1


@pytest.mark.parametrize("balance", ["all", "classes"])
def test_several_sizes_are_balanced_without_training_nodes(balance: Balance) -> None:
    graph = replace(lattice(12), split=np.zeros(144, np.int8))
    assert np.bincount(Metis(balance=balance).assign_nodes(graph, 3)).max() <= 50


def test_classes_need_one_class_of_each_node() -> None:
    graph = lattice(12)
    for labels in (np.ones((144, 2), np.int8), np.ones(144)):
        with pytest.raises(ValueError, match="balance=classes needs one class per node: use balance=all"):
            Metis(balance="classes").assign_nodes(replace(graph, labels=labels), 2)


def test_a_pymetis_that_hides_metis_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda file: object())
    with pytest.raises(ValueError, match="install one, or use nodes, edges or train"):
        Metis(balance="all").assign_nodes(lattice(12), 2)
    assert len(Metis(balance="train").assign_nodes(lattice(12), 2)) == 144


def test_the_objective_volume_needs_fewer_rows_of_a_hub() -> None:
    rng = np.random.default_rng(0)
    src, dst = (2000 * rng.random((2, 12000)) ** 3).astype(int)
    graph = Graph.from_edges(np.r_[src, dst], np.r_[dst, src], 2000)
    cut, volume = (
        measure(graph, Metis(objective=objective).assign(graph, Grid(4, 1, 1))) for objective in ("cut", "volume")
    )
    assert cut.edge_cut < volume.edge_cut
    assert volume.words.sum() < cut.words.sum()


@pytest.mark.parametrize("balance", ["nodes", "all"])
def test_seeds_repeat_and_differ(balance: Balance) -> None:
    graph = lattice(24)
    first, again, other = (Metis(balance=balance, seed=seed).assign_nodes(graph, 4) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("balance", ["nodes", "all"])
def test_contiguous_parts_are_connected_and_need_a_connected_graph(balance: Balance) -> None:
    graph = lattice(12)
    owners = Metis(balance=balance, contiguous=True).assign_nodes(graph, 5)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    whole = nx.Graph(zip(graph.csc.indices.tolist(), dst.tolist(), strict=True))
    assert all(nx.is_connected(whole.subgraph(np.flatnonzero(owners == part).tolist())) for part in range(5))
    for _ in range(2):
        with pytest.raises(ValueError, match="contiguous=True needs a connected graph"):
            Metis(balance=balance, contiguous=True).assign_nodes(Graph.from_edges([0, 2], [1, 3], 4), 2)


@pytest.mark.parametrize("column", [-1, 4, 2**31 - 1])
def test_a_bad_column_is_an_error_and_not_a_crash(column: int) -> None:
    indices = np.array([3, 0, 1, 2])
    graph = Graph(CSC(np.arange(5), indices), np.ones((4, 1)), np.zeros(4, np.int64), np.zeros(4, np.int8))
    indices[2] = column  # behind the back of the graph's own check
    with pytest.raises(ValueError, match="out of range"):
        Metis().assign_nodes(graph, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("balance", "words"),
        ("imbalance", 0),
        ("imbalance", 2),
        ("seed", -1),
        ("seed", 2**31 - 1),
        ("objective", "words"),
    ],
)
def test_bad_options_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key}={value} (must be|is not known)"):
        Metis(**{key: value})  # type: ignore[arg-type]


@pytest.mark.slow
def test_both_spellings_are_one_configuration() -> None:
    chosen = compose(["strategy=vertex_centric", "partition=metis", "partition.grid=2d"])["partition"]
    assert chosen["options"] == {
        "balance": "nodes",
        "imbalance": 0.03,
        "contiguous": False,
        "seed": 0,
        "objective": "cut",
    }
    other = compose(["strategy=vertex_centric", "partition=2d", "partition.nodes=metis"])["partition"]
    assert {**other, "options": chosen["options"]} == chosen


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [["partition=metis"], exhaustive([["partition=metis", "partition.grid=2d", "partition.options.balance=classes"]])],
    ids=" ".join,
)
def test_jobs_run_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[str]) -> None:
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
    with within_process():
        assert main([*common, "comm=threads", "trainer.max_epochs=2", "report=false", "logger=none", *chosen]) == 0
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    run = json.loads(result.read_text())
    assert (run["nodes"], run["world_size"]) == ("metis", 4)
    assert run["grid"] == ([4, 1, 1] if len(chosen) == 1 else [2, 2, 1])
