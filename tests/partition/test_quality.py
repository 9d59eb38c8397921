"""The report says what a count over all nodes and edges says."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from partition_cases import cases, destinations, random_graph

from gnnkit.graph import Graph, Split
from gnnkit.partition import Grid, Partition, cut_all, measure
from gnnkit.partition.by_id import Random
from gnnkit.utils.storage import load_arrays


@pytest.mark.slow
@given(cases())
def test_cut_boundary_and_copies_are_those_of_a_count(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    quality = measure(graph, partition)
    copies = {(node, rank // partition.grid.slices) for node, rank in enumerate(partition.node_rank)}
    boundary, cut = set(), 0
    edges = zip(graph.csc.indices, destinations(graph), partition.cells_of_edges(graph), strict=True)
    for source, target, cell in edges:
        copies |= {(source, cell), (target, cell)}
        if partition.node_rank[source] != partition.node_rank[target]:
            boundary |= {source, target}
            cut += 1
    assert quality.edge_cut == cut
    assert set(np.flatnonzero(quality.boundary)) == boundary
    assert quality.replication_factor == len(copies) / max(graph.num_nodes, 1)


@pytest.mark.slow
@settings(max_examples=30)
@given(cases())
def test_shares_and_words_are_those_of_the_shards(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    shards = list(cut_all(graph, partition))
    quality = measure(graph, partition)
    assert quality.num_held.tolist() == [shard.csc.num_edges for shard in shards]
    assert quality.num_train.tolist() == [(shard.split == Split.TRAIN).sum() for shard in shards]
    width = 4 * partition.grid.slices
    np.testing.assert_allclose(quality.words * width, quality.traffic.words(width).total)
    cells = [shard for shard in shards if shard.slice == 0]
    halos = [np.bincount(shard.halo_cell, minlength=partition.grid.num_cells).tolist() for shard in cells]
    partials = [np.bincount(shard.partial_cell, minlength=partition.grid.num_cells) for shard in cells]
    assert quality.traffic.gather_rows.tolist() == halos
    assert quality.traffic.reduce_rows.tolist() == np.transpose(partials).tolist()
    for value in quality.balance().values():
        assert value >= 1


def test_total_words_of_1d_are_the_communication_volume() -> None:
    graph = random_graph(60, 200)
    partition = Random().assign(graph, Grid(5, 1, 1))
    need = {
        (source, partition.node_rank[target])
        for source, target in zip(graph.csc.indices, destinations(graph), strict=True)
    }
    volume = sum(partition.node_rank[source] != rank for source, rank in need)
    assert measure(graph, partition).words.sum() == volume


def test_the_report_is_stored_and_printed(tmp_path: Path) -> None:
    graph = random_graph(40, 160)
    partition = Random().assign(graph, Grid(2, 1, 2))
    quality = measure(graph, partition)
    quality.save(tmp_path / "partition")
    arrays, report = load_arrays(tmp_path / "partition")
    assert report == json.loads(json.dumps(quality.to_dict()))
    np.testing.assert_array_equal(arrays["node_rank"], partition.node_rank)
    for region in report["regions"]:
        start, stop = arrays["boundary_start"][region["rank"] : region["rank"] + 2]
        own = np.flatnonzero(quality.boundary & (partition.node_rank == region["rank"]))
        np.testing.assert_array_equal(arrays["boundary"][start:stop], own)
        assert partition.grid.position(region["rank"]) == (region["row"], region["col"], region["slice"])
    lines = quality.table()
    assert len({len(line) for line in lines[:5]}) == 1
    assert f"cut {quality.edge_cut} of 160 edges" in lines[5]
