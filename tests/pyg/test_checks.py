"""What is no graph, time, weight, seed or fanout is refused by name and position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from gnnkit.errors import UserError
from gnnkit.pyg import ClusterData, LinkNeighborLoader, NeighborLoader, SubgraphSampler
from tests.pyg.graphs import NUM_EDGES, NUM_NODES, heterogeneous, homogeneous

LOADERS: list[Callable[[Any], Any]] = [
    lambda data: NeighborLoader(data, [2], "paper" if isinstance(data, HeteroData) else None),
    lambda data: LinkNeighborLoader(
        data,
        [2],
        ("author", "writes", "paper") if isinstance(data, HeteroData) else torch.zeros(2, 1, dtype=torch.long),
    ),
    lambda data: SubgraphSampler(data, [2]),
    lambda data: SubgraphSampler(data, [2], sample_direction="backward"),
]


def fraction_of_a_triplet() -> NegativeSampling:
    rule = NegativeSampling("triplet", 1)
    rule.amount = 1.5  # PyG checks its first value only
    return rule


def test_seeds_without_a_type_are_refused_in_a_graph_of_types() -> None:
    sampler = SubgraphSampler(heterogeneous(), [2])
    with pytest.raises(UserError, match=r"^input_type=None: expected the seeds' type, one of paper, author, venue$"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3])))


@pytest.mark.parametrize("make", LOADERS)
@pytest.mark.parametrize("make_data", [homogeneous, heterogeneous])
def test_a_tensor_without_values_is_refused_by_its_name(make: Callable[[Any], Any], make_data: Any) -> None:
    data = make_data()
    data.node_stores[-1].mark = torch.zeros(data.node_stores[-1].num_nodes, device="meta")
    with pytest.raises(UserError, match=r"^(data\['\w+'\]\.)?mark is on the device meta"):
        make(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: NeighborLoader(data, [2], "paintings"), "input_nodes=paintings .* types are paper, author"),
        (lambda data: NeighborLoader(data, [2], ("paintings", torch.arange(2))), "input_nodes"),
        (lambda data: NeighborLoader(data, [2]), "input_nodes=None .* types are paper, author"),
        (lambda data: LinkNeighborLoader(data, [2], ("author", "paints", "paper")), "edge_label_index.* types are "),
        (lambda data: LinkNeighborLoader(data, [2]), "edge_label_index=None .* types are "),
    ],
    ids=["nodes", "some nodes", "no nodes", "edges", "no edges"],
)
def test_an_unknown_type_is_refused_and_stays_unknown(make: Callable[[Any], Any], message: str) -> None:
    data = heterogeneous()
    before = data.metadata()
    with pytest.raises(UserError, match=message):
        make(data)
    assert data.metadata() == before
    next(iter(NeighborLoader(data, [2], "paper")))


@pytest.mark.parametrize("node", [60, 2**40, -1])
@pytest.mark.parametrize("time_attr", [None, "time"])
def test_a_seed_of_a_sampler_that_is_no_node_is_refused(time_attr: str | None, node: int) -> None:
    for data, name, of_type in ((homogeneous(), None, ""), (heterogeneous(), "paper", " of type 'paper'")):
        for store in data.node_stores:
            store.time = torch.arange(store.num_nodes)
        sampler = SubgraphSampler(data, [2], time_attr=time_attr)
        with pytest.raises(UserError, match=rf"seeds\[1\] = {node} is out of range for \d+ nodes{of_type}"):
            sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, node]), None, name))


@pytest.mark.parametrize("number", [NUM_NODES, 2**31, 2**62, -1, -(2**33)])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("make", [*LOADERS, lambda data: ClusterData(data, 2, log=False)])
def test_an_edge_to_no_node_is_refused_by_its_position(make: Callable[[Any], Any], end: int, number: int) -> None:
    data = homogeneous()
    data.edge_index[end, 7] = number
    with pytest.raises(UserError, match=rf"^edge_index\[{end}, 7\] = {number} is out of range for 60 nodes$"):
        make(data)


@pytest.mark.parametrize("make", LOADERS)
def test_an_edge_to_no_node_of_a_type_is_refused_by_its_type(make: Callable[[Any], Any]) -> None:
    data = heterogeneous()
    data["author", "writes", "paper"].edge_index[1, 3] = 50
    message = (
        r"data\['author', 'writes', 'paper'\].edge_index\[1, 3\] = 50 is out of range for 50 nodes of type 'paper'"
    )
    with pytest.raises(UserError, match=message):
        make(data)


@pytest.mark.parametrize(
    ("layout", "spoiled"), [("coo", 0), ("coo", 1), ("csc", 0), ("csc", 1), ("csr", 0), ("csr", 1)]
)
def test_edges_of_a_store_are_checked_in_their_layout(layout: str, spoiled: int) -> None:
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.zeros(4, 1), group_name="a", attr_name="x", index=None)
    ids, pointers = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 3, 4])
    pair = {"coo": [ids, ids.clone()], "csc": [ids, pointers], "csr": [pointers, ids]}[layout]
    pair[spoiled][2] = 2**40
    graph.put_edge_index(tuple(pair), edge_type=("a", "to", "a"), layout=layout, size=(4, 4))
    with pytest.raises(UserError, match=str(2**40)):
        SubgraphSampler((features, graph), [2])


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("group", ["a", ("a", "to", "a")])
def test_times_of_a_store_are_one_per_node_or_edge(group: Any, count: int) -> None:
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.zeros(4, 1), group_name="a", attr_name="x", index=None)
    features.put_tensor(torch.arange(count), group_name=group, attr_name="time", index=None)
    ids = torch.tensor([0, 1, 2, 3])
    graph.put_edge_index((ids, ids), edge_type=("a", "to", "a"), layout="coo", size=(4, 4), is_sorted=True)
    with pytest.raises(UserError, match=f"time of .* has {count} entries, expected 4"):
        SubgraphSampler((features, graph), [2], time_attr="time")


@pytest.mark.parametrize("backward", [False, True])
def test_edges_that_are_said_to_be_sorted_are(backward: bool) -> None:
    data = Data(num_nodes=4, edge_index=torch.tensor([[0, 1, 2, 0], [0, 2, 1, 3]]))
    place = r"edge_index\[0, 3\] = 0 follows" if backward else r"edge_index\[1, 2\] = 1 follows"
    with pytest.raises(UserError, match=f"is_sorted=True: {place}"):
        SubgraphSampler(data, [1], is_sorted=True, sample_direction="backward" if backward else "forward")


TIMES = [
    (torch.full((NUM_NODES,), 1_700_000_070.0), r"\[0\] = 1700000128.0 is not a whole number below 16777216"),
    (torch.full((NUM_NODES,), float("nan")), r"\[0\] = nan is not a whole number"),
    (torch.full((NUM_NODES,), float("inf"), dtype=torch.float64), r"\[0\] = inf is not a whole number"),
    (torch.full((NUM_NODES,), 0.5, dtype=torch.float64), r"\[0\] = 0.5 is not a whole number"),
    (torch.full((NUM_NODES,), 2.0**53, dtype=torch.float64), r"\[0\] = 9007199254740992.0 is not a whole number below"),
    (torch.full((NUM_NODES,), 300.0, dtype=torch.bfloat16), r"\[0\] = 300.0 is not a whole number below 256"),
    (torch.full((NUM_NODES,), np.iinfo(np.int64).min), r"\[0\] = -9223372036854775808 is NaT"),
]


@pytest.mark.parametrize(("times", "message"), TIMES, ids=lambda value: str(value)[:12])
def test_times_are_whole_numbers_that_their_type_holds_exactly(times: torch.Tensor, message: str) -> None:
    data = homogeneous()
    with pytest.raises(UserError, match=f"input_time{message}"):
        NeighborLoader(data, [2], None, times, time_attr="time")
    data.time = times
    with pytest.raises(UserError, match=f"time{message}"):
        NeighborLoader(data, [2], time_attr="time")
    data = homogeneous()
    data.edge_time = times.repeat(10)[:NUM_EDGES]
    with pytest.raises(UserError, match=f"edge_time{message}"):
        NeighborLoader(data, [2], None, data.time, time_attr="edge_time")
    pairs = data.edge_index[:, :NUM_NODES]
    with pytest.raises(UserError, match=f"edge_label_time{message}"):
        LinkNeighborLoader(homogeneous(), [2], pairs, edge_label_time=times, time_attr="time")


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float64, torch.float16])
def test_whole_times_draw_as_integers_do(dtype: torch.dtype) -> None:
    def drawn(times: torch.Tensor) -> list[list[int]]:
        torch.manual_seed(0)
        data = homogeneous()
        data.time = data.time.to(times.dtype)
        return [batch.n_id.tolist() for batch in NeighborLoader(data, [3], None, times, time_attr="time", batch_size=9)]

    times = homogeneous().time
    assert drawn(times) == drawn(times.to(dtype))


WEIGHTS = [(5, float("nan"), r"w\[5\] = nan is not finite"), (3, -1.0, r"w\[3\] = -1.0 must be at least 0")]
WEIGHTS += [(2, 1e39, r"w\[2\] = 1e\+39 is too large for float32")]
WEIGHTS += [(4, 1e-60, r"w\[4\] = 1e-60 is too small for float32: multiply all weights")]


@pytest.mark.parametrize(("place", "value", "message"), WEIGHTS)
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"is_sorted": True}], ids=str)
def test_a_weight_is_refused_by_its_position(options: dict[str, Any], place: int, value: float, message: str) -> None:
    data = homogeneous()
    data.edge_index = data.edge_index[:, data.edge_index[1].argsort()]
    data.w = torch.ones(NUM_EDGES, dtype=torch.float64)
    data.w[place] = value
    with pytest.raises(UserError, match=message):
        NeighborLoader(data, [3], weight_attr="w", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_neighbors": [2.5]}, r"num_neighbors\[0\]=2.5 must be a whole number"),
        ({"num_neighbors": "10"}, "num_neighbors=10 must be a list of whole numbers"),
        ({"num_neighbors": [True]}, r"num_neighbors\[0\]=True must be a whole number"),
        ({"num_neighbors": [1] * 1001}, "num_neighbors=.* for at most 1000 hops"),
        ({"num_neighbors": [10**9, 3], "replace": True}, r"num_neighbors\[0\]=1000000000 .* 1048576 with replac"),
        ({"num_neighbors": [2**20] * 4, "replace": True, "disjoint": True}, "with replacement, for 1 seeds needs"),
        (
            {"num_neighbors": [-1, *[2**20] * 9], "replace": True, "disjoint": True, "batch_size": 60},
            "for 60 seeds needs",
        ),
        ({"weight_attr": "colour"}, "weight_attr='colour' is not an attribute of the edges"),
        ({"input_nodes": torch.tensor([1, 60])}, r"input_nodes\[1\] = 60 is out of range for 60 nodes"),
        ({"input_nodes": torch.ones(59, dtype=torch.bool)}, r"the mask has shape \[59\], expected \[60\]"),
        ({"input_nodes": torch.tensor([0.5])}, "input_nodes has dtype float32, expected integers"),
        ({"input_time": torch.arange(3), "time_attr": "time"}, "input_time has 3 entries, expected 60"),
        ({"input_id": torch.arange(60, device="meta")}, r"input_id=\[60\] on meta must be a dense tensor"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NeighborLoader(homogeneous(), **{"num_neighbors": [2], **options})


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
def test_draws_for_the_neighbours_of_a_hub_are_refused_before_they_are_drawn(subgraph_type: str) -> None:
    hub, leaves = torch.zeros(10_000, dtype=torch.int64), torch.arange(1, 10_001)
    star = Data(edge_index=torch.stack([torch.cat([leaves, hub]), torch.cat([hub, leaves])]), num_nodes=10_001)
    for disjoint in (False, True):
        chosen: dict[str, Any] = {"replace": True, "subgraph_type": subgraph_type, "disjoint": disjoint}
        loader = NeighborLoader(star, [-1, 2**20], torch.tensor([0]), threads=0, **chosen)
        with pytest.raises(
            UserError, match=r"num_neighbors=1048576 with replacement, for 10000 nodes of a batch, needs"
        ):
            next(iter(loader))


def test_replaced_draws_after_all_neighbours_are_those_of_a_graph_of_several_types() -> None:
    data = homogeneous()
    batch = next(iter(NeighborLoader(data, [-1, 3], torch.arange(5), batch_size=5, replace=True, threads=0)))
    rows, cols = data.edge_index[:, batch.e_id]
    assert (batch.n_id[batch.edge_index] == torch.stack([rows, cols])).all()
    first = int(torch.isin(data.edge_index[1], torch.arange(5)).sum())
    assert (batch.edge_index[1][:first] < 5).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"edge_label_index": torch.tensor([[0], [60]])},
            r"edge_label_index\[1, 0\] = 60 is out of range for 60 nodes",
        ),
        ({"edge_label_index": torch.tensor([0, 1])}, "edge_label_index"),
        ({"edge_label": torch.zeros(3)}, "edge_label has 3 entries, expected 400"),
        ({"input_id": torch.arange(3)}, "input_id has 3 entries, expected 400"),
        ({"neg_sampling": fraction_of_a_triplet()}, r"neg_sampling: amount=1\.5 .*whole number"),
        ({"neg_sampling_ratio": float("nan")}, "neg_sampling_ratio=nan"),
        ({"neg_sampling_ratio": 1e12}, r"neg_sampling: amount=1e\+12 for 1 edges needs"),
        ({"neg_sampling": 5}, "neg_sampling=5"),
        (
            {"neg_sampling": NegativeSampling("binary", 1, -torch.ones(60))},
            r"src_weight\[0\] = -1.0 must be at least 0",
        ),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.zeros(60))}, "src_weight is 0 for all nodes"),
        (
            {"neg_sampling": "binary", "edge_label": torch.ones(NUM_EDGES, dtype=torch.complex64)},
            "edge_label has dtype torch.complex64, expected real numbers",
        ),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.arange(60))}, "src_weight=.* of a floating-point type"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_of_links_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LinkNeighborLoader(homogeneous(), [2], threads=0, **options)


def items(num_early: int) -> HeteroData:
    """Five users, and 100 items of which some exist at time 10."""
    data = HeteroData()
    data["u"].x, data["i"].x = torch.zeros(5, 1), torch.zeros(100, 1)
    data["u"].time = torch.zeros(5, dtype=torch.long)
    data["i"].time = torch.tensor([0] * num_early + [1000] * (100 - num_early))
    data["u", "buys", "i"].edge_index = torch.stack([torch.arange(5), torch.zeros(5, dtype=torch.long)])
    return data


@pytest.mark.parametrize(
    "rule", ["binary", NegativeSampling("triplet", 3), NegativeSampling("binary", 2.5, None, torch.ones(100))]
)
@pytest.mark.parametrize("threads", [0, 2])
def test_negatives_at_a_time_exist_then_and_are_no_edges(rule: Any, threads: int) -> None:
    def loader(num_early: int) -> Any:
        data = items(num_early)
        edge_type = ("u", "buys", "i")
        times = torch.full((5,), 10)
        return LinkNeighborLoader(
            data, [2], (edge_type, data[edge_type].edge_index), edge_label_time=times, time_attr="time",
            neg_sampling=rule, batch_size=5, threads=threads,
        )  # fmt: skip

    with pytest.raises(UserError, match=r"neg_sampling: none of 100 pairs.* that exist at time 10 is negative"):
        next(iter(loader(1)))
    for _ in range(5):
        batch = next(iter(loader(3)))
        if rule == "binary" or rule.is_binary():
            pairs = batch["u", "buys", "i"].edge_label_index[1, 5:]
        else:
            pairs = batch["i"].dst_neg_index.flatten()
        assert set(batch["i"].n_id[pairs].tolist()) <= {1, 2}


def test_an_index_of_a_loader_is_one_of_its_seeds() -> None:
    loader = NeighborLoader(homogeneous(), [2], torch.arange(5))
    assert loader([-1, 0]).batch_size == 2
    with pytest.raises(UserError, match="index=5 is out of range for 5 seeds"):
        loader([0, 5])
