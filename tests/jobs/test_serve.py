"""gnnkit.serve answers as job=predict does, and bounds its requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from safetensors.torch import load_file

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import serve
from tests.cases import few
from tests.farm import Farm
from tests.jobs.test_explain import of_run
from tests.jobs.test_train import small_graph
from tests.runs import BARE, within_process

pytestmark = pytest.mark.slow


def client(run: Path, graph: Graph | None) -> TestClient:
    with within_process():
        return TestClient(gnnkit.serve(run, graph))


def answered(client: TestClient, route: str, **body: Any) -> pd.DataFrame:
    response = client.post(route, json=body)
    assert response.status_code == 200, response.text
    return pd.DataFrame(response.json()["predictions"])


def tables(run: Path, graph: Graph, folder: Path) -> pd.DataFrame:
    """Returns the tables of job=predict side by side."""
    write = ["predictions"] if graph.labels.dtype.kind == "f" else ["predictions", "probabilities"]
    gnnkit.predict(run, graph, folder=folder, comm="threads", write_format="parquet", write=write, **BARE)
    parts = [pd.read_parquet(folder / f"{name}.parquet") for name in write]
    return pd.concat([parts[0], *(part.drop(columns="id") for part in parts[1:])], axis=1)


@few("name", ["gcn", "gat", "learned", "degree", "numbers"], default=("gat",))
def test_answers_by_id_are_the_rows_of_job_predict(tmp_path: Path, name: str, finished_run: Farm) -> None:
    graph = replace(of_run(name), node_ids=np.array([f"n{node}" for node in range(60)]))
    expected = tables(finished_run(name), graph, tmp_path / "predicted").set_index("id")
    served = client(finished_run(name), graph)
    ids = ["n7", "n0", "n7", "n59"]
    pd.testing.assert_frame_equal(answered(served, "/predict", ids=ids).set_index("id"), expected.loc[ids], atol=1e-12)
    assert served.get("/health").json() == {"nodes": 60}


@few("name", ["gcn", "gat", "sage", "three layers", "degree", "numbers"], default=("gcn",))
def test_new_nodes_are_predicted_as_in_the_extended_graph(tmp_path: Path, name: str, finished_run: Farm) -> None:
    graph, rng = of_run(name), np.random.default_rng(3)
    rows = rng.normal(size=(2, graph.features.shape[1])).astype(np.float32)
    edges = [[5, 100], [100, 5], [100, "b"], [7, "b"]]
    nodes = [{"id": 100, "features": rows[0].tolist()}, {"id": "b", "features": rows[1].tolist()}]
    served = client(finished_run(name), graph)
    found = answered(served, "/predict_new", nodes=nodes, edges=edges).set_index("id")
    src, dst = np.array([[5, 60, 60, 7], [60, 5, 61, 61]])
    old = graph.csc.indices.astype(np.int64), np.repeat(np.arange(60), np.diff(graph.csc.indptr))
    labels = np.append(graph.labels, [0, 0]).astype(graph.labels.dtype)
    extended = Graph.from_edges(np.r_[old[0], src], np.r_[old[1], dst], 62,
                                features=np.concatenate([graph.features, rows]), labels=labels)  # fmt: skip
    expected = tables(finished_run(name), extended, tmp_path / "predicted").iloc[60:].set_index(found.index)
    pd.testing.assert_frame_equal(found, expected.drop(columns="id"), rtol=1e-6, check_dtype=False)


def test_new_nodes_join_the_data_set_of_the_run(finished_run: Farm) -> None:
    served = client(finished_run("command"), None)
    width = load_file(finished_run("command") / "model.safetensors")["convs.0.weight"].shape[0]
    (row,) = answered(served, "/predict_new", nodes=[{"id": "new", "features": [0.5] * width}], edges=[[4, "new"]])[
        "id"
    ]
    assert row == "new"
    assert served.get("/health").json() == {"nodes": 60}


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
    refused("/predict_new", {"nodes": [node, node]}, 422, "an id occurs twice")
    refused("/predict_new", {"nodes": [node | {"id": 3}]}, 422, "that of a node of the graph")
    refused("/predict_new", {"nodes": [node], "edges": [[99, "new"]]}, 422, "99 is no id")
    refused("/predict_new", {"nodes": [node], "edges": [[1, 2]]}, 422, "connects two nodes of the graph")
    content = '{"nodes": [{"id": "new", "features": [NaN]}]}'
    assert served.post("/predict_new", content=content).status_code == 422
    monkeypatch.setattr(serve, "MAX_BYTES", 10)
    refused("/predict", {"ids": [1, 2, 3]}, 413, "at most 10 bytes")
    chunked = served.post("/predict", content=iter([b'{"ids":', b"[1]}"]))
    assert chunked.status_code == 413
    assert served.get("/docs").status_code == 404


def test_what_cannot_be_served_is_refused(finished_run: Farm) -> None:
    with pytest.raises(UserError, match="task=link_prediction scores pairs of nodes: serve the vectors"):
        client(finished_run("links"), small_graph())
    learned = client(finished_run("learned"), of_run("learned"))
    response = learned.post("/predict_new", json={"nodes": [{"id": "new"}]})
    assert response.status_code == 422
    assert "inputs=learned" in response.text


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
            response = httpx.post(f"{match[0]}/predict", json={"ids": [4]}, timeout=30)
        finally:
            server.send_signal(signal.SIGINT)
    assert response.json()["predictions"][0]["id"] == 4
