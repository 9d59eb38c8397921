"""Requests with new nodes are answered as job=predict does for the extended graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from gnnkit_serve.extensible import check_inputs
from gnnkit_serve.new_nodes import NewColumns, NewEdge
from test_serve import answered, tables, write_tables
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphConv, HeteroConv, RGCNConv, SAGEConv

import gnnkit
from gnnkit import config
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import EdgeColumns, Graph
from tests.cases import few
from tests.graphs import papers_and_authors
from tests.jobs.test_train import small_graph
from tests.runs import BARE, within_process

pytestmark = pytest.mark.slow
Body = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model, a graph, and a request with nodes and edges that fit the graph."""

    model: Any
    graph: Graph
    nodes: Sequence[Body]
    edges: Sequence[Body]
    keys: Mapping[str, Any]


def drawn(num_edges: int, width: int = 0, *, weighted: bool = False) -> list[Body]:
    rng = np.random.default_rng(7)
    return [
        ({"weight": float(np.float32(rng.random()))} if weighted else {})
        | ({"features": rng.normal(size=width).astype(np.float32).tolist()} if width else {})
        for _ in range(num_edges)
    ]


def plain(model: Any, *, width: int = 0, weighted: bool = False, **keys: Any) -> Case:
    graph, rng = small_graph(), np.random.default_rng(2)
    values = {"weight": rng.random(graph.num_edges).astype(np.float32)} if weighted else {}
    if width:
        values["features"] = rng.normal(size=(graph.num_edges, width)).astype(np.float32)
    graph = graph.with_edges(graph.csc, EdgeColumns(values))
    nodes = [{"id": id, "features": rng.normal(size=8).astype(np.float32).tolist()} for id in ("a", "b", "alone")]
    ends = [(5, "a"), ("a", 5), ("a", "b"), (7, "b"), (7, "b"), ("b", "b")]
    edges = [
        {"source": source, "destination": destination, **more}
        for (source, destination), more in zip(ends, drawn(len(ends), width, weighted=weighted), strict=True)
    ]
    return Case(model, graph, nodes, edges, keys)


class OfTypes(nn.Module):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = RGCNConv(in_features, 5, 2), RGCNConv(5, num_classes, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)
        return out


