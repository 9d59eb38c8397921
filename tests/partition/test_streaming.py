"""Partitioners that read nodes one after the other."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import destinations, graphs

from gnnkit.__main__ import main
from gnnkit.graph import Graph
from gnnkit.partition import Grid, measure
from gnnkit.partition.by_id import Hash
from gnnkit.partition.quality import max_over_mean
from gnnkit.partition.streaming import Fennel, Ldg, Order
from tests.cases import few


def reference(graph: Graph, num_parts: int, score: str, imbalance: float, passes: int) -> list[int]:
    """Nodes in order of ids, the ones without in-edges last, by the formulas."""
    num_nodes, num_edges, degree = graph.num_nodes, graph.num_edges, np.diff(graph.csc.indptr)
    bounds = [max(math.floor((1 + imbalance) * n / num_parts), -(-n // num_parts), 1) for n in (num_nodes, num_edges)]
    alpha = num_parts**0.5 * (num_edges / 2) / max(num_nodes, 1) ** 1.5
    part = np.full(num_nodes, -1)

    def fullness(p: int, nodes: int = 0, edges: int = 0) -> float:
        mine = part == p
        return max((mine.sum() + nodes) / bounds[0], (degree[mine].sum() + edges) / bounds[1])

    def value(p: int, node: int) -> float:
        mine = part == p
        num_equal = np.count_nonzero(mine[graph.csc.indices[graph.csc.indptr[node] : graph.csc.indptr[node + 1]]])
        if score == "ldg":
            return num_equal * (1 - fullness(p))
        load = 0.5 * (mine.sum() + degree[mine].sum() * (num_nodes / max(num_edges, 1)))
        return num_equal - alpha * 1.5 * math.sqrt(load)

    for _ in range(passes):
        for node in sorted(range(num_nodes), key=lambda node: degree[node] == 0):
            part[node] = -1
            room = [
                p
                for p in range(num_parts)
                if np.count_nonzero(part == p) < bounds[0]
                and (not degree[node] or degree[part == p].sum() + degree[node] <= bounds[1])
            ]
            has_part = part >= 0
            nodes, edges = max(has_part.sum(), 1), max(degree[has_part].sum(), 1)
            low = degree[node] * nodes <= edges
            gap = {
                p: ((part == p).sum() / nodes - degree[part == p].sum() / edges) * num_parts * (1 if low else -1)
                for p in room
            }
            room = [p for p in room if gap[p] <= (1 + imbalance) - 1] or room
            part[node] = (
                min(room, key=lambda p: (-value(p, node), fullness(p), p))
                if room
                else min(range(num_parts), key=lambda p: (fullness(p, 0, degree[node]), p))
            )
    return part.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Ldg, Fennel])
@given(graph=graphs(), num_parts=st.integers(1, 4), imbalance=st.sampled_from([0.1, 1.0]), passes=st.integers(1, 2))
def test_nodes_go_where_the_formula_says(
    kind: type[Ldg | Fennel], graph: Graph, num_parts: int, imbalance: float, passes: int
) -> None:
    actual = kind(imbalance=imbalance, passes=passes).assign_nodes(graph, num_parts)
    assert actual.tolist() == reference(graph, num_parts, kind.score, imbalance, passes)


@pytest.mark.parametrize("kind", [Ldg, Fennel])
@pytest.mark.parametrize("order", ["id", "random"])
@pytest.mark.parametrize("passes", [1, 2])
def test_nodes_and_edges_of_a_skewed_graph_stay_within_the_bound(
    kind: type[Ldg | Fennel], order: Order, passes: int
) -> None:
    graph = Synthetic("rmat", 5000, 50_000, 4, 1).load()
    owners = kind(order, imbalance=0.1, passes=passes).assign_nodes(graph, 4)
    assert max_over_mean(np.bincount(owners, minlength=4)) <= 1.1
    assert max_over_mean(np.bincount(owners[destinations(graph)], minlength=4)) <= 1.1


@pytest.mark.slow
def test_communities_are_found_though_ids_say_nothing() -> None:
    rng = np.random.default_rng(0)
    block = rng.integers(0, 4, 2000)
    places = [np.flatnonzero(block == b) for b in range(4)]
    src = rng.integers(0, 2000, 20_000)
    within = np.array([rng.choice(places[b]) for b in block[src]])
    dst = np.where(rng.random(20_000) < 0.9, within, rng.integers(0, 2000, 20_000))
    graph = Graph.from_edges(np.r_[src, dst], np.r_[dst, src], 2000)
    cut = {
        p: measure(graph, p.assign(graph, Grid(4, 1, 1))).edge_cut for p in (Hash(), Ldg(passes=5), Fennel(passes=5))
    }
    hashed, *streamed = cut.values()
    assert max(streamed) < 0.5 * hashed


@pytest.mark.parametrize(
    ("key", "value"), [("order", "degree"), ("imbalance", 0), ("imbalance", 2), ("passes", 0), ("passes", 1.5)]
)
def test_bad_options_name_their_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^partition\.options\.{key}={value} "):
        Fennel(**{key: value})  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.slow
@few(
    "chosen",
    ["ldg", "fennel partition.border=min_words+cover", "hdrf", "2psl partition.grid=2d"],
    default=["fennel partition.border=min_words+cover", "2psl partition.grid=2d"],
)
def test_a_run_equals_one_process(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["dataset=synthetic", "dataset.kind=rmat", "dataset.num_nodes=200", "dataset.num_edges=1000"]
    common = ["strategy=vertex_centric", "job=verify", "workers=4", "comm=threads", "threads=1", "trainer.max_epochs=1"]
    assert main([*common, *data, *f"partition={chosen}".split()]) == 0
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert json.loads(result.read_text())["verified"] is True
