from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from gnnkit_formats.graphsaint import GraphSaint

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.folders import CLASSES, MATRIX, saint


def load(folder: Path) -> Graph:
    return GraphSaint(str(folder)).load()


def test_a_folder_is_read_as_pyg_reads_it(tmp_path: Path) -> None:
    graph = load(saint(tmp_path))
    np.testing.assert_array_equal(graph.csc.indptr, [0, 0, 2, 3, 3])
    np.testing.assert_array_equal(graph.csc.indices, [0, 2, 1])
    assert graph.csc.weight is None
    assert graph.labels.tolist() == [2, 0, 1, 1]
    assert graph.split.tolist() == [1, 2, 1, 3]
    np.testing.assert_array_equal(graph.features, np.eye(4))


def test_lists_of_classes_are_sets(tmp_path: Path) -> None:
    graph = load(saint(tmp_path, {str(node): [node % 2, 1] for node in range(4)}))
    assert graph.labels.tolist() == [[node % 2 == 1, True] for node in range(4)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": {"0": 1}}, r"class_map.json: has classes of 1 nodes, expected 0\.\.3: node 1"),
        ({"classes": CLASSES | {"2": [1]}}, "class_map.json: the lists of classes differ in length"),
        ({"classes": CLASSES | {"2": "a"}}, "labels has dtype .*, expected integers"),
        ({"classes": "[1]"}, "class_map.json holds no JSON object"),
        ({"classes": "{"}, "class_map.json is not JSON: "),
        ({"classes": '{"0": 1, "1": 0, "2": 1, "3": 0, "2": 0}'}, "an object has the key '2' twice"),
        ({"classes": "[" * 100_000}, "class_map.json cannot be read: it is nested too deeply"),
        ({"roles": {"tr": [4]}}, r"role.json: tr must list nodes 0\.\.3"),
        ({"roles": {"tr": ["0"]}}, r"role.json: tr must list nodes 0\.\.3"),
        ({"roles": {"tr": [0], "va": [0]}}, "role.json: va lists a node that already has another role"),
        ({"matrix": MATRIX.tocoo()}, r"adj_full.npz: format is b'coo', expected csr"),
        ({"matrix": sp.csr_matrix((4, 5))}, r"adj_full.npz: the matrix has shape \[4, 5\], expected one row"),
    ],
)
def test_errors_name_the_file_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(saint(tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_pipes_are_refused(tmp_path: Path) -> None:
    saint(tmp_path)
    (tmp_path / "role.json").unlink()
    os.mkfifo(tmp_path / "role.json")
    with pytest.raises(UserError, match=r"role\.json is no regular file"):
        load(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dataset\.root=.*nowhere: is not a folder"):
        GraphSaint(str(tmp_path / "nowhere")).load()
