"""Columns of any scale train alike, and new data is scaled as the data that trained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.prepare.columns import NumericTable
from gnnkit.prepare.trained import Inputs, with_columns
from gnnkit.prepare.transform import InputRows, InputTransform, Scale, is_table, warn_of_edges, why_uneven
from tests.cases import few
from tests.runs import BARE, within_process

SCALES = np.array([3e-3, 1.0, 40.0, 5e6])


def table(scales: np.ndarray | float = SCALES, *, noise: float = 1.0) -> Graph:
    """Three classes that the first column, the smallest, tells best."""
    rng = np.random.default_rng(1)
    labels = np.arange(120) % 3
    src, dst = rng.integers(0, 120, (2, 700))
    stays = (labels[src] == labels[dst]) | (rng.random(700) < 0.1)
    features = noise * rng.normal(size=(120, 4))
    features[:, 0] += 3 * labels
    split = 1 + np.arange(120) // 3 % 3
    return Graph.from_edges(
        src[stays], dst[stays], 120, features=features * scales + scales, labels=labels, split=split
    )


def choose(graph: Graph, kind: str) -> tuple[Scale, str]:
    transform, _, why = InputTransform.fit(NumericTable.of_nodes(graph), graph.split, scale=kind)
    return transform.scale, why


def scaled(scale: Scale, graph: Graph) -> Graph:
    return with_columns(graph, InputTransform(scale=scale).read(NumericTable.of_nodes(graph)).load())


def clipped(scale: Scale, graph: Graph) -> list[str]:
    return InputRows(NumericTable.of_nodes(graph), scale=scale).describe_clipped()


def test_mean_and_deviation_are_those_of_the_rows_that_train() -> None:
    graph = table()
    scale, why = choose(graph, "standard")
    trains = graph.split == Split.TRAIN
    rows = np.asarray(scaled(scale, graph).features)
    np.testing.assert_allclose(rows[trains].mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(rows[trains].std(0), 1, atol=1e-9)
    assert abs(rows[~trains].mean()) > 1e-6
    assert why == "features: standardised by 42 nodes that train (features.scale=standard)"


def test_a_constant_column_becomes_zero() -> None:
    graph = table()
    features = np.column_stack([np.asarray(graph.features), np.full(120, 7.0)])
    constant = replace(graph, features=features)
    assert (np.asarray(scaled(choose(constant, "standard")[0], constant).features)[:, 4] == 0).all()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (np.asarray(table().features), "columns have standard deviations of 0.00"),
        (np.asarray(table(1.0).features), ""),
        (np.asarray(table(9.0).features), "columns have standard deviations of"),
        (np.asarray(table(1.0).features) + 9, "the mean of a column is"),
        (np.repeat(np.eye(100), 2, 0) + 9, "the mean of a column is"),
        (np.repeat(np.eye(100), 2, 0) + 1, ""),
        (np.repeat(np.eye(100), 2, 0), ""),
        (SparseFeatures.of(np.asarray(table().features)), ""),
        (np.ones((5, 3)), ""),
        (np.full((5, 3), 2024.0), "a column is 2.02e+03 in all of these rows"),
        (np.empty((5, 0)), ""),
    ],
    ids=["table", "even", "large", "far", "far and wide", "wide", "words", "sparse", "ones", "constant", "none"],
)
def test_only_uneven_dense_columns_are_scaled_without_being_asked(features: Any, expected: str) -> None:
    none = np.empty(0, np.int64)
    graph = Graph.from_edges(none, none, len(features), features=features)
    assert why_uneven(graph, np.arange(len(features))).startswith(expected)
    assert (why_uneven(graph, np.arange(len(features))) == "") == (expected == "")


def test_auto_says_what_it_does_and_leaves_even_columns_to_the_bit() -> None:
    scale, why = choose(table(), "auto")
    assert (scale.kind, why.startswith("features: standardised by 42 nodes that train (columns have")) == (
        "standard",
        True,
    )
    even = table(1.0)
    scale, why = choose(even, "auto")
    assert (why, scaled(scale, even)) == ("", even)


def test_rows_may_be_scaled_instead() -> None:
    rows = np.asarray(scaled(choose(table(), "row")[0], table()).features)
    np.testing.assert_allclose(np.abs(rows).sum(1), 1)


def test_sparse_rows_are_not_made_dense_unasked() -> None:
    sparse = replace(table(), features=SparseFeatures.of(table().features))
    scale, why = choose(sparse, "auto")
    assert (scale.kind, why[:58]) == ("none", "features: sparse rows stay as they are, with values up to ")
    assert choose(replace(sparse, features=SparseFeatures.of(np.eye(120))), "auto") == (Scale("none"), "")
    with pytest.raises(UserError, match=r"^features.scale=standard: features without zeros .* choose row or none"):
        scaled(choose(sparse, "standard")[0], sparse)


TRAINS = table().split == Split.TRAIN
NOISE = np.random.default_rng(2).normal(size=120)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [0, 100], ids=["table", "wide"])
@pytest.mark.parametrize(
    ("column", "constant"),
    [
        (np.full(120, 2024.0), True),
        (np.full(120, 1e6 + 0.1), True),
        (np.where(TRAINS, 0, 1e6), True),
        (np.where(TRAINS, 1, -1e6), True),
        (np.where(TRAINS, 300.7, 300.8), True),
        (np.where(TRAINS, NOISE, 1e6), False),
        (np.where(NOISE > 0, 1e6, np.nextafter(np.float32(1e6), np.float32(0))), None),
        (5000 + NOISE, False),
        (1e38 * np.sign(NOISE), False),
        (np.where(TRAINS, 1e-30 * NOISE, 1e30), False),
    ],
    ids=["year", "large", "0 in training", "1 in training", "close", "stray", "rounding", "far", "huge", "tiny"],
)
def test_no_column_reaches_the_model_far_from_0(
    column: np.ndarray, constant: bool | None, width: int, dtype: Any
) -> None:
    counts = np.random.default_rng(0).integers(0, 2, (120, width))
    features = np.column_stack([table(1.0).features, counts, column]).astype(dtype)
    graph = replace(table(), features=features)
    scale, why = choose(graph, "auto")
    assert why.startswith("features: standardised by 42 nodes that train (")
    with np.errstate(all="raise", under="ignore"):
        rows = np.asarray(scaled(scale, graph).features)
    assert rows.dtype == dtype
    assert np.abs(rows).max() <= 10
    if constant is None:  # two neighbours of float32 are one number there, and two of float64
        constant = dtype == np.float32
    assert (not rows[:, -1].any()) == constant
    np.testing.assert_allclose(rows[TRAINS, :4].std(0), 1, atol=1e-5)


@pytest.mark.parametrize("column", [np.ones(120), np.where(TRAINS, 0, 1), np.where(TRAINS, 0, 12)])
def test_columns_that_do_no_harm_change_nothing(column: np.ndarray) -> None:
    graph = replace(table(), features=np.column_stack([table(1.0).features, column]))
    assert choose(graph, "auto") == (Scale("none"), "")


def test_edge_features_that_do_not_suit_training_are_told() -> None:
    graph = table()
    seconds = 1.7e9 + np.arange(graph.num_edges)
    for column, told in ((seconds, True), (np.full(graph.num_edges, 2024.0), True), (seconds % 2, False)):
        lines = warn_of_edges(replace(graph, edge_features=column[:, None]))
        assert [line.startswith("warning: edge features: ") for line in lines] == [True] * told
    assert warn_of_edges(graph) == []


@pytest.mark.parametrize(
    ("weight", "message"),
    [(1.0, None), (0.0, "warning: edges: all weights are 0"), (-1.0, "warning: edges: 3 of .* weights are negative")],
)
def test_weights_that_do_not_suit_training_are_told(weight: float, message: str | None) -> None:
    graph = table()
    weights = np.full(graph.num_edges, weight)
    weights[3:] = abs(weight)
    lines = warn_of_edges(replace(graph, csc=replace(graph.csc, weight=weights)))
    assert len(lines) == (message is not None)
    assert message is None or re.match(message, lines[0])


def test_values_that_are_clipped_are_counted_once() -> None:
    column = np.where(np.arange(120) == np.flatnonzero(~TRAINS)[-1], 1e6, NOISE)
    graph = replace(table(), features=np.column_stack([table(1.0).features, column, np.full(120, 0.1)]))
    scale, _ = choose(graph, "auto")
    assert clipped(scale, graph) == [
        "features: values far outside the range of the nodes that train are clipped: 1 in column 4"
    ]
    assert clipped(scale, replace(graph, features=np.where(graph.features == 1e6, 0, graph.features))) == []
    far = Scale.standard(np.r_[np.zeros(399), 1.0][:, None], np.arange(400))  # 20 deviations from the mean
    assert far.limit == [pytest.approx(19.975, abs=1e-3)]


def with_tails(graph: Graph) -> Graph:
    """Adds two columns with heavy tails, and two of rare values."""
    rng = np.random.default_rng(3)
    heavy = 1e4 * rng.lognormal(size=(120, 2)) * [1, -1]
    largest = (np.arange(120) == np.flatnonzero(TRAINS)[5])[:, None]
    heavy, rare = np.where(largest, 100 * heavy, heavy), largest * [1.0, 90.0]
    return replace(graph, features=np.column_stack([graph.features, heavy, rare]))


def test_columns_with_heavy_tails_are_logarithms() -> None:
    graph = with_tails(table())
    scale, why = choose(graph, "auto")
    assert why.endswith("; heavy tails enter as logarithms in 2 of 8 columns")
    assert np.flatnonzero(scale.spread or ()).tolist() == [4, 5]
    raw, rows = np.asarray(graph.features), np.asarray(scaled(scale, graph).features)
    plain = Scale.standard(raw, np.flatnonzero(TRAINS))
    np.testing.assert_array_equal(rows[:, [0, 1, 2, 3, 6, 7]], plain.apply(raw)[:, [0, 1, 2, 3, 6, 7]])
    for column in (4, 5):
        assert (np.argsort(rows[:, column]) == np.argsort(raw[:, column])).all()
        assert np.abs(rows[TRAINS, column]).max() < 5 < np.abs(plain.apply(raw)[TRAINS, column]).max()
        distance = np.abs(raw[TRAINS, column] - np.median(raw[TRAINS, column]))
        logs = np.sign(raw[TRAINS, column] - np.median(raw[TRAINS, column])) * np.log1p(distance / np.median(distance))
        np.testing.assert_allclose(rows[TRAINS, column], (logs - logs.mean()) / logs.std(), rtol=1e-9)
    np.testing.assert_array_equal(np.concatenate([scale.apply(raw[row : row + 1]) for row in range(120)]), rows)


def test_constant_columns_beside_heavy_tails_stay_zero() -> None:
    close = 1e6 + np.spacing(1e6) * np.where(np.arange(120) == 7, 13, np.arange(120) % 3)  # equal but for rounding
    rows = np.column_stack([with_tails(table()).features, np.full(120, 7.0), close])
    plain = Scale.standard(rows, np.arange(120))
    with np.errstate(all="raise", under="ignore"):
        scale = plain.compress(rows, np.arange(120))
        assert np.flatnonzero(scale.spread or ()).tolist() == [4, 5]
        assert not scale.apply(rows)[:, 8:].any()
    assert [of.limit[8:] for of in (plain, scale) if of.limit] == [[0, 0], [0, 0]]


def test_texts_and_even_columns_have_no_tails() -> None:
    graph = with_tails(table())
    rows = np.delete(np.asarray(graph.features), [4, 5], axis=1)
    scale = Scale.standard(rows, np.arange(120), ("",) * 5 + ("town",))
    assert scale.compress(rows, np.arange(120)) is scale
    assert choose(table(), "auto")[0].spread is None


@pytest.mark.parametrize("kind", ["row", "standard"])
def test_large_numbers_of_float32_do_not_overflow(kind: str) -> None:
    rows = np.full((120, 4), 3e38, np.float32) * np.sign(NOISE)[:, None].astype(np.float32)
    for features in (rows, *([SparseFeatures.of(rows)] if kind == "row" else [])):
        graph = replace(table(), features=features)
        rows = np.asarray(scaled(choose(graph, kind)[0], graph).features)
        np.testing.assert_allclose(np.abs(rows), 0.25 if kind == "row" else 1, atol=0.4 * (kind != "row"))


@pytest.mark.parametrize("scale", [{"kind": "standard"}, {"kind": "standard", "mean": [0.0], "deviation": [0.0], "limit": [1.0]},
                                   {"kind": "standard", "mean": [0.0], "deviation": [1.0], "limit": [1.0, 2.0]},
                                   {"kind": "standard", "mean": [0.0], "deviation": [1.0]}, {"kind": "none", "mean": [1.0], "deviation": [1.0]},
                                   {"kind": "standard", "mean": [0.0], "deviation": [1.0], "limit": [1.0], "median": [0.0]},
                                   {"kind": "standard", "mean": [0.0], "deviation": [1.0], "limit": [1.0], "median": [0.0], "spread": [-1.0]},
                                   {"kind": "none", "median": [0.0], "spread": [1.0]},
                                   {"kind": "standard", "mean": ["a"], "deviation": [1.0], "limit": [1.0]}, {"kind": "log"}, 3], ids=str)  # fmt: skip
def test_a_forged_scale_is_refused(scale: Any, tmp_path: Path) -> None:
    Inputs.of(table(), "features").save(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "scale": scale}))
    with pytest.raises(UserError):
        Inputs.load(tmp_path)


def run(graph: Graph, folder: Path, **keys: Any) -> Mapping[str, Any]:
    keys = {"trainer": {"max_epochs": 12, "lr": 0.05}, "strategy": "vertex_centric", **keys}
    with within_process():
        return gnnkit.train(graph, folder=folder, workers=2, threads=1, comm="threads", **BARE, **keys)


@pytest.mark.exhaustive
@pytest.mark.slow
@few("strategy", ["vertex_centric", "individual_sample"], default=["vertex_centric"])
def test_a_table_of_any_scale_trains_as_an_even_one(
    strategy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = run(table(), tmp_path / "raw", strategy=strategy)
    assert "features: standardised by 42 nodes that train" in "".join(capfd.readouterr())
    even = run(table(1.0), tmp_path / "even", strategy=strategy, overrides=["features.scale=standard"])
    assert raw["test_accuracy"] == even["test_accuracy"] > 0.8
    left = run(table(), tmp_path / "left", strategy=strategy, overrides=["features.scale=none"])
    assert left["test_accuracy"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("tails", [False, True], ids=["even", "tails"])
def test_new_data_is_scaled_by_the_numbers_of_the_run(tails: bool, tmp_path: Path) -> None:
    graph = with_tails(table()) if tails else table()
    run(graph, tmp_path / "run", trainer={"max_epochs": 2})
    some = np.arange(120) < 40  # of which mean and deviation are others
    new = replace(graph, split=np.where(some, Split.TEST, 0).astype(np.int8))
    keys = {"workers": 2, "threads": 1, "comm": "threads"}
    with within_process():
        whole = gnnkit.predict(tmp_path / "run", graph, folder=tmp_path / "whole", **keys)
        shifted = gnnkit.predict(
            tmp_path / "run", replace(new, features=graph.features + 0), folder=tmp_path / "new", **keys
        )
    np.testing.assert_array_equal(
        np.load(tmp_path / "whole/predictions.npy"), np.load(tmp_path / "new/predictions.npy")
    )
    assert whole["checkpoint"] == shifted["checkpoint"]
    model = gnnkit.load(tmp_path / "run")
    edges = np.stack([graph.csc.indices, np.repeat(np.arange(120), np.diff(graph.csc.indptr))]).astype(np.int64)
    torch.testing.assert_close(model(torch.from_numpy(graph.features), torch.from_numpy(edges)), model(graph))
    with pytest.raises(UserError, match=r"features.scale cannot be changed for checkpoint="):
        gnnkit.predict(tmp_path / "run", graph, overrides=["features.scale=none"], folder=tmp_path / "other")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_resumed_run_keeps_the_scale(tmp_path: Path) -> None:
    whole = run(table(), tmp_path / "whole", trainer={"max_epochs": 3})
    run(table(), tmp_path / "half", trainer={"max_epochs": 1})
    resume = str(tmp_path / "half/checkpoints/last.json")
    resumed = {"max_epochs": 3, "resume": resume}
    rest = run(table(), tmp_path / "rest", trainer=resumed)
    assert rest["train_loss"] == whole["train_loss"]
    with pytest.raises(UserError, match=r"features\.scale"):
        run(table(), tmp_path / "o", trainer=resumed, overrides=["features.scale=none"])


def test_nothing_is_scaled_where_there_are_no_features(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^features.scale=standard is read by inputs=features only: leave the key out"):
        run(table(), tmp_path / "run", overrides=["inputs=degree", "features.scale=standard"])


def test_a_scale_of_other_columns_is_refused() -> None:
    scale, _ = choose(table(), "standard")
    narrow = replace(table(), features=np.zeros((120, 3)))
    with pytest.raises(UserError, match="dataset has 3 columns of features, the model reads 4"):
        scaled(scale, narrow)


def test_a_table_has_categories_few_columns_or_numbers_below_0() -> None:
    words = np.random.default_rng(0).integers(0, 3, (120, 300)).astype(np.float32)
    below = words.copy()
    below[7] = -1
    cases = [(words, False), (below, True), (words[:, :3], True)]
    for features, expected in cases:
        assert is_table(replace(table(), features=features)) is expected
        if features.shape[1] > 3:
            assert is_table(replace(table(), features=SparseFeatures.of(features))) is expected
    assert is_table(replace(table(), features=words, category_of=("town",) * 300))
