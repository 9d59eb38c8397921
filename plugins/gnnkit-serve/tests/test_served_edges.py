"""gnnkit.serve answers for new labelled edges as job=predict on the graph with them."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from anyio.to_thread import current_default_thread_limiter
from fastapi.testclient import TestClient
from gnnkit_serve import served_edges
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit import jobs
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.times import ALWAYS, NEVER
from tests.runs import BARE, within_process
from tests.waiting import GUARD

pytestmark = pytest.mark.slow
N, M = 40, 300


def edges_of(kind: str) -> tuple[np.ndarray, dict[str, Any], Any]:
    """Returns ends, fields and labels of edges. Those after `M` are new."""
    rng = np.random.default_rng(4)
    pairs, amount = rng.integers(0, N, (M + 3, 2)), rng.normal(10, 3, (M + 3, 1))
    score = amount[:, 0] + pairs[:, 1] / 9
    fields = (
        {"edge_features": amount, "edge_time": rng.integers(0, 500, M + 3)}
        if "timed" in kind
        else {"edge_features": amount}
    )
    return pairs, fields, score if "numbers" in kind else (score > 12).astype(np.int64)


def graph_of(kind: str, *, extended: bool = False) -> Graph:
    pairs, fields, labels = edges_of(kind)
    labels = np.where(np.arange(M + 3) < M, labels, np.nan if "numbers" in kind else -1)
    count = M + 3 if extended else M
    graph: Graph = Graph.from_edges(
        pairs[:count, 0],
        pairs[:count, 1], N, features=np.random.default_rng(5).normal(size=(N, 3)), edge_labels=labels[:count],
        node_ids=np.array([f"n{node}" for node in range(N)]), one_class=True,
        **{name: values[:count] for name, values in fields.items()},
    )  # fmt: skip
    graph = graph.split_by_time([0.6, 0.2, 0.2]) if "timed" in kind else graph.draw_edge_split([0.6, 0.2, 0.2])
    return graph.symmetrize() if "both ways" in kind else graph


def train(graph: Graph | None, folder: Path, task: str, **keys: Any) -> Path:
    trainer = {"max_epochs": 2, "lr": 0.05}
    options = {"strategy": "vertex_centric", "workers": 1, "model": "gat", "comm": "threads", **BARE, **keys}
    with within_process():
        return gnnkit.train(graph, folder=folder, task=task, trainer=trainer, **options).folder


def client(run: Path, graph: Graph | None) -> TestClient:
    with within_process():
        return TestClient(gnnkit.serve(run, graph))


def answered(client: TestClient, route: str, **body: Any) -> pd.DataFrame:
    response = client.post(route, json=body)
    assert response.status_code == 200, response.text
    return pd.DataFrame(response.json()["predictions"])


def tables(run: Path, graph: Graph | None, folder: Path, **keys: Any) -> pd.DataFrame:
    write = ["predictions", "probabilities"]
    if "regression" in (run / "config.yaml").read_text():
        write = write[:1]
    gnnkit.predict(run, graph, folder=folder, write=write, write_format="parquet", comm="threads", **BARE, **keys)
    parts = [pd.read_parquet(folder / f"{name}.parquet") for name in write]
    return pd.concat([parts[0], *(part.drop(columns=["id", "src", "dst"]) for part in parts[1:])], axis=1)


def assert_same(rows: pd.DataFrame, expected: pd.DataFrame, *, exact: bool = True) -> None:
    """Compares rows to the bit, or nearly, if layers compute other numbers of rows."""
    expected = expected.drop(columns="id").reset_index(drop=True)
    if exact:
        pd.testing.assert_frame_equal(rows, expected, check_dtype=False, check_exact=True)
    else:
        pd.testing.assert_frame_equal(rows, expected, check_dtype=False, rtol=1e-5)


BY_TIME: dict[str, Any] = {
    "strategy": {"name": "individual_sample", "batch_size": 64},
    "sampler": {"name": "neighbor", "fanouts": [3, 3], "time": "strict"},
    "model": "sage",
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "classes": ("edge_classification", {}),
    "numbers": ("edge_regression", {}),
    "timed": ("edge_classification", BY_TIME),
    "timed numbers both ways": ("edge_regression", BY_TIME),
    "timed with labels": ("edge_classification", {**BY_TIME, "overrides": ["task.label_delay=0"]}),
    "both ways": ("edge_classification", {"model": "gcn"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_new_edges_are_predicted_as_in_the_extended_graph(kind: str, tmp_path: Path) -> None:
    task, keys = KINDS[kind]
    run = train(graph_of(kind), tmp_path / "run", task, **keys)
    served = client(run, graph_of(kind))
    pairs, fields, _ = edges_of(kind)
    new = [
        {"source": f"n{src}", "destination": f"n{dst}", "features": fields["edge_features"][M + row].tolist()}
        for row, (src, dst) in enumerate(pairs[M:].tolist())
    ]
    for edge, time in zip(new, fields.get("edge_time", [])[M:], strict=False):
        edge["time"] = int(time)
    rows = answered(served, "/predict_edges", edges=new)
    expected = tables(run, graph_of(kind, extended=True), tmp_path / "extended")
    assert len(expected) == M + 3
    assert_same(rows, expected.iloc[M:], exact="timed" not in kind)
    pd.testing.assert_frame_equal(rows, answered(served, "/predict_edges", edges=new), check_exact=True)
    if "timed" in kind:
        assert_times_are_checked(served, new[0])


def assert_times_are_checked(served: TestClient, edge: dict[str, Any]) -> None:
    answered(served, "/predict_edges", edges=[{**edge, "time": time} for time in (ALWAYS + 1, NEVER - 1)])
    for time, said in {
        ALWAYS: "time: Input should be greater than -9223372036854775808",
        NEVER: "time: Input should be less than 9223372036854775807",
        2**70: "time: Input should be less than 9223372036854775807",
        -(2**70): "time: Input should be greater than",
        "300": "time=300 is text, and times are numbers here: give a number",
        "2026-01-31": "time=2026-01-31 is text",
        3.5: "time: ",
        True: "time: ",
    }.items():
        response = served.post("/predict_edges", json={"edges": [{**edge, "time": time}]})
        assert (response.status_code, said in response.text) == (422, True), response.text


def test_edges_of_the_graph_are_answered_by_position(tmp_path: Path) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification")
    served = client(run, graph_of("classes"))
    expected = tables(run, graph_of("classes"), tmp_path / "same").set_index("id")
    rows = answered(served, "/predict", ids=[7, 0, 299]).set_index("id")
    pd.testing.assert_frame_equal(rows, expected.loc[[7, 0, 299]], check_dtype=False, check_exact=True)
    assert served.get("/health").json()["edges"] == M
    response = served.post("/predict", json={"ids": [300]})
    assert (response.status_code, response.json()["detail"]) == (404, "ids: no edge has the id 300")
    assert served.post("/predict_new", json={"nodes": [{"id": "new"}]}).status_code == 404


def write_tables(folder: Path, payments: pd.DataFrame) -> Path:
    folder.mkdir()
    payments.to_csv(folder / "edges.csv", index=False)
    nodes = pd.DataFrame({"id": range(30), "age": np.random.default_rng(9).integers(18, 90, 30)})
    nodes.to_csv(folder / "nodes.csv", index=False)
    return folder


def test_rows_of_a_table_are_given_by_column_with_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(6)
    payments = pd.DataFrame({"src": rng.integers(0, 30, 400), "dst": rng.integers(0, 30, 400)})
    payments["day"] = np.datetime64("2026-01-01") + np.sort(rng.integers(0, 200, 400))
    payments = payments.assign(amount=rng.random(400), channel=rng.choice(["web", "shop"], 400))
    payments["fraud"] = np.where(payments.amount + payments.dst / 60 > 1, "yes", "no")
    root = write_tables(tmp_path / "old", payments[:397])
    dataset = {"name": "edges", "root": str(root), "edge_label": "fraud", "symmetrize": True, "time": "day"}
    dataset["split"] = {"by": "time", "shares": [0.6, 0.2, 0.2]}
    run = train(
        None, tmp_path / "run", "edge_classification", dataset=dataset, features={"scale": "standard"}, **BY_TIME
    )
    served = client(run, None)
    new = [
        {"source": row.src, "destination": row.dst, "time": str(row.day.date()),
         "features": {"amount": row.amount, "channel": row.channel}}
        for row in payments[397:].itertuples()
    ]  # fmt: skip
    rows = answered(served, "/predict_edges", edges=new)
    unlabelled = payments.assign(fraud=payments.fraud.where(payments.index < 397))
    extended = {"name": "edges", "root": str(write_tables(tmp_path / "new", unlabelled))}
    expected = tables(run, None, tmp_path / "extended", dataset=extended)
    assert_same(rows, expected.iloc[397:], exact=False)
    capsys.readouterr()
    answered(served, "/predict_edges", edges=[{**new[0], "features": {"amount": 1, "channel": "phone"}}])
    printed = capsys.readouterr()
    assert "channel=phone does not occur in the training data" in printed.err
    assert "job=predict" not in printed.out + printed.err

    def refused(said: str, **changes: Any) -> None:
        edge = {name: value for name, value in {**new[0], **changes}.items() if value is not ...}
        response = served.post("/predict_edges", json={"edges": [edge]})
        assert (response.status_code, said in response.text) == (422, True), response.text

    refused("has no time, which the graph's edges have: add it", time=...)
    refused("time=yesterday: expected a date such as 2026-01-31", time="yesterday")
    refused("999 is no id of a destination in the graph: use job=predict", destination=999)
    refused("has the columns amount, expected amount, channel", features={"amount": 1})
    refused("column 'amount' is empty", features={"amount": None, "channel": "web"})
    refused("has no features, which the graph's edges have", features=...)
    refused("has weight, and the graph's edges have none", weight=2.0)
    refused("relation 'pays' is unknown", relation="pays")
    refused("Extra inputs are not permitted", label="yes")


def test_requests_without_times_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification")
    served = client(run, graph_of("classes"))

    def refused(body: Any, *said: str) -> None:
        response = served.post("/predict_edges", json=body)
        assert response.status_code == 422, response.text
        assert all(text in response.text for text in said), response.text

    refused({"edges": []}, "at least 1 item")
    refused({"edges": [["n1", "n2"]]}, "n1 -> n2 has no features, which the graph's edges have")
    refused({"edges": [["n1"]]}, "edges.0")
    refused(
        {"edges": [{"source": "n1", "destination": "n2", "features": [1], "time": 3}]},
        "has a time, and the graph has none",
    )
    edge = {"source": "n1", "destination": "n2", "features": [1]}
    refused({"edges": [{**edge, "source": "x"}]}, "x is no id of a source in the graph")

    def fail(order: jobs.Order) -> Any:
        raise KeyError("other")

    monkeypatch.setattr(jobs, "start", fail)
    with pytest.raises(KeyError, match="other"):  # answered as 500, not as an unknown id
        served.post("/predict_edges", json={"edges": [edge]})


def test_users_and_items_may_have_the_same_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    ratings = pd.DataFrame({"user": rng.integers(0, 20, M + 2), "item": rng.integers(0, 15, M + 2)})
    ratings["stars"] = rng.normal(ratings.item, 3)
    for name, count in (("old", M), ("new", M + 2)):
        (tmp_path / name).mkdir()
        ratings[:count].to_csv(tmp_path / name / "edges.csv", index=False)
    dataset = {"name": "edges", "root": str(tmp_path / "old"), "edge_label": "stars", "bipartite": True}
    dataset["split"] = [0.6, 0.2, 0.2]
    keys = {"model": "rgcn", "inputs": "learned", "embedding": 8}
    run = train(None, tmp_path / "run", "edge_regression", dataset=dataset, **keys)
    served = client(run, None)
    rows = answered(served, "/predict_edges", edges=ratings[["user", "item"]][M:].to_numpy().tolist())
    extended = {"name": "edges", "root": str(tmp_path / "new")}
    assert_same(rows, tables(run, None, tmp_path / "extended", dataset=extended).iloc[M:])
    response = served.post("/predict_edges", json={"edges": [[3, 17]]})
    assert (response.status_code, "17 is no id of a destination" in response.text) == (422, True)


def test_edges_of_other_relations_are_refused(tmp_path: Path) -> None:
    types = np.arange(M) % 3 // 2
    labels = np.where(types == 0, np.arange(M) % 2, -1)
    graph = replace(graph_of("classes"), edge_split=None)
    assert graph.edge_positions is not None
    graph = graph.evolve(
        edge_types=types[graph.edge_positions], edge_type_names=("pays", "knows"), edge_labels=labels[graph.edge_positions]
    ).draw_edge_split([0.6, 0.2, 0.2])  # fmt: skip
    task: Any = {"name": "edge_classification", "relation": "pays"}
    served = client(train(graph, tmp_path / "run", task, model="rgcn"), graph)
    edge = {"source": "n1", "destination": "n2", "features": [9.5]}
    rows = answered(served, "/predict_edges", edges=[edge, {**edge, "relation": "pays"}])
    assert rows.iloc[0].tolist() == rows.iloc[1].tolist()
    response = served.post("/predict_edges", json={"edges": [{**edge, "relation": "knows"}]})
    assert response.status_code == 422
    assert "relation 'knows' is not predicted: task.relation=pays" in response.text


def test_data_whose_edges_are_merged_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    payments = pd.DataFrame({"src": rng.integers(0, 30, 200), "dst": rng.integers(0, 30, 200)})
    payments["fraud"] = rng.choice(["yes", "no"], 200)
    root = str(write_tables(tmp_path / "data", payments))
    dataset = {"name": "edges", "root": root, "edge_label": "fraud", "split": [0.6, 0.2, 0.2], "duplicates": "first"}
    run = train(None, tmp_path / "run", "edge_classification", dataset=dataset)
    with pytest.raises(UserError, match=r"serve: dataset\.duplicates=first merges or refuses repeated edges"):
        client(run, None)


class Net(nn.Module):
    """PyG's call, without edge features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(3, 64)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.conv(x, edge_index)
        return rows


