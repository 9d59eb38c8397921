"""Batches around edges have the contents that PyG documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.sampler import NegativeSampling

from gnnkit.pyg import LinkNeighborLoader
from tests.pyg.graphs import heterogeneous, homogeneous

WRITES = ("author", "writes", "paper")


def sample(data: Any, edges: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return next(iter(LinkNeighborLoader(data, [2, 2], edges, batch_size=8, **options)))


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_labelled_edges_come_first_and_then_negatives(disjoint: bool, ratio: float) -> None:
    data = homogeneous()
    batch = sample(data, data.edge_index, neg_sampling_ratio=ratio, disjoint=disjoint)
    labelled = batch.n_id[batch.edge_label_index]
    assert torch.equal(labelled[:, :8], data.edge_index[:, :8])
    assert labelled.shape[1] == 8 + 8 * ratio
    assert ratio == 0 or batch.edge_label.tolist() == [1.0] * 8 + [0.0] * 16
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.parametrize("disjoint", [False, True])
def test_negative_edges_have_the_types_of_the_positive_ones(disjoint: bool) -> None:
    data = heterogeneous()
    batch = sample(data, WRITES, neg_sampling="binary", disjoint=disjoint)
    row, col = batch[WRITES].edge_label_index
    assert torch.equal(batch["author"].n_id[row][:8], data[WRITES].edge_index[0, :8])
    assert torch.equal(batch["paper"].n_id[col][:8], data[WRITES].edge_index[1, :8])
    assert row.max() < batch["author"].num_nodes
    assert col.max() < batch["paper"].num_nodes
    assert len(row) == 16


@pytest.mark.parametrize("disjoint", [False, True])
def test_triplets_share_their_source(disjoint: bool) -> None:
    data = heterogeneous()
    batch = sample(data, WRITES, neg_sampling=NegativeSampling("triplet", 2), disjoint=disjoint)
    expected = data[WRITES].edge_index[:, :8]
    assert torch.equal(batch["author"].n_id[batch["author"].src_index], expected[0])
    assert torch.equal(batch["paper"].n_id[batch["paper"].dst_pos_index], expected[1])
    assert batch["paper"].dst_neg_index.shape == (8, 2)


def test_edges_are_no_later_than_the_labelled_ones() -> None:
    data, times = homogeneous(), torch.arange(400) % 7
    batch = sample(data, data.edge_index, edge_label_time=times, time_attr="edge_time")
    assert (batch.edge_time <= times[:8][batch.batch[batch.edge_index[1]]]).all()


@pytest.mark.slow
def test_negative_edges_do_not_depend_on_worker_processes() -> None:
    def drawn(num_workers: int) -> list[Any]:
        torch.manual_seed(1)
        loader = LinkNeighborLoader(
            homogeneous(), [2], neg_sampling="binary", batch_size=50, shuffle=True, num_workers=num_workers
        )
        return [(batch.n_id.tolist(), batch.edge_label_index.tolist()) for batch in loader]

    assert drawn(0) == drawn(2)


def test_times_of_edges_and_their_attribute_go_together() -> None:
    with pytest.raises(ValueError, match="'edge_label_time' is not set while 'time_attr' is set"):
        sample(homogeneous(), None, time_attr="edge_time")
