"""Empty cells take what the run says, and new data takes what the run has found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.prepare.columns import NumericTable
from gnnkit.prepare.trained import Inputs, with_columns
from gnnkit.prepare.transform import Fill, InputTransform
from tests.prepare.test_scale import run, table
from tests.runs import within_process

NAMES = ("pay", "age", "height", "sales")


def holed(column: int = 1, *, seed: int = 0, share: float = 0.3) -> Graph:
    """A table with empty cells in one column."""
    graph = table()
    rows = np.flatnonzero(np.random.default_rng(seed).random(120) < share)
    features = np.array(graph.features)
    features[rows, column] = 0
    missing = np.stack([rows, np.full(len(rows), column)], 1)
    return replace(graph, features=features, feature_names=NAMES, missing=missing)


def fit(graph: Graph, kind: str) -> Fill:
    return InputTransform.fit(NumericTable.of_nodes(graph), graph.split, fill=kind)[0].fill


def apply(fill: Fill, graph: Graph) -> Graph:
    return with_columns(graph, InputTransform(fill).read(NumericTable.of_nodes(graph)).load())


def filled(graph: Graph, kind: str) -> Graph:
    return apply(fit(graph, kind), graph)


def test_the_mean_is_that_of_known_cells_of_nodes_that_train() -> None:
    graph = holed()
    trains, known = graph.split == Split.TRAIN, np.ones(120, bool)
    known[graph.missing[:, 0]] = False
    whole = filled(graph, "mean")
    expected = table().features[trains & known, 1].mean()
    np.testing.assert_allclose(whole.features[~known, 1], expected)
    np.testing.assert_array_equal(whole.features[known], graph.features[known])
    assert whole.missing is None


def test_the_mean_of_a_column_with_heavy_tails_is_its_median() -> None:
    graph = replace(holed(), split=np.full(120, Split.TRAIN, np.int8))
    known = np.setdiff1d(np.arange(120), graph.missing[:, 0])
    features = np.array(graph.features)
    features[known[4], 1] = 1e7
    tailed = replace(graph, features=features)
    assert fit(tailed, "mean").means[1] == pytest.approx(np.median(features[known, 1]), rel=1e-6)
    complete = replace(tailed, missing=np.empty((0, 2), np.int64))
    assert fit(complete, "mean").means[1] == pytest.approx(features[:, 1].mean())
    features[np.setdiff1d(known, known[4]), 1] = 3  # most values are equal
    equal = replace(graph, features=features)
    assert fit(equal, "mean").means[1] == pytest.approx(features[known, 1].mean())


def test_cells_may_be_zero_or_their_columns_left_out() -> None:
    graph = holed()
    zero = filled(graph, "zero")
    np.testing.assert_array_equal(zero.features, graph.features)
    left = filled(graph, "drop")
    assert (left.feature_names, left.missing) == (("pay", "height", "sales"), None)
    np.testing.assert_array_equal(left.features, np.asarray(graph.features)[:, [0, 2, 3]])


@pytest.mark.parametrize("kind", ["refuse", "mean", "zero", "drop"])
def test_a_table_without_empty_cells_stays(kind: str) -> None:
    graph = table()
    assert filled(graph, kind).features is graph.features


def test_sparse_rows_have_no_empty_cells() -> None:
    sparse = replace(table(), features=SparseFeatures.of(table().features))
    assert filled(sparse, "mean").features is sparse.features


def test_an_empty_cell_is_refused_by_column_and_row_with_the_cure() -> None:
    graph = replace(holed(), node_ids=np.array([f"n{i}" for i in range(120)]))
    row = int(graph.missing[0, 0])
    says = rf"{len(graph.missing)} cells of features are empty, the first in column 'age', row {row} \(id n{row}\): "
    with pytest.raises(UserError, match=says + "choose features.fill=mean"):
        filled(graph, "refuse")


def test_a_mean_of_nothing_and_a_table_of_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"features.fill=mean: column 'age' has no number for any training node"):
        fit(holed(share=1), "mean")
    everywhere = replace(holed(), missing=np.stack([np.arange(4), np.arange(4)], 1))
    with pytest.raises(UserError, match=r"features.fill=drop: every column has an empty cell"):
        fit(everywhere, "drop")


@pytest.mark.parametrize("fill", [{"kind": "mean"}, {"kind": "zero", "means": [1.0]}, {"kind": "mean", "means": ["a"]},
                                  {"kind": "drop", "dropped": [-1]}, {"kind": "mode"}, 3], ids=str)  # fmt: skip
def test_a_forged_fill_is_refused(fill: Any, tmp_path: Path) -> None:
    Inputs.of(table(), "features").save(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "fill": fill}))
    with pytest.raises(UserError):
        Inputs.load(tmp_path)


def test_new_data_takes_the_numbers_of_the_run_in_any_order_of_columns(tmp_path: Path) -> None:
    graph = holed()
    known = replace(Inputs.of(graph, "features"), fill=fit(graph, "mean"))
    new = holed(2, seed=1)  # other cells of another column
    order = [3, 2, 0, 1]
    turned = replace(
        new,
        features=np.asarray(new.features)[:, order],
        feature_names=tuple(NAMES[i] for i in order),
        missing=np.stack([new.missing[:, 0], np.full(len(new.missing), 1)], 1),
    )
    read = known.read(turned, tmp_path)
    np.testing.assert_array_equal(read.features, known.read(new, tmp_path).features)
    trains = graph.split == Split.TRAIN
    np.testing.assert_allclose(read.features[new.missing[0, 0], 2], graph.features[trains, 2].mean())


@pytest.mark.parametrize("kind", ["refuse", "drop"])
def test_new_data_with_other_empty_columns_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    graph = holed() if kind == "drop" else replace(table(), feature_names=NAMES)
    known = replace(Inputs.of(graph, "features"), fill=fit(graph, kind))
    says = rf"the first in column 'height', row \d+: the model of {tmp_path} reads whole columns there"
    with pytest.raises(UserError, match=says):
        known.read(holed(2), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_and_its_predictions_fill_alike(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = holed(2)
    with pytest.raises(UserError, match=r"empty, the first in column 'height', row \d+: choose features.fill=mean"):
        run(graph, tmp_path / "refused")
    capfd.readouterr()
    brief = {"trainer": {"max_epochs": 2}}
    run(graph, tmp_path / "run", features={"fill": "mean"}, **brief)
    assert "empty cells in 1 of 4 columns take the mean of the nodes that train" in capfd.readouterr().out
    by_hand = filled(graph, "mean")
    run(by_hand, tmp_path / "by_hand", **brief)
    few = replace(graph, split=np.where(graph.split == Split.TEST, Split.TRAIN, 0).astype(np.int8))  # another mean
    with within_process():
        keys = {"workers": 2, "threads": 1, "comm": "threads", "write": ["logits"]}
        gnnkit.predict(tmp_path / "run", few, folder=tmp_path / "new", **keys)
        gnnkit.predict(tmp_path / "by_hand", by_hand, folder=tmp_path / "same", **keys)
    logits = np.load(tmp_path / "new/logits.npy")
    np.testing.assert_allclose(logits, np.load(tmp_path / "same/logits.npy"), rtol=1e-5)
    called = gnnkit.load(tmp_path / "run")(few)
    np.testing.assert_allclose(called.detach().numpy(), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_dropped_columns_are_read_over_in_new_data(tmp_path: Path) -> None:
    run(holed(2), tmp_path / "run", features={"fill": "drop"}, trainer={"max_epochs": 1})
    assert gnnkit.load(tmp_path / "run")(holed(2, seed=1)).shape == (120, 3)
    with pytest.raises(UserError, match=r"features.fill=zero is read by inputs=features only: leave the key out"):
        run(table(), tmp_path / "other", inputs="degree", features={"fill": "zero"})
