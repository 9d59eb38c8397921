"""Tables of users and items, whose ids are separate."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_import.datasets import in_pieces

from gnnkit.errors import UserError
from gnnkit.graph import Graph

ROWS = [(3, 1), (1, 2), (3, 2), (20, 10), (1, 1)]


def write(folder: Path, header: str, rows: list[tuple[object, ...]]) -> str:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (folder / "edges.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


def pairs_by_id(graph: Graph) -> list[tuple[object, object]]:
    assert graph.node_ids is not None
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return sorted(zip(graph.node_ids[graph.csc.indices].tolist(), graph.node_ids[dst].tolist(), strict=True))


@pytest.mark.parametrize("header", ["user,item", "user_id,item_id", "userId,itemId"])
def test_users_and_items_with_equal_ids_are_different_nodes(header: str, tmp_path: Path) -> None:
    root = write(tmp_path, header, ROWS)
    with pytest.warns(UserWarning, match=r"are read as two node types with separate ids; use dataset.bipartite=false"):
        graph = EdgeFolder(root).load()
    assert graph.node_types == (("user", 3), ("item", 3))
    assert graph.schema.edge_types == ("user-to-item",)
    np.testing.assert_array_equal(graph.node_ids, [1, 3, 20, 1, 2, 10])
    assert pairs_by_id(graph) == sorted(ROWS)


def test_text_ids_other_columns_and_relations(tmp_path: Path) -> None:
    rows = [("ann", 7, "view", 0.5), ("bob", 9, "buy", 2), ("ann", 9, "buy", 1)]
    root = write(tmp_path, "customer,product,type,weight", rows)
    graph = EdgeFolder(root, src="customer", dst="product", bipartite=True).load()
    assert graph.node_types == (("customer", 2), ("product", 2))
    assert set(graph.schema.edge_types) == {"customer-view-product", "customer-buy-product"}
    np.testing.assert_array_equal(graph.node_ids, ["ann", "bob", "7", "9"])
    assert graph.csc.weight is not None
    assert sorted(graph.csc.weight.tolist()) == [0.5, 1, 2]


def test_disjoint_ends_are_one_type_with_a_hint(tmp_path: Path) -> None:
    root = write(tmp_path, "src,dst", [("u1", "i1"), ("u2", "i1"), ("u1", "i2")])
    with pytest.warns(UserWarning, match=r"no src is a dst; use dataset.bipartite=true"):
        graph = EdgeFolder(root, symmetrize=False).load()
    assert graph.node_types is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EdgeFolder(root, symmetrize=False, bipartite=False).load().node_types is None
        assert EdgeFolder(root, bipartite=True).load().node_types == (("src", 2), ("dst", 2))


def test_shared_ids_of_users_and_items_are_read_on_demand(tmp_path: Path) -> None:
    graph = EdgeFolder(write(tmp_path, "user,item", [(0, 1), (1, 0), (1, 2)]), bipartite=False, symmetrize=False).load()
    assert graph.num_nodes == 3


def test_repeated_interactions_are_merged_on_demand(tmp_path: Path) -> None:
    root = write(tmp_path, "user,item", [*ROWS, ROWS[0]])
    assert EdgeFolder(root, bipartite=True).load().num_edges == 6
    assert EdgeFolder(root, bipartite=True, duplicates="first").load().num_edges == 5


def test_other_files_and_reverse_edges_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path, "user,item", ROWS)
    with pytest.raises(UserError, match=r"dataset.bipartite=true: dataset.symmetrize=true would add edges"):
        EdgeFolder(root, bipartite=True, symmetrize=True)
    with pytest.raises(UserError, match=r"dataset.bipartite=true is not supported by job=import"):
        in_pieces(EdgeFolder(root, bipartite=True))
    (tmp_path / "nodes.csv").write_text("id\n1\n2\n3\n10\n20\n")
    with pytest.raises(UserError, match=r"reads one edge table, but there is nodes.csv"):
        EdgeFolder(root, bipartite=True).load()
