"""New data gets the columns of the data that trained, and differences are told."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gnnkit import config, plugins
from gnnkit.config.settings import Choice as Chosen
from gnnkit.config.settings import Settings, settle, with_choice
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.prepare.trained import Inputs, as_read, take_stored

NODES = {"id": [0, 1, 2], "a": [1.0, 2.0, 3.0], "b": [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]}
EDGES = {"src": [0, 1, 1, 2], "dst": [1, 0, 2, 1], "u": [1.0, 2.0, 3.0, 4.0], "v": [5.0, 6.0, 7.0, 8.0]}


def graph(nodes: dict[str, object] = NODES, edges: dict[str, object] = EDGES) -> Graph:  # type: ignore[assignment]
    return Graph.from_tables(pd.DataFrame(edges), pd.DataFrame(nodes))


def as_trained(settings: Settings, graph: Graph, kept_in: Path = Path()) -> Graph:
    return as_read(settings, graph, kept_in)[0]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of a prediction by a model that was trained on `graph()`."""
    folder = tmp_path_factory.mktemp("run")
    Inputs.of(graph(), "features").save(folder)
    (folder / "config.yaml").write_text(
        "{model: {name: gcn}, task: {name: node_classification}, dataset: {name: graph}}"
    )
    given = settle(config.compose(["strategy=vertex_centric", "job=predict", f"checkpoint={folder}", "workers=1"]))
    return with_choice(given, Chosen("dataset", "graph", {}))


def test_a_table_names_the_columns() -> None:
    assert graph().feature_names == ("a", "b[0]", "b[1]")
    assert graph().edge_feature_names == ("u", "v")
    one = Graph.from_tables(pd.DataFrame(EDGES), pd.DataFrame(NODES), features="a", edge_features=["v"])
    assert (one.feature_names, one.edge_feature_names) == (("a",), ("v",))
    assert Graph.from_tables(pd.DataFrame(EDGES), features=np.ones((3, 2))).feature_names is None


def test_a_saved_graph_keeps_the_names(tmp_path: Path) -> None:
    graph().save(tmp_path / "saved")
    loaded = Graph.load(tmp_path / "saved").symmetrize().row_normalize().renumber([2, 0, 1])
    assert (loaded.feature_names, loaded.edge_feature_names) == (graph().feature_names, graph().edge_feature_names)


def test_names_that_do_not_fit_the_columns_are_refused() -> None:
    with pytest.raises(UserError, match=r"feature_names has 1 names, expected 3"):
        replace(graph(), feature_names=("a",))
    with pytest.raises(UserError, match=r"edge_feature_names\[1\] = 'u' is given twice"):
        replace(graph(), edge_feature_names=("u", "u"))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_columns_in_another_order_are_put_into_the_order_of_the_model(settings: Settings, sparse: bool) -> None:
    other = graph(dict(reversed(NODES.items())), dict(reversed(EDGES.items())))
    assert other.feature_names == ("b[0]", "b[1]", "a")
    if sparse:
        other = replace(other, features=SparseFeatures.of(other.features))
    found = as_trained(settings, other)
    assert (found.feature_names, found.edge_feature_names) == (graph().feature_names, graph().edge_feature_names)
    np.testing.assert_array_equal(np.asarray(found.features), graph().features)
    assert found.edge_features is not None
    np.testing.assert_array_equal(found.edge_features, graph().edge_features)  # type: ignore[arg-type]


def test_columns_that_are_missing_or_further_are_named(settings: Settings) -> None:
    other = graph({"id": NODES["id"], "b": NODES["b"], "c": NODES["a"]})
    with pytest.raises(
        UserError, match=r"lacks a and also has c: the model of \S+ reads the columns a, b\[0\], b\[1\]"
    ):
        as_trained(settings, other)
    few = graph(edges={name: EDGES[name] for name in ("src", "dst", "v")})
    with pytest.raises(UserError, match=r"dataset lacks u: the model of \S+ reads the columns u, v as edge features"):
        as_trained(settings, few)


