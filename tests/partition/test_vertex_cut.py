"""Partitioners of edges."""

from pathlib import Path

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from partition_cases import random_graph

from gnnkit.__main__ import main
from gnnkit.partition import Grid, Partition, Partitioner, measure
from gnnkit.partition.vertex_cut import Hdrf, TwoPhase


@pytest.mark.parametrize("partitioner", [Hdrf(), TwoPhase()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("grid", [Grid(4, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2)], ids=str)
def test_edges_and_nodes_are_even_and_few_nodes_are_replicated(partitioner: Partitioner, grid: Grid) -> None:
    graph = Synthetic("rmat", 5000, 30_000, 4, 1).load()
    quality = measure(graph, partitioner.assign(graph, grid))
    rng = np.random.default_rng(0)
    anywhere = Partition(
        rng.integers(0, grid.world_size, 5000, np.int32),
        rng.integers(0, grid.num_cells, graph.num_edges, np.int32),
        grid,
    )
    assert quality.balance()["edges"] <= 1.1
    assert quality.balance()["nodes"] <= 1.1 + 1e-3
    assert quality.replication_factor < 0.8 * measure(graph, anywhere).replication_factor
    assert quality.words.sum() < 0.7 * measure(graph, anywhere).words.sum()


def test_hdrf_trades_replicas_for_balance() -> None:
    graph = Synthetic("rmat", 2000, 10_000, 4, 1).load()
    loads = [
        measure(graph, Hdrf(imbalance=1, balance_weight=weight).assign(graph, Grid(4, 1, 1))).balance()["edges"]
        for weight in (0.0, 1000.0)
    ]
    assert loads[0] > 1.5
    assert loads[1] < 1.01


def test_the_bound_may_be_tight() -> None:
    graph = random_graph(100, 1000)
    for partitioner in (Hdrf(imbalance=0.001), TwoPhase(imbalance=0.001)):
        cells = partitioner.assign(graph, Grid(4, 1, 1)).cells_of_edges(graph)
        assert np.bincount(cells).tolist() == [250] * 4


@pytest.mark.parametrize("weight", [-1, float("nan"), "much"])
def test_a_bad_weight_names_its_key(weight: object) -> None:
    with pytest.raises(ValueError, match=r"^partition\.options\.balance_weight="):
        Hdrf(balance_weight=weight)  # type: ignore[arg-type]


DATA = ["dataset=synthetic", "dataset.num_nodes=200", "dataset.num_edges=800", "workers=2", "threads=1", "report=false"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_workers_that_read_the_whole_graph_ignore_the_cells_of_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sampled = ["strategy=individual_sample", "strategy.batch_size=8", "comm=threads", "trainer.max_epochs=1"]
    assert main([*sampled, *DATA, "partition=hdrf"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [["partition=2psl"], pytest.param(["partition=ldg", "partition.border=cover"], marks=pytest.mark.exhaustive)],
    ids=" ".join,
)
def test_owners_that_draw_refuse_in_edges_held_elsewhere(
    partition: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["strategy=joint_sample", "strategy.batch_size=8", "comm=threads", *DATA, *partition]) == 2
    assert "use a partitioner of nodes and partition.border=none or min_words" in capsys.readouterr().err
