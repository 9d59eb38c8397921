"""Graphs that several folders of tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnkit.graph import CSC, Graph, Relation


def random_graph(num_nodes: int = 40, seed: int = 0) -> Graph:
    """Draws edges, features, three classes and three splits, four edges per node."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, 4 * num_nodes))
    split = rng.choice(np.array([1, 2, 3], np.int8), num_nodes, p=[0.6, 0.2, 0.2])
    features = rng.standard_normal((num_nodes, 8)).astype(np.float32)
    return Graph(CSC.from_edges(src, dst, num_nodes), features, rng.integers(0, 3, num_nodes), split)


def featured_graph(num_nodes: int = 37, *, typed: bool = True) -> Graph:
    """Draws a graph with 7 columns, 2 columns of edges, 3 classes and 3 edge types."""
    rng, num_edges = np.random.default_rng(4), 5 * num_nodes
    src, dst = rng.integers(0, num_nodes, (2, num_edges))
    features, labels = rng.standard_normal((num_nodes, 7)), rng.integers(0, 3, num_nodes)
    edge_features, types = rng.random((num_edges, 2)), rng.integers(0, 3, num_edges)
    csc, split = CSC.from_edges(src, dst, num_nodes), np.ones(num_nodes, np.int8)
    return Graph(csc, features, labels, split, edge_features, edge_types=types if typed else None)


def pyg_data(width: int, num_classes: int) -> Any:
    """Draws PyG's `Data` of 60 nodes, 200 edges and three equal splits."""
    import torch
    from torch_geometric.data import Data

    rng = np.random.default_rng(0)
    masks = {f"{split}_mask": torch.arange(60) % 3 == i for i, split in enumerate(("train", "val", "test"))}
    x = torch.tensor(rng.normal(size=(60, width)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, num_classes, 60))
    return Data(x, torch.tensor(rng.integers(0, 60, (2, 200))), y=y, **masks)


def papers_and_authors(num_papers: int, num_authors: int) -> Any:
    """Draws `HeteroData` of types of different widths, and one without features."""
    import torch
    from torch_geometric.data import HeteroData

    rng = np.random.default_rng(num_papers)

    def ends(source: int, destination: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([rng.integers(0, size, 90) for size in (source, destination)]))

    data = HeteroData()
    data["paper"].x = torch.from_numpy(rng.normal(size=(num_papers, 5)))
    data["paper"].y = torch.arange(num_papers) % 3
    for number, split in enumerate(("train_mask", "val_mask", "test_mask")):
        data["paper"][split] = torch.arange(num_papers) % 4 == number
    data["author"].x = torch.from_numpy(rng.normal(size=(num_authors, 2)))
    data["subject"].num_nodes = 4
    data["author", "writes", "paper"].edge_index = ends(num_authors, num_papers)
    data["paper", "about", "subject"].edge_index = ends(num_papers, 4)
    return data


def shop(num_users: int, num_items: int, num_tags: int, *, num_buys: int, seed: int = 0) -> Graph:
    """Draws users who buy items of their taste, with a stored reverse relation.

    Users also view items, some of which they buy, and follow users. Items have tags,
    which depend on the items' kind.
    """
    rng, kinds = np.random.default_rng(seed), 4
    taste, kind = rng.integers(0, kinds, num_users), rng.integers(0, kinds, num_items)
    probability = np.where(taste[:, None] == kind, 1.0, 0.03)
    choice = rng.choice(num_users * num_items, num_buys, replace=False, p=(probability / probability.sum()).ravel())
    user, item = np.divmod(choice, num_items)
    item += num_users
    views = np.stack([rng.integers(0, num_users, num_buys), num_users + rng.integers(0, num_items, num_buys)])
    views[:, ::3] = user[::3], item[::3]
    tags = num_users + num_items + (kind + rng.integers(0, 2, num_items)) % num_tags
    follows = rng.integers(0, num_users, (2, 3 * num_users))
    follows = np.concatenate([follows, follows[::-1, ::3]], 1)
    ends = [(user, item), (item, user), views, (num_users + np.arange(num_items), tags), follows]
    names = ["user-buys-item", "item-sold_to-user", "user-views-item", "item-has-tag", "user-follows-user"]
    pairs, first = np.unique(
        np.concatenate([np.array([*part, np.full(len(part[0]), i)]).T for i, part in enumerate(ends)]),
        axis=0,
        return_index=True,
    )
    pairs = pairs[np.argsort(first)]
    num_nodes = num_users + num_items + num_tags
    return Graph.from_edges(
        pairs[:, 0],
        pairs[:, 1],
        num_nodes,
        features=rng.normal(size=(num_nodes, 3)),
        edge_types=pairs[:, 2],
        edge_type_names=names,
        node_types=(("user", num_users), ("item", num_items), ("tag", num_tags)),
        relations=tuple(Relation(*name.split("-")) for name in names),
    )
