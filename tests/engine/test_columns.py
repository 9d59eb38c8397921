"""Blocks that travel as one array, with all columns of their edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnkit.engine.columns import join_blocks, pack_block, unpack_block
from gnnkit.engine.relations import RelationEdges
from gnnkit.graph import CSC, Block

COLUMNS = {"edge_ids": np.array([4, 5, 9]), "weight": np.array([0.5, 2.0, 1 / 3]), "relation": np.array([1, 0, 1])}


def block(*names: str) -> Block:
    rows = np.array([0, 2, 3]), np.array([2, 3, 0]), np.array([7, 5, 9, 1])
    return Block(*rows, **{name: COLUMNS[name] for name in names})


@pytest.mark.parametrize("names", [(), ("edge_ids",), ("weight",), ("edge_ids", "weight", "relation")])
def test_a_block_comes_back_from_one_array(names: tuple[str, ...]) -> None:
    sent = block(*names)
    came = unpack_block(pack_block(sent, torch.device("cpu")).numpy())
    for name in ("indptr", "indices", "src_nodes"):
        np.testing.assert_array_equal(getattr(came, name), getattr(sent, name))
    assert list(came.edge_columns) == list(names)
    for name in names:
        np.testing.assert_array_equal(came.edge_columns[name], COLUMNS[name])


def test_joined_blocks_have_the_columns_of_all() -> None:
    both = join_blocks([block("edge_ids", "relation")] * 2)
    assert both.edge_columns["relation"].tolist() == [1, 0, 1, 1, 0, 1]
    assert both.src_nodes.tolist() == [7, 5, 7, 5, 9, 1, 9, 1]


def test_relations_of_a_block_share_each_mean() -> None:
    csc = CSC(np.array([0, 2, 3]), np.array([2, 1, 0]), np.array([1.0, 3.0, 2.0]), num_sources=3)
    degrees = np.array([4.0, 4.0, 0.0]), np.array([1.0, 6.0, 2.0])
    edges = RelationEdges.of(csc, np.array([0, 0, 1]), degrees, num_relations=2, inverse=True)
    assert (edges.num_rows, edges.num_relations) == (3, 4)
    assert edges.src.tolist() == [2, 1, 0, 0, 0, 1]
    assert edges.dst.tolist() == [0, 0, 1, 2, 1, 0]
    assert edges.types.tolist() == [0, 0, 1, 2, 2, 3]
    assert edges.factor.tolist() == [0.25, 0.75, 2.0, 1.0, 0.5, 1.0], "a degree of 0 counts as 1"
