"""Columns of text as columns of 0 and 1, in training and in later data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.prepare.columns import check_ids, check_texts, find_ids
from gnnkit.prepare.trained import Inputs
from gnnkit.prepare.transform import why_uneven
from tests.prepare.test_fill import apply, filled, fit
from tests.prepare.test_scale import choose, scaled
from tests.runs import BARE

TOWNS = ["Rome", "Oslo", "Bern"]


def table(towns: list[str | None], **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": np.arange(len(towns)), "age": np.arange(len(towns)) % 7 / 7, "town": towns, **more})


def graph(towns: list[str | None], **more: Any) -> Graph:
    nodes = table(towns, **more)
    return Graph.from_tables(pd.DataFrame({"src": nodes["id"], "dst": nodes["id"][::-1].to_numpy()}), nodes)


def kept(towns: list[str | None], text: str = "one_hot") -> Inputs:
    made = Inputs.of(graph(towns), "features")
    return Inputs(made.features, None, 0.0, False, category_of=made.category_of, text=text)


def test_each_value_of_a_text_is_a_column_in_the_order_of_code_points() -> None:
    made = graph(["Rome", "Oslo", "Rome", "Bern"])
    assert made.feature_names == ("age", "town=Bern", "town=Oslo", "town=Rome")
    assert made.category_of == ("", "town", "town", "town")
    np.testing.assert_array_equal(made.features[:, 1:], [[0, 0, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    assert check_texts(made, "one_hot") == [
        "features: one column for each value of text (town: 3 values; features.text=one_hot)"
    ]
    assert check_texts(graph(TOWNS, town=1.0), "one_hot") == []


def test_a_graph_keeps_its_texts_when_it_is_saved_and_renumbered(tmp_path: Path) -> None:
    made = graph(TOWNS)
    made.renumber([2, 0, 1]).save(tmp_path / "graph")
    assert Graph.load(tmp_path / "graph").category_of == made.category_of
    with pytest.raises(UserError, match="category_of has 1 names, expected 4"):
        Graph(made.csc, made.features, made.labels, made.split, category_of=("a",))


def test_text_that_tells_nodes_apart_is_refused_with_the_cure() -> None:
    names = [f"person {number}" for number in range(40)]
    with pytest.raises(UserError, match=r"column 'name' is text with 40 values for 40 nodes.*dataset.ignore=\[name\]"):
        check_texts(graph(TOWNS * 13 + ["Rome"], name=names), "one_hot")
    with pytest.raises(UserError, match=r"features.text=refuse: the columns town hold text: dataset.ignore=\[town\]"):
        check_texts(graph(TOWNS), "refuse")
    assert check_texts(graph(names[:10]), "one_hot"), "few values are taken, whatever the number of nodes"


def test_later_data_has_the_columns_of_the_run_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = table(["Oslo", "Paris", "Rome", "Ulm", "Paris"])[["town", "id", "age"]]
    edges = pd.DataFrame({"src": [0], "dst": [1]})
    read = kept(TOWNS).read(Graph.from_tables(edges, nodes), tmp_path)
    assert read.feature_names == ("age", "town=Bern", "town=Oslo", "town=Rome")
    np.testing.assert_array_equal(read.features[:, 1:], [[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(read.features[:, 0], nodes["age"], rtol=1e-6)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "3 nodes have values of text" in told
    assert "town=Paris, town=Ulm: all columns of that text are 0 there" in told
    with pytest.raises(UserError, match=r"3 nodes have values of text .*: features.text=known refuses these"):
        kept(TOWNS, "known").read(Graph.from_tables(edges, nodes), tmp_path)
    with pytest.raises(UserError, match="column 'town' holds numbers here, and text where the model of"):
        kept(TOWNS).read(graph(TOWNS, town=[1.0, 2.0, 3.0]), tmp_path)
    with pytest.raises(UserError, match="dataset also has color=red"):
        kept(TOWNS).read(graph(TOWNS, color=["red"] * 3), tmp_path)


def test_later_edges_have_the_categories_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of_edges(kinds: list[str]) -> Graph:
        edges = pd.DataFrame({"src": [0, 1, 2], "dst": [1, 2, 0], "size": [5, 6, 7], "kind": kinds})
        return Graph.from_tables(edges, table(TOWNS))

    old, new = of_edges(["red", "blue", "red"]), of_edges(["red", "green", "red"])
    known = Inputs.of(old, "features")
    assert known.edge_category_of == ["", "kind", "kind"]
    assert check_texts(old, "one_hot") == [
        "features: one column for each value of text (town: 3, kind of edges: 2 values; features.text=one_hot)"
    ]
    with pytest.raises(UserError, match=r"features.text=refuse: the columns town, kind hold text"):
        check_texts(old, "refuse")
    read = known.read(new, tmp_path)
    assert read.edge_feature_names == ("size", "kind=blue", "kind=red")
    assert read.edge_category_of == ("", "kind", "kind")
    rows = read.edge_features[np.argsort(read.edge_positions)]  # type: ignore[index, arg-type]
    np.testing.assert_array_equal(rows, [[5, 0, 1], [6, 0, 0], [7, 0, 1]])
    assert "1 edge has values of text that the model of" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"1 edge has values of text .*: features.text=known refuses these"):
        replace(known, text="known").read(new, tmp_path)
    old.save(tmp_path / "graph")
    assert Graph.load(tmp_path / "graph").edge_category_of == old.edge_category_of
    assert old.symmetrize().renumber([2, 0, 1]).edge_category_of == old.edge_category_of
    with pytest.raises(UserError, match="edge_category_of has 1 names, expected 3"):
        replace(old, edge_category_of=("a",))


def test_an_empty_text_is_an_empty_cell(tmp_path: Path) -> None:
    made = graph(["Rome", None, "Oslo", "Rome", ""])
    with pytest.raises(UserError, match="2 cells of features are empty, the first in column 'town', row 1: choose"):
        filled(made, "refuse")
    mean = fit(made, "mean")
    np.testing.assert_allclose(apply(mean, made).features[1, 1:], [1 / 3, 2 / 3], rtol=1e-6)
    assert filled(made, "drop").category_of == ("",)
    known = Inputs(["age", "town=Oslo", "town=Rome"], None, 0.0, False, fill=mean, category_of=["", "town", "town"])
    later = known.read(graph(["Paris", None, "Rome"]), tmp_path)
    np.testing.assert_allclose(later.features[:, 1:], [[0, 0], [1 / 3, 2 / 3], [0, 1]], rtol=1e-6)


def test_columns_of_text_are_not_scaled() -> None:
    made = graph(["Rome"] * 2000 + ["Oslo"])
    assert why_uneven(made, np.arange(2001)) == ""
    scale, _ = choose(made, "standard")
    rows = np.asarray(scaled(scale, made).features)
    np.testing.assert_array_equal(rows[:, 1:], np.asarray(made.features)[:, 1:])
    assert abs(rows[:, 0].mean()) < 1e-4


@pytest.mark.parametrize("texts", ["town", [1, 2], {"a": 1}])
def test_forged_texts_are_refused(texts: Any, tmp_path: Path) -> None:
    kept(TOWNS).save(tmp_path)
    plain = json.loads((tmp_path / "inputs.json").read_text())
    (tmp_path / "inputs.json").write_text(json.dumps({**plain, "category_of": texts}))
    with pytest.raises(UserError, match=r"inputs\.json"):
        Inputs.load(tmp_path)


def write(folder: Path, towns: list[str], rng: np.random.Generator) -> None:
    folder.mkdir()
    nodes = table(towns)  # type: ignore[arg-type]
    nodes["label"] = [f"of {town}" for town in towns]
    nodes["split"] = np.array(["train", "val", "test"])[np.arange(len(towns)) // 3 % 3]
    nodes.to_csv(folder / "nodes.csv", index=False)
    ends = rng.integers(0, len(towns), (2, 20))
    pd.DataFrame({"src": ends[0], "dst": ends[1]}).to_csv(folder / "edges.csv", index=False)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_of_text_trains_and_predicts_for_new_nodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    write(tmp_path / "old", TOWNS * 30, rng)
    write(tmp_path / "new", ["Bern", "Bern", "Rome", "Ulm"], rng)
    dataset = {"name": "edges", "root": str(tmp_path / "old"), "symmetrize": True}
    trainer = {"max_epochs": 20, "lr": 0.1}
    model = {"name": "sage", "dropout": 0.0}
    keys: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "workers": 2, "model": model}
    run = gnnkit.train(dataset=dataset, folder=tmp_path / "run", trainer=trainer, **keys, **BARE)
    assert run["test_accuracy"] > 0.9
    assert "one column for each value of text (town: 3 values" in capfd.readouterr().out
    asked = ["job=predict", f"checkpoint={tmp_path / 'run'}", "dataset=edges", f"dataset.root={tmp_path / 'new'}"]
    assert main([*asked, f"output={tmp_path / 'again'}", "write_format=parquet"]) == 0
    assert "1 node has values of text" in capfd.readouterr().err
    classes = pd.read_parquet(tmp_path / "again/predictions.parquet")["class"]
    assert list(classes[:3]) == ["of Bern", "of Bern", "of Rome"]
    loaded = gnnkit.load(tmp_path / "run")
    nodes = pd.read_csv(tmp_path / "new/nodes.csv")[["id", "town", "age"]]
    called = loaded(Graph.from_tables(pd.read_csv(tmp_path / "new/edges.csv"), nodes).symmetrize())
    assert called.argmax(1)[:3].tolist() == [0, 0, 2]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_init_and_an_import_take_text_without_a_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old", TOWNS * 30, np.random.default_rng(0))
    asked = ["dataset=edges", f"dataset.root={tmp_path / 'old'}"]
    assert main(["job=init", *asked, "output=new", "init.minutes=0"]) == 0
    assert "text: one_hot" in (tmp_path / "new/experiment/mine.yaml").read_text()
    quick = ["trainer.max_epochs=1", "comm=threads", "workers=2", "report=false", "logger=none"]
    assert main(["--config-dir", "new", "+experiment=mine", *quick, "output=run"]) == 0
    assert json.loads((tmp_path / "run/inputs.json").read_text())["category_of"] == ["", "town", "town", "town"]
    capfd.readouterr()
    assert main(["job=import", *asked, "output=store", "workers=2"]) == 0
    assert "one column for each value of text (town: 3 values" in capfd.readouterr().out
    assert json.loads((tmp_path / "store/inputs.json").read_text())["category_of"] == ["", "town", "town", "town"]


@pytest.mark.parametrize(
    ("name", "values", "is_id"),
    [
        ("facebook_id", np.arange(40) * 10**9 + 145_647_315_578_475, True),
        ("pageId", np.arange(40), True),
        ("userID", np.arange(40), True),
        ("id", np.arange(40), True),
        ("paid", np.arange(40), False),
        ("price", np.arange(40) * 10**9, False),
        ("city_id", np.arange(40) % 20, False),
        ("city_id", np.arange(40) % 21, True),
        ("score_id", np.arange(40) / 8, False),
    ],
)
def test_numbers_that_identify_nodes_are_ids(name: str, values: np.ndarray, is_id: bool) -> None:
    table = pd.DataFrame({"id": [f"n{i}" for i in range(40)], name if name != "id" else "x": values, "size": 1.5})
    edges = pd.DataFrame({"src": ["n0"], "dst": ["n1"]})
    made = Graph.from_tables(edges, table)
    made = replace(made, feature_names=(name, "size"))
    assert [column for column, _ in find_ids(made)] == [name] * is_id
    check_ids(made, None)
    if is_id:
        with pytest.raises(UserError, match=rf"'{name}' holds \d+ different .*: dataset.ignore=\[old,{name}\]"):
            check_ids(made, ["old"])