def test_columns_without_names_are_taken_by_place_and_told(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    found = as_trained(settings, replace(graph(), feature_names=None))
    np.testing.assert_array_equal(np.asarray(found.features), graph().features)
    assert "warning: columns of features have no names here, and are taken in the order" in capsys.readouterr().err
    few = replace(graph(), features=np.zeros((graph().num_nodes, 2), np.float32), feature_names=None)
    with pytest.raises(UserError, match=r"dataset has 2 columns of features, the model of \S+ reads 3"):
        as_trained(settings, few)


def test_a_resumed_run_puts_columns_into_its_order(settings: Settings, tmp_path: Path) -> None:
    trainer = replace(settings.trainer, resume=settings.checkpoint)
    again = replace(settings, job=plugins.load("job", "train"), checkpoint=None, trainer=trainer)
    assert as_trained(again, graph(dict(reversed(NODES.items()))), tmp_path).feature_names == graph().feature_names


def test_a_graph_from_python_that_differs_in_kind_is_told(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    as_trained(settings, graph())
    assert capsys.readouterr().err == ""
    as_trained(settings, graph(edges={name: values[::3] for name, values in EDGES.items()} | {"dst": [1, 0]}))
    told = capsys.readouterr().err
    assert told.startswith("gnnkit: warning: 0% of the edges have a reverse edge, and 100% of those that trained")
    as_trained(settings, graph().row_normalize())
    assert "rows of features do add up to 1, and those that trained" in capsys.readouterr().err


@pytest.mark.parametrize("is_comma_trained", [True, False])
def test_numbers_whose_marks_may_separate_thousands_are_not_read_otherwise_than_in_training(
    settings: Settings, is_comma_trained: bool, tmp_path: Path
) -> None:
    def of(cells: list[object]) -> Graph:
        return graph({"id": NODES["id"], "a": cells})

    comma, point = of(["1.234,5", "2,5", "3"]), of(["1.234", "2.345", "3"])
    trained, new = (comma, point) if is_comma_trained else (point, comma)
    Inputs.of(trained, "features").save(tmp_path)
    (tmp_path / "config.yaml").write_text((Path(str(settings.checkpoint)) / "config.yaml").read_text())
    given = replace(settings, checkpoint=str(tmp_path))
    with pytest.raises(
        UserError, match=r"column 'a' has numbers with a decimal \w+ here, and with a decimal \w+ in the"
    ):
        as_trained(given, new)
    for cells in (["2.5", "1234", "3"], [2.5, 1234.0, 3.0], [5, 6, 7]):  # read in one way only
        np.testing.assert_array_equal(as_trained(given, of(cells)).features[:, 0], np.array(cells, float))
    np.testing.assert_array_equal(as_trained(given, trained).features, trained.features)


def test_a_file_of_names_that_was_changed_is_refused(settings: Settings, tmp_path: Path) -> None:
    facts = '"edge_features": null, "both_ways": 1, "unit_rows": true'
    weighted = '{"features": null, "edge_weight": "no", ' + facts + "}"
    for text in ("{", "{}", '{"features": "abc", ' + facts + "}", weighted):
        (tmp_path / "inputs.json").write_text(text)
        with pytest.raises(
            UserError, match=r"inputs.json:? (is not JSON|cannot be read|holds no names|edge_weight=no must)"
        ):
            as_trained(replace(settings, checkpoint=str(tmp_path)), graph())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"features": ["b[0]", "b[1]", "a"]}, "features have another order or scale there than the model of"),
        (
            {"scale": {"kind": "row"}},
            "scale have another order or scale there than the model of .*use the original data set",
        ),
    ],
)
def test_a_store_of_another_order_or_scale_is_refused(
    changes: dict[str, object], told: str | None, settings: Settings, tmp_path: Path
) -> None:
    folder = Path(str(settings.checkpoint))
    plain = {**json.loads((folder / "inputs.json").read_text()), **changes}
    with nullcontext() if told is None else pytest.raises(UserError, match=f"dataset.root=store: {told}"):
        take_stored(settings, plain, tmp_path, Path("store"))


def test_a_store_of_edges_of_one_way_is_told(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads((Path(str(settings.checkpoint)) / "inputs.json").read_text())
    take_stored(settings, {**plain, "both_ways": 0.0}, Path(), Path("store"))
    assert "gnnkit: warning: 0% of the edges have a reverse edge, and 100% of those" in capsys.readouterr().err
