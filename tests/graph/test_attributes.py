"""Attributes of graphs of other libraries: types, times, and unknown names."""

from __future__ import annotations

import warnings
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task.link_prediction import LinkPrediction
from tests.graph.test_from_dgl import Stand

ENDS = torch.tensor([[0, 1, 2], [1, 2, 0]])
MASKS = {f"{name}_mask": torch.arange(3) == place for place, name in enumerate(("train", "val", "test"))}


def pyg(name: str, values: torch.Tensor, masks: dict[str, torch.Tensor]) -> Graph:
    return Graph.of(Data(torch.rand(3, 2), ENDS, y=torch.arange(3), **{name: values}, **masks))


def hetero(name: str, values: torch.Tensor, masks: dict[str, torch.Tensor], *, of: Any = "paper") -> Graph:
    data = HeteroData()
    data["paper"].update({"x": torch.rand(3, 2), "y": torch.arange(3), **masks})
    data["author"].num_nodes = 3
    data["author", "writes", "paper"].edge_index = ENDS
    data[of][name] = values
    return Graph.of(data)


def hetero_edges(name: str, values: torch.Tensor, masks: dict[str, torch.Tensor]) -> Graph:
    return hetero(name, values, masks, of=("author", "writes", "paper"))


def dgl(name: str, values: torch.Tensor, masks: dict[str, torch.Tensor]) -> Graph:
    graph = Stand(*ENDS.tolist(), 3)
    graph.edata[name] = values
    graph.ndata.update({"feat": torch.eye(3), "label": torch.arange(3), **masks})
    return Graph.of(graph)


def networkx(name: str, values: torch.Tensor, masks: dict[str, torch.Tensor]) -> Graph:
    graph = nx.DiGraph()
    graph.add_nodes_from((v, {name: int(values[v]), "y": v, "part": ("train", "val", "test")[v]}) for v in range(3))
    graph.add_edges_from(ENDS.T.tolist())
    return Graph.from_networkx(graph, label="y", split="part" if masks else None)


@pytest.mark.parametrize("name", ["time", "edge_time", "t", "timestamp", "Timestamps", "node_time", "ts"])
@pytest.mark.parametrize("door", [pyg, hetero, hetero_edges, dgl, networkx])
@pytest.mark.filterwarnings("ignore:Graph.from_networkx", "ignore:.* is the time of each row")
def test_times_are_read_by_every_name(door: Any, name: str) -> None:
    graph = door(name, torch.tensor([5, 6, 7]), {})
    times = graph.edge_time if graph.node_time is None else graph.node_time
    assert {5, 6, 7} <= set(times.tolist())


@pytest.mark.parametrize("values", [torch.tensor([0.5, 1, 2]), torch.arange(6).reshape(3, 2)])
@pytest.mark.parametrize("door", [pyg, hetero, hetero_edges, dgl])
def test_other_times_are_refused_where_a_random_split_would_leak(door: Any, values: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"\btimestamp\b.* holds times, which are not read, .*: give one integer"):
        door("timestamp", values, {})
    with pytest.warns(UserWarning, match=r"ignores unknown attributes: .*\btimestamp\b"):
        assert door("timestamp", values, MASKS).split.tolist()[:3] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:Graph.from_networkx")
@pytest.mark.parametrize("door", [pyg, hetero, dgl])
def test_other_names_are_a_warning(door: Any) -> None:
    for name in ("timely", "title", "tt"):
        with pytest.warns(UserWarning, match=rf"ignores unknown attributes: .*\b{name}\b"):
            door(name, torch.arange(3), {})


def test_types_that_dgl_keeps_of_one_graph_are_read() -> None:
    graph = Stand(*ENDS.tolist(), 3)
    graph.ndata["_TYPE"], graph.edata["_TYPE"] = torch.tensor([0, 0, 1]), torch.tensor([1, 0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = Graph.of(graph)
    assert actual.node_types == (("0", 2), ("1", 1))
    np.testing.assert_array_equal(actual.edge_types, [1, 1, 0])  # in the order of destinations
    graph.ndata["_TYPE"] = torch.tensor([1, 0, 1])
    with pytest.raises(UserError, match=r"^ndata\['_TYPE'\]: nodes must be sorted by type"):
        Graph.of(graph)


def test_a_random_split_of_a_table_with_times_is_warned_of() -> None:
    edges = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0], "time": [1.0, 2.0, 3.0, 4.0]}
    nodes = {"id": [0, 1, 2, 3], "label": [0, 1, 0, 1]}
    graph = Graph.from_tables(pa.table(edges), pa.table(nodes))
    with pytest.warns(UserWarning, match="split is drawn at random, and column 'time' holds times"):
        graph.draw_split([0.5, 0.25, 0.25])
    with pytest.warns(UserWarning, match="split is drawn at random, and column 'time' holds times"):
        LinkPrediction(val_share=0.3, test_share=0.3).prepare(graph)
