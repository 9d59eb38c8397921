"""job=explain attributes predictions to features and neighbours, completely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gnnkit_explain import attribution
from gnnkit_explain.attribution import TOLERANCE, Attribution, characterisation, fidelity, integrated_gradients
from gnnkit_explain.explained import ExplainedNames
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, SAGEConv, to_hetero

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Relation, Split
from tests.cases import few
from tests.farm import Farm, graph_of
from tests.jobs.test_train import small_graph
from tests.runs import BARE, train_on_threads

NODES = [0, 7, 31]
MODELS = ["gcn", "sage", "gin", "gat", "gat sampled", "three layers", "learned", "degree", "numbers"]


def explained(run: Path, folder: Path, graph: Any, nodes: Any = NODES, **keys: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the result and the tables of a run by name."""
    result = gnnkit.explain(run, nodes, graph, folder=folder, **{"comm": "threads", **BARE, **keys})
    paths = folder.glob("explained_*.csv")
    return result, {path.stem.removeprefix("explained_"): pd.read_csv(path) for path in paths}


def check_complete(tables: dict[str, Any], gap: float = TOLERANCE) -> None:
    """Both tables sum to the change of the score."""
    nodes = tables["nodes"].set_index("id")
    for name in tables.keys() - {"nodes"}:
        importance = tables[name].groupby("id").importance
        error = (importance.sum() - nodes.score + nodes.baseline).abs()
        total = np.maximum((nodes.score - nodes.baseline).abs(), importance.apply(lambda values: values.abs().sum()))
        assert (error <= gap * total + 1e-12).all()


@pytest.mark.slow
@few("name", MODELS, default=("gat",))
def test_importances_sum_to_the_change_of_the_predicted_value(tmp_path: Path, name: str, finished_run: Farm) -> None:
    result, tables = explained(finished_run(name), tmp_path / "explained", graph_of(name))
    check_complete(tables)
    assert result["strategy"] == "individual_sample"  # whatever strategy the run has
    assert result["completeness_gap"] <= TOLERANCE
    assert ("features" in tables) == (name != "learned")
    predicted = gnnkit.predict(
        finished_run(name), graph_of(name), folder=tmp_path / "predicted", comm="threads", **BARE,
        write=["predictions"] if name == "numbers" else ["predictions", "probabilities"],
    )  # fmt: skip
    rows = np.load(predicted.folder / "predictions.npy")[NODES]
    if name != "numbers":
        np.testing.assert_array_equal(tables["nodes"]["class"], rows)
        rows = np.load(predicted.folder / "probabilities.npy")[NODES, rows]
    np.testing.assert_allclose(tables["nodes"].score, rows, rtol=1e-10)


