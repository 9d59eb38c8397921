"""Negatives: no edge that trains in training, no edge in evaluation, whatever draws."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

from gnnkit.graph import Graph, Ids
from gnnkit.partition import Grid
from gnnkit.sampler import NeighborSampler
from gnnkit.sampler.links import Links, links_of, load_rows, pairs_of
from gnnkit.strategy import ExecutionStrategy
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.link_prediction import LinkPrediction
from tests.cases import few
from tests.witness.cases import draw_negatives
from tests.witness.negatives import check_negatives
from tests.witness.pairs import EdgeSets

N = 40
SAMPLER = NeighborSampler([3, 3], threads=1)
STRATEGIES: dict[str, Callable[[], ExecutionStrategy]] = {
    "vertex_centric": VertexCentric,
    "preset, no halo": functools.partial(PresetWorkload, halo="none"),
    "preset, one hop": functools.partial(PresetWorkload, halo="one_hop"),
    "individual": functools.partial(IndividualSample, batch_size=50),
    "individual, features apart": functools.partial(IndividualSample, batch_size=50, features="partitioned"),
    "individual, topology apart": functools.partial(IndividualSample, batch_size=50, topology="partitioned"),
    "joint": functools.partial(JointSample, batch_size=50),
}


def make_graph(pairs: Ids, num_nodes: int = N) -> Graph:
    return Graph.from_edges(pairs[:, 0], pairs[:, 1], num_nodes, features=np.eye(num_nodes))


def random_pairs(share: float) -> Ids:  # [k, 2]
    every = np.argwhere(~np.eye(N, dtype=bool))
    return every[np.random.default_rng(0).random(len(every)) < share]


def undirected_split() -> Graph:
    """Returns a ring whose held-out edges PyG names in one direction."""
    torch.manual_seed(0)
    a = torch.arange(N)
    ring = torch.stack([a, (a + 1) % N])
    data = Data(edge_index=torch.cat([ring, ring.flip(0)], 1), x=torch.eye(N, dtype=torch.float64))
    split = RandomLinkSplit(0.2, 0.2, is_undirected=True, add_negative_train_samples=False)
    train, val, test = split(data)
    return Graph.from_pyg(train, val=val, test=test)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "directed": lambda: make_graph(random_pairs(0.1)),
    "undirected": lambda: make_graph(random_pairs(0.05)).symmetrize(),
    "undirected, held-out edges once": undirected_split,
    "self-loops": lambda: make_graph(np.concatenate([random_pairs(0.1), np.arange(N)[:, None].repeat(2, 1)])),
    "parallel edges": lambda: make_graph(random_pairs(0.1).repeat(3, 0)),
    "dense": lambda: make_graph(random_pairs(0.9)),
}


@pytest.mark.slow
@few(
    "name, kind",
    itertools.product(STRATEGIES, GRAPHS),
    default={*zip(STRATEGIES, itertools.cycle(GRAPHS)), *(("vertex_centric", kind) for kind in GRAPHS)}
    - {("individual, topology apart", "dense"), ("vertex_centric", "dense"), ("vertex_centric", "undirected")},
)
def test_no_strategy_draws_an_edge_that_it_must_know(name: str, kind: str) -> None:
    make, graph = STRATEGIES[name], GRAPHS[kind]()
    grids = [Grid(1, 1, 1), Grid(3, 1, 1)] + ([Grid(2, 2, 1), Grid(2, 1, 2)] if name == "vertex_centric" else [])
    for grid in grids:
        counts = check_negatives(make, graph, grid, SAMPLER, negatives=2, eval_negatives=9, width=4)
        assert counts.training > 0
        assert counts.evaluation > 0
        if kind == "dense":  # two thirds of the pairs that do not train are held out
            assert 0.4 < counts.held_out / counts.training < 0.75


@pytest.mark.slow
def test_a_resumed_epoch_draws_no_edge_that_it_must_know() -> None:
    make = STRATEGIES["individual"]
    all_batches, remainder = (
        check_negatives(make, GRAPHS["dense"](), Grid(2, 1, 1), SAMPLER, step, eval_negatives=5, width=4)
        for step in (0, 3)
    )
    assert 0 < remainder.training < all_batches.training


@pytest.mark.slow
def test_negatives_of_a_store_are_those_of_the_graph(tmp_path: Path) -> None:
    for number, (kind, make) in enumerate(GRAPHS.items()):
        graph, links = LinkPrediction(negatives=2).prepare(make())
        links.save(tmp_path / str(number))
        pairs = pairs_of(graph.csc)
        for evaluates in (False, True):
            negatives = [
                side.negative_pairs(pairs, np.arange(len(pairs)), 3, 5, evaluates=evaluates)
                for side in (links, links_of(load_rows(tmp_path / str(number))))
            ]
            np.testing.assert_array_equal(negatives[0], negatives[1], err_msg=kind)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"training": "evaluation"}, None),  # negatives of training avoid held-out edges
        ({"evaluation": "training"}, "evaluation negatives are edges"),
        ({"training": None}, "training negatives are edges"),
    ],
)
def test_the_witness_sees_planted_faults(
    fault: dict[str, str | None], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = LinkPrediction.prepare

    def broken(task: LinkPrediction, graph: Graph) -> tuple[Graph, Links]:
        prepared, links = prepare(task, graph)
        rules: dict[str, Any] = {
            name: dataclasses.replace(
                getattr(links, name), excluded=None if other is None else getattr(links, other).excluded
            )
            for name, other in fault.items()
        }
        return prepared, dataclasses.replace(links, **rules)

    monkeypatch.setattr(LinkPrediction, "prepare", broken)

    def run() -> int:
        graph = GRAPHS["dense"]()
        return check_negatives(VertexCentric, graph, Grid(1, 1, 1), negatives=2, eval_negatives=9, width=4).held_out

    if message is None:
        assert run() == 0
    else:
        with pytest.raises(AssertionError, match=message):
            run()


def test_reverse_edges_are_edges_where_all_edges_that_train_go_both_ways() -> None:
    both, one_way = (make_graph(np.array(edges), 4) for edges in ([(0, 1), (1, 0)], [(0, 1), (1, 2)]))
    assert EdgeSets.of(both, [(2, 3)]).every == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert EdgeSets.of(one_way, [(2, 3)]).every == {(0, 1), (1, 2), (2, 3)}


@pytest.mark.slow
def test_no_random_case_draws_an_edge_that_it_must_know() -> None:
    for seed in range(10):
        draw_negatives(Random(seed))()
