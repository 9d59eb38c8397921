"""Forms of PyG: splits of links, types, times, and attributes without a meaning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit, ToSparseTensor

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task.link_prediction import LinkPrediction


def data_of(**more: Any) -> Data:
    rng = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 120), generator=rng)
    masks = {f"{part}_mask": torch.arange(30) % 3 == i for i, part in enumerate(("train", "val", "test"))}
    return Data(torch.rand(30, 4, generator=rng), edges.unique(dim=1), y=torch.arange(30) % 3, **masks, **more)


def hetero_data() -> HeteroData:
    """One type of nodes and one of edges, with everything that `data_of` has."""
    hetero, flat = HeteroData(), data_of()
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        hetero["paper"][name] = flat[name]
    hetero["paper", "cites", "paper"].edge_index = flat.edge_index
    return hetero


def test_hetero_data_of_one_type_is_the_data_without_types() -> None:
    first, second = Graph.of(hetero_data()), Graph.from_pyg(data_of())
    for name in ("features", "labels", "split", "edge_positions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.csc.indices, second.csc.indices)


def several(**widths: int) -> HeteroData:
    """Makes authors, papers with labels, and subjects, with rows of these widths."""
    hetero = HeteroData()
    for name, count in {"author": 3, "paper": 30, "subject": 2}.items():
        hetero[name].num_nodes = count
        if name in widths:
            hetero[name].x = torch.rand(count, widths[name], generator=torch.Generator().manual_seed(count))
    flat = data_of()
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        hetero["paper"][name] = flat[name]
    hetero["paper", "cites", "paper"].edge_index = flat.edge_index
    hetero["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2, 0], [2, 3, 29, 2]])
    hetero["paper", "about", "subject"].edge_index = torch.tensor([[0, 29], [1, 0]])
    return hetero


def test_hetero_data_of_several_types_are_ranges_of_nodes_and_relations() -> None:
    hetero = several()
    graph = Graph.of(hetero)
    assert graph.node_types == (("author", 3), ("paper", 30), ("subject", 2))
    assert graph.schema.nodes("paper") == slice(3, 33)
    assert graph.edge_type_names == ("paper-cites-paper", "author-writes-paper", "paper-about-subject")
    assert graph.features.shape == (35, 0)
    np.testing.assert_array_equal(graph.labels[:3], -1)
    np.testing.assert_array_equal(graph.labels[3:33], hetero["paper"].y)
    assert graph.split.tolist() == [0] * 3 + [1 + i % 3 for i in range(30)] + [0] * 2
    flat = hetero.to_homogeneous()
    dst = np.repeat(np.arange(35), np.diff(graph.csc.indptr))
    actual = sorted(zip(graph.csc.indices.tolist(), dst.tolist(), graph.edge_types.tolist(), strict=True))
    assert actual == sorted(zip(*flat.edge_index.tolist(), flat.edge_type.tolist(), strict=True))
    again = Graph.from_pyg(flat)
    np.testing.assert_array_equal(again.edge_types, graph.edge_types)
    assert [count for _, count in again.node_types] == [3, 30, 2]
    with pytest.raises(UserError, match="node type 'editor' is none of author, paper, subject"):
        graph.schema.nodes("editor")


def test_rows_of_several_widths_have_columns_of_their_own() -> None:
    hetero = several(author=2, paper=4)
    features = np.asarray(Graph.of(hetero).features)
    assert features.shape == (35, 7)
    np.testing.assert_array_equal(features[:3, :2], hetero["author"].x)
    np.testing.assert_array_equal(features[3:33, 2:6], hetero["paper"].x)
    np.testing.assert_array_equal(features[33:, 6], 1)
    assert np.count_nonzero(features) == 3 * 2 + 30 * 4 + 2
    alike = several(author=4, paper=4, subject=4)
    stacked = np.asarray(Graph.of(alike).features)
    np.testing.assert_array_equal(stacked, np.concatenate([alike[name].x for name in ("author", "paper", "subject")]))


def test_weights_and_features_of_typed_edges() -> None:
    hetero = several()
    hetero["author", "writes", "paper"].edge_weight = torch.tensor([2.0, 3.0, 4.0, 5.0])
    hetero["author", "writes", "paper"].edge_attr = torch.rand(4, 3)
    with pytest.warns(UserWarning, match=r"ignores unknown attributes: data\['author-writes-paper'\]\.edge_attr$"):
        graph = Graph.of(hetero)
    np.testing.assert_array_equal(np.sort(graph.csc.weight[graph.edge_types == 1]), [2, 3, 4, 5])
    np.testing.assert_array_equal(graph.csc.weight[graph.edge_types != 1], 1)
    for kind in hetero.edge_types:
        hetero[kind].edge_attr = torch.full((hetero[kind].num_edges, 2), float(len(kind[0])))
    assert sorted(set(Graph.of(hetero).edge_features[:, 0].tolist())) == [5, 6]


def labels_of_two(hetero: HeteroData) -> None:
    hetero["author"].y = torch.zeros(3).long()
    hetero["author"].train_mask = torch.ones(3).bool()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (labels_of_two, r"labels of nodes of several types \(author, paper\), of which one can be predicted: del data"),
        (
            lambda h: h["paper"].update({"x": torch.zeros(30, 1), "y": torch.zeros(5)}),
            r"data\['paper'\]\.y has shape \[5\] for 30 nodes",
        ),
        (
            lambda h: h["author", "writes", "paper"].update({"edge_index": torch.tensor([[3], [0]])}),
            r"data\['author-writes-paper'\]\.edge_index\[0\]\[0\] = 3 is out of range",
        ),
        (
            lambda h: h["author", "writes", "paper"].update({"edge_index": torch.zeros(4, 2).long()}),
            r"data\['author-writes-paper'\]\.edge_index must have shape \[2, num_edges\]: other formats are unsupported",
        ),
    ],
)
def test_typed_data_that_cannot_be_read_say_why(change: Any, message: str) -> None:
    hetero = several()
    change(hetero)
    with pytest.raises(UserError, match=message):
        Graph.of(hetero)


def test_a_split_without_labels_is_refused() -> None:
    data = data_of()
    del data.y
    masks = r"data\.test_mask, data\.train_mask, data\.val_mask"
    with pytest.raises(UserError, match=rf"data\.y is missing, but 30 nodes are in a split: add it, or remove {masks}"):
        Graph.of(data)
    hetero_data = HeteroData()
    hetero_data["paper"].num_nodes = 3
    hetero_data["paper", "about", "subject"].edge_index = torch.tensor([[0], [1]])
    hetero_data["subject"].num_nodes = 2
    hetero_data["paper"].train_mask = torch.ones(3).bool()
    hetero_data["paper", "cites", "paper"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(
        UserError, match=r"data\['paper'\]\.y is missing, but 3 nodes are in a split: add it, or remove"
    ):
        Graph.of(hetero_data)


def test_typed_data_without_labels_or_with_sets_of_classes_are_read() -> None:
    hetero = several()
    for name in ("train_mask", "val_mask", "test_mask"):
        del hetero["paper"][name]
    hetero["paper"].y = torch.eye(30)[:, :4].long()
    sets = Graph.of(hetero).labels
    np.testing.assert_array_equal(sets[3:33], hetero["paper"].y)
    assert not sets[:3].any()  # of other types
    assert not sets[33:].any()
    del hetero["paper"].y
    assert Graph.of(hetero).labels.tolist() == [-1] * 35


def test_typed_data_have_nodes_and_no_edges_to_predict() -> None:
    with pytest.raises(UserError, match="HeteroData has no nodes"):
        Graph.of(HeteroData())


def shop_of(**keys: Any) -> tuple[Any, Any, Any, Any]:
    """Returns typed data with a reverse relation, and its split for links."""
    rng, data = np.random.default_rng(0), HeteroData()
    data["tag"].num_nodes, data["user"].num_nodes, data["item"].num_nodes = 3, 12, 9
    buys = torch.from_numpy(np.unique(np.stack([rng.integers(0, 12, 60), rng.integers(0, 9, 60)]), axis=1))
    data["user", "buys", "item"].edge_index, data["item", "sold", "user"].edge_index = buys, buys.flip(0)
    data["item", "has", "tag"].edge_index = torch.stack([torch.arange(9), torch.arange(9) % 3])
    kinds = {"edge_types": [("user", "buys", "item")], "rev_edge_types": [("item", "sold", "user")]}
    return data, *RandomLinkSplit(0.2, 0.2, **{**kinds, **keys})(data)


def test_random_link_splits_of_a_single_relation_may_be_typed() -> None:
    data = HeteroData()
    data["user"].x = torch.rand(12, 2)
    data["user", "follows", "user"].edge_index = torch.randint(0, 12, (2, 60)).unique(dim=1)
    kind = ("user", "follows", "user")
    train, val, test = RandomLinkSplit(0.2, 0.2, edge_types=[kind])(data)
    graph = Graph.from_pyg(train, val=val, test=test)
    for part, edges in ((val, graph.val_edges), (test, graph.test_edges)):
        store = part[kind]
        assert pairs(edges) == pairs(store.edge_label_index[:, store.edge_label == 1].T)


@pytest.mark.parametrize("split_labels", [False, True])
def test_random_link_splits_of_a_relation_keep_the_edges_to_predict(split_labels: bool) -> None:
    data, train, val, test = shop_of(split_labels=split_labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = Graph.from_pyg(train, val=val, test=test)
    label = "pos_edge_label_index" if split_labels else "edge_label_index"
    starts = np.array([3, 15])
    for part, edges in ((val, graph.val_edges), (test, graph.test_edges)):
        store = part["user", "buys", "item"]
        marks = slice(None) if split_labels else store.edge_label == 1
        assert pairs(edges - starts) == pairs(store[label][:, marks].T)
    held = np.concatenate([graph.val_edges, graph.test_edges])
    dst = np.repeat(np.arange(24), np.diff(graph.csc.indptr))
    buys = graph.edge_types == 0
    trained_run = np.stack([graph.csc.indices[buys], dst[buys]], 1)
    assert pairs(trained_run - starts) | pairs(held - starts) == pairs(data["user", "buys", "item"].edge_index.T)
    prepared, links = LinkPrediction(relation="user-buys-item").prepare(graph)
    assert links.given
    assert links.relation.hidden == (0, 1)
    assert prepared.num_edges == graph.num_edges


def test_wrong_splits_of_a_relation_are_refused() -> None:
    data, train, val, _ = shop_of()
    with pytest.raises(UserError, match="val is a Data, expected a HeteroData as the graph that trains"):
        Graph.from_pyg(train, val=data_of())
    with pytest.raises(UserError, match="no relation has edge_label_index, expected one relation"):
        Graph.from_pyg(train, val=data)
    val["item", "has", "tag"].edge_label_index = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(UserError, match="item-has-tag, user-buys-item has edge_label_index, expected one relation"):
        Graph.from_pyg(train, val=val)
    _, train, val, test = shop_of(disjoint_train_ratio=0.5)
    with pytest.raises(UserError, match=r"RandomLinkSplit\(disjoint_train_ratio=0\)"):
        Graph.from_pyg(train, val=val)
    _, train, val, test = shop_of()
    val["user"].num_nodes = 13
    with pytest.raises(UserError, match=r"val has \[13, 9\] nodes at the ends of user-buys-item, the graph that"):
        Graph.from_pyg(train, val=val)
    test["user", "buys", "item"].edge_label_index[1, 0] = 9
    with pytest.raises(UserError, match=r"test.edge_label_index\[1\]\[\d+\] = 9 is out of range"):
        Graph.from_pyg(train, test=test)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batch.from_data_list([data_of(), data_of()]), r"data\.batch holds several graphs .*graph labels"),
        (lambda: ToSparseTensor(layout=torch.sparse_csr)(data_of()), "data.adj_t is unsupported, .*ToSparseTensor"),
        (lambda: Data(torch.zeros(3, 1), torch.zeros(2, 1).long(), y=torch.tensor([1])), "graph labels are not"),
        (lambda: data_of(edge_type=torch.arange(1000)), r"edge_types has 1000 entries"),
        (
            lambda: data_of(node_type=torch.arange(30).flip(0)),
            r"data\.node_type: nodes must be sorted by type: sort them or remove data\.node_type$",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_what_is_not_supported_yet_is_named(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Graph.of(make())
    assert "\n" not in str(caught.value)


def test_attributes_without_a_meaning_are_named_in_one_warning() -> None:
    extra = {"edge_time": torch.zeros(5), "train_pos_edge": torch.zeros(2, 5), "title": ["a"] * 30}
    with pytest.warns(
        UserWarning, match="ignores unknown attributes: data.edge_time, data.title, data.train_pos_edge$"
    ) as caught:
        Graph.from_pyg(data_of(**extra))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = Graph.from_pyg(data_of(pos=torch.zeros(30, 2), edge_type=torch.zeros(5)))
    assert graph.edge_types is None  # one type is no type


def test_times_of_as_many_rows_as_edges_belong_to_edges() -> None:
    data = data_of()
    data.time = torch.arange(data.num_edges)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = Graph.from_pyg(data)
    assert graph.node_time is None
    np.testing.assert_array_equal(np.sort(graph.edge_time), np.arange(data.num_edges))  # type: ignore[arg-type]


def test_ids_of_a_subgraph_are_kept() -> None:
    np.testing.assert_array_equal(Graph.from_pyg(data_of(n_id=torch.arange(30) * 7)).node_ids, np.arange(30) * 7)
    with pytest.raises(UserError, match=r"node_ids\[3\] = 0 occurs a second time, after node_ids\[0\]"):
        Graph.from_pyg(data_of(n_id=torch.arange(30) % 3))
    with pytest.raises(UserError, match="node_ids are float32"):
        Graph.from_pyg(data_of(n_id=torch.arange(30) + 0.5))


def pairs(edges: Any) -> set[tuple[int, int]]:
    return {(int(u), int(v)) for u, v in edges}


@pytest.mark.parametrize("split_labels", [False, True])
def test_random_link_splits_keep_the_edges_to_predict(split_labels: bool) -> None:
    data = data_of()
    transform = RandomLinkSplit(num_val=0.2, num_test=0.2, split_labels=split_labels)
    train, val, test = transform(data)
    graph = Graph.from_pyg(train, val=val, test=test)
    label = "pos_edge_label_index" if split_labels else "edge_label_index"
    for given, kept in ((val, graph.val_edges), (test, graph.test_edges)):
        marks = slice(None) if split_labels else given.edge_label == 1
        assert pairs(kept) == pairs(given[label][:, marks].T)
    dst = np.repeat(np.arange(30), np.diff(graph.csc.indptr))
    everything = pairs(zip(graph.csc.indices, dst, strict=True)) | pairs(graph.val_edges) | pairs(graph.test_edges)
    assert everything == pairs(data.edge_index.T)
    with pytest.raises(UserError, match=r"as Graph\.from_pyg\(train, val=val, test=test\)"):
        Graph.of(train)


def test_wrong_splits_of_links_are_refused() -> None:
    data = data_of()
    train, val, test = RandomLinkSplit(0.2, 0.2, disjoint_train_ratio=0.5)(data)
    with pytest.raises(UserError, match=r"RandomLinkSplit\(disjoint_train_ratio=0\)"):
        Graph.from_pyg(train, val=val, test=test)
    val.edge_label = val.edge_label * 2
    train, _, _ = RandomLinkSplit(0.2, 0.2)(data)
    with pytest.raises(UserError, match=r"val\.edge_label has other values than 0 and 1: to predict labels"):
        Graph.from_pyg(train, val=val)
    with pytest.raises(UserError, match="test has no edge_label_index, which RandomLinkSplit makes"):
        Graph.from_pyg(train, test=data)
    with pytest.raises(
        UserError, match=r"val has \[5, 5\] nodes at the ends of edges, the graph that trains has \[30, 30\]"
    ):
        Graph.from_pyg(train, val=Data(torch.zeros(5, 1)))
    val.edge_label = torch.ones(3)
    with pytest.raises(
        UserError, match=rf"val\.edge_label has shape \[3\], expected \[{val.edge_label_index.shape[1]}\]"
    ):
        Graph.from_pyg(train, val=val)
    val.edge_label_index = val.edge_label_index.T
    with pytest.raises(UserError, match=r"val\.edge_label_index has shape \[\d+, 2\], expected \[2, num_pairs\]"):
        Graph.from_pyg(train, val=val)


def test_edges_to_predict_may_belong_to_data_that_names_no_edges_that_train() -> None:
    data, pairs_of_val = data_of(), torch.tensor([[0, 1], [2, 3]])
    val = Data(num_nodes=30, edge_label_index=pairs_of_val)
    graph = Graph.from_pyg(data, val=val)
    assert pairs(graph.val_edges) == {(0, 2), (1, 3)}
    assert graph.test_edges is None
    assert graph.num_edges == data.num_edges


def test_edge_types_whose_joined_names_are_equal_are_refused() -> None:
    data = HeteroData({name: {"x": torch.ones(2, 1)} for name in ("a-b", "c", "d", "a", "b-c")})
    for kind in (("a-b", "c", "d"), ("a", "b-c", "d")):
        data[kind].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(UserError, match=r"\('a-b', 'c', 'd'\) and \('a', 'b-c', 'd'\) are both named a-b-c-d: rename"):
        Graph.from_pyg(data)
