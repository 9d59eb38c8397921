"""Columns of unequal height, for ranks that make no grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from gnnkit_plan import trial_steps
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import complete_graph, destinations, graphs, make_graph, random_graph

import gnnkit
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, fewest_words, in_columns, measure
from gnnkit.partition.by_id import Contiguous
from gnnkit.partition.stored import Stored
from tests.cases import few
from tests.runs import BARE


def ring(num_nodes: int) -> Graph:
    nodes = np.arange(num_nodes)
    return make_graph(nodes, (nodes + 1) % num_nodes, num_nodes)


def one_column(graph: Graph, workers: int) -> Partition:
    return Contiguous().assign(graph, Grid(workers, 1, 1))


@pytest.mark.slow
@given(graphs(), st.integers(1, 8), st.data())
def test_an_edge_stays_in_the_column_of_its_source_and_with_an_owner_in_this_column(
    graph: Graph, workers: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, workers))
    ranks = st.lists(st.integers(0, workers - 1), min_size=graph.num_nodes, max_size=graph.num_nodes)
    owners = np.array(data.draw(ranks), np.int32)
    partition = in_columns(graph, Partition(owners, None, Grid(workers, 1, 1)), number)
    assert sum(partition.columns) == workers
    assert len(partition.columns) == number
    assert max(partition.columns) - min(partition.columns) <= 1
    column = np.repeat(np.arange(number), partition.columns)
    holder, into = partition.cells_of_edges(graph), owners[destinations(graph)]
    np.testing.assert_array_equal(column[holder], column[owners[graph.csc.indices]])
    inside = column[into] == column[holder]
    np.testing.assert_array_equal(holder[inside], into[inside])
    for node in range(graph.num_nodes):  # one partial sum from each column
        entering = destinations(graph) == node
        assert len(set(holder[entering])) == len(set(column[holder[entering]]))


@pytest.mark.parametrize(("workers", "number"), [(3, 2), (5, 2), (5, 3), (7, 2), (7, 3), (13, 4)])
def test_words_are_those_of_a_grid_without_gaps_and_peers_are_few(workers: int, number: int) -> None:
    graph = complete_graph(12 * workers)
    partition = in_columns(graph, one_column(graph, workers), number)
    traffic = measure(graph, partition).traffic
    heights = np.repeat(partition.columns, partition.columns)
    words = traffic.words(1)
    assert (words.gather == 12 * (heights - 1)).all()
    assert (words.reduce == 12 * (number - 1)).all()
    assert words.total.max() <= measure(graph, one_column(graph, workers)).words.max()
    messages = traffic.messages(1).total
    assert messages.sum() <= number * (workers - 1) + sum(height * (height - 1) for height in partition.columns)
    assert workers == 3 or messages.mean() < workers - 1


def test_a_column_evens_out_hubs() -> None:
    graph = Synthetic("rmat", 5000, 50_000, 4, 1).load()
    for workers in (7, 13):
        partition = one_column(graph, workers)
        assert measure(graph, in_columns(graph, partition, 2)).balance()["edges"] < 1.05
        assert measure(graph, partition).balance()["edges"] > 1.1


def test_what_moves_fewest_words_is_taken() -> None:
    dense, sparse = random_graph(700, 40_000), ring(700)
    assert fewest_words(dense, one_column(dense, 7), (2, 3)).columns in ((4, 3), (3, 2, 2))
    assert fewest_words(sparse, one_column(sparse, 7), (2, 3)).columns == ()
    # A column of one rank reads few rows, and sends a gradient to nearly every node.
    assert fewest_words(dense, one_column(dense, 5), (2, 3)).columns == (3, 2)


def test_uneven_columns_are_left_out() -> None:
    """Nearly all edges leave the first rank's nodes, and all nodes have in-edges."""
    src = np.concatenate([np.tile(np.arange(20), 500), np.arange(100, 200)])
    graph = make_graph(src, np.arange(len(src)) % 700, 700)
    partition = one_column(graph, 7)
    columns = in_columns(graph, partition, 3)
    assert measure(graph, columns).balance()["edges"] > 1.1 > measure(graph, partition).balance()["edges"]
    assert fewest_words(graph, partition, (3,)) is partition


def run(folder: Path, *overrides: str, workers: int, **keys: Any) -> dict[str, Any]:
    run_keys = {
        "comm": "threads",
        "threads": 1,
        "trainer": {"max_epochs": 2, "precision": 64},
        "workers": workers,
    } | BARE
    overrides = ("partition.nodes=random", *overrides)
    graph = random_graph(60, 1500)
    return dict(
        gnnkit.train(graph, strategy="vertex_centric", overrides=overrides, folder=folder / "run", **run_keys, **keys)
    )


@pytest.mark.slow
@few(
    "columns, model, grid",
    [
        ([2, 1], "gcn", "2d"),
        ([3, 2], "gat", "2d"),
        ([3, 2, 2], "sage", "3d"),
        ([3, 2], "gin", "1.5d"),
        ([3, 3, 2], "gat", "replication"),
    ],
    default=[([3, 2, 2], "sage", "3d")],
)
def test_columns_train_as_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: list[int], model: str, grid: str
) -> None:
    workers = sum(columns)
    keys = ["partition=1.5d", "partition.replication=3"] if grid == "replication" else [f"partition={grid}"]
    result = run(tmp_path, *keys, "job=verify", workers=workers, model=model)
    assert result["verified"], result
    text = f"of {workers} workers is {len(columns)} columns of {', '.join(map(str, columns))} workers"
    assert text in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_says_that_its_columns_are_unequal_and_stores_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_steps, "EPOCHS", 2)
    cut = run(tmp_path / "cut", "partition=2d", "job=partition", workers=5)
    assert cut["columns"] == [3, 2]
    assert [(region["row"], region["col"]) for region in cut["regions"]] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]
    store = Stored(str(tmp_path / "cut/run")).assign(random_graph(60, 1500), Grid(5, 1, 1))
    assert store.columns == (3, 2)
    plan = run(tmp_path / "plan", "job=plan", "partition=2d", workers=5)
    assert plan["layouts"]["chosen"]["words"]["max"] < plan["layouts"]["1d"]["words"]["max"]