@pytest.mark.slow
def test_a_neighbourhood_gives_the_importances_of_the_whole_graph(
    tmp_path: Path, finished_run: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, graph = finished_run("three layers"), small_graph()
    monkeypatch.setattr(attribution, "MOST", attribution.FEWEST)
    _, tables = explained(run, tmp_path / "explained", graph)
    model, node = gnnkit.load(run), NODES[1]
    ends = graph.csc.indices.astype(np.int64), np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    edges = torch.from_numpy(np.stack(ends))
    x, column = torch.from_numpy(graph.features).double(), int(tables["nodes"]["class"][1])
    whole = integrated_gradients(lambda rows: model(rows, edges)[node].softmax(0)[column], x)
    expected = whole.values.sum(1)
    rows = tables["neighbours"].query(f"id == {node}")
    np.testing.assert_allclose(rows.importance, expected[rows.neighbour.to_numpy()], atol=1e-12)
    assert len(rows) == int((expected != 0).sum())
    columns = tables["features"].query(f"id == {node}").set_index("feature").importance.sort_index()
    np.testing.assert_allclose(columns, whole.values.sum(0), atol=1e-12)
    near = set(edges[0][edges[1] == node].tolist()) - {node}
    assert set(rows.neighbour[rows.hops == 1]) == near
    assert rows.hops[rows.neighbour == node].tolist() == [0]


class Attention(nn.Module):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = GATConv(in_features, 4, heads=2), GATConv(8, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


class Typed(nn.Module):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()

        class Homogeneous(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = SAGEConv((-1, -1), 6), SAGEConv((-1, -1), num_classes)

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
                return out

        self.net = to_hetero(Homogeneous(), library().metadata())

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        return self.net(x_dict, edge_index_dict)


def library(papers: int = 40, authors: int = 15) -> HeteroData:
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(papers, 3, generator=draw), torch.randn(authors, 2, generator=draw)
    data["paper"].y = (data["paper"].x[:, 0] > 0).long()
    for place, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data["paper"][name] = torch.arange(papers) % 3 == place
    ends = torch.stack([torch.randint(high, (90,), generator=draw) for high in (authors, papers)])
    data["author", "writes", "paper"].edge_index = ends
    data["paper", "rev_writes", "author"].edge_index = ends.flip(0)
    return data


@pytest.mark.slow
@few("name", ["rgcn", "inverse rgcn", "rgat", "hgt", "simple_hgn", "pyg"], default=("hgt",))
def test_types_and_relations_are_named(tmp_path: Path, name: str) -> None:
    model: Any = {"pyg": Typed, "inverse rgcn": {"name": "rgcn", "inverse": True}}.get(name, name)
    trained = train_on_threads(library(), model, tmp_path / "run", 2, workers=1)
    passed = {"model": model} if isinstance(model, type) else {}
    result, tables = explained(tmp_path / "run", tmp_path / "explained", library(), [3, 11], **passed)
    check_complete(tables, max(TOLERANCE, result["completeness_gap"]))  # simple_hgn normalises its outputs: abrupt at 0
    rows = tables["neighbours"].query("id == 3")
    assert trained["model"] != "gcn"
    assert set(rows.type) == {"paper", "author"}
    ends = library()["author", "writes", "paper"].edge_index
    authors = set((ends[0][ends[1] == 3] + 40).tolist())
    assert set(rows.neighbour[rows.relation.str.contains("author-writes-paper", na=False)]) == authors
    assert set(rows.type[rows.neighbour >= 40]) == {"author"}
    assert set(tables["features"].feature) <= {"paper 0", "paper 1", "paper 2", "author 0", "author 1"}


@pytest.mark.slow
def test_a_module_of_pyg_is_explained_on_the_whole_graph(tmp_path: Path) -> None:
    train_on_threads(small_graph(), Attention, tmp_path / "run", 3, workers=1)
    result, tables = explained(tmp_path / "run", tmp_path / "explained", small_graph(), model=Attention)
    check_complete(tables)
    assert result["explained_nodes"] == 3
    assert set(tables["neighbours"].hops) == {0, 1, 2}


def planted(num_nodes: int = 300) -> Graph:
    """Classes that column 2 of one in-neighbour decides, among columns of noise."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(num_nodes, 6)).astype(np.float32)
    deciding = rng.integers(0, num_nodes, num_nodes)
    features[:, 5] = 0
    features[np.unique(deciding), 5] = 3
    noise = np.stack([rng.integers(0, num_nodes, 3 * num_nodes), np.repeat(np.arange(num_nodes), 3)])
    labels = (features[deciding, 2] > 0).astype(np.int64)
    src, dst = np.r_[deciding, noise[0]], np.r_[np.arange(num_nodes), noise[1]]
    weight = np.r_[np.full(num_nodes, 6.0), np.full(3 * num_nodes, 0.2)].astype(np.float32)
    split = np.where(np.arange(num_nodes) % 4 == 0, Split.TEST, Split.TRAIN).astype(np.int8)
    split[1::4] = Split.VAL
    return Graph.from_edges(src, dst, num_nodes, weight=weight, features=features, labels=labels, split=split)


@pytest.mark.slow
@few("name", ["gine", "gat"], default=["gat"])
def test_edge_features_are_explained(tmp_path: Path, name: str) -> None:
    """A node's class is the sign of the first feature of its in-edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 120, 360), np.repeat(np.arange(120), 3)
    labels = rng.integers(0, 2, 120)
    edge_features = np.stack([2.0 * labels[dst] - 1, rng.normal(size=360)], 1).astype(np.float32)
    features, split = np.ones((120, 3), np.float32), 1 + np.arange(120) % 3
    graph = Graph.from_edges(src, dst, 120, features=features, labels=labels, split=split, edge_features=edge_features)
    trained = train_on_threads(
        graph, {"name": name, "num_layers": 1}, tmp_path / "run", 40, workers=1, trainer={"max_epochs": 40, "lr": 0.05}
    )
    assert name == "gat" or trained["test_accuracy"] > 0.9
    _, tables = explained(tmp_path / "run", tmp_path / "explained", graph, list(range(0, 60, 4)))
    check_complete({name: tables[name] for name in ("nodes", "features")})
    sums = [tables[name].groupby("id").importance.sum() for name in ("features", "neighbours")]
    pd.testing.assert_series_equal(*sums, atol=1e-9)
    features = tables["features"].assign(size=lambda table: table.importance.abs()).groupby("feature")["size"].sum()
    assert set(features.index) >= {"0", "edge 0", "edge 1"}
    assert features["edge 0"] > 2 * features["edge 1"] or name == "gat"
    predicted = gnnkit.predict(
        tmp_path / "run", graph, folder=tmp_path / "p", comm="threads", write=["probabilities"], **BARE
    )
    scores = np.load(predicted.folder / "probabilities.npy")[tables["nodes"].id].max(1)
    np.testing.assert_allclose(tables["nodes"].score, scores, rtol=1e-5)


@pytest.mark.slow
def test_planted_features_and_neighbours_are_found_and_beat_random_ones(tmp_path: Path) -> None:
    trained = train_on_threads(
        planted(), {"name": "sage", "hidden": 16, "num_layers": 1}, tmp_path / "run", 80, workers=1, trainer={"max_epochs": 80, "lr": 0.03}
    )  # fmt: skip
    assert trained["test_accuracy"] > 0.85
    nodes = list(range(0, 80, 4))
    result, tables = explained(tmp_path / "run", tmp_path / "explained", planted(), nodes)
    features = tables["features"].sort_values("importance", ascending=False).groupby("id").first()
    assert (features.feature == 2).mean() > 0.7
    for kind in ("fidelity_features", "fidelity_neighbours"):
        assert result[kind]["plus"] > 2 * result[kind]["random_plus"]
        assert result[kind]["minus"] < result[kind]["random_minus"]
        assert result[kind]["characterisation"] > result[kind]["random_characterisation"]


@pytest.mark.slow
def test_ids_are_the_users_and_any_number_of_workers_explains_alike(tmp_path: Path, finished_run: Farm) -> None:
    graph = replace(small_graph(), node_ids=np.array([f"n{node}" for node in range(60)]))
    run = finished_run("gcn")
    _, one = explained(run, tmp_path / "one", graph, ["n7", "n0"], write_format="csv", report=True)
    _, two = explained(run, tmp_path / "two", graph, ["n7", "n0"], workers=2)
    assert one["nodes"].id.tolist() == ["n7", "n0"]
    assert set(one["neighbours"].neighbour) <= set(graph.node_ids)
    for name in ("explained_nodes.csv", "explained_features.csv", "explained_neighbours.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    page = (tmp_path / "one/report.html").read_text()
    assert "Node n7, class" in page
    assert "fidelity+" in page
    assert '<figure id="neighbourhood-1"' in page
    assert not (tmp_path / "two/report.html").exists()
    explained(run, tmp_path / "parquet", graph, ["n7", "n0"], write_format="parquet")
    for name, table in two.items():
        written = pd.read_parquet(tmp_path / f"parquet/explained_{name}.parquet")
        assert written.columns.tolist() == table.columns.tolist()
        np.testing.assert_allclose(written.iloc[:, -1], table.iloc[:, -1])


@pytest.mark.slow
def test_what_cannot_be_explained_is_refused(
    tmp_path: Path, finished_run: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("gcn")
    with pytest.raises(UserError, match=r"nodes=\[60\]: no node has this id: .* such as 0; the column id"):
        explained(run, tmp_path / "a", small_graph(), [60])
    with pytest.raises(UserError, match=r"nodes=\[n3\]: no node has this id"):
        explained(run, tmp_path / "b", small_graph(), ["n3"])
    with pytest.raises(UserError, match=r"nodes=\[n3\]: no node has this id"):
        explained(run, tmp_path / "text", small_graph(), "n3")
    with pytest.raises(UserError, match=r"job=explain needs nodes=ID or nodes=\[ID,ID\]"):
        explained(run, tmp_path / "c", small_graph(), [])
    with pytest.raises(
        UserError, match=r"job=explain: task=link_prediction predicts pairs of nodes, .* PyG's Explainer"
    ):
        explained(finished_run("links"), tmp_path / "d", small_graph())
    with pytest.raises(UserError, match="nodes is read by job=explain only"):
        gnnkit.predict(run, small_graph(), folder=tmp_path / "e", comm="threads", nodes=[3], **BARE)
    assert main(["job=explain", f"checkpoint={finished_run('command for a program')}", "nodes=3"]) == 2
    assert "has no trained parameters" in capsys.readouterr().err


@pytest.mark.parametrize("score", [lambda x: (x**3).sum(), lambda x: x.relu().sum() * x[0, 0], lambda x: x.sum() * 0])
def test_integrated_gradients_are_complete(score: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = integrated_gradients(score, x)
    assert float(result.values.sum()) == pytest.approx(float(score(x)), abs=1e-9)
    assert result.gap < 1e-6


def test_a_score_without_a_gradient_is_refused() -> None:
    with pytest.raises(UserError, match=r"^job=explain needs outputs with gradients"):
        integrated_gradients(lambda rows: (rows > 0).sum().double(), torch.ones(2, 2, dtype=torch.float64))


def test_the_gap_of_an_abrupt_score_is_reported() -> None:
    x = torch.ones(1, 1, dtype=torch.float64)
    step = integrated_gradients(lambda rows: torch.sigmoid(1e6 * (rows - 0.30001)).sum(), x)
    assert step.gap > TOLERANCE
    assert Attribution(x, 1.0, 0.0).gap == 0


def test_fidelity_of_a_known_score() -> None:
    x = torch.ones(10, 3, dtype=torch.float64)
    weights = torch.arange(10, dtype=torch.float64)  # row 0 is no item
    measured = fidelity(lambda rows: (rows[:, 0] * weights).sum() / 45, x, weights, 0, key=0)
    assert measured is not None
    assert measured.plus == pytest.approx((9 + 8) / 45)  # a fifth of nine rows, rounded up
    assert measured.minus == pytest.approx(1 - (9 + 8) / 45)
    assert measured.random_plus < measured.plus
    assert fidelity(lambda rows: rows.sum(), x, torch.eye(10)[0], 0, key=0) is None
    assert characterisation(0.5, 0.5) == pytest.approx(0.5)
    assert characterisation(-1, 0) == 0


@pytest.mark.parametrize(("rule", "expected"), [("none", 3), ("strict", 1), ("inclusive", 2)])
def test_only_edges_that_a_node_sees_are_drawn_and_named(rule: str, expected: int) -> None:
    relations = [Relation("node", f"r{number}", "node") for number in range(3)]
    graph = Graph.from_edges(
        [1, 1, 1],
        [0, 0, 0],
        2,
        edge_time=[3, 5, 8],
        node_time=[5, 0],
        edge_types=[0, 1, 2],
        relations=relations,
        node_types=[("node", 2)],
    )
    names = ExplainedNames(graph, graph.schema, np.arange(2), [], None, rule)
    assert names.edges(np.array([0, 1])) == [(1, 0)] * expected
    assert len(names.relations(0, np.array([1]))[0].split(";")) == expected
