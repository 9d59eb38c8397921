"""What follows two commands: predictions at a date, explanations, a server, a page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import yaml
from gnnkit_tables import Tables

import gnnkit
from gnnkit.__main__ import main
from tests.shops import days

pytestmark = pytest.mark.slow
QUERY = """
SELECT t.timestamp AS date, u.id AS user_id, CAST(COUNT(o.order_id) > 0 AS INT) AS active
FROM timestamps t CROSS JOIN users u
LEFT JOIN orders o ON o.user_id = u.id AND o.at > t.timestamp AND o.at <= t.timestamp + INTERVAL '{timedelta}'
GROUP BY ALL
"""
TASK = {"table": "users", "entity": "user_id", "time": "date", "label": "active", "horizon": "10 days", "query": QUERY}
NUM_USERS, NUM_ORDERS = 20, 150
UNTIL = "2024-07-01"
PREDICT = ["dataset=tables", "dataset.root=data", f"dataset.until={UNTIL}", "report=false", "write_format=parquet"]


def folder_of_orders(folder: Path) -> Path:
    """Writes users, orders of 100 days, and a question without dates."""
    rng = np.random.default_rng(0)
    users = {
        "id": np.arange(NUM_USERS),
        "age": rng.normal(size=NUM_USERS),
        "city": rng.choice(["Rome", "Oslo"], NUM_USERS),
    }
    at = days(*np.sort(rng.integers(0, 100, NUM_ORDERS)).tolist())
    owner = rng.integers(0, NUM_USERS, NUM_ORDERS)
    orders = {"order_id": np.arange(NUM_ORDERS), "user_id": owner, "amount": rng.normal(size=NUM_ORDERS), "at": at}
    (folder / "tables").mkdir(parents=True)
    for name, columns in {"users": users, "orders": orders}.items():
        pyarrow.csv.write_csv(pa.table(columns), folder / f"tables/{name}.csv")
    (folder / "manifest.yaml").write_text(yaml.safe_dump({"tasks": {"active": TASK}}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains by two commands, in a folder of its own."""
    place = tmp_path_factory.mktemp("trained")
    folder_of_orders(place / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["job=init", "dataset=tables", "dataset.root=data", "init.minutes=0", "output=new"]) == 0
        assert main(["--config-dir", "new", "+experiment=mine", "trainer.max_epochs=1", "output=run"]) == 0
    return place


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a copy of the folder, which is the current one."""
    shutil.copytree(trained / "data", tmp_path / "data")
    for name in ("run", "new"):
        (tmp_path / name).symlink_to(trained / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def probabilities(place: Path, output: str) -> dict[str, float]:
    """Predicts all users at a date, and returns the rows of the task by id."""
    write = "write=[predictions,probabilities]"
    assert main(["job=predict", "checkpoint=run", *PREDICT, write, f"output={output}"]) == 0
    predicted, table = (
        pyarrow.parquet.read_table(place / output / f"{name}.parquet").to_pydict()
        for name in ("predictions", "probabilities")
    )
    assert predicted["id"] == table["id"]
    assert all(name.startswith("active:") for name in table["id"])  # no other nodes
    return dict(zip(table["id"], table["probability_1"], strict=True))


def add_rows(place: Path, name: str, text: str) -> None:
    with (place / f"data/tables/{name}.csv").open("a") as file:
        file.write(text)


def test_rows_that_are_added_later_change_the_predictions_that_they_concern(place: Path, capsys: Any) -> None:
    before = probabilities(place, "before")
    assert set(before) == {f"active:{user}@{UNTIL}" for user in range(NUM_USERS)}
    add_rows(place, "users", '100,55.5,"Paris"\n101,-3.0,"Rome"\n')
    add_rows(place, "orders", "1000,100,80.0,2024-06-20 00:00:00.000000\n1001,3,-80.0,2024-06-21 00:00:00.000000\n")
    after = probabilities(place, "after")
    changed = {name for name in after if name not in before or abs(after[name] - before[name]) > 1e-6}
    assert changed == {f"active:{user}@{UNTIL}" for user in (3, 100, 101)}
    assert "neither val nor test" not in capsys.readouterr().out


def test_explanations_name_columns_and_rows_with_their_times(place: Path) -> None:
    node = f"active:3@{UNTIL}"
    expected = probabilities(place, "predicted")[node]
    assert main(["job=explain", "checkpoint=run", *PREDICT, f"nodes=['{node}']", "output=explained"]) == 0
    nodes, features, neighbours = (
        pyarrow.parquet.read_table(place / f"explained/explained_{name}.parquet").to_pydict()
        for name in ("nodes", "features", "neighbours")
    )
    score = nodes["score"][0] if nodes["class"][0] == "1" else 1 - nodes["score"][0]
    assert score == pytest.approx(expected, abs=1e-5)
    assert {name.partition(".")[0] for name in features["feature"]} <= {"active", "users", "orders"}
    times = dict(zip(neighbours["neighbour"], neighbours["time"], strict=True))
    orders = {name: time for name, time in times.items() if name.startswith("orders:")}
    assert orders
    assert all(time < UNTIL for time in orders.values())
    assert times.get("users:3") is None


def test_a_server_answers_for_targets_and_refuses_rows_without_times(place: Path) -> None:
    from fastapi.testclient import TestClient

    expected = probabilities(place, "predicted")
    graph = Tables("data", manifest="new/manifest.yaml", until=UNTIL).load()
    client = TestClient(gnnkit.serve(str(place / "run"), graph))
    name = f"active:3@{UNTIL}"
    answer = client.post("/predict", json={"ids": [name]}).json()["predictions"][0]
    assert answer["probability_1"] == pytest.approx(expected[name], abs=1e-6)
    new = {"nodes": [{"id": "a", "type": "users", "features": {"age": 1.0, "city": "Rome"}}], "edges": []}
    refused = client.post("/predict_new", json=new)
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("sampler.time: a request has no time: use job=predict")


def test_a_server_of_targets_alone_reads_their_columns(place: Path) -> None:
    from fastapi.testclient import TestClient

    source = ["dataset=tables", "dataset.root=data", "dataset.manifest=new/manifest.yaml", "dataset.links=false"]
    keys = ["strategy=vertex_centric", "model=sage", "workers=1", "comm=threads", "trainer.max_epochs=1"]
    gnnkit.train(overrides=[*source, *keys, "report=false"], folder=place / "columns")
    client = TestClient(gnnkit.serve(str(place / "columns")))
    names = Tables("data", manifest="new/manifest.yaml", links=False).load().feature_names
    new = {"nodes": [{"id": "a", "features": dict.fromkeys(names or (), 0.5)}], "edges": []}
    assert client.post("/predict_new", json=new).status_code == 200
    del new["nodes"][0]["features"]["age"]
    refused = client.post("/predict_new", json=new)
    assert refused.status_code == 422
    assert "expected age," in refused.json()["detail"]


def test_a_run_writes_predictions_of_its_targets(place: Path) -> None:
    written = pyarrow.parquet.read_table(place / "run/predictions.parquet")["id"].to_pylist()
    rows = pyarrow.parquet.read_table(place / "new/active.rows.parquet")
    assert len(written) == rows.num_rows
    assert all(name.startswith("active:") for name in written)


def test_the_page_lists_tables_and_relations(place: Path) -> None:
    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", (place / "run/report.html").read_text()))
    assert f"users {NUM_USERS} " in page
    assert f"orders user_id users {NUM_ORDERS} users rev_user_id orders {NUM_ORDERS} users entity active" in page