def test_a_module_from_python_serves_new_edges(tmp_path: Path) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification", model=Net())
    with within_process():
        served = TestClient(gnnkit.serve(run, graph_of("classes"), model=Net()))
    pairs, fields, _ = edges_of("classes")
    new = [
        {"source": f"n{src}", "destination": f"n{dst}", "features": row}
        for (src, dst), row in zip(pairs[M:].tolist(), fields["edge_features"][M:].tolist(), strict=True)
    ]
    rows = answered(served, "/predict_edges", edges=new)
    expected = tables(run, graph_of("classes", extended=True), tmp_path / "extended", model=Net())
    assert_same(rows, expected.iloc[M:])


def test_a_changed_run_is_not_answered(tmp_path: Path) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification")
    served = client(run, replace(graph_of("classes")))
    (run / "inputs.json").write_text("{}")
    assert served.post("/predict_edges", json={"edges": [["n1", "n2"]]}).status_code == 409


def test_applications_in_one_process_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification")
    applications = [client(run, graph_of("classes")) for _ in range(2)]
    edge, start, together = {"source": "n1", "destination": "n2", "features": [9.5]}, jobs.start, Barrier(2)

    def meet(order: jobs.Order) -> Any:
        with suppress(BrokenBarrierError):
            together.wait(0.5)
        return start(order)

    monkeypatch.setattr(jobs, "start", meet)
    streams = sys.stdout, sys.stderr
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(answered, served, "/predict_edges", edges=[edge]) for served in applications]
    assert asked[0].result().equals(asked[1].result())
    assert (sys.stdout, sys.stderr) == streams
    assert together.broken


