"""gnnkit.serve answers as job=predict does, and bounds its requests."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
from fastapi.testclient import TestClient
from gnnkit_serve import serve
from gnnkit_serve.extension import Extension, ReadPart
from gnnkit_serve.served import ServedFiles, ServedRun, _stamp
from safetensors.torch import load_file
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GraphNorm

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import EdgeColumns, Graph
from gnnkit.graph.edge_order import with_inverse_edges
from gnnkit.partition.degrees import Degrees
from tests.cases import exhaustive, few
from tests.farm import Farm, graph_of
from tests.jobs.test_train import small_graph
from tests.runs import BARE, within_process
from tests.waiting import GUARD, wait_until

pytestmark = pytest.mark.slow
JSON = {"content-type": "application/json"}


def client(run: Path, graph: Graph | None) -> TestClient:
    with within_process():
        return TestClient(gnnkit.serve(run, graph))


@pytest.fixture(scope="module")
def gcn(finished_run: Farm) -> TestClient:
    return client(finished_run("gcn"), small_graph())


def answered(client: TestClient, route: str, **body: Any) -> pd.DataFrame:
    response = client.post(route, json=body)
    assert response.status_code == 200, response.text
    return pd.DataFrame(response.json()["predictions"])


def tables(run: Path, graph: Graph, folder: Path, **model: Any) -> pd.DataFrame:
    """Returns the tables of job=predict side by side, without node types."""
    write = ["predictions"] if graph.labels.dtype.kind == "f" else ["predictions", "probabilities"]
    keys = {"comm": "threads", "write_format": "parquet", **BARE, **model}
    gnnkit.predict(run, graph, folder=folder, write=write, **keys)
    parts = [pd.read_parquet(folder / f"{name}.parquet").drop(columns="type", errors="ignore") for name in write]
    return pd.concat([parts[0], *(part.drop(columns="id") for part in parts[1:])], axis=1)


@few("name", ["gcn", "gat", "learned", "degree", "numbers"], default=("gat",))
def test_answers_by_id_are_the_rows_of_job_predict(tmp_path: Path, name: str, finished_run: Farm) -> None:
    graph = replace(graph_of(name), node_ids=np.array([f"n{node}" for node in range(60)]))
    expected = tables(finished_run(name), graph, tmp_path / "predicted").set_index("id")
    served = client(finished_run(name), graph)
    ids = ["n7", "n0", "n7", "n59"]
    pd.testing.assert_frame_equal(answered(served, "/predict", ids=ids).set_index("id"), expected.loc[ids], atol=1e-12)
    identity = served.get("/health").json()
    assert (identity["nodes"], identity["run"], identity["dataset"]) == (60, "run", "from Python")


@few("name", ["gcn", "gat", "sage", "three layers", "degree", "numbers"], default=("gcn",))
def test_new_nodes_are_predicted_as_in_the_extended_graph(tmp_path: Path, name: str, finished_run: Farm) -> None:
    graph, rng = graph_of(name), np.random.default_rng(3)
    rows = rng.normal(size=(2, graph.features.shape[1])).astype(np.float32)
    edges = [[5, 100], [100, 5], [100, "b"], [7, "b"]]
    given = [] if name == "degree" else rows.tolist()
    nodes = [{"id": id, "features": row} for id, row in zip([100, "b"], given or [[], []], strict=True)]
    served = client(finished_run(name), graph)
    found = answered(served, "/predict_new", nodes=nodes, edges=edges).set_index("id")
    src, dst = np.array([[5, 60, 60, 7], [60, 5, 61, 61]])
    old = graph.csc.indices.astype(np.int64), np.repeat(np.arange(60), np.diff(graph.csc.indptr))
    labels = np.append(graph.labels, [0, 0]).astype(graph.labels.dtype)
    extended = Graph.from_edges(np.r_[old[0], src], np.r_[old[1], dst], 62,
                                features=np.concatenate([graph.features, rows]), labels=labels)  # fmt: skip
    expected = tables(finished_run(name), extended, tmp_path / "predicted").iloc[60:].set_index(found.index)
    pd.testing.assert_frame_equal(found, expected.drop(columns="id"), rtol=1e-6, check_dtype=False)


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, pd.DataFrame]:
    """A run on tables with text, empty cells and rows divided by their sums."""
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp("tables")
    nodes = pd.DataFrame({"id": [f"k/{node}" for node in range(60)], "label": ["a", "b", "c"] * 20})
    nodes = nodes.assign(size=rng.random(60), city=rng.choice(["Ulm", "Köln", None], 60), age=rng.random(60))
    nodes.loc[::7, "age"] = None
    ends = rng.integers(0, 60, (2, 200))
    edges = pd.DataFrame({"src": nodes.id.to_numpy()[ends[0]], "dst": nodes.id.to_numpy()[ends[1]]})
    write_tables(folder / "data", nodes, edges)
    keys = {"root": str(folder / "data"), "split": [0.6, 0.2, 0.2], "symmetrize": False, "row_normalize": True}
    features = {"fill": "mean", "scale": "standard"}
    with within_process():
        gnnkit.train(strategy="vertex_centric", workers=1, comm="threads", dataset={"name": "edges", **keys}, model="gcn",
                     features=features, trainer={"max_epochs": 3}, folder=folder / "run", **BARE)  # fmt: skip
    return folder, nodes, edges


def write_tables(folder: Path, nodes: pd.DataFrame, edges: pd.DataFrame) -> None:
    folder.mkdir()
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)


def test_new_rows_of_a_table_are_given_by_column(
    tmp_path: Path, table_run: tuple[Path, pd.DataFrame, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, nodes, edges = table_run
    rows = [
        {"size": 0.5, "city": "Köln", "age": 2.0},
        {"size": 0.1, "city": None, "age": None},
        {"size": 0.9, "city": "Bonn", "age": 0.0},  # not seen in training
    ]
    ends = [["k/3", "new 0"], ["new 0", "k/4"], ["k/4", "new 1"], ["new 0", "new 1"], ["k/9", "new 2"]]
    served = client(folder / "run", None)
    new = [{"id": f"new {number}", "features": row} for number, row in enumerate(rows)]
    found = answered(served, "/predict_new", nodes=new, edges=ends).set_index("id")
    assert "city=Bonn does not occur in the training data" in capsys.readouterr().err
    added = pd.DataFrame([{"id": node["id"], "label": "a", **row} for node, row in zip(new, rows, strict=True)])
    more = pd.DataFrame(ends, columns=["src", "dst"])
    write_tables(tmp_path / "data", pd.concat([nodes, added]), pd.concat([edges, more]))
    gnnkit.predict(folder / "run", dataset={"name": "edges", "root": str(tmp_path / "data")}, folder=tmp_path / "predicted",
                   comm="threads", write=["probabilities"], write_format="parquet", **BARE)  # fmt: skip
    expected = pd.read_parquet(tmp_path / "predicted" / "probabilities.parquet").set_index("id").loc[found.index]
    found, expected = found.drop(columns="class")[:2], expected[:2]  # row_normalize counts the column of an unseen text
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5, check_dtype=False)

    def refused(features: Any, said: str) -> None:
        response = served.post("/predict_new", json={"nodes": [{"id": "new", "features": features}]})
        assert (response.status_code, said in response.text) == (422, True), response.text

    refused({"size": 1}, "new has the columns size, expected size, city, age")
    refused(rows[0] | {"b": 1}, "new has the columns size, city, age, b, expected size, city, age")
    refused(rows[0] | {"age": True}, "should be a number (1 for true, 0 for false), text or null")
    refused(rows[0] | {"age": "old"}, "column 'age' has the text 'old', but training read numbers there")
    capsys.readouterr()
    known, unknown = (
        served.post("/predict_new", json={"nodes": [{"id": "new", "features": rows[0] | {"city": city}}]}).json()
        for city in ("Ulm", 7)
    )
    assert list(known) == ["predictions"]
    (warning,) = unknown["warnings"]
    assert "new: city=7 does not occur in the training data" in warning
    assert warning in capsys.readouterr().err
    refused([0.5, 1, 0, 1e60], "column 'age' exceeds the range of float32")
    refused([0.5, "Ulm", 0, 0], "text is passed by column")


def test_a_module_of_edge_index_serves_new_nodes(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, in_features: int, num_classes: int) -> None:
            super().__init__()
            self.convs = nn.ModuleList([GCNConv(in_features, 4), GCNConv(4, num_classes)])
            self.norm = GraphNorm(4)  # reads all nodes

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.norm(self.convs[0](x, edge_index).relu())
            return self.convs[1](x, edge_index)

    graph = small_graph()
    with within_process():
        gnnkit.train(graph, strategy="vertex_centric", workers=1, comm="threads", model=Net, trainer={"max_epochs": 2},
                     folder=tmp_path / "run", **BARE)  # fmt: skip
        served = TestClient(gnnkit.serve(tmp_path / "run", graph, model=Net))
    node = {"id": 60, "features": graph.features[7].tolist()}
    found = answered(served, "/predict_new", nodes=[node], edges=[[5, 60], [60, 5]])
    csc = graph.csc
    ends = np.append(csc.indices, [5, 60]), np.append(np.repeat(np.arange(60), np.diff(csc.indptr)), [60, 5])
    x = torch.from_numpy(np.concatenate([graph.features, graph.features[[7]]]))
    expected = gnnkit.load(tmp_path / "run", Net)(x, torch.from_numpy(np.stack(ends).astype(np.int64))).softmax(1)
    np.testing.assert_allclose(found.filter(like="probability").to_numpy()[0], expected[60].detach(), rtol=1e-5)


def test_a_new_node_reads_the_rows_within_its_hops_only() -> None:
    path = Graph.from_edges(range(99), range(1, 100), 100)
    ends = np.array([[50, 100], [100, 51], [51, 101]])
    part = ReadPart.of(path, Extension(np.zeros(2, np.int64), *ends.T, EdgeColumns()), 2)
    assert sorted(part.nodes) == [49, 50, 51, 100, 101]
    assert part.graph.num_edges == 5
    degrees = Degrees.of(part.graph.csc)
    assert degrees.out_degree(np.argsort(part.nodes)).tolist() == [1, 2, 2, 1, 0]
    assert degrees.in_degree(np.argsort(part.nodes)).tolist() == [1, 1, 2, 1, 1]
    extension = Extension(np.zeros(2, np.int64), *ends.T, EdgeColumns()).with_inverse_edges(1)
    part = ReadPart.of(with_inverse_edges(path), extension, 1)
    assert sorted(part.nodes) == [50, 51, 100, 101]
    assert part.graph.edge_type_names == ("", "rev_")
    assert sorted(part.graph.edge_types.tolist()) == [0, 0, 1]


def test_new_nodes_join_the_data_set_of_the_run(finished_run: Farm) -> None:
    served = client(finished_run("command"), None)
    width = load_file(finished_run("command") / "model.safetensors")["convs.0.weight"].shape[0]
    (row,) = answered(served, "/predict_new", nodes=[{"id": "new", "features": [0.5] * width}], edges=[[4, "new"]])[
        "id"
    ]
    assert row == "new"
    assert served.get("/health").json()["nodes"] == 60


def test_requests_are_checked_and_bounded(finished_run: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    served, node = client(finished_run("gcn"), small_graph()), {"id": "new", "features": [0.0] * 8}

    def refused(route: str, body: Any, status: int, *said: str) -> None:
        response = served.post(route, json=body)
        assert response.status_code == status, response.text
        assert all(text in response.text for text in said), response.text

    refused("/predict", {"ids": [3, 60]}, 404, "no node has the id 60")
    refused("/predict", {"ids": ["3"]}, 404, "no node has the id '3'")
    refused("/predict", {"ids": []}, 422, "at least 1 item")
    refused("/predict", {"ids": [0] * (serve.MAX_IDS + 1)}, 422, "at most 10000 items")
    refused("/predict", {"ids": [1.5]}, 422)
    refused("/predict", {"ids": [1], "more": 1}, 422, "Extra inputs")
    refused("/predict_new", {"nodes": [node | {"features": [1]}]}, 422, "new has 1 features, expected 8")
    refused("/predict_new", {"nodes": [node | {"features": {}}]}, 422, "a list, because the data have no names")
    refused("/predict_new", {"nodes": [node, node]}, 422, "an id occurs twice")
    refused("/predict_new", {"nodes": [node | {"id": 3}]}, 422, "that of a node of the graph")
    refused("/predict_new", {"nodes": [node], "edges": [[99, "new"]]}, 422, "99 is no id")
    refused("/predict_new", {"nodes": [node], "edges": [[1, 2]]}, 422, "connects two nodes of the graph")
    for cell in ("NaN", "1e400"):
        content = f'{{"nodes": [{{"id": "new", "features": [{cell}]}}]}}'
        response = served.post("/predict_new", content=content, headers=JSON)
        assert response.status_code == 422
        assert "nodes.0.features.0: Input should be a finite number" in response.json()["detail"]
    assert served.post("/predict", content=r'{"ids": ["\ud800"]}', headers=JSON).status_code == 422
    long = served.post("/predict", json={"ids": [0.5] * 100})
    assert long.json()["detail"] == "ids.0: Input should be a valid integer or Input should be a valid string"
    monkeypatch.setattr(serve, "MAX_BYTES", 10)
    refused("/predict", {"ids": [1, 2, 3]}, 413, "at most 10 bytes")
    chunked = served.post("/predict", content=iter([b'{"ids":', b"[1]}"]))
    assert chunked.status_code == 413
    assert served.get("/docs").status_code == 404


def test_what_cannot_be_served_is_refused(finished_run: Farm) -> None:
    with pytest.raises(UserError, match="task=link_prediction predicts pairs of nodes: serve the vectors"):
        client(finished_run("links"), small_graph())
    learned = client(finished_run("learned"), graph_of("learned"))
    response = learned.post("/predict_new", json={"nodes": [{"id": "new"}]})
    assert response.status_code == 422
    assert "inputs=learned" in response.text


DRAIN = 6.0  # of servers of these tests, because a busy machine may take long to send all requests


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("serve")


@pytest.mark.exhaustive
def test_sigterm_among_requests_loses_none(tmp_path: Path, finished_run: Farm, benchmark_module: ModuleType) -> None:
    with benchmark_module.served(finished_run("command"), tmp_path, DRAIN) as (http, server):
        count, address = int(os.environ.get("GNNKIT_REQUESTS", "200")), http.base_url.netloc.decode()
        assert benchmark_module.soak(server, address, count, width=32, drain=DRAIN)  # columns of dataset=synthetic
    assert server.returncode == -signal.SIGTERM  # 143 in a shell


STUB = f"""
import time
from types import SimpleNamespace
from gnnkit_serve import serve
from gnnkit_serve.serve import application

