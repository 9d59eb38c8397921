"""Clusters are balanced, the same every time, and hold all edges among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnnkit.pyg import ClusterData, ClusterLoader
from tests.pyg.graphs import NUM_NODES, homogeneous


def clusters(**options: Any) -> ClusterData:
    data = Data(**{name: homogeneous()[name] for name in ("x", "edge_index", "edge_attr")})
    data.n_id = torch.arange(NUM_NODES)
    return ClusterData(data, 4, log=False, **options)


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
def test_batches_are_induced_subgraphs_of_all_nodes(sparse_format: str) -> None:
    data = homogeneous()
    seen = []
    for batch in ClusterLoader(clusters(sparse_format=sparse_format), batch_size=2):
        batch.validate()
        seen += batch.n_id.tolist()
        inside = torch.isin(data.edge_index, batch.n_id).all(0)
        assert torch.equal(batch.edge_attr.sort().values, inside.nonzero()[:, 0])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.edge_attr])
    assert sorted(seen) == list(range(NUM_NODES))


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
@pytest.mark.parametrize("edges", [[], [[0, 1], [1, 0]]])
def test_batches_may_have_no_edge(edges: list[list[int]], sparse_format: str) -> None:
    edge_index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()
    data = Data(edge_index=edge_index, x=torch.arange(24).view(12, 2), edge_attr=torch.rand(len(edges), 3), year=2020)
    batches = list(ClusterLoader(ClusterData(data, 4, log=False, sparse_format=sparse_format), batch_size=2))
    assert sorted(torch.cat([batch.x for batch in batches]).flatten().tolist()) == list(range(24))
    assert sum(batch.num_edges for batch in batches) == len(edges)
    assert all(batch.validate() and batch.edge_attr.shape == (batch.num_edges, 3) for batch in batches)
    assert [batch.year for batch in batches] == [2020, 2020]


def test_clusters_are_balanced_and_the_same_every_time() -> None:
    first, second = clusters(), clusters()
    assert torch.equal(first.partition.node_perm, second.partition.node_perm)
    assert first.partition.partptr.diff().max() <= 20
    assert str(first) == "ClusterData(4)"


def test_clusters_of_a_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = clusters(save_dir=str(tmp_path))
    monkeypatch.delattr(ClusterData, "_metis")
    second = clusters(save_dir=str(tmp_path))
    assert torch.equal(first.partition.node_perm, second.partition.node_perm)


def test_progress_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    ClusterData(homogeneous(), 2)
    assert "Partitioning 60 nodes into 2 clusters" in capsys.readouterr().err


def test_communities_are_found() -> None:
    members = torch.arange(40) // 10
    inside = torch.stack([torch.arange(40).repeat_interleave(40), torch.arange(40).repeat(40)])
    inside = inside[:, members[inside[0]] == members[inside[1]]]
    data = Data(num_nodes=40, edge_index=inside[:, torch.randperm(inside.shape[1])], n_id=torch.arange(40))
    found = ClusterData(data, 4, log=False)
    assert all(len(set(members[found[part].n_id].tolist())) == 1 for part in range(4))
