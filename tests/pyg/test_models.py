"""Models of PyG compute the same on batches as on the whole graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnnkit.pyg import NeighborLoader
from tests.pyg.graphs import NUM_NODES, heterogeneous, homogeneous


class Sage(nn.Module):
    """Two mean layers, which may leave out what later layers do not read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([SAGEConv(1, 4), SAGEConv(4, 3)])

    def forward(self, x: Tensor, edge_index: Tensor, *sampled: list[int]) -> Tensor:
        for index, layer in enumerate(self.layers):
            if sampled:
                x, edge_index, _ = trim_to_layer(index, *sampled, x, edge_index)
            x = layer(x, edge_index).relu()
        return x


class TypedSage(nn.Module):
    def __init__(self, relations: list[Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        convs = [{name: SAGEConv((width, width), 4) for name in relations} for width in (1, 4)]
        self.layers = nn.ModuleList([HeteroConv(layer) for layer in convs])

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        for layer in self.layers:
            out = layer(x, edges)
            x = {name: out.get(name, torch.zeros(len(rows), 4)) for name, rows in x.items()}
        return x


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"replace": True}], ids=str)
def test_all_neighbors_give_the_outputs_of_the_whole_graph(options: dict[str, Any]) -> None:
    data, model = homogeneous(), Sage()
    expected = model(data.x, data.edge_index)
    for batch in NeighborLoader(data, [-1, -1], batch_size=7, shuffle=True, **options):
        seeds = batch.n_id[: batch.batch_size]
        actual = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(actual, expected[seeds])


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"replace": True}], ids=str)
def test_trimmed_layers_give_the_same_outputs(options: dict[str, Any]) -> None:
    data, model = homogeneous(), Sage()
    for batch in NeighborLoader(data, [3, 2], batch_size=7, **options):
        whole = model(batch.x, batch.edge_index)[: batch.batch_size]
        trimmed = model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
        torch.testing.assert_close(trimmed[: batch.batch_size], whole)


def test_all_neighbors_of_all_types_give_the_outputs_of_the_whole_graph() -> None:
    data = heterogeneous()
    model = TypedSage(data.edge_types)
    expected = model(data.x_dict, data.edge_index_dict)["paper"]
    for batch in NeighborLoader(data, [-1, -1], "paper", batch_size=7, shuffle=True):
        paper = batch["paper"]
        actual = model(batch.x_dict, batch.edge_index_dict)["paper"]
        torch.testing.assert_close(actual[: paper.batch_size], expected[paper.n_id[: paper.batch_size]])


def test_training_reads_each_seed_once_an_epoch() -> None:
    data, model = homogeneous(), Sage()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seeds = []
    for batch in NeighborLoader(data, [3, 2], batch_size=16, shuffle=True):
        loss = model(batch.x, batch.edge_index)[: batch.batch_size].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seeds += batch.input_id.tolist()
    assert sorted(seeds) == list(range(NUM_NODES))