serve.DRAIN = {DRAIN}

def predict(ids):
    time.sleep(0.05)
    return [{{"id": number}} for number in ids]

app = application(SimpleNamespace(identity={{}}, changed=str, predict=predict))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, exhaustive(signal.SIGINT)])
def test_accepted_connections_are_answered_whenever_they_send(
    tmp_path: Path, number: signal.Signals, benchmark_module: ModuleType
) -> None:
    """Uvicorn alone resets those whose request it has not read when it ends."""
    (tmp_path / "app.py").write_text(STUB)
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"]
    request = httpx.Request("POST", "http://localhost/predict", json={"ids": [4]})
    head = [f"{name}: {value}" for name, value in request.headers.items()]
    text = "\r\n".join(["POST /predict HTTP/1.1", *head, "", ""]).encode() + request.content
    with (
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server,
        ThreadPoolExecutor(8) as threads,
    ):
        assert server.stderr is not None
        port = next(int(match[1]) for line in server.stderr if (match := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        connections = [socket.create_connection(("127.0.0.1", port), timeout=GUARD) for _ in range(30)]
        for connection in connections[:10]:
            connection.sendall(text)
        post = partial(benchmark_module.post, f"127.0.0.1:{port}", "/predict", {"ids": [4]}, DRAIN)
        later = [threads.submit(post) for _ in range(400)]  # arrive while the server stops to listen
        wait_until(lambda: any(future.done() for future in later))
        server.send_signal(number)
        for connection in connections[10:]:
            connection.sendall(text)
            time.sleep(0.01)
        answers = [connection.makefile("rb").read() for connection in connections]  # until it is closed
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert all(b"connection: close" in answer.lower() for answer in answers[-10:])
    assert {future.result() for future in later} <= {200, None}


@pytest.mark.exhaustive
def test_a_server_starts_from_a_file_of_two_lines(tmp_path: Path, finished_run: Farm) -> None:
    run = finished_run("command")
    (tmp_path / "app.py").write_text(f"import gnnkit\n\napp = gnnkit.serve({str(run)!r})\n")
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ}) as server:
        assert server.stderr is not None
        try:
            line = next(line for line in server.stderr if "running on" in line)
            match = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert match is not None, "bound to another address than the loopback"
            response = httpx.post(f"{match[0]}/predict", json={"ids": [4]}, timeout=GUARD)
        finally:
            server.send_signal(signal.SIGINT)
    assert response.json()["predictions"][0]["id"] == 4


