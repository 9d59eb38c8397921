"""Predictions name the user's ids and classes, in every form and for every task."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.graphs import random_graph
from tests.runs import BARE

NAMES = ("cat", "dog", "eel")
IDS = np.array([f"user {i}" for i in range(40)])
EVERYTHING = ["predictions", "logits", "probabilities", "embeddings"]
pytestmark = pytest.mark.slow


def train(folder: Path, graph: Graph, form: str, write: Sequence[str] = EVERYTHING, **keys: Any) -> Any:
    trainer = {"max_epochs": 1, "checkpoint": False}
    given = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "trainer": trainer}
    return gnnkit.train(graph, folder=folder, write_format=form, write=list(write), **{**BARE, **given, **keys})


def columns(path: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    return found


def test_parquet_says_what_npy_says_with_ids_and_names(tmp_path: Path) -> None:
    graph = replace(random_graph(), node_ids=IDS, class_names=NAMES)
    train(tmp_path / "npy", graph, "npy")
    result = train(tmp_path / "parquet", graph, "parquet")
    assert result.folder == tmp_path / "parquet"
    assert not list(result.folder.glob("[pl]*.npy"))
    rows = {name: np.load(tmp_path / f"npy/{name}.npy") for name in EVERYTHING}
    found = {name: columns(result.folder / f"{name}.parquet") for name in EVERYTHING}
    for table in found.values():
        assert table.pop("id") == IDS.tolist()
    assert found["predictions"] == {"class": [NAMES[i] for i in rows["predictions"]]}
    assert list(found["probabilities"]) == [f"probability_{name}" for name in NAMES]
    assert list(found["logits"]) == [f"logit_{name}" for name in NAMES]
    assert list(found["embeddings"])[:2] == ["embedding_0", "embedding_1"]
    for name in EVERYTHING[1:]:
        np.testing.assert_array_equal(np.stack(list(found[name].values()), 1), rows[name])
    np.testing.assert_array_equal(np.load(tmp_path / "npy/node_ids.npy"), IDS)


def test_predictions_of_a_trained_model_name_the_ids_of_the_new_graph(tmp_path: Path) -> None:
    train(tmp_path / "run", replace(random_graph(), class_names=NAMES), "npy")
    new = replace(random_graph(50, seed=3), node_ids=np.arange(50) * 10)
    again = gnnkit.predict(tmp_path / "run", new, folder=tmp_path / "new", write_format="parquet", comm="threads")
    table = columns(again.folder / "predictions.parquet")
    assert table["id"] == (np.arange(50) * 10).tolist()
    assert set(table["class"]) <= set(NAMES)  # of the run that has trained


def test_graphs_without_ids_and_names_have_numbers(tmp_path: Path) -> None:
    train(tmp_path / "run", random_graph(), "parquet", ["predictions"])
    table = columns(tmp_path / "run/predictions.parquet")
    assert table["id"] == list(range(40))
    assert set(table["class"]) <= {0, 1, 2}


def test_several_node_types_are_a_column(tmp_path: Path) -> None:
    graph = replace(random_graph(), node_types=(("paper", 30), ("author", 10)))
    train(tmp_path / "run", graph, "parquet", ["predictions", "embeddings"], types="ignore")
    for name in ("predictions", "embeddings"):
        assert columns(tmp_path / f"run/{name}.parquet")["type"] == ["paper"] * 30 + ["author"] * 10


def test_other_tasks_have_columns_of_their_own(tmp_path: Path) -> None:
    graph = replace(random_graph(), node_ids=IDS)
    sets = replace(graph, labels=np.eye(40, 3, dtype=bool), class_names=NAMES)
    train(tmp_path / "sets", sets, "parquet", ["predictions", "logits"], task="multilabel")
    classes = columns(tmp_path / "sets/predictions.parquet")["classes"]
    logits = columns(tmp_path / "sets/logits.parquet")
    assert classes == [[name for name in NAMES if logits[f"logit_{name}"][i] > 0] for i in range(40)]
    numbers = replace(graph, labels=np.random.default_rng(0).random((40, 2)))
    train(tmp_path / "numbers", numbers, "parquet", ["predictions"], task="regression")
    assert list(columns(tmp_path / "numbers/predictions.parquet")) == ["id", "prediction_0", "prediction_1"]
    train(tmp_path / "links", graph, "parquet", ["predictions"], task="link_prediction")
    links = columns(tmp_path / "links/predictions.parquet")
    src = graph.node_ids[graph.csc.indices]
    dst = graph.node_ids[np.repeat(np.arange(40), np.diff(graph.csc.indptr))]
    held = set(zip(links["source"], links["destination"], strict=True))
    assert held
    assert held <= set(zip(src.tolist(), dst.tolist(), strict=True))
    assert np.isfinite(links["score"]).all()


def test_csv_says_what_parquet_says(tmp_path: Path) -> None:
    ids = np.array([f'user "{i}", new' for i in range(40)])
    graph = replace(random_graph(), node_ids=ids, labels=np.eye(40, 3, dtype=bool), class_names=NAMES)
    keys = {"task": "multilabel", "write": ["predictions", "probabilities"]}
    train(tmp_path / "parquet", graph, "parquet", **keys)
    train(tmp_path / "csv", graph, "csv", **keys)
    for name in ("predictions", "probabilities"):
        table = columns(tmp_path / f"parquet/{name}.parquet")
        with (tmp_path / f"csv/{name}.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        assert [row["id"] for row in found] == ids.tolist()
        assert list(found[0]) == list(table)
        for row, values in zip(found, zip(*table.values(), strict=True), strict=True):
            for cell, value in zip(row.values(), values, strict=True):
                told = ";".join(value) if isinstance(value, list) else value
                assert cell == told or np.float32(cell) == np.float32(told)


def test_values_of_programs_name_the_ids(tmp_path: Path) -> None:
    train(tmp_path / "run", replace(random_graph(), node_ids=IDS), "parquet", ["predictions"], model="pagerank")
    table = columns(tmp_path / "run/values.parquet")
    assert table["id"] == IDS.tolist()
    assert sum(table["value"]) == pytest.approx(1)


def test_an_unknown_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write_format=xlsx is not known: there are: csv, npy, parquet"):
        train(tmp_path / "run", random_graph(), "xlsx")
