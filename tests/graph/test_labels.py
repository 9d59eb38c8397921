"""Whole numbers in the data are classes or numbers, by one rule in all readers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.npz import Npz
from gnnkit_formats.pieces import read_whole
from gnnkit_import.datasets import in_pieces
from torch_geometric.data import Data

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.labels import settle_labels
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "are_numbers"),
    [
        (np.arange(3), False),
        (np.arange(50), False),  # the ids of classes of a tiny graph
        (np.arange(51), True),
        (np.tile(np.arange(100), 10), False),
        (np.tile(np.arange(100), 9), True),
        (1 + np.tile(np.arange(100), 10), False),
        (2 + np.tile(np.arange(100), 10), True),
        (np.tile(np.arange(100, 5000, 100), 100), False),
        (np.tile(np.arange(100, 5200, 100), 100), True),
        (np.arange(100, 1100, 100), False),
        (np.arange(100, 1200, 100), True),
        (np.array([-1, 2, 7]), False),
        (np.array([-2, -1, 0, 1]), True),
        (np.array([0, 2**16]), True),
        (np.array([0, 2**53 - 1]), True),
        (np.array([], np.int64), False),
        (np.array([200, 3], np.uint8), False),
    ],
)
def test_fifty_values_or_dense_numbers_of_ten_nodes_each_are_classes(values: np.ndarray, are_numbers: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_settings = settle_labels(values)
    assert (run_settings.dtype.kind == "f") == are_numbers == bool(caught)
    assert run_settings.tolist() == values.tolist()
    if are_numbers:
        assert "task=regression" in str(caught[0].message)
        assert "task=node_classification" in str(caught[0].message)


@pytest.mark.parametrize("values", [[2**53, 1], [-(2**53), 1], [2**63 - 1, 0]])
def test_numbers_that_float64_does_not_represent_are_refused(values: list[int]) -> None:
    with pytest.raises(UserError, match="float64"):
        settle_labels(np.array(values))


PRICES = 100 + 37 * np.random.default_rng(0).integers(0, 10**5, 60)


def _folder(folder: Path, values: list[Any], form: str) -> EdgeFolder:
    nodes = pd.DataFrame({"id": range(len(values)), "label": values})
    if form == "csv":
        nodes.to_csv(folder / "nodes.csv", index=False)
    elif form == "parquet":
        nodes.to_parquet(folder / "nodes.parquet")
    else:
        np.save(folder / "labels.npy", np.array(values))
        np.save(folder / "features.npy", np.ones((len(values), 1)))
    (folder / "edges.csv").write_text("src,dst\n0,1\n1,0\n")
    return EdgeFolder(str(folder), symmetrize=False)


def _frames(folder: Path, values: list[Any]) -> Graph:
    del folder
    return Graph.from_tables(
        pd.DataFrame({"src": [0], "dst": [1]}), pd.DataFrame({"id": range(len(values)), "label": values})
    )


def _npz(folder: Path, values: list[Any]) -> Npz:
    n = len(values)
    np.savez(folder / "g.npz", indptr=np.zeros(n + 1, int), indices=np.zeros(0, int), x=np.ones((n, 1)), y=values)
    return Npz(str(folder / "g.npz"))


def _pyg(folder: Path, values: list[Any]) -> Graph:
    del folder
    return Graph.from_pyg(Data(torch.ones(len(values), 1), torch.tensor([[0], [1]]), y=torch.tensor(values)))


READERS: dict[str, Callable[[Path, list[Any]], Graph]] = {
    "csv": lambda folder, values: _folder(folder, values, "csv").load(),
    "csv in pieces": lambda folder, values: read_whole(in_pieces(_folder(folder, values, "csv"))),
    "parquet": lambda folder, values: _folder(folder, values, "parquet").load(),
    "parquet in pieces": lambda folder, values: read_whole(in_pieces(_folder(folder, values, "parquet"))),
    "npy": lambda folder, values: _folder(folder, values, "npy").load(),
    "npy in pieces": lambda folder, values: read_whole(in_pieces(_folder(folder, values, "npy"))),
    "frames": _frames,
    "npz": lambda folder, values: _npz(folder, values).load(),
    "pyg": _pyg,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (PRICES.tolist(), PRICES.tolist()),
        ([-1, *PRICES.tolist()], [NAN, *PRICES.tolist()]),
        ([-5, -1, *PRICES.tolist()], [-5, -1, *PRICES.tolist()]),
        ([0, 2**31 + 1], [0, 2**31 + 1]),
    ],
    ids=["prices", "unlabelled", "negative", "large"],
)
def test_every_reader_gives_numbers_that_both_tasks_read(
    reader: str, values: list[int], labels: list[float], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = READERS[reader](tmp_path, values)
    np.testing.assert_equal(graph.labels.tolist(), labels)
    assert Regression().read(graph) is graph
    classes = NodeClassification().read(graph)
    assert classes.class_names is not None
    named = [int(classes.class_names[label]) for label in classes.labels if label >= 0]
    assert named == [label for label in labels if not np.isnan(label)]


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_gives_classes_that_regression_reads_as_numbers(reader: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = READERS[reader](tmp_path, [3, 1, -1, 1, 7])
    assert graph.labels.tolist() == [3, 1, -1, 1, 7]
    np.testing.assert_equal(Regression().read(graph).labels.tolist(), [3, 1, NAN, 1, 7])


def test_an_empty_cell_is_no_label_where_minus_one_is_a_number() -> None:
    nodes = pd.DataFrame({"id": range(4), "label": pd.array([-3, -1, None, 2], "Int64")})
    with pytest.warns(UserWarning, match="-3 is no class"):
        graph = Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes)
    np.testing.assert_equal(graph.labels.tolist(), [-3, -1, NAN, 2])


def test_text_of_more_digits_than_numbers_have_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nodes, column 'label', row 1: '99999999999999999999' is beyond 2"):
        _frames(tmp_path, ["1", "9" * 20])


def test_regression_refuses_names_of_classes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="labels must be numbers, but they are names of classes, such as cat"):
        Regression().read(_frames(tmp_path, ["dog", "cat"]))