Change = Callable[[Path, pd.DataFrame], object]
CHANGES: dict[str, Change] = {
    "rows in another order": lambda root, nodes: nodes[::-1].to_csv(root / "data" / "nodes.csv", index=False),
    "a file more": lambda root, _: (root / "data" / "more.csv").write_text("id"),
    "a file less": lambda root, _: (root / "data" / "edges.csv").unlink(),
    "another model": lambda root, _: (root / "run" / "model.safetensors").write_bytes(b"x"),
    "other inputs": lambda root, _: (root / "run" / "inputs.json").write_text("{}"),
}


@few("change", CHANGES, default=["rows in another order", "another model"])
def test_a_server_answers_by_the_files_of_its_start_or_not_at_all(
    change: str, tmp_path: Path, table_run: tuple[Path, pd.DataFrame, pd.DataFrame]
) -> None:
    folder, nodes, _ = table_run
    shutil.copytree(folder / "data", tmp_path / "data")
    shutil.copytree(folder / "run", tmp_path / "run")
    config = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(config.replace(str(folder / "data"), str(tmp_path / "data")))
    served = client(tmp_path / "run", None)
    bodies = {"/predict": {"ids": ["k/3"]}, "/predict_new": {"nodes": [{"id": "n", "features": [0.5, 1, 0, 2.0]}]}}
    assert [served.post(route, json=body).status_code for route, body in bodies.items()] == [200, 200]
    (tmp_path / "run" / "report.html").write_text("of job=report, which changes no answer")
    assert served.post("/predict", json=bodies["/predict"]).status_code == 200
    CHANGES[change](tmp_path, nodes)
    for route, body in bodies.items():
        answer = served.post(route, json=body)
        assert answer.status_code == 409
        assert "has changed since the server started: restart the server" in answer.json()["detail"]
        assert str(tmp_path) not in answer.text
    assert served.get("/health").status_code == 200


