"""Sets of edges are derived, remembered and sorted."""

from __future__ import annotations

import torch
from lazyedges import EdgeSet
from plain_kernels import PlainBackend
from torch import Tensor


def edge_set_of(edge_index: Tensor, num_rows: int) -> EdgeSet:
    return EdgeSet(edge_index, (num_rows, num_rows), PlainBackend())


def test_a_mask_changed_in_place_selects_other_edges() -> None:
    edge_set = edge_set_of(torch.tensor([[0, 1, 2, 1], [0, 2, 1, 1]]), 3)
    mask = edge_set.loopless()
    chosen = edge_set.select(mask)
    assert edge_set.select(mask) is chosen
    mask[0] = True
    assert edge_set.select(mask).edge_index.tolist() == [[0, 1, 2], [0, 2, 1]]
    assert edge_set.loopless().tolist() == [False, True, True, False]
    assert edge_set.with_loops(torch.tensor([1])).edge_index.tolist() == [[0, 1, 2, 1, 1], [0, 2, 1, 1, 1]]


def test_few_selections_of_edges_are_remembered() -> None:
    edge_set = edge_set_of(torch.arange(20).view(2, 10) % 7, 7)
    types = torch.arange(10) % 3
    relations = [edge_set.select(types == relation) for relation in range(3)]
    everything = edge_set.select(torch.arange(10))
    assert [edge_set.select(types == relation) for relation in range(3)] == relations
    assert edge_set.select(torch.arange(10)) is everything
    for shift in range(3):  # as by a layer that draws edges
        edge_set.select((torch.arange(10) + shift + 1) % 10)
    assert edge_set.select(torch.arange(10)) is not everything


def test_sources_after_the_own_rows_are_negative_until_the_rows_are_known() -> None:
    edge_set = EdgeSet(torch.tensor([[0, -1, 1, -2], [1, 0, 0, 1]]), (None, None), PlainBackend())
    assert edge_set.place_sources(2, 2)
    assert edge_set.place_destinations(2)
    assert not edge_set.place_sources(2, 1)
    assert edge_set.row_of_source.tolist() == [0, 2, 1, 3]
    assert edge_set.sum_rows(torch.tensor([[1.0], [2], [4], [8]]), None).tolist() == [[6], [9]]


def test_values_of_edges_are_in_the_order_of_the_set() -> None:
    edge_set = edge_set_of(torch.tensor([[0, 1, 2, 1], [2, 0, 2, 1]]), 3)
    values = torch.tensor([[1.0], [2], [4], [8]])
    assert edge_set.sum_values(values).tolist() == [[2], [8], [5]]
    assert edge_set.largest(values).tolist() == [[2], [8], [4]]
    assert torch.equal(edge_set.from_order(edge_set.in_order(values)), values)
    assert edge_set.sum_rows(torch.ones(3, 1), values).tolist() == [[2], [8], [5]]
    assert edge_set.dot(torch.tensor([[[1.0]], [[2]], [[3]]]), torch.ones(3, 1, 1)).flatten().tolist() == [1, 2, 3, 2]
    assert edge_set.in_degree.tolist() == [1, 1, 2]
    assert edge_set.edgeless is None
