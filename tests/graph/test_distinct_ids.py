"""Distinct ids of edges are the nodes, of one type or of two."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import read_whole
from gnnkit_import.datasets import in_pieces

from gnnkit.errors import UserError
from gnnkit.graph import Graph

Ends = dict[str, list[int]]
Read = Callable[[Path, Ends], Graph]


def _folder(folder: Path, ends: Ends, form: str) -> EdgeFolder:
    table, (src, dst) = pd.DataFrame(ends), ends
    if form == "csv":
        table.to_csv(folder / "edges.csv", index=False)
    else:
        table.to_parquet(folder / "edges.parquet")
    return EdgeFolder(str(folder), symmetrize=False, src=src, dst=dst)


def _frames(folder: Path, ends: Ends) -> Graph:
    del folder
    src, dst = ends
    return Graph.from_tables(pd.DataFrame(ends), src=src, dst=dst)


READERS: dict[str, Read] = {
    "csv": lambda folder, ends: _folder(folder, ends, "csv").load(),
    "csv in pieces": lambda folder, ends: read_whole(in_pieces(_folder(folder, ends, "csv"))),
    "parquet": lambda folder, ends: _folder(folder, ends, "parquet").load(),
    "parquet in pieces": lambda folder, ends: read_whole(in_pieces(_folder(folder, ends, "parquet"))),
    "frames": _frames,
}
each_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@each_reader
@pytest.mark.parametrize("far", [189_000, 2**31 + 7, 8_992_805_414, 2**62])
def test_distinct_ids_are_the_nodes_and_keep_their_numbers(read: Read, far: int, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=rf"the 3 distinct ids from -4 to {far} are the nodes"):
        graph = read(tmp_path, {"src": [far, 7], "dst": [7, -4]})
    assert graph.node_ids is not None
    assert graph.node_ids.tolist() == [-4, 7, far]
    np.testing.assert_array_equal(graph.csc.indices, [1, 2])


@pytest.mark.parametrize("dst", [[7, 90], [90, 91]], ids=["one type", "perhaps two"])
def test_ids_with_gaps_name_the_key_that_numbers_nodes(dst: list[int], tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"are the nodes; use dataset.num_nodes=N if all numbers from 0 to N-1"
    ) as caught:
        _folder(tmp_path, {"src": [5, 7], "dst": dst}, "csv").load()
    assert not any("are the nodesno" in str(warning.message) for warning in caught)


@each_reader
def test_ids_without_gaps_are_read_without_a_warning(read: Read, tmp_path: Path) -> None:
    for first in (0, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            graph = read(tmp_path, {"src": [first, first + 1], "dst": [first + 1, first + 2]})
        assert graph.num_nodes == 3
        assert (graph.node_ids is None) == (first == 0)


@each_reader
@pytest.mark.parametrize("names", [("userId", "movieId"), ("customer", "product"), ("winner_id", "tourney_id")])
def test_equal_numbers_under_names_of_different_things_are_a_question(
    read: Read, names: tuple[str, str], tmp_path: Path
) -> None:
    ends = dict(zip(names, ([1, 2, 3], [2, 3, 90]), strict=True))
    asked = (
        rf"2 of 3 distinct ids in '{names[0]}' also occur among the 3 in '{names[1]}'; use .*bipartite=true .*=false"
    )
    with pytest.raises(UserError, match=asked):
        read(tmp_path, ends)


@pytest.mark.parametrize(
    "names",
    [
        ("source", "target"),
        ("from", "to"),
        ("id_1", "id_2"),
        ("node1", "node2"),
        ("u", "v"),
        ("citing_paper_id", "cited_paper_id"),
        ("FromUserId", "toUserId"),
        ("followerId", "followeeID"),
    ],
)
def test_names_of_two_ends_are_one_type(names: tuple[str, str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="4 distinct ids from 1 to 90"):
        assert _frames(tmp_path, dict(zip(names, ([1, 2, 3], [2, 3, 90]), strict=True))).num_nodes == 4


def test_frames_have_two_types_of_nodes_or_one_on_request() -> None:
    edges = pd.DataFrame({"userId": [1, 2, 1], "movieId": [2, 1, 1], "stars": [5, 3, 4], "kind": ["a", "a", "b"]})
    graph = Graph.from_tables(edges, src="userId", dst="movieId", edge_type="kind", weight="stars", bipartite=True)
    assert graph.node_types == (("user", 2), ("movie", 2))
    assert graph.schema.edge_types == ("user-a-movie", "user-b-movie")
    assert graph.csc.weight is not None
    assert Graph.from_tables(edges, src="userId", dst="movieId", bipartite=False).num_nodes == 2
    with pytest.raises(UserError, match="bipartite=True reads edges only"):
        Graph.from_tables(edges, pd.DataFrame({"id": [1, 2]}), src="userId", dst="movieId", bipartite=True)
