from __future__ import annotations

import uuid

import networkx as nx
import numpy as np
import pytest
import torch

from gnnkit.errors import UserError
from gnnkit.graph import Graph


def people() -> nx.Graph:
    graph = nx.Graph()
    graph.add_node("ann", x=[1.0, 2.0], age=30, job="cook", part="train")
    graph.add_node("bob", x=[3.0, 4.0], age=40, job="smith", part="val")
    graph.add_node("cy", x=[5.0, 6.0], age=50)
    graph.add_edge("cy", "ann", w=0.5)
    graph.add_edge("ann", "bob", w=2.0)
    return graph


def edges(graph: Graph) -> list[tuple[object, object]]:
    assert graph.node_ids is not None
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return sorted(zip(graph.node_ids[graph.csc.indices].tolist(), graph.node_ids[dst].tolist(), strict=True))


def test_nodes_attributes_and_both_directions_are_read() -> None:
    graph = Graph.from_networkx(people(), features=["x", "age"], label="job", split="part", weight="w")
    assert graph.node_ids.tolist() == ["ann", "bob", "cy"]
    assert edges(graph) == [("ann", "bob"), ("ann", "cy"), ("bob", "ann"), ("cy", "ann")]
    np.testing.assert_array_equal(graph.features, [[1, 2, 30], [3, 4, 40], [5, 6, 50]])
    np.testing.assert_array_equal(graph.labels, [0, 1, -1])
    assert graph.class_names == ("cook", "smith")
    np.testing.assert_array_equal(graph.split, [1, 2, 0])
    np.testing.assert_array_equal(graph.csc.weight, [2, 0.5, 2, 0.5])


def test_directed_parallel_and_looping_edges_stay() -> None:
    graph = nx.MultiDiGraph([(10, 20), (10, 20), (20, 20)])
    assert edges(Graph.from_networkx(graph)) == [(10, 20), (10, 20), (20, 20)]
    looping = Graph.from_networkx(nx.Graph([(5, 5), (5, 6)]))
    assert edges(looping) == [(5, 5), (5, 6), (6, 5)]  # a loop has one direction
    assert Graph.from_networkx(nx.path_graph(4)).node_ids is None  # 0, 1, ... as they are


def test_nodes_of_any_type_become_ids() -> None:
    names = [uuid.UUID(int=i) for i in range(2)]
    assert Graph.from_networkx(nx.DiGraph([tuple(names)])).node_ids.tolist() == list(map(str, names))
    assert Graph.from_networkx(nx.DiGraph([((0, 1), 7)])).node_ids.tolist() == ["(0, 1)", "7"]
    assert Graph.from_networkx(nx.DiGraph([(2**70, 7)])).node_ids.tolist() == [str(2**70), "7"]
    with pytest.raises(UserError, match="'1' occurs a second time"):
        Graph.from_networkx(nx.DiGraph([(1, "1")]))


def test_tensors_are_features_and_unnamed_attributes_are_told() -> None:
    graph = nx.DiGraph()
    graph.add_node(0, h=torch.ones(2), spare=1)
    with pytest.warns(UserWarning, match=r"ignores unknown attributes: nodes\['spare'\]$"):
        assert Graph.from_networkx(graph, features="h").features.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label": "jobs"}, "the nodes of the networkx graph have no attribute 'jobs'"),
        ({"split": "job"}, "nodes, column 'job', row 0: 'cook' is none of train, val, test, none"),
        ({"weight": "v"}, "the edges .* have no attribute 'v'"),
        ({"features": "mixed"}, "nodes, attribute 'mixed' mixes float, str: give all values one type"),
        ({"features": "ragged"}, "nodes, column 'ragged', row 1: 1 numbers, expected 2 as in row 0"),
        ({"weight": "w", "edge_features": "few"}, "edges, column 'few', row 0: is empty"),
        ({"weight": "few"}, r"edges, column 'few', row 0: is empty .* lists$"),
    ],
)
@pytest.mark.filterwarnings("ignore:Graph.from_networkx")
def test_errors_name_the_attribute(keys: dict[str, str], message: str) -> None:
    graph = people()
    nx.set_node_attributes(graph, {"ann": 1.0, "bob": "b", "cy": 2.0}, "mixed")
    nx.set_node_attributes(graph, {"ann": [1, 2], "bob": [1], "cy": [1, 2]}, "ragged")
    nx.set_edge_attributes(graph, {("ann", "bob"): 1.0}, "few")
    with pytest.raises(UserError, match=message):
        Graph.from_networkx(graph, **keys)
    with pytest.raises(UserError, match=r"got Graph: Graph\.from_networkx reads it"):
        Graph.of(graph)


def test_a_graph_without_nodes_has_no_ids_and_other_values_are_refused() -> None:
    with pytest.warns(UserWarning, match="edges has no rows"):
        empty = Graph.from_networkx(nx.DiGraph(), features="x")
    assert (empty.num_nodes, empty.num_edges, empty.node_ids) == (0, 0, None)
    with pytest.raises(UserError, match=r"row 1: '1' occurs a second time, after row 0$"):
        Graph.from_networkx(nx.Graph([(1, "1"), (2, 3)]))
    with pytest.raises(UserError, match=r"^nodes, column '\(node\)', row 1: 'NA' is empty"):
        Graph.from_networkx(nx.Graph([("ann", "NA")]))
    with pytest.raises(UserError, match="expected a graph of networkx, got list"):
        Graph.from_networkx([(0, 1)])