@pytest.mark.parametrize("linked", ["edges", "edges/cites.csv", "."], ids=["folder", "file", "root"])
def test_a_change_behind_a_link_is_seen(linked: str, tmp_path: Path) -> None:
    real, root = tmp_path / "real", tmp_path / "data"
    (real / "edges").mkdir(parents=True)
    (real / "edges/cites.csv").write_text("src,dst\n0,1\n")
    link = root if linked == "." else root / linked
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real if linked == "." else real / linked)
    files = ServedFiles(tmp_path, (root,), _stamp(tmp_path, (root,)))
    assert files.changed() == ""
    (real / "edges/cites.csv").write_text("src,dst\n0,1\n1,0\n")
    assert files.changed() == "data/edges/cites.csv has changed since the server started"


def many(item: str, count: int) -> str:
    return ",".join([item] * count)


NUMBERED = ",".join(f'"{number}":[]' for number in range(100_000))  # keys of an object
NEW = '{"nodes": [{"id": "a"}], "edges": ['
HOSTILE = {
    "edges": NEW + many("{}", 500_000) + "]}",
    "numbers": NEW + many("1", 1_000_000) + "]}",
    "nodes": '{"nodes": [' + many("{}", 500_000) + "]}",
    "cells": '{"nodes": [{"id": "a", "features": [' + many("[]", 500_000) + "]}]}",
    "named cells": '{"nodes": [{"id": "a", "features": {' + NUMBERED + "}}]}",
    "cells of no column": '{"nodes": [{"id": "a", "features": {' + NUMBERED.replace("[]", "1") + "}}]}",
    "a large integer": '{"nodes": [{"id": "a", "features": {"f": ' + "9" * 4_000 + "}}]}",
    "a long text": '{"nodes": [{"id": "a", "features": ["' + "a" * 2_000_000 + '"]}]}',
    "more keys": '{"nodes": [{"id": "a", ' + NUMBERED + "}]}",
    "more lists": "{" + NUMBERED + "}",
    "deep": '{"nodes": ' + "[" * 2_000_000 + "}",
    "a long number": '{"nodes": [{"id": ' + "9" * 2_000_000 + "}]}",
    "a long id": '{"nodes": [{"id": "' + "a" * 2_000_000 + '"}]}',
}


