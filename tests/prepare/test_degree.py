"""features.degree=true appends the logarithm of in-degrees to the columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.prepare.trained import DEGREE, Inputs, with_degree
from tests.cases import exhaustive
from tests.graphs import random_graph

ON = {"degree": True}


def train(graph: Graph | None, folder: Path, **options: Any) -> Any:
    trainer = {"max_epochs": 2, "precision": "64"}
    settings: dict[str, Any] = {"strategy": "vertex_centric", "workers": 1, "comm": "threads", "model": "sage"}
    settings |= {"trainer": trainer, "report": False, "cache": False, "logger": "none", "write": ["logits"]}
    return gnnkit.train(graph, **settings | options, output=folder)


def by_hand(graph: Graph) -> Graph:
    column = np.log1p(np.diff(graph.csc.indptr))[:, None].astype(np.float32)
    return replace(graph, features=np.concatenate([np.asarray(graph.features), column], 1), feature_names=None)


def test_dense_and_sparse_rows_get_the_same_column_and_a_name() -> None:
    graph = replace(random_graph(), feature_names=tuple(f"c{number}" for number in range(8)))
    sparse = with_degree(replace(graph, features=SparseFeatures.of(graph.features)))
    assert isinstance(sparse.features, SparseFeatures)
    assert (np.asarray(sparse.features) == by_hand(graph).features).all()
    assert with_degree(graph).feature_names == (*(graph.feature_names or ()), DEGREE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        exhaustive({"workers": 2}),
        exhaustive({"workers": 4, "partition": "2d"}),
        {"strategy": "individual_sample", "workers": 2, "sampler": {"name": "neighbor", "fanouts": [3, 3]}},
    ],
    ids=["one", "two", "2d", "sampled"],
)
def test_training_equals_a_column_made_by_hand(options: dict[str, Any], tmp_path: Path) -> None:
    graph = random_graph(80)
    result = train(graph, tmp_path / "key", features=ON, **options)
    expected = train(by_hand(graph), tmp_path / "hand", **options)
    assert result["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-12)


def test_a_trained_model_and_a_store_have_it_for_data_that_does_not(tmp_path: Path) -> None:
    graph = random_graph(80)
    train(graph, tmp_path / "run", features=ON)
    logits = np.load(tmp_path / "run" / "logits.npy")
    np.testing.assert_allclose(gnnkit.load(tmp_path / "run")(graph).detach().numpy(), logits, atol=1e-6)
    gnnkit.predict(tmp_path / "run", graph, output=tmp_path / "again", write=["logits"])
    np.testing.assert_allclose(np.load(tmp_path / "again" / "logits.npy"), logits, atol=1e-6)
    gnnkit.train(graph, job="partition", strategy="vertex_centric", workers=1, features=ON, output=tmp_path / "store")
    train(None, tmp_path / "stored", dataset={"name": "store", "root": str(tmp_path / "store")})
    np.testing.assert_allclose(np.load(tmp_path / "stored" / "logits.npy"), logits, atol=1e-6)
    assert (Inputs.load(tmp_path / "stored") or Inputs.unknown()).degree


def test_it_is_refused_where_degrees_would_tell_too_much_or_columns_are_fixed(tmp_path: Path) -> None:
    graph = random_graph(80)
    with pytest.raises(UserError, match=r"features.degree=true: task=link_prediction hides edges"):
        train(graph, tmp_path / "links", features=ON, task="link_prediction")
    with pytest.raises(UserError, match=r"features.degree=True is read by inputs=features only"):
        train(graph, tmp_path / "learned", features=ON, inputs="learned")
    gnnkit.train(graph, job="partition", strategy="vertex_centric", workers=1, output=tmp_path / "store")
    with pytest.raises(UserError, match="has no such column"):
        train(None, tmp_path / "run", features=ON, dataset={"name": "store", "root": str(tmp_path / "store")})
    typed = replace(graph, node_types=(("a", 40), ("b", 40)))
    with pytest.raises(UserError, match=r"features\.degree=true adds a column to one node type"):
        with_degree(typed)
