"""Whole runs with sparse features: what is chosen, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_plan.layout import PEAK_RATIO

import gnnkit
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.kernels.product_rows import PLACE_BYTES
from gnnkit.prepare.inputs import nonzero_share, with_kept
from gnnkit.prepare.kept import fingerprint
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.strategy.test_sparse_features import make_graph

STORED = int(np.count_nonzero(make_graph().features))


def words_graph() -> Graph:
    """Three classes, which few words of each node tell apart."""
    graph, rng = small_graph(), np.random.default_rng(1)
    words = rng.integers(0, 26, (graph.num_nodes, 4)) * 3 + graph.labels[:, None]
    features = np.zeros((graph.num_nodes, 80), np.float32)
    features[np.arange(graph.num_nodes)[:, None], words] = 1
    return replace(graph, features=features)


def train(folder: Path, rows: str = "auto", graph: Graph | None = None, **keys: Any) -> Any:
    trainer = {"max_epochs": 2, "lr": 0.1, "precision": 64, **keys.pop("trainer", {})}
    given: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "comm": "threads", "input_rows": rows, **BARE}
    return gnnkit.train(graph or words_graph(), folder=folder, **{**given, "trainer": trainer, **keys})


def test_few_numbers_of_wide_rows_are_kept_sparse() -> None:
    graph = make_graph()
    kept, (line,) = with_kept(graph, "auto", True, "as_is")
    assert isinstance(kept.features, SparseFeatures)
    assert line == "features: sparse, 5.9 % of 66 columns are not 0 (input_rows=auto, sparse below 10 %)"
    back, (line,) = with_kept(kept, "dense", True, "as_is")
    assert isinstance(back.features, np.ndarray)
    assert line == "features: dense, 5.9 % of 66 columns are not 0 (input_rows=dense)"
    np.testing.assert_array_equal(back.features, graph.features)
    assert nonzero_share(graph.features) == nonzero_share(kept.features) == STORED / graph.features.size


def test_full_and_narrow_rows_are_kept_dense_unless_asked() -> None:
    full = replace(make_graph(), features=np.ones((31, 66)))
    kept, (line,) = with_kept(full, "auto", True, "as_is")
    assert kept is full
    assert line.startswith("features: dense, 100 %")
    narrow = replace(make_graph(), features=np.eye(31))
    assert with_kept(narrow, "auto", True, "as_is") == (narrow, [])
    assert isinstance(with_kept(narrow, "sparse", True, "as_is")[0].features, SparseFeatures)


def test_what_reads_dense_rows_gets_dense_rows() -> None:
    sparse = replace(make_graph(), features=SparseFeatures.of(make_graph().features))
    kept, lines = with_kept(sparse, "auto", False, "as_is")
    assert isinstance(kept.features, np.ndarray)
    assert lines == []


def test_a_fingerprint_tells_numbers_and_not_how_they_are_kept() -> None:
    graph = make_graph()
    sparse = replace(graph, features=SparseFeatures.of(graph.features))
    assert fingerprint(sparse) == fingerprint(graph)
    changed = sparse.features.csr  # type: ignore[union-attr]
    values = np.where(np.arange(changed.num_edges) == 7, 9, changed.weight)
    other = replace(graph, features=SparseFeatures(replace(changed, weight=values)))
    assert fingerprint(other) != fingerprint(graph)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("partition", ["1d", "2d"])
def test_runs_on_sparse_and_dense_rows_are_equal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], partition: str
) -> None:
    keys = {"partition": partition, "workers": 4, "write": ["logits"]}
    results = {rows: train(tmp_path / rows, rows, **keys) for rows in ("auto", "dense")}
    assert "features: sparse, 4.8 % of 80 columns" in capfd.readouterr().out
    assert results["auto"]["train_loss"] == pytest.approx(results["dense"]["train_loss"], rel=1e-10)
    first, second = (np.load(tmp_path / rows / "logits.npy") for rows in results)
    np.testing.assert_allclose(first, second, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@few("comm", ["threads", "gloo"], default=["threads"])
def test_a_run_on_sparse_rows_equals_one_process(tmp_path: Path, comm: str) -> None:
    result = train(tmp_path / "run", "sparse", comm=comm, workers=2, overrides=["job=verify"], model="sage")
    assert result["verified"], result


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_goes_on_from_sparse_to_dense_rows_and_predicts_from_either(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", write=["logits"])
    train(tmp_path / "first", "sparse", trainer={"max_epochs": 1})
    rest = train(tmp_path / "rest", "dense", trainer={"resume": str(tmp_path / "first")}, write=["logits"])
    assert rest["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-10)
    for rows in ("sparse", "dense"):
        gnnkit.predict(
            tmp_path / "whole", words_graph(), folder=tmp_path / f"predicted-{rows}", write=["logits"], input_rows=rows,
            workers=2,
        )  # fmt: skip
    expected = np.load(tmp_path / "whole" / "logits.npy")
    for folder in ("rest", "predicted-sparse", "predicted-dense"):
        np.testing.assert_allclose(np.load(tmp_path / folder / "logits.npy"), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["individual_sample", "preset_workload"])
def test_strategies_that_read_dense_rows_train_on_sparse_features(tmp_path: Path, name: str) -> None:
    sparse = replace(words_graph(), features=SparseFeatures.of(words_graph().features))
    dense = train(tmp_path / "dense", strategy=name)
    given = train(tmp_path / "sparse", graph=sparse, strategy=name)
    assert given["train_loss"] == dense["train_loss"]


@pytest.mark.slow
def test_sparse_rows_are_refused_where_nothing_reads_them(tmp_path: Path) -> None:
    for keys, reader in (
        ({"model": "gine"}, "model=gine"),
        ({"model": lambda width, classes: None}, "model=<lambda>"),
        ({"model": "pagerank"}, "model=pagerank"),
    ):
        with pytest.raises(gnnkit.UserError, match=f"^input_rows=sparse: {reader} reads dense rows"):
            train(tmp_path / "run", "sparse", **keys)
    with pytest.raises(gnnkit.UserError, match="input_rows=sparse is read by inputs=features only: leave the key out"):
        train(tmp_path / "run", "sparse", inputs="degree")


@pytest.mark.slow
def test_the_plan_counts_the_numbers_that_are_kept(tmp_path: Path) -> None:
    keys = {"graph": make_graph(), "workers": 1, "model": {"name": "gcn", "hidden": 4}}
    keys["overrides"] = ["job=plan", "plan.bandwidth=1"]  # which estimates memory from counts
    sparse, dense = (train(tmp_path / rows, rows, **keys)["layouts"]["chosen"] for rows in ("auto", "dense"))
    full, kept = 31 * 66 * 8, STORED * (PLACE_BYTES + 16) + 8 * (31 + 66)
    dropped = full  # dense rows after dropout
    assert dense["memory"] - sparse["memory"] == PEAK_RATIO * (full - kept + dropped)
    assert sparse["words"] == dense["words"]
