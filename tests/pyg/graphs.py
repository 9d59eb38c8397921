"""Graphs in PyG's containers, with ids in every attribute."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

NUM_NODES, NUM_EDGES = 60, 400


def edges(num_sources: int, num_destinations: int, num_edges: int, seed: int) -> Tensor:  # [2, num_edges]
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(num_sources, (num_edges,), generator=generator)
    return torch.stack([row, torch.randint(num_destinations, (num_edges,), generator=generator)])


def homogeneous(dtype: torch.dtype = torch.int64) -> Data:
    """A graph with parallel edges, self-loops, and two isolated nodes at the end."""
    return Data(
        x=torch.arange(NUM_NODES, dtype=torch.float32)[:, None],
        edge_index=edges(NUM_NODES - 2, NUM_NODES - 2, NUM_EDGES, 1).to(dtype),
        edge_attr=torch.arange(NUM_EDGES),
        edge_weight=torch.rand(NUM_EDGES, generator=torch.Generator().manual_seed(2)),
        edge_time=torch.arange(NUM_EDGES) % 40,
        time=torch.arange(NUM_NODES) % 30,
    )


def heterogeneous() -> HeteroData:
    """Authors and papers, a relation without edges, and a type without in-edges."""
    data = HeteroData()
    for name, num_nodes in (("paper", 50), ("author", 30), ("venue", 4)):
        data[name].x = torch.arange(num_nodes, dtype=torch.float32)[:, None]
        data[name].time = torch.arange(num_nodes) % 20
    for source, name, destination, num_edges in (
        ("author", "writes", "paper", 200),
        ("paper", "cites", "paper", 300),
        ("paper", "by", "author", 150),
        ("venue", "shows", "paper", 20),
        ("author", "knows", "author", 0),
    ):
        store = data[source, name, destination]
        store.edge_index = edges(data[source].num_nodes, data[destination].num_nodes, num_edges, num_edges)
        store.edge_attr = torch.arange(num_edges)
    return data
