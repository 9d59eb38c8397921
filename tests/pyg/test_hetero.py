"""Batches of several types have the contents that PyG documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from gnnkit.pyg import NeighborLoader
from tests.pyg.graphs import heterogeneous, homogeneous

SEEDS = torch.tensor([5, 3, 49, 17])
FANOUTS = {
    ("author", "writes", "paper"): [3, 2],
    ("paper", "cites", "paper"): [2, 0],
    ("paper", "by", "author"): [1, -1],
    ("venue", "shows", "paper"): [-1, -1],
    ("author", "knows", "author"): [4, 4],
}
CASES: list[dict[str, Any]] = [
    {}, {"replace": True}, {"disjoint": True}, {"subgraph_type": "induced"}, {"time_attr": "time"},
]  # fmt: skip


def sample(data: Any, num_neighbors: Any = FANOUTS, **options: Any) -> HeteroData:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"input_nodes": ("paper", SEEDS), "batch_size": 4, **options}
    return next(iter(NeighborLoader(data, num_neighbors, **arguments)))


@pytest.mark.parametrize("options", CASES, ids=str)
def test_edges_of_every_type_are_edges_of_the_graph(options: dict[str, Any]) -> None:
    data = heterogeneous()
    batch = sample(data, **options)
    assert torch.equal(batch["paper"].n_id[:4], SEEDS)
    assert batch["paper"].batch_size == 4
    assert batch.edge_types == data.edge_types
    for (source, name, destination), store in batch.edge_items():
        ends = torch.stack([batch[source].n_id[store.edge_index[0]], batch[destination].n_id[store.edge_index[1]]])
        assert torch.equal(ends, data[source, name, destination].edge_index[:, store.e_id])
        assert torch.equal(store.edge_attr, store.e_id)
    for name, nodes in batch.node_items():
        assert torch.equal(nodes.x[:, 0].long(), nodes.n_id)
        assert len(nodes.n_id.unique()) == len(nodes.n_id) or batch["paper"].get("batch") is not None, name


@pytest.mark.parametrize("options", [case for case in CASES if "subgraph_type" not in case], ids=str)
def test_counts_of_every_type_add_up_and_fanouts_bound_draws(options: dict[str, Any]) -> None:
    batch = sample(heterogeneous(), **options)
    for name, nodes in batch.node_items():
        assert sum(nodes.num_sampled_nodes) == nodes.num_nodes
        assert nodes.num_sampled_nodes[0] == (4 if name == "paper" else 0)
    for edge_type, store in batch.edge_items():
        assert sum(store.num_sampled_edges) == store.num_edges
        known = begin = first = 0
        for hop, fanout in enumerate(FANOUTS[edge_type]):
            known, begin = known + batch[edge_type[2]].num_sampled_nodes[hop], known
            drawn = store.edge_index[1, first : first + store.num_sampled_edges[hop]]
            first += len(drawn)
            assert set(drawn.tolist()) <= set(range(begin, known))
            assert fanout < 0 or not len(drawn) or int(drawn.bincount().max()) <= fanout


def test_trees_of_a_disjoint_batch_span_all_types() -> None:
    batch = sample(heterogeneous(), disjoint=True)
    for (source, _, destination), store in batch.edge_items():
        row, col = store.edge_index
        assert torch.equal(batch[source].batch[row], batch[destination].batch[col])


def test_an_induced_subgraph_has_all_edges_of_every_type() -> None:
    data = heterogeneous()
    batch = sample(data, subgraph_type="induced")
    for (source, name, destination), store in batch.edge_items():
        row, col = data[source, name, destination].edge_index
        inside = torch.isin(row, batch[source].n_id) & torch.isin(col, batch[destination].n_id)
        assert torch.equal(store.e_id.sort().values, inside.nonzero()[:, 0])


def test_neighbors_are_no_later_than_their_seed() -> None:
    batch = sample(heterogeneous(), time_attr="time", input_time=torch.tensor([3, 19, 8, 0]))
    bound = torch.tensor([3, 19, 8, 0])
    for (source, _, _), store in batch.edge_items():
        row = store.edge_index[0]
        assert (batch[source].time[row] <= bound[batch[source].batch[row]]).all()


def test_one_type_draws_as_a_homogeneous_graph_does() -> None:
    data, typed = homogeneous(), HeteroData()
    typed["v"].x, typed["v", "to", "v"].edge_index = data.x, data.edge_index
    one = sample(data, [3, 2], input_nodes=SEEDS)
    other = sample(typed, [3, 2], input_nodes=("v", SEEDS))
    assert torch.equal(one.n_id, other["v"].n_id)
    assert torch.equal(one.edge_index, other["v", "to", "v"].edge_index)
    assert torch.equal(one.e_id, other["v", "to", "v"].e_id)
    assert one.num_sampled_nodes == other["v"].num_sampled_nodes
    assert one.num_sampled_edges == other["v", "to", "v"].num_sampled_edges


def test_stores_are_sampled_as_the_same_data() -> None:
    data, features, graph = heterogeneous(), MyFeatureStore(), MyGraphStore()
    for name, nodes in data.node_items():
        features.put_tensor(nodes.x, group_name=name, attr_name="x", index=None)
    for edge_type, store in data.edge_items():
        graph.put_edge_index(store.edge_index, edge_type=edge_type, layout="coo", size=store.size())
    batch, expected = sample((features, graph)), sample(data)
    for name in data.node_types:
        assert torch.equal(batch[name].x, expected[name].x)
    for edge_type in data.edge_types:
        assert torch.equal(batch[edge_type].edge_index, expected[edge_type].edge_index)


def test_a_graph_without_edge_types_leaves_the_seeds() -> None:
    data = HeteroData()
    data["paper"].x = torch.arange(50)
    assert sample(data, [2, 2])["paper"].n_id.tolist() == SEEDS.tolist()


def test_a_store_of_one_type_is_sampled_as_the_same_data() -> None:
    data, features, graph = homogeneous(), MyFeatureStore(), MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(60, 60))
    batch = sample((features, graph), [3, 2], input_nodes=SEEDS)
    expected = sample(data, [3, 2], input_nodes=SEEDS)
    assert torch.equal(batch.x, expected.x)
    assert torch.equal(batch.edge_index, expected.edge_index)


def test_weights_of_a_type_bound_its_draws() -> None:
    data = heterogeneous()
    for store in data.edge_stores:
        store.weight = (torch.arange(store.num_edges) % 2).float()
    batch = sample(data, weight_attr="weight")
    for store in batch.edge_stores:
        assert (store.e_id % 2 == 1).all()
    assert batch["paper", "cites", "paper"].num_edges


def test_bidirectional_types_have_the_edges_of_both_directions() -> None:
    pair = (("paper", "by", "author"), ("author", "rev_by", "paper"))
    data = heterogeneous()
    data[pair[1]].edge_index = data[pair[0]].edge_index.flip(0)
    for edge_type in list(data.edge_types):
        if edge_type not in pair:
            del data[edge_type]
    batch = sample(data, [3, 2], subgraph_type="bidirectional")
    row, col = batch[pair[0]].edge_index
    other = batch[pair[1]].edge_index
    assert set(zip(row.tolist(), col.tolist(), strict=True)) == set(zip(*other.flip(0).tolist(), strict=True))


@pytest.mark.parametrize("disjoint", [False, True])
def test_types_keep_the_integer_type_of_their_edges(disjoint: bool) -> None:
    data = heterogeneous()
    for store in data.edge_stores:
        store.edge_index = store.edge_index.int()
    batch = sample(data, disjoint=disjoint)
    assert all(store.edge_index.dtype == torch.int32 for store in batch.edge_stores)
    assert all(store.n_id.dtype == torch.int32 for store in batch.node_stores)


def test_a_mask_selects_seeds_of_a_type() -> None:
    mask = torch.arange(30) % 7 == 3
    batch = sample(heterogeneous(), input_nodes=("author", mask), batch_size=9)
    assert batch["author"].n_id[:4].tolist() == batch["author"].input_id.tolist() == [3, 10, 17, 24]


@pytest.mark.slow
def test_batches_of_types_do_not_depend_on_worker_processes() -> None:
    def drawn(num_workers: int, **options: Any) -> list[Any]:
        torch.manual_seed(2)
        loader = NeighborLoader(
            heterogeneous(), FANOUTS, "paper", batch_size=10, shuffle=True, num_workers=num_workers, **options
        )
        return [[store.edge_index.tolist() for store in batch.edge_stores] for batch in loader]

    assert drawn(0) == drawn(2) == drawn(1, filter_per_worker=True)


def test_wrong_fanouts_are_refused() -> None:
    with pytest.raises(ValueError, match="Not all edge types"):
        sample(heterogeneous(), FANOUTS | {("a", "to", "b"): [1, 1]})
    with pytest.raises(ValueError, match="Number of hops must be the same"):
        sample(heterogeneous(), FANOUTS | {("paper", "cites", "paper"): [1]})