@pytest.mark.long("traces all allocations")
@few("name", HOSTILE, default=["named cells", "deep", "a long id"])
def test_a_body_of_any_form_takes_bounded_work(name: str, gcn: TestClient) -> None:
    tracemalloc.start()
    answer = gcn.post("/predict_new", content=HOSTILE[name], headers=JSON)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == 422
    assert len(answer.text) < 2_000
    assert peak < 40 * len(HOSTILE[name]), "an object for each value, and no error for each"


TEXTS = ["\n", "\x1b[2J", "\u2028", "\u202e", "a\r\nINFO: forged"]


def test_a_request_of_many_nodes_prints_one_line_per_column(
    capsys: pytest.CaptureFixture[str], table_run: tuple[Path, pd.DataFrame, pd.DataFrame]
) -> None:
    served = client(table_run[0] / "run", None)
    capsys.readouterr()
    nodes = [{"id": f"new {i}", "features": {"size": 1, "city": f"town {i}", "age": None}} for i in range(500)]
    assert served.post("/predict_new", json={"nodes": nodes}).status_code == 200
    (line,) = capsys.readouterr().err.splitlines()
    expected = "nodes: new 0: city=town 0 does not occur in the training data, nor do 499 further values: all columns"
    assert expected in line


def test_names_in_a_request_forge_no_answer_and_no_line(
    finished_run: Farm, capsys: pytest.CaptureFixture[str], table_run: tuple[Path, pd.DataFrame, pd.DataFrame]
) -> None:
    served = client(table_run[0] / "run", None)
    capsys.readouterr()
    for text in TEXTS:
        node = {"id": text, "features": {"size": 1, "city": f"x{text}x", "age": None}}
        assert served.post("/predict_new", json={"nodes": [node]}).status_code == 200
        (line,) = capsys.readouterr().err.splitlines()
        assert line.isprintable()
        for body in (
            {"nodes": [node | {"type": text}]},
            {"nodes": [node], text: 1},
            {"nodes": [node], "edges": [[text, 7]]},
        ):
            answer = served.post("/predict_new", json=body)
            assert answer.status_code == 422
            assert answer.json()["detail"].isprintable()
        assert served.post("/predict", json={"ids": [text]}).json()["detail"].isprintable()
    for key in (
        '{"nodes": [{"id": "a", "features": {"\\ud800": 1}}]}',
        '{"nodes": [], "\\ud800": 1}',
        '{"\\ud800": []}',
    ):
        for route in ("/predict", "/predict_new"):
            assert served.post(route, content=key, headers=JSON).status_code == 422


