"""Mt-KaHyPar as a plugin: what it promises, and what it must survive."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gnnkit_mtkahypar import MtKaHyPar, nets

from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.graph import CSC, Graph, Split
from gnnkit.partition import Balance, Grid, measure, node_weights
from gnnkit.partition.by_id import Contiguous
from gnnkit.testing import check_partitioner
from tests.cases import exhaustive
from tests.runs import within_process

pytestmark = pytest.mark.slow


def lattice(side: int) -> Graph:
    """A directed lattice whose numbers say nothing about places."""
    ids = np.random.default_rng(0).permutation(side * side).reshape(side, side)
    src = np.concatenate([ids[:-1].ravel(), ids[:, :-1].ravel()])
    dst = np.concatenate([ids[1:].ravel(), ids[:, 1:].ravel()])
    split = np.zeros(side * side, np.int8)
    split[: side * side // 4] = Split.TRAIN
    return Graph.from_edges(src, dst, features=np.ones((side * side, 2)), labels=split.astype(np.int64), split=split)


@pytest.mark.parametrize("balance", ["nodes", "edges", exhaustive("train")])
def test_mtkahypar_keeps_the_promises_of_partitioners(balance: Balance) -> None:
    check_partitioner(MtKaHyPar(balance=balance))


def test_the_words_of_a_lattice_are_near_the_fewest() -> None:
    graph, grid = lattice(24), Grid(4, 1, 1)
    fewest = 2 * 24  # one row for each place on two straight lines
    words = {type(p): measure(graph, p.assign(graph, grid)).words.sum() for p in (MtKaHyPar(), Contiguous())}
    assert words[MtKaHyPar] <= 1.5 * fewest
    assert words[Contiguous] > 10 * fewest


@pytest.mark.parametrize("num_parts", [2, exhaustive(7)])
def test_what_is_balanced_is_balanced(num_parts: int) -> None:
    graph = lattice(24)
    balances: tuple[Balance, ...] = ("nodes", "edges", "train")
    for balance in balances:
        partitioner = MtKaHyPar(balance=balance)
        weight = node_weights(graph, balance)
        load = np.bincount(partitioner.assign_nodes(graph, num_parts), weight, num_parts)
        assert load.max() <= load.mean() * 1.03 + weight.max()


def test_a_cut_repeats() -> None:
    graph = lattice(24)
    first, again = (MtKaHyPar().assign_nodes(graph, 4) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_a_net_is_a_node_and_its_readers() -> None:
    csc = CSC.from_edges([0, 0, 0, 1, 2, 3], [1, 1, 0, 0, 3, 3], 4)
    assert nets(csc) == [[0, 1], [1, 0], [2, 3]]


@pytest.mark.parametrize(("key", "value"), [("imbalance", 0), ("imbalance", 2), ("threads", 0), ("balance", "edge")])
def test_bad_options_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key}={value} "):
        MtKaHyPar(**{key: value})  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_both_spellings_are_one_configuration() -> None:
    chosen = compose(["strategy=vertex_centric", "partition=mtkahypar", "partition.grid=2d"])["partition"]
    assert chosen["options"] == {"balance": "edges", "imbalance": 0.03, "threads": 1}
    other = compose(["strategy=vertex_centric", "partition=2d", "partition.nodes=mtkahypar"])["partition"]
    assert {**other, "options": chosen["options"]} == chosen


@pytest.mark.parametrize(
    "chosen",
    [["partition=mtkahypar"], exhaustive([["partition=mtkahypar", "partition.border=cover"]])],
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
    assert (run["nodes"], run["world_size"], run["grid"]) == ("mtkahypar", 4, [4, 1, 1])
