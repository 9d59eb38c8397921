"""Graphs that several folders of tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnkit.graph import CSC, Graph


def random_graph(num_nodes: int = 40, seed: int = 0) -> Graph:
    """Draws edges, features, three classes and three splits, four edges per node."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, 4 * num_nodes))
    split = rng.choice(np.array([1, 2, 3], np.int8), num_nodes, p=[0.6, 0.2, 0.2])
    features = rng.standard_normal((num_nodes, 8)).astype(np.float32)
    return Graph(CSC.from_edges(src, dst, num_nodes), features, rng.integers(0, 3, num_nodes), split)


def pyg_data(width: int, num_classes: int) -> Any:
    """Draws PyG's `Data` of 60 nodes, 200 edges and three equal splits."""
    import torch
    from torch_geometric.data import Data

    rng = np.random.default_rng(0)
    masks = {f"{split}_mask": torch.arange(60) % 3 == i for i, split in enumerate(("train", "val", "test"))}
    x = torch.tensor(rng.normal(size=(60, width)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, num_classes, 60))
    return Data(x, torch.tensor(rng.integers(0, 60, (2, 200))), y=y, **masks)