class OfDictionaries(nn.Module):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        writes, about = ("author", "writes", "paper"), ("paper", "about", "subject")
        self.first = HeteroConv({writes: SAGEConv((-1, -1), 5), about: GraphConv((-1, -1), 5)})
        self.last = nn.LazyLinear(num_classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
        return {name: self.last(x.relu()) for name, x in self.first(x_dict, edge_index_dict).items() if name == "paper"}


def typed(model: Any, *, data: HeteroData | None = None, weighted: bool = False, **keys: Any) -> Case:
    rng, graph = np.random.default_rng(4), Graph.of(papers_and_authors(40, 15) if data is None else data)
    if weighted:
        graph = graph.with_edges(graph.csc, EdgeColumns({**graph.edge_columns, "weight": rng.random(graph.num_edges)}))
    tables = zip(graph.node_types, graph.feature_tables, strict=True)
    widths = {name: 0 if table.kind == "none" or "inputs" in keys else table.width for (name, _), table in tables}
    rows = {name: rng.normal(size=width).tolist() for name, width in widths.items()}
    nodes = [
        {"id": "s", "type": "subject", "features": rows["subject"]},
        {"id": "p", "features": rows["paper"]},  # of the type of the labelled nodes
        {"id": "w", "type": "author", "features": rows["author"]},
        {"id": "q", "type": "paper", "features": rows["paper"]},
    ]
    ends = [("w", "p"), (41, "p"), ("w", 3), (50, "q"), ("p", "s"), (7, "s"), ("q", 56), ("w", "q")]
    kinds = ["author-writes-paper"] * 4 + ["paper-about-subject"] * 3 + ["author-writes-paper"]
    edges = [
        {"source": source, "destination": destination, "relation": relation, **more}
        for (source, destination), relation, more in zip(ends, kinds, drawn(8, weighted=weighted), strict=True)
    ]
    return Case(model, graph, nodes, edges, keys)


def equal_widths() -> HeteroData:
    data = papers_and_authors(40, 15)
    data["author"].x, data["subject"].x = data["paper"].x[:15] + 1, data["paper"].x[:4] - 1
    return data


def cases() -> dict[str, Any]:
    return {
        "weights": lambda: plain("gcn", weighted=True),
        "float32": lambda: plain("gcn", weighted=True, trainer={"precision": 32}),
        "gat": lambda: plain({"name": "gat", "hidden": 4}, width=2, weighted=True),
        "gine": lambda: plain({"name": "gine", "num_layers": 3}, width=3),
        "sage of edges": lambda: plain("sage", width=1),
        "rgcn": lambda: typed("rgcn", weighted=True),
        "rgcn one way": lambda: typed({"name": "rgcn", "inverse": False}),
        "rgat": lambda: typed("rgat"),
        "hgt": lambda: typed("hgt"),
        "equal widths": lambda: typed("hgt", data=equal_widths()),
        "simple_hgn": lambda: typed("simple_hgn"),
        "degree": lambda: typed("rgcn", inputs="degree"),
        "ignored": lambda: typed("sage", types="ignore"),
        "edge_type": lambda: typed(OfTypes),
        "x_dict": lambda: typed(OfDictionaries),
    }


def extended(case: Case) -> tuple[Graph, list[int]]:
    """Returns the graph with the new nodes among those of their types."""
    graph, count = case.graph, len(case.nodes)
    names = [name for name, _ in graph.node_types or (("", 0),)]
    types = np.array([names.index(node.get("type", names[0])) for node in case.nodes])
    order = np.argsort(np.append(np.repeat(np.arange(len(names)), graph.schema.type_sizes), types), kind="stable")
    number = np.argsort(order)
    new = {node["id"]: graph.num_nodes + place for place, node in enumerate(case.nodes)}
    src, dst = ([new.get(edge[end], edge[end]) for edge in case.edges] for end in ("source", "destination"))
    added = {
        "weight": [edge.get("weight") for edge in case.edges],
        "features": [edge.get("features") for edge in case.edges],
        "relation": [(graph.edge_type_names or ("",)).index(edge.get("relation", "")) for edge in case.edges],
    }
    columns = graph.edge_columns.without("position")
    columns = EdgeColumns.concat([columns, EdgeColumns({name: np.array(added[name]) for name in columns})])
    rows = np.zeros((count, graph.features.shape[1]), graph.features.dtype)
    for row, node, kind in zip(rows, case.nodes, types, strict=True):
        table = None if graph.feature_tables is None else graph.feature_tables[kind]
        row[slice(None) if table is None else table.columns] = node.get("features") or 1
    old = graph.csc.indices.astype(np.int64), np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    sizes = np.array(graph.schema.type_sizes) + np.bincount(types, minlength=len(names))
    fields: Any = {name: getattr(graph, name) for name in ("edge_type_names", "relations", "feature_tables")}
    result = Graph.from_edges(
        number[np.append(old[0], src)],
        number[np.append(old[1], dst)],
        graph.num_nodes + count,
        features=np.concatenate([np.asarray(graph.features), rows])[order],
        labels=np.append(graph.labels, np.full(count, -1))[order],
        node_types=None if graph.node_types is None else tuple(zip(names, sizes.tolist(), strict=True)),
        **fields,
        **columns.arrays(),
    )
    return result, number[graph.num_nodes :].tolist()


@few("name", cases(), default=("weights", "hgt"))
def test_new_edges_are_read_as_in_the_extended_graph(tmp_path: Path, name: str) -> None:
    case = cases()[name]()
    trainer = {"max_epochs": 2, "lr": 0.05, "precision": 64, **case.keys.get("trainer", {})}
    own = {"model": case.model} if isinstance(case.model, type) else {}
    with within_process():
        keys = {"workers": 1, "comm": "threads", **BARE, **case.keys, "trainer": trainer}
        gnnkit.train(case.graph, strategy="vertex_centric", model=case.model, folder=tmp_path / "run", **keys)
        served = TestClient(gnnkit.serve(tmp_path / "run", case.graph, **own))
        graph, places = extended(case)
        expected = tables(tmp_path / "run", graph, tmp_path / "predicted", **own).iloc[places]
    edges = [{key: value for key, value in edge.items() if key != "relation"} for edge in case.edges]
    edges = edges if name == "ignored" else case.edges
    found = answered(served, "/predict_new", nodes=case.nodes, edges=edges).set_index("id")
    tolerance = 1e-5 if name == "float32" else 1e-10
    assert (found["class"].to_numpy() == expected["class"].to_numpy()).all()
    for column in expected.columns.drop(["id", "class"]):
        np.testing.assert_allclose(found[column], expected[column], rtol=0, atol=tolerance)


def served(case: Case, folder: Path) -> TestClient:
    with within_process():
        keys = {"workers": 1, "comm": "threads", **BARE, **case.keys}
        gnnkit.train(
            case.graph, strategy="vertex_centric", model=case.model, folder=folder, trainer={"max_epochs": 1}, **keys
        )
        return TestClient(gnnkit.serve(folder, case.graph))


def changed(case: Case, *, node: Body | None = None, edge: Body | None = None, without: str = "") -> Body:
    """Returns the request with changes of its first node and its first edge."""
    first, *nodes = case.nodes
    link, *edges = case.edges
    link = {key: value for key, value in {**link, **(edge or {})}.items() if key != without}
    return {"nodes": [{**first, **(node or {})}, *nodes], "edges": [link, *edges]}


def test_types_and_relations_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = typed("rgcn", weighted=True)
    client = served(case, tmp_path / "run")
    for body, message in (
        (changed(case, without="weight"), "edges: w -> p has no weight, which the graph's edges have: add it"),
        (changed(case, edge={"weight": 1e300}), "edges: w -> p: column 'weight' exceeds the range of float32"),
        (changed(case, edge={"features": [1]}), "edges: w -> p has features, and the graph's edges have none"),
        (changed(case, without="relation"), "edges: w -> p has no relation: choose one of author-writes-paper, paper-"),
        (changed(case, edge={"relation": "writes"}), "relation 'writes' is unknown: expected author-writes-paper"),
        (
            changed(case, edge={"relation": "paper-about-subject"}),
            "edges: w -> p leads from author to paper, but edges of paper-about-subject from paper to subject",
        ),
        (changed(case, edge={"source": 57}), "edges: 57 -> p leads from subject to paper, but edges of author-"),
        (changed(case, edge={"weight": None}), "has no weight"),
        (changed(case, edge={"weight": True}), "edges.0.weight: Input should be a valid number"),
        (changed(case, edge={"more": 1}), "edges.0: Extra inputs are not permitted: more"),
        (changed(case, node={"features": [1.0]}), "nodes: s has features, and nodes of type subject have none"),
        (changed(case, node={"type": "book"}), "nodes: s: type 'book' is unknown: expected paper, author, subject"),
        ({"nodes": [{"id": "x", "type": "author"}]}, "nodes: x has 0 features, expected 2"),
        ({"nodes": case.nodes, "edges": [["w", "p"]]}, "edges: w -> p has no weight"),
        ({"nodes": case.nodes, "edges": [["w"]]}, "edges.0.1: Field required"),
        ({"nodes": case.nodes, "edges": ["w"]}, "edges.0: Input should be a pair of ids, or an object with source and"),
    ):
        response = client.post("/predict_new", json=body)
        assert (response.status_code, message in response.json()["detail"]) == (422, True), response.text
    raw = '{"nodes": [{"id": "s"}], "edges": [{"source": 1, "destination": "s", "weight": NaN}]}'
    response = client.post("/predict_new", content=raw, headers={"content-type": "application/json"})
    assert "edges.0.weight: Input should be a finite number" in response.json()["detail"]


def test_a_type_is_needed_where_none_is_labelled(tmp_path: Path) -> None:
    case = typed("rgcn")
    client = served(case, tmp_path / "run")
    unlabelled = replace(case.graph, labels=np.full(case.graph.num_nodes, -1), split=case.graph.split * 0)
    assert client.post("/predict_new", json={"nodes": [case.nodes[1]]}).status_code == 200
    with within_process():
        client = TestClient(gnnkit.serve(tmp_path / "run", unlabelled))
    response = client.post("/predict_new", json={"nodes": [case.nodes[1]]})
    assert response.json()["detail"] == "nodes: p has no type: choose one of paper, author, subject"


def test_edges_show_which_types_a_relation_joins(tmp_path: Path) -> None:
    case = typed("rgcn")
    case = replace(case, graph=replace(case.graph, relations=None))
    client = served(case, tmp_path / "run")
    assert client.post("/predict_new", json={"nodes": case.nodes, "edges": case.edges}).status_code == 200
    response = client.post("/predict_new", json=changed(case, edge={"destination": "s"}))
    message = "edges: w -> s leads from author to subject, but edges of author-writes-paper from author to paper"
    assert (response.status_code, response.json()["detail"]) == (422, message)


def test_known_text_is_required_of_edges_too() -> None:
    columns = NewColumns(["kind=web", "7=7"], ["kind", "7"], np.float32, True, slice(None))
    edge = NewEdge(1, "new")
    rows, missing = columns.read([edge, edge], [{"kind": "web", "7": 7.0}, {"kind": " ", "7": None}])
    assert (rows.tolist(), missing.tolist()) == ([[1, 1], [0, 0]], [[1, 0], [1, 1]])
    with pytest.raises(UserError, match="edges: 1 -> new: kind=shop does not occur in the training data, which feat"):
        columns.read([edge], [{"kind": "shop", "7": 7}])


def test_a_graph_without_types_takes_none(tmp_path: Path) -> None:
    case = plain("gcn")
    client = served(case, tmp_path / "run")
    for body, message in (
        (changed(case, node={"type": "x"}), "type 'x' is unknown: expected none, because the model reads no types"),
        (changed(case, edge={"relation": "x"}), "expected none, because the model reads no relations"),
        (changed(case, edge={"weight": 1}), "edges: 5 -> a has weight, and the graph's edges have none: leave it out"),
    ):
        response = client.post("/predict_new", json=body)
        assert (response.status_code, message in response.json()["detail"]) == (422, True), response.text
    pairs = [[edge["source"], edge["destination"]] for edge in case.edges]
    objects = answered(client, "/predict_new", nodes=case.nodes, edges=case.edges)
    pd.testing.assert_frame_equal(answered(client, "/predict_new", nodes=case.nodes, edges=pairs), objects)


@few("stored", [False, True], default=(False,))
def test_edges_of_a_table_are_given_by_column(tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: bool) -> None:
    rng = np.random.default_rng(3)
    nodes = pd.DataFrame({"id": [f"k{node}" for node in range(60)], "label": ["a", "b", "c"] * 20})
    nodes = nodes.assign(size=rng.normal(9, 5, 60), city=rng.choice(["Ulm", "Köln"], 60))
    ends = pd.DataFrame(nodes.id.to_numpy()[rng.integers(0, 60, (200, 2))], columns=["src", "dst"]).drop_duplicates()
    edges = ends.assign(weight=rng.random(len(ends)), kind=rng.choice(["web", "shop"], len(ends)))
    edges = edges.assign(since=rng.normal(size=len(ends)))
    keys: Body = {"split": [0.6, 0.2, 0.2], "symmetrize": False, "duplicates": "sum"}
    model: Body = {"name": "gat", "hidden": 4}
    write_tables(tmp_path / "data", nodes, edges)
    with within_process():
        data = {"name": "edges", "root": str(tmp_path / "data"), **keys}
        features = {"fill": "mean", "scale": "standard"}
        options: Body = {"strategy": "vertex_centric", "workers": 1, "comm": "threads", "model": model, **BARE}
        if stored:  # the rows in a store are filled and scaled
            gnnkit.train(job="partition", dataset=data, features=features, folder=tmp_path / "store", **options)
            data, features = {"name": "store", "root": str(tmp_path / "store")}, {}
        gnnkit.train(dataset=data, features=features, trainer={"max_epochs": 3, "precision": 64},
                     folder=tmp_path / "run", **options)  # fmt: skip
        client = TestClient(gnnkit.serve(tmp_path / "run"))
    added = pd.DataFrame(
        [("k3", "new", 0.5, "web", 1.0), ("new", "k9", 2.0, "shop", 0.0), ("k9", "new", 1.5, "shop", -1.0)],
        columns=edges.columns,
    )
    new = {"id": "new", "features": {"size": 0.5, "city": " Ulm "}}
    links = [
        {"source": row.src, "destination": row.dst, "weight": row.weight, "features": {"since": row.since, "kind": row.kind}}
        for row in added.itertuples()
    ]  # fmt: skip
    found = answered(client, "/predict_new", nodes=[new], edges=links).set_index("id")
    row = pd.DataFrame([{"id": "new", "label": "a", "size": 0.5, "city": "Ulm"}])
    write_tables(tmp_path / "more", pd.concat([nodes, row]), pd.concat([edges, added]))
    with within_process():
        gnnkit.predict(tmp_path / "run", dataset={"name": "edges", "root": str(tmp_path / "more"), **keys}, comm="threads",
                       folder=tmp_path / "predicted", write=["probabilities"], write_format="parquet", **BARE)  # fmt: skip
    expected = pd.read_parquet(tmp_path / "predicted/probabilities.parquet").set_index("id").loc[["new"]]
    pd.testing.assert_frame_equal(found.drop(columns="class"), expected, rtol=0, atol=1e-10, check_dtype=False)

    empty = [
        answered(client, "/predict_new", nodes=[new | {"features": {"size": 1, "city": city}}])
        for city in (None, "n/a")
    ]
    pd.testing.assert_frame_equal(*empty)  # words for missing values, as in the tables

    def refused(edges: list[Body], message: str) -> None:
        response = client.post("/predict_new", json={"nodes": [new], "edges": edges})
        assert (response.status_code, message in response.json()["detail"]) == (422, True), response.text

    first = links[0]["features"]
    if not stored:  # a store does not record `duplicates`
        refused([links[0], links[0]], "an edge occurs twice, and dataset.duplicates merges or refuses it: send it once")
    refused(
        [links[0] | {"features": first | {"kind": None}}], "column 'kind=shop' is empty, and edge features are never"
    )
    refused([links[0] | {"features": first | {"kind": "unknown"}}], "is empty, and edge features are never filled")
    refused([links[0] | {"features": first | {"since": "old"}}], "column 'since' has the text 'old', but training read")
    refused([links[0] | {"features": {"since": 1}}], "k3 -> new has the columns since, expected kind, since")
    refused([links[0] | {"features": [1.0, 0.0]}], "edges: k3 -> new has 2 features, expected 3")
    capsys.readouterr()
    answered(client, "/predict_new", nodes=[new], edges=[links[0] | {"features": first | {"kind": "fair"}}])
    assert "edges: k3 -> new: kind=fair does not occur in the training data" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_store_of_divided_rows_needs_the_graph(tmp_path: Path) -> None:
    graph = replace(small_graph(), features=np.abs(small_graph().features)).row_normalize()
    options: Body = {"strategy": "vertex_centric", "workers": 1, "comm": "threads", "model": "gcn", **BARE}
    data, trainer = {"name": "store", "root": str(tmp_path / "store")}, {"max_epochs": 1}
    with within_process():
        gnnkit.train(graph, job="partition", folder=tmp_path / "store", **options)
        gnnkit.train(dataset=data, trainer=trainer, folder=tmp_path / "run", **options)
        clients = [TestClient(gnnkit.serve(tmp_path / "run", source)) for source in (None, graph)]
    body = {"nodes": [{"id": "new", "features": [0.125] * 8}]}
    refused, response = (client.post("/predict_new", json=body) for client in clients)
    assert (response.status_code, refused.status_code) == (200, 422)
    assert "pass the original graph, as in gnnkit.serve(run, graph)" in refused.json()["detail"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_inputs": 0.5}, "label_inputs: a request has no labels"),
        ({"features": {"degree": True}}, "features.degree: new edges change degrees"),
    ],
    ids=["labels", "degree"],
)
def test_columns_that_a_request_cannot_have_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    case = plain("gcn", **options)
    response = served(case, tmp_path / "run").post("/predict_new", json={"nodes": case.nodes})
    assert (response.status_code, message in response.text) == (422, True)


def test_new_nodes_of_a_model_that_samples_by_time_are_refused() -> None:
    overrides = ["strategy=individual_sample", "sampler=neighbor", "sampler.time=strict"]
    with pytest.raises(gnnkit.UserError, match=r"sampler.time: a request has no time"):
        check_inputs(settle(config.compose(overrides)))
