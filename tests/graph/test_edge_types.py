"""Edge types: where they go with their edges, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.shard import cut_all
from gnnkit.prepare.kept import content, fingerprint
from gnnkit.prepare.trained import _renumber_relations

SRC, DST, TYPES = [2, 0, 1, 2, 2], [1, 1, 0, 1, 2], [2, 0, 2, 1, 0]
NAMES = ("cites", "writes", "has")


def graph_of(**fields: Any) -> Graph:
    return Graph.from_edges(SRC, DST, 3, **{"edge_types": TYPES, "edge_type_names": NAMES, **fields})


def triples(graph: Graph) -> Counter[tuple[int, int, int]]:
    """Counts (source, destination, type)."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    assert graph.edge_types is not None
    return Counter(zip(graph.csc.indices.tolist(), dst.tolist(), graph.edge_types.tolist(), strict=True))


def test_types_follow_their_edges() -> None:
    graph = graph_of()
    assert triples(graph) == Counter(zip(SRC, DST, TYPES, strict=True))
    assert (graph.num_relations, graph.edge_type_names) == (3, NAMES)
    assert graph.edge_types is not None
    assert graph.edge_types.dtype == np.int16
    assert triples(graph.symmetrize()) == triples(graph) + Counter({(1, 2, 2): 1, (1, 2, 1): 1}), "only 2 -> 1 lacks"
    order = np.array([2, 0, 1])  # old ids
    number = np.argsort(order)
    assert triples(graph.renumber(order)) == Counter((number[u], number[v], r) for u, v, r in triples(graph).elements())


def test_a_saved_graph_keeps_types_and_names(tmp_path: Path) -> None:
    graph_of().save(tmp_path / "graph")
    loaded_graph = Graph.load(tmp_path / "graph")
    assert triples(loaded_graph) == triples(graph_of())
    assert loaded_graph.edge_type_names == NAMES


def test_one_type_needs_no_names_and_several_are_numbers_by_default() -> None:
    plain = graph_of(edge_types=None, edge_type_names=None)
    assert (plain.edge_types, plain.num_relations) == (None, 1)
    assert graph_of(edge_type_names=None).edge_type_names == ("0", "1", "2")
    assert Graph.from_edges([], [], 2, edge_types=[], edge_type_names=NAMES).num_relations == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"edge_types": [0, 1]}, "edge_types has 2 entries, expected 5"),
        ({"edge_types": [0, 1, 2, 3, 0]}, r"edge_types\[\d\] = 3 is out of range 0\.\.2"),
        ({"edge_types": [0, -1, 2, 2, 0], "edge_type_names": None}, r"edge_types\[\d\] = -1 is out of range"),
        ({"edge_types": [0, 10**6, 2, 2, 0], "edge_type_names": None}, r"edge_types\[\d\] = 1000000 is out of range"),
        ({"edge_types": [0.5] * 5}, "edge_types has dtype float64, expected integers"),
        ({"edge_types": None}, "edge_type_names has 3 names, but edge_types is missing"),
        ({"edge_type_names": ["a", "b", "a"]}, r"edge_type_names\[2\] = 'a' is given twice"),
        ({"edge_type_names": list(map(str, range(40_000)))}, "40000 names, at most 32768 relations"),
    ],
)
def test_types_that_do_not_fit_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        graph_of(**fields)


@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 2)], ids=str)
def test_shards_hold_the_types_and_the_degrees_of_the_whole_graph(grid: tuple[int, int, int]) -> None:
    graph = check_graph()
    owners = np.random.default_rng(0).integers(0, np.prod(grid), graph.num_nodes).astype(np.int32)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    src, types, weight = graph.csc.indices, graph.edge_types, graph.csc.weight
    assert types is not None
    assert weight is not None
    for shard in cut_all(graph, Partition(owners, None, Grid(*grid))):
        edge_ids = shard.edge_ids
        assert shard.num_relations == graph.num_relations
        np.testing.assert_array_equal(shard.edge_types, types[edge_ids])
        assert shard.relation_degrees is not None
        for edge, (into, out) in zip(edge_ids, shard.relation_degrees, strict=True):
            alike = types == types[edge]
            assert into == pytest.approx(weight[alike & (dst == dst[edge])].sum())
            assert out == pytest.approx(weight[alike & (src == src[edge])].sum())
        assert shard.with_self_loops().edge_types is None


def test_a_kept_partition_and_a_resumed_run_tell_other_types_apart() -> None:
    graph = graph_of()
    second = replace(graph, edge_types=np.array([0, 1, 2, 0, 1]))
    assert content(graph) != content(second)
    assert fingerprint(graph) != fingerprint(second)


def test_a_trained_model_finds_its_relations_by_name() -> None:
    graph = _renumber_relations(graph_of(), ["has", "cites", "likes"])
    assert graph.edge_type_names == ("has", "cites", "likes", "writes")
    renamed = Counter((u, v, {0: 1, 1: 3, 2: 0}[r]) for u, v, r in zip(SRC, DST, TYPES, strict=True))
    assert triples(graph) == renamed