def test_waiting_requests_are_bounded_and_occupy_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification")
    app = client(run, graph_of("classes")).app
    edges = {"edges": [{"source": "n1", "destination": "n2", "features": [9.5]}]}
    monkeypatch.setattr("gnnkit_serve.serve.MAX_QUEUED", 3)

    async def ask() -> list[httpx.Response]:
        current_default_thread_limiter().total_tokens = 2
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as served:
            with served_edges.ONE_CALL:
                asked = [asyncio.create_task(served.post("/predict_edges", json=edges)) for _ in range(4)]
                done, waiting = await asyncio.wait(asked, timeout=GUARD, return_when=asyncio.FIRST_COMPLETED)
                known = await asyncio.wait_for(served.post("/predict", json={"ids": [1]}), GUARD)
            return [*(task.result() for task in done), known, *await asyncio.gather(*waiting)]

    responses = asyncio.run(ask())
    assert [response.status_code for response in responses] == [503, 200, 200, 200, 200]
    assert responses[0].json()["detail"] == "3 requests are waiting: try again later"


@pytest.mark.parametrize("moment", ["waiting", "computing", "failing"])
def test_a_run_that_changes_during_a_request_is_not_answered(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(graph_of("classes"), tmp_path / "run", "edge_classification")
    served, weights, start = client(run, graph_of("classes")), run / "model.safetensors", jobs.start
    edge = {"source": "n1", "destination": "n2", "features": [9.5]}
    answered(served, "/predict_edges", edges=[edge])
    started: list[jobs.Order] = []

    class Waiting(nullcontext[None]):
        def __enter__(self) -> None:
            os.utime(weights, (0, 0))

    def change(order: jobs.Order) -> Any:
        started.append(order)
        if moment == "failing":
            weights.unlink()
        else:
            os.utime(weights, (0, 0))
        return start(order)

    if moment == "waiting":
        monkeypatch.setattr(served_edges, "ONE_CALL", Waiting())
    monkeypatch.setattr(jobs, "start", change)
    response = served.post("/predict_edges", json={"edges": [edge]})
    assert (response.status_code, "model.safetensors has changed" in response.text) == (409, True)
    assert len(started) == (moment != "waiting")
