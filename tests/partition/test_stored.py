"""What job=partition stores is what partition=stored cuts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_import.shards import write_shards
from gnnkit_testing.graphs import check_graph

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition
from gnnkit.partition.shard import cut_all
from gnnkit.partition.stored import Stored
from tests.folders import digests_of


def run(folder: Path, *overrides: str, graph: Graph | None = None, workers: int = 4, **keys: Any) -> dict[str, Any]:
    run_keys = {"comm": "threads", "threads": 1, "trainer": {"max_epochs": 1, "precision": 64}, "workers": workers}
    run_keys |= {"report": False, "logger": "none", "types": "ignore"}
    result = gnnkit.train(
        graph or check_graph(), strategy="vertex_centric", overrides=overrides, folder=folder, **run_keys, **keys
    )
    return dict(result)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_stored_partition_gives_the_run_that_its_partitioner_gives(tmp_path: Path) -> None:
    cut = {"name": "2d", "nodes": "random"}
    run(tmp_path / "cut", "job=partition", partition=cut)
    reference = run(tmp_path / "expected", partition=cut)
    store = ("partition=stored", f"partition.path={tmp_path / 'cut'}", "partition.grid=2d")
    result = run(tmp_path / "found", *store)
    for key in ("train_loss", "per_rank", "grid"):
        assert result[key] == reference[key]
    assert result["nodes"] == "stored"


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path) -> None:
    run(tmp_path / "cut", "job=partition", partition="2d")
    store = Stored(str(tmp_path / "cut"))
    with pytest.raises(UserError, match=r"was cut for a 2 x 2 x 1 grid, .*choose partition\.grid=\[2,2,1\] workers=4"):
        store.assign(check_graph(), Grid(4, 1, 1))
    with pytest.raises(UserError, match="assigns 30 nodes, the graph has 31"):
        store.assign(check_graph(31), Grid(2, 2, 1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"meta\.json: No such file"):
        Stored(str(tmp_path / "empty")).assign(check_graph(), Grid(1, 1, 1))
    assert np.array_equal(store.assign(check_graph(), Grid(2, 2, 1)).node_rank, np.repeat(np.arange(4), [8, 8, 7, 7]))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    check_graph().save(tmp_path / "graph")
    with pytest.raises(UserError, match=r"partition\.path=.*graph holds no partition: job=partition stores one"):
        Stored(str(tmp_path / "graph")).assign(check_graph(), Grid(2, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("edges", [3, 40, 1000])
@pytest.mark.parametrize("weighted", [False, True])
def test_shards_of_relations_are_written_as_they_are_cut(edges: int, weighted: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(edges)
    n, m = 30, 300  # doubles and loops of one relation, and relation 5 without an edge
    graph = Graph.from_edges(
        *rng.integers(0, n, (2, m)),
        n,
        features=rng.normal(size=(n, 2)),
        edge_types=rng.choice([0, 1, 2, 3, 4, 6], m),
        weight=rng.random(m) if weighted else None,
    )
    partition = Partition(rng.integers(0, 3, n).astype(np.int32), None, Grid(3, 1, 1))
    for shard in cut_all(graph, partition):
        shard.save(tmp_path / f"cut/{shard.rank}")
    assert len(list(write_shards(graph, partition, tmp_path / "written", edges))) == 3
    assert digests_of(tmp_path / "written") == digests_of(tmp_path / "cut")
    assert "0/relation_degrees.npy" in digests_of(tmp_path / "written")


def test_shards_are_written_piece_by_piece_on_rows_only(tmp_path: Path) -> None:
    graph, grid = check_graph(), Grid(2, 2, 1)
    partition = Partition(np.arange(graph.num_nodes, dtype=np.int32) % 4, None, grid)
    with pytest.raises(
        UserError, match=r"partition\.grid=.*: a graph is cut piece by piece on grids of workers x 1 x 1"
    ):
        next(write_shards(graph, partition, tmp_path, 10))
