"""Any argument of a loader gives batches, or an error that names an argument.

To run more cases, from another case on, or for some seconds:

    GNNKIT_FUZZ_EXAMPLES=100000 GNNKIT_FUZZ_FIRST=1000 pytest THIS_FILE
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from gnnkit.graph import CSC, Graph
from gnnkit.pyg import ClusterData, ClusterLoader, LinkNeighborLoader, NeighborLoader, SubgraphSampler
from gnnkit.sampler import Loader, NeighborSampler, WeightedSampler
from tests.hostile import ODD, check_cases, fuzz, odd_tensor

FEW = 100
NUM_NODES, NUM_EDGES = 12, 40
TYPES = [("a", "to", "b"), ("b", "rev", "a")]


def ids(random: Random, count: int, num_nodes: int = NUM_NODES) -> torch.Tensor:
    return torch.tensor([random.randrange(num_nodes) for _ in range(count)], dtype=torch.int64)


def edges(random: Random) -> torch.Tensor:
    return torch.stack([ids(random, NUM_EDGES), ids(random, NUM_EDGES)])


def columns(random: Random) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([random.random() for _ in range(NUM_EDGES)]), "edge_time": ids(random, NUM_EDGES, 9)}


def nodes(random: Random) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(NUM_NODES, 2), "time": ids(random, NUM_NODES, 9)}


def spoil(random: Random, values: dict[str, Any], one_in: int = 3) -> dict[str, Any]:
    """Replaces one value by something that nobody expects, or none."""
    if random.randrange(one_in) or not values:
        return values
    name = random.choice(list(values))
    value = values[name]
    odd = odd_tensor(random, value) if isinstance(value, torch.Tensor) else random.choice(ODD)
    return values | {name: odd}


def homogeneous(random: Random) -> Data:
    return Data(**spoil(random, {"edge_index": edges(random), **nodes(random), **columns(random)}))


def heterogeneous(random: Random) -> HeteroData:
    data = HeteroData()
    for name in "ab":
        for key, value in spoil(random, nodes(random), 6).items():
            data[name][key] = value
    for edge_type in TYPES:
        for key, value in spoil(random, {"edge_index": edges(random), **columns(random)}, 6).items():
            data[edge_type][key] = value
    if random.random() < 0.05:
        data["a", "x", random.choice("bc")].edge_index = edges(random)
    return data


def of_pyg(make: Callable[..., Any], *arguments: Any) -> Any:
    """Makes an object of PyG, or gives up if PyG refuses it."""
    try:
        return make(*arguments)
    except Exception as error:
        raise ValueError(f"PyG refuses: {error}") from error


def stores(random: Random) -> Any:
    features, graph = MyFeatureStore(), MyGraphStore()
    for name in "ab":
        for key, value in spoil(random, nodes(random), 6).items():
            of_pyg(partial(features.put_tensor, group_name=name, attr_name=key, index=None), value)
            of_pyg(partial(features.get_tensor, group_name=name, attr_name=key, index=torch.tensor([0])))
    for edge_type in TYPES:
        layout = random.choice(["coo", "csc", "csr"])
        source, destination = edges(random)
        pointers = torch.tensor(sorted([0] + [random.randrange(NUM_EDGES) for _ in range(11)] + [NUM_EDGES]))
        pair = {"coo": (source, destination), "csc": (source, pointers), "csr": (pointers, destination)}[layout]
        pair = tuple(spoil(random, dict(enumerate(pair)), 4).values())
        size = spoil(random, {"size": (NUM_NODES, NUM_NODES)}, 10)["size"]
        is_sorted = random.random() < 0.2
        attributes = {"edge_type": edge_type, "layout": layout, "size": size, "is_sorted": is_sorted}
        of_pyg(partial(graph.put_edge_index, **attributes), pair)
    return features, graph


def container(random: Random) -> tuple[Any, bool]:
    typed = random.random() < 0.5
    if typed:
        return (heterogeneous(random) if random.random() < 0.6 else stores(random)), True
    return homogeneous(random), False


def fanouts(random: Random, typed: bool) -> Any:
    values = [
        random.choice([-1, 0, 1, 2, 3, 5]) if random.randrange(30) else 2**20
        for _ in range(random.choice([1, 2, 2, 0, 3]))
    ]
    values = list(spoil(random, dict(enumerate(values)), 10).values())
    if typed and random.random() < 0.3:
        return dict.fromkeys([*TYPES, ("c", "to", "d")][: random.choice([2, 2, 1, 3])], values)
    return values


def options(random: Random, typed: bool) -> dict[str, Any]:
    chosen = {
        "replace": random.random() < 0.4,
        "subgraph_type": random.choice(["directional", "induced", "bidirectional"]),
        "disjoint": random.random() < 0.3,
        "temporal_strategy": random.choice(["uniform", "last"]),
        "time_attr": random.choice([None, None, "time", "edge_time", "x"]),
        "weight_attr": random.choice([None, None, "w", "x"]),
        "is_sorted": random.random() < 0.1,
    }
    return spoil(random, chosen, 8)


def take(loader: Any) -> None:
    for _ in itertools.islice(loader, 3):
        pass


def node_loader(random: Random) -> None:
    data, typed = container(random)
    chosen = options(random, typed)
    seeds: Any = random.choice([None, ids(random, 5), torch.tensor([random.random() < 0.5 for _ in range(NUM_NODES)])])
    times = ids(random, 5, 9) if chosen["time_attr"] else None
    inputs = spoil(random, {"nodes": seeds, "time": times, "input_id": random.choice([None, ids(random, 5)])}, 3)
    seeds = (random.choice("aaaab"), inputs["nodes"]) if typed else inputs["nodes"]
    if random.random() < 0.05:
        seeds = random.choice(["a", "z", ("z", None), *ODD])
    more = spoil(random, {"batch_size": random.choice([1, 2, 5, 100]), "threads": random.choice([0, 0, 1, 2])}, 12)
    more["input_id"] = inputs["input_id"]
    loader = NeighborLoader(data, fanouts(random, typed), seeds, inputs["time"], **chosen, **more)
    take(loader)
    loader(random.choice([[0], [1, 2], [-1], [10**9], torch.tensor([2**40]), "a", None, [1.5]]))


def negatives(random: Random) -> Any:
    weights = spoil(random, {"src_weight": torch.rand(NUM_NODES), "dst_weight": torch.rand(NUM_NODES)}, 2)
    weights = weights if random.random() < 0.5 else {}
    rule = NegativeSampling(random.choice(["binary", "triplet"]), 1, **weights)
    rule.amount = random.choice([1, 2, 3, *ODD]) if rule.is_triplet() else random.choice([1, 2, 0.5, 3, 1e9, *ODD])
    return random.choice([None, "binary", "triplet", rule, rule, random.choice(ODD)])


def link_loader(random: Random) -> None:
    data, typed = container(random)
    chosen = options(random, typed)
    count = 6
    given = {
        "index": torch.stack([ids(random, count), ids(random, count)]),
        "edge_label": random.choice([None, ids(random, count, 2)]),
        "edge_label_time": ids(random, count, 9) if chosen["time_attr"] else None,
        "input_id": random.choice([None, ids(random, count)]),
    }
    given = spoil(random, given, 3)
    index = given.pop("index")
    index = (random.choice(TYPES), index) if typed else index
    if random.random() < 0.1:
        index = random.choice([None, TYPES[0], ("a", "b"), (("z", "to", "a"), index), *ODD])
    more = {
        "batch_size": random.choice([1, 2, 5, 100]),
        "threads": random.choice([0, 0, 1, 2]),
        "neg_sampling_ratio": 0,
    }
    more = spoil(random, more, 8)
    take(
        LinkNeighborLoader(
            data, fanouts(random, typed), index, neg_sampling=negatives(random), **given, **chosen, **more
        )
    )


def sampler(random: Random) -> None:
    data, typed = container(random)
    made = SubgraphSampler(data, fanouts(random, typed), **options(random, typed))
    inputs = spoil(random, {"node": ids(random, 4), "time": random.choice([None, ids(random, 4, 9)])}, 3)
    made.sample_from_nodes(of_pyg(NodeSamplerInput, None, inputs["node"], inputs["time"], "a" if typed else None))
    pairs = spoil(random, {"row": ids(random, 4), "col": ids(random, 4), "time": random.choice([None, ids(random, 4)])})
    edge_type = random.choice(TYPES) if typed else None
    given = of_pyg(EdgeSamplerInput, None, pairs["row"], pairs["col"], None, pairs["time"], edge_type)
    made.sample_from_edges(given, neg_sampling=negatives(random))


def clusters(random: Random) -> None:
    data: Any = Data(**spoil(random, {"edge_index": edges(random)}), **nodes(random), **columns(random))
    if random.random() < 0.05:
        data = heterogeneous(random)
    chosen = spoil(random, {"num_parts": random.choice([1, 2, 3, 12]), "sparse_format": random.choice(["csr", "csc"])})
    made = ClusterData(data, **chosen, keep_inter_cluster_edges=random.random() < 0.3, log=False)
    take(ClusterLoader(made, batch_size=2))


def native_loader(random: Random) -> None:
    source, destination = edges(random)
    given = spoil(
        random, {"src": source, "dst": destination, "num_nodes": NUM_NODES, "weight": columns(random)["w"]}, 2
    )
    csc = CSC.from_edges(**given)
    draws = {"fanouts": fanouts(random, False), "replace": random.random() < 0.5}
    made = random.choice([NeighborSampler, WeightedSampler])(**spoil(random, draws, 8))
    rows = spoil(
        random,
        {"features": torch.zeros(NUM_NODES, 2), "labels": ids(random, NUM_NODES), "seeds": ids(random, 3).unique()},
    )
    more = {"batch_size": 2, "threads": 1, "prefetch": 1, "seed": 1, "costs": None, "rank": None, "world_size": None}
    take(Loader(csc, made, **rows, **spoil(random, more, 4)))


def graph(random: Random) -> None:
    data = homogeneous(random) if random.random() < 0.5 else heterogeneous(random)
    read = Graph.from_pyg(data)
    take(Loader(read, NeighborSampler([2]), batch_size=5, threads=1))


DOORS: list[Callable[[Random], None]] = [node_loader, link_loader, sampler, clusters, native_loader, graph]


def run(random: Random) -> None:
    torch.manual_seed(random.randrange(1000))
    random.choice(DOORS)(random)


@pytest.mark.slow
@pytest.mark.long("draws many inputs")
def test_any_input_gives_batches_or_an_error_that_names_it() -> None:
    check_cases("tests.pyg.test_hostile_input", FEW)


if __name__ == "__main__":
    fuzz(run, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
