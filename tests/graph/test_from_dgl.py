"""Graphs of DGL.

DGL has had no release for current versions of torch. So `Stand` has the part of
DGLGraph's interface that is read, as DGL 2.1 documents it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gnnkit.errors import UserError
from gnnkit.graph import Graph

Ends = tuple[torch.Tensor, torch.Tensor]


class View(dict[str, torch.Tensor]):
    """`ndata` and `edata`: a mutable mapping from names to tensors."""


class Stand:
    """A homogeneous `DGLGraph`."""

    is_block, batch_size = False, 1

    def __init__(self, src: list[int], dst: list[int], num_nodes: int) -> None:
        self._ends = torch.tensor(src), torch.tensor(dst)
        self._num_nodes = num_nodes
        self.ndata, self.edata = View(), View()
        self.ntypes, self.canonical_etypes = ["_N"], [("_N", "_E", "_N")]

    def num_nodes(self) -> int:
        return self._num_nodes

    def edges(self, form: str = "uv", order: str = "eid") -> Ends:
        assert (form, order) == ("uv", "eid")  # in the order of edata
        return self._ends


def stand(**attributes: Any) -> Stand:
    graph = Stand([2, 0, 1], [1, 1, 0], 3)
    graph.ndata["feat"], graph.ndata["label"] = torch.eye(3), torch.tensor([0, 1, 2])
    graph.ndata["train_mask"] = torch.tensor([True, False, False])
    graph.edata["weight"] = torch.tensor([20.0, 0.0, 10.0])
    for name, value in attributes.items():
        setattr(graph, name, value)
    return graph


def test_fields_of_the_usual_names_are_read() -> None:
    source_graph = stand()
    source_graph.ndata["_ID"] = torch.tensor([7, 8, 9])
    graph = Graph.of(source_graph)
    np.testing.assert_array_equal(graph.csc.indices, [1, 0, 2])
    np.testing.assert_array_equal(graph.csc.weight, [10, 0, 20])
    np.testing.assert_array_equal(graph.features, np.eye(3))
    np.testing.assert_array_equal(graph.labels, [0, 1, 2])
    np.testing.assert_array_equal(graph.split, [1, 0, 0])
    np.testing.assert_array_equal(graph.node_ids, [7, 8, 9])


def test_fields_of_other_names_are_named_and_others_are_told() -> None:
    source_graph = stand()
    source_graph.ndata["h"], source_graph.edata["feat"] = torch.ones(3), torch.tensor([[1.0], [2.0], [3.0]])
    with pytest.warns(UserWarning, match=r"ignores unknown attributes: ndata\['feat'\]$"):
        graph = Graph.from_dgl(source_graph, features="h")
    np.testing.assert_array_equal(graph.features, [[1], [1], [1]])
    np.testing.assert_array_equal(graph.edge_features, [[3], [2], [1]])
    with pytest.raises(UserError, match=r"the DGLGraph has no ndata\['z'\]"):
        Graph.from_dgl(source_graph, labels="z")


def test_one_of_several_splits_is_chosen() -> None:
    source_graph = stand()
    source_graph.ndata["train_mask"] = torch.eye(3).bool()
    assert Graph.from_dgl(source_graph, split=1).split.tolist() == [0, 1, 0]
    with pytest.raises(
        UserError, match=r"ndata\['train_mask'\] has shape \[3, 3\], with one split per column: choose one with split="
    ):
        Graph.from_dgl(source_graph)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"ntypes": ["a", "b"]}, r"types of nodes \(a, b\) and of edges .*: choose with graph"),
        ({"canonical_etypes": [("a", "r", "a"), ("a", "s", "a")]}, r"of edges \(a-r-a, a-s-a\)"),
        ({"batch_size": 4}, "a batch of 4 graphs: labels of graphs are not supported yet"),
        ({"is_block": True}, "a block of a mini-batch"),
    ],
)
def test_types_batches_and_blocks_are_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Graph.of(stand(**attributes))


def test_a_split_without_labels_is_refused() -> None:
    source_graph = stand()
    del source_graph.ndata["label"]
    message = r"ndata\['label'\] is missing, but 1 nodes are in a split: add it, or remove ndata\['train_mask'\]"
    with pytest.raises(UserError, match=message):
        Graph.of(source_graph)


def test_other_values_are_refused() -> None:
    with pytest.raises(UserError, match="expected a DGLGraph, got int"):
        Graph.from_dgl(7)
