"""What columns are for: ends, labels and splits, by every reader alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.graph import Graph

N = 12
EDGES = pd.DataFrame({"src": range(N), "dst": [(v + 1) % N for v in range(N)]})
NODES = pd.DataFrame({"id": range(N), "label": [v % 3 for v in range(N)], "x": np.arange(N) / 7})
RATINGS = pd.DataFrame({"user_id": [1, 2, 3, 1], "item_id": [2, 9, 1, 9]})
USERS = pd.DataFrame({"user_id": [1, 2, 3, 9], "age": [1.5, 2.5, 3.5, 4.5]})
SHOP = {"src": "user_id", "dst": "item_id", "id": "user_id"}
MASKS = {f"{name}_mask": [v % 3 == place for v in range(N)] for place, name in enumerate(("train", "val", "test"))}


def folder_of(edges: pd.DataFrame, nodes: pd.DataFrame, folder: Path, form: str, **keys: Any) -> EdgeFolder:
    for name, frame in (("edges", edges), ("nodes", nodes)):
        getattr(frame, f"to_{form}")(folder / f"{name}.{form}", index=False)
    return EdgeFolder(str(folder), symmetrize=False, **keys)


def imported(data: EdgeFolder, folder: Path) -> Graph:
    (work := folder / "work").mkdir()
    pieces, journal = in_pieces(data), Journal(work, "key")
    return Graph.load(import_graph(pieces, work, Room(1 << 26, 1), journal, ProgressReporter(quiet=True)))


READERS: dict[str, Callable[..., Graph]] = {
    "pandas": lambda edges, nodes, _, **keys: Graph.from_tables(edges, nodes, **keys),
    "polars": lambda edges, nodes, _, **keys: Graph.from_tables(pl.from_pandas(edges), pl.from_pandas(nodes), **keys),
    "csv": lambda *tables, **keys: folder_of(*tables, "csv", **keys).load(),
    "parquet": lambda *tables, **keys: folder_of(*tables, "parquet", **keys).load(),
    "import csv": lambda *tables, **keys: imported(folder_of(*tables, "csv", **keys), tables[2]),
    "import parquet": lambda *tables, **keys: imported(folder_of(*tables, "parquet", **keys), tables[2]),
}


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., tuple[Graph, str]]:
    """Reads tables. Returns the graph, and all warnings."""

    def reader(edges: pd.DataFrame, nodes: pd.DataFrame, **keys: Any) -> tuple[Graph, str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph = READERS[request.param](edges, nodes, tmp_path, **keys)
        return graph, "\n".join(str(warning.message) for warning in caught)

    return reader


def test_equal_ids_of_different_things_are_asked_about_beside_a_node_table(read: Any) -> None:
    with pytest.raises(
        ValueError, match=r"2 of 3 distinct ids in 'user_id' .*bipartite=true.*bipartite=false.*leave it"
    ):
        read(RATINGS, USERS, **SHOP)


def test_equal_ids_are_one_node_on_demand(read: Any) -> None:
    assert read(RATINGS, USERS, **SHOP, bipartite=False)[0].num_nodes == 4


def test_distinct_ids_of_different_things_need_no_answer(read: Any) -> None:
    assert read(RATINGS.assign(item_id=9), USERS, **SHOP)[0].num_nodes == 4


@pytest.mark.parametrize("form", [bool, int, float])
def test_masks_are_the_split_and_no_features(read: Any, form: type) -> None:
    graph, _ = read(EDGES, NODES.assign(**{name: np.array(mask, form) for name, mask in MASKS.items()}))
    assert graph.feature_names == ("x",)
    assert np.array_equal(graph.split, np.arange(N) % 3 + 1)


def test_a_mask_that_is_missing_is_empty(read: Any) -> None:
    graph, _ = read(EDGES, NODES.assign(train_mask=MASKS["train_mask"]))
    assert np.array_equal(graph.split, np.arange(N) % 3 == 0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**MASKS, "split": "train"}, "has 'split' and 'train_mask', and both are splits: remove one of them"),
        (
            {**MASKS, "val_mask": True},
            "column 'test_mask', row 0: is in more than one of train_mask, val_mask, test_mask",
        ),
        ({"val_mask": 5}, "column 'val_mask', row 0: '5' is none of true, false, 1, 0"),
    ],
)
def test_unclear_masks_are_refused(read: Any, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(EDGES, NODES.assign(**columns))


def test_whole_labels_beside_empty_cells_are_classes(read: Any) -> None:
    graph, told = read(EDGES, NODES.assign(label=[None, *NODES["label"][1:]]))
    assert graph.labels.tolist() == [-1, *NODES["label"][1:]]
    assert "column 'label': 1.0 and the like are read as integers" in told


@pytest.mark.parametrize(
    "labels", [np.arange(N) * 1.0, [None, *np.arange(N - 1) + 0.5], [None, *np.arange(N - 1) - 1.0]]
)
def test_other_fractions_stay_numbers(read: Any, labels: Any) -> None:
    assert read(EDGES, NODES.assign(label=labels))[0].labels.dtype == np.float64


@pytest.mark.parametrize("name", ["Label", "class", "target", "y"])
def test_a_column_that_may_be_the_label_is_named_with_the_key(read: Any, name: str) -> None:
    graph, told = read(EDGES, NODES.rename(columns={"label": name}))
    assert name in graph.feature_names
    assert f"'{name}' is a feature; use " in told
    assert f"label={name} if it has the labels" in told


def test_no_column_may_be_the_label_beside_labels(read: Any) -> None:
    assert "is a feature" not in read(EDGES, NODES.assign(y=1.5, target=2))[1]


@pytest.mark.parametrize(
    ("edges", "nodes", "words"),
    [
        ({"Weight": 2.5}, {}, "'Weight' is a feature; rename it to 'weight'"),
        ({}, {"fold": [v % 5 for v in range(N)]}, "'fold' is a feature; rename it to 'split'"),
    ],
)
def test_columns_that_are_named_like_a_weight_or_a_split_are_named(
    read: Any, edges: Any, nodes: Any, words: str
) -> None:
    assert words in read(EDGES.assign(**edges), NODES.assign(**nodes))[1]


def test_one_column_cannot_be_both_ends(read: Any) -> None:
    with pytest.raises(ValueError, match="src and dst are both the column 'src', expected two columns"):
        read(EDGES, NODES, src="src", dst="src")


def test_a_table_without_rows_is_told(read: Any) -> None:
    graph, told = read(EDGES[:0], NODES)
    assert graph.num_edges == 0
    assert "has no rows, so the graph has no edges" in told


def test_a_word_among_numeric_ids_is_told(read: Any) -> None:
    ids = [str(v) for v in range(N - 1)]
    graph, told = read(EDGES[: N - 2].astype(str), NODES.assign(id=[*ids, "Total"]))
    assert graph.num_nodes == N
    assert "'Total' is text, and most ids are integers; remove the row if it is no node" in told


@pytest.mark.parametrize(
    ("node", "end"), [("ab-cd", "AB-CD"), ("ab-cd", "{AB-CD}"), ("AB-CD", "ab-cd"), ("K\u00f6ln", "Ko\u0308ln")]
)
def test_another_spelling_of_an_id_is_named(read: Any, node: str, end: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"column 'dst', row 0: '.*' is written {ascii(node)!s} as the id of a node".replace("\\", r"\\"),
    ):
        read(pd.DataFrame({"src": [node, "b"], "dst": [end, "b"]}), pd.DataFrame({"id": [node, "b"], "x": [1.5, 2]}))


def test_an_id_without_a_node_is_refused_with_the_remedy(read: Any) -> None:
    with pytest.raises(ValueError, match="row 0: 99 is no id of a node: add the node, or remove the edge"):
        read(EDGES.assign(dst=99), NODES)


def test_the_numbers_of_other_ids_are_not_told(read: Any) -> None:
    ids = [f"n{v}" for v in range(N)]
    assert "integers" not in read(pd.DataFrame({"src": ids[1:], "dst": ids[:-1]}), NODES.assign(id=ids))[1]