@few("value", [np.nan, np.inf, -np.inf], default=1)
def test_an_output_that_is_no_number_names_its_node(
    value: float, finished_run: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = client(finished_run("gcn"), small_graph())
    outputs = torch.tensor([[1e38, 1e38, 1e38], [0.0, value, 1.0]])
    monkeypatch.setattr(ServedRun, "_outputs", lambda *_: outputs)
    nodes = [{"id": name, "features": [0.0] * 8} for name in ("good", "bad")]
    answer = served.post("/predict_new", json={"nodes": nodes})
    assert answer.status_code == 422
    assert "nodes: bad: the model's output is not finite" in answer.json()["detail"]


@pytest.fixture(scope="module")
def with_hosts(finished_run: Farm) -> TestClient:
    with within_process():
        return TestClient(gnnkit.serve(finished_run("gcn"), small_graph(), hosts=["gnn.example"]))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("10.0.0.7:80", 200), ("LOCALHOST.", 200),
        ("gnn.example", 200), ("evil.example", 421), ("localhost.evil.example", 421), ("", 421), ("[", 421),
    ],
)  # fmt: skip
def test_a_name_of_another_machine_is_refused(host: str, status: int, with_hosts: TestClient) -> None:
    assert with_hosts.get("/health", headers={"host": host}).status_code == status
