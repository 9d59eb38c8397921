"""Loaders whose seeds see the graph as of their own times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit.errors import UserError
from gnnkit.graph import Graph, RelationGroups
from gnnkit.graph.times import NEVER
from gnnkit.sampler import LaborSampler, LoadedBatch, Loader, NeighborSampler

N, M = 40, 400
RNG = np.random.default_rng(0)
SRC, DST, TIME = RNG.integers(0, [[N], [N], [50]], (3, M))
NODE_TIME = RNG.integers(10, 60, N)


def graph(**fields: Any) -> Graph:
    rows = {"features": np.arange(N)[:, None], "edge_features": np.arange(M)[:, None], "labels": np.arange(N) % 3}
    return Graph.from_edges(SRC, DST, N, **{**rows, "edge_time": TIME, **fields})


def load(data: Any, **options: Any) -> Loader:
    sampler = NeighborSampler([3, 3], time=options.pop("time", "strict"), pick=options.pop("pick", "uniform"))
    return Loader(data, sampler, batch_size=7, rank=0, world_size=1, **options)


@pytest.mark.parametrize("pick", ["uniform", "last"])
@pytest.mark.parametrize("time", ["strict", "inclusive"])
def test_a_batch_sees_the_edges_before_the_times_of_its_seeds(time: str, pick: str) -> None:
    loader = load(graph(), times=NODE_TIME, time=time, pick=pick, transform=LoadedBatch.to_pyg)
    seen, number_of_edges = [], 0
    for data in loader:
        edges, (sources, rows) = data.e_id.numpy(), data.edge_index.numpy()
        nodes, number_of_edges = data.n_id.numpy(), number_of_edges + len(edges)
        np.testing.assert_array_equal(SRC[edges], nodes[sources])
        np.testing.assert_array_equal(DST[edges], nodes[rows])
        np.testing.assert_array_equal(data.edge_attr[:, 0], edges)
        np.testing.assert_array_equal(data.x[:, 0], nodes)
        np.testing.assert_array_equal(data.y, nodes % 3)
        np.testing.assert_array_equal(data.seed_time, NODE_TIME[nodes[: data.batch_size]])
        seen += nodes[: data.batch_size].tolist()
        for row in range(data.batch_size):
            earlier = (nodes[row] == DST) & (
                (NODE_TIME[nodes[row]] > TIME) | ((time == "inclusive") & (NODE_TIME[nodes[row]] == TIME))
            )
            ids = edges[rows == row]
            assert len(ids) == min(3, np.count_nonzero(earlier))
            assert earlier[ids].all()
            if pick == "last":
                assert sorted(TIME[ids]) == sorted(TIME[earlier])[-3:]
    assert sorted(seen) == list(range(N))
    assert number_of_edges > N


def test_edge_ids_are_those_of_the_graph() -> None:
    source = graph()
    for batch in load(source, times=NODE_TIME):
        (block,) = batch.blocks[-1:]
        nodes, sources = batch.input_nodes, batch.input_nodes[block.indices]
        np.testing.assert_array_equal(source.csc.indices[block.edge_ids], sources)
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        assert (source.edge_time[block.edge_ids] < NODE_TIME[nodes[rows]]).all()


def test_times_are_those_of_nodes_unless_others_are_passed() -> None:
    by_node, by_seed = load(graph(node_time=NODE_TIME - 10)), load(graph(), times=NODE_TIME)
    for batch in by_node:
        assert batch.times is not None
        np.testing.assert_array_equal(batch.times[: len(batch.seeds)], NODE_TIME[batch.seeds] - 10)
    seeds = np.array([3, 1])
    (batch,) = Loader(graph(), NeighborSampler([2], time="strict"), seeds, times=[20, 30], shuffle=False)
    assert batch.times[:2].tolist() == [20, 30]
    assert set(by_seed.plan(0).of_rank(0)[0].tolist()) == set(range(N))


def test_batches_do_not_depend_on_threads_or_on_the_future() -> None:
    def batches(data: Graph, threads: int) -> list[Any]:
        return [
            (batch.input_nodes.tolist(), batch.times.tolist(), [block.indices.tolist() for block in batch.blocks])
            for batch in load(data, times=np.full(N, 25), threads=threads)
        ]

    base = batches(graph(), 1)
    assert batches(graph(), 3) == base
    late = TIME >= 25
    changed = Graph.from_edges(
        np.where(late, RNG.integers(0, N, M), SRC), np.where(late, RNG.integers(0, N, M), DST), N,
        features=np.zeros((N, 1)), edge_time=TIME,
    )  # fmt: skip
    assert batches(changed, 1) == base


def test_a_resumed_loader_continues_with_the_same_batches() -> None:
    loader, other = load(graph(), times=NODE_TIME), load(graph(), times=NODE_TIME)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    other.load_state_dict(loader.state_dict())
    np.testing.assert_array_equal(next(iter(other)).input_nodes, next(iterator).input_nodes)


def test_pygs_data_with_times_is_read() -> None:
    data = Data(
        x=torch.zeros(N, 2), edge_index=torch.from_numpy(np.stack([SRC, DST])), edge_time=torch.from_numpy(TIME)
    )
    for batch in load(data, times=NODE_TIME):
        assert (TIME[batch.tables.edge_positions[batch.blocks[0].edge_ids]] < batch.times.max()).all()


def hetero() -> HeteroData:
    data = HeteroData()
    data["user"].x = torch.zeros(3, 1)
    data["user", "knows", "user"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "seeds": (graph(), {}, "sampler.time=strict: 40 of 40 seeds have no time: pass times=, one for each seed"),
    "one seed": (graph(), {"times": [*range(39), NEVER]}, "1 of 40 seeds have no time"),
    "a count": (graph(), {"times": [1, 2]}, "times"),
    "dates": (graph(), {"times": np.full(N, "2024-01-01", "M8[D]")}, "times holds dates, unlike other times"),
    "edges": (graph(edge_time=None), {"times": NODE_TIME}, "sampler.time=strict: the graph has no times"),
    "a csc": (
        graph().csc,
        {"times": NODE_TIME},
        r"pass a Graph with edge_time, as of Graph.from_edges\(src, dst, edge_time=TIMES\) or Graph.from_tables\(edges, time=C",
    ),
    "groups": (
        RelationGroups.of(graph().csc, DST % 2, ("a", "b")),
        {},
        "the graph has no times: pass a Graph with edge_time",
    ),
    "a type": (hetero(), {"seeds": "user"}, "seeds with a node type were removed: use gnnkit.pyg.NeighborLoader"),
    "no rule": (
        graph(),
        {"times": NODE_TIME, "time": "none"},
        "times: NeighborSampler reads none: use sampler.time=strict",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_times_is_refused(name: str) -> None:
    data, options, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        load(data, **options)


def test_samplers_without_a_rule_read_no_times() -> None:
    with pytest.raises(UserError, match="times: LaborSampler reads none"):
        Loader(graph(), LaborSampler([2]), times=NODE_TIME)
